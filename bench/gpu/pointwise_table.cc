// The small kernels of a Mistral 7B step.
#include "bench/gpu/tables.h"
#include "kernels/cuda/pointwise.h"

namespace tramontane::gpu {
namespace {

constexpr int32_t kHidden = 4096, kIntermediate = 14336, kQueryHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int32_t kQkvWidth = (kQueryHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kCalls = 16;

}  // namespace

Table PointwiseTable(Device& device, const Progress& progress) {
  Table table;
  table.name = "Small kernels";
  table.note =
      "The bound is what each reads and writes, once, at the rate of memory. With few tokens a launch "
      "costs more than the bytes.";
  for (const int32_t tokens : {1, 32, 512, 4096}) {
    auto add = [&](const char* name, double bytes, const Device::Call& call) {
      AddRow(table,
             {std::string(name) + ", " + std::to_string(tokens), device.MedianSeconds(kCalls, call),
              MemoryBound(tokens * bytes, device.memory_bytes_per_second())},
             progress);
    };
    cuda::RmsNormKernelParams norm{};
    norm.x = device.AllocateRandom(int64_t{tokens} * kHidden * 2);
    norm.weight = device.Upload(std::vector<float>(kHidden, 1.0f));
    norm.y = device.Allocate(int64_t{tokens} * kHidden * 2);
    norm.x_stride = kHidden;
    norm.rows = tokens;
    norm.width = kHidden;
    norm.epsilon = 1e-5f;
    add("RMSNorm", kHidden * 4.0,
        [&](int, cudaStream_t stream) { return cuda::LaunchRmsNorm(norm, stream); });

    cuda::SwiGluKernelParams swiglu{};
    swiglu.gate_up = device.AllocateRandom(int64_t{tokens} * kIntermediate * 4);
    swiglu.h = device.Allocate(int64_t{tokens} * kIntermediate * 2);
    swiglu.h_stride = kIntermediate;
    swiglu.rows = tokens;
    swiglu.width = kIntermediate;
    add("SwiGLU", kIntermediate * 6.0,
        [&](int, cudaStream_t stream) { return cuda::LaunchSwiGlu(swiglu, stream); });

    RopeAppendParams rope;
    rope.qkv =
        MakeTensor(device.AllocateRandom(int64_t{tokens} * kQkvWidth * 2), DType::kBf16, tokens, kQkvWidth);
    rope.cos_sin = device.Upload(std::vector<float>(static_cast<size_t>(tokens) * kHeadDim, 0.5f));
    rope.query_heads = kQueryHeads;
    rope.kv = KvLayerView({.element = DType::kBf16, .kv_heads = kKvHeads, .head_dim = kHeadDim});
    rope.kv.page_bytes = rope.kv.format.PageBytes(1);
    rope.kv.pool = static_cast<std::byte*>(
        device.Allocate((tokens / rope.kv.format.page_size + 1) * rope.kv.page_bytes));
    std::vector<int64_t> slots(static_cast<size_t>(tokens));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
    rope.slots = device.Upload(slots);
    add("rotate and append", kQkvWidth * 4.0 + kHeadDim * 4.0,
        [&](int, cudaStream_t stream) { return cuda::LaunchRopeAppend(rope, stream); });
    device.FreeAll();
  }
  return table;
}

}  // namespace tramontane::gpu
