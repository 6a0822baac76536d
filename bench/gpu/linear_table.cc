// The matrix products of a Mistral 7B layer and its head for 1 to 16 rows.
#include "bench/gpu/tables.h"
#include "kernels/cuda/linear_small.h"

namespace tramontane::gpu {
namespace {

struct Product {
  const char* name;
  int32_t in, out;
  Prologue prologue;
  Epilogue epilogue;
  DType out_dtype;
};

// As the backend calls it: with more rows the norm is a kernel of its own.
cuda::SmallLinearParams ParamsOf(const Product& product, int32_t rows) {
  cuda::SmallLinearParams p{};
  p.rows = rows;
  p.in_features = product.in;
  p.out_features = product.out;
  p.x_stride = product.in;
  p.out_stride = product.epilogue == Epilogue::kSwiGlu ? product.out / 2 : product.out;
  p.epsilon = 1e-5f;
  p.prologue = rows <= cuda::kFusedNormRows ? product.prologue : Prologue::kNone;
  p.epilogue = product.epilogue;
  p.out_dtype = product.out_dtype;
  return p;
}

}  // namespace

Table SmallLinearTable(Device& device) {
  Table table;
  table.name = "Linear layers, few rows";
  table.note =
      "Our own kernel, with norm, residual or SwiGLU fused as in a step. The bound is the weight, read "
      "once, at the rate of a copy; the weights rotate, so none is found in the cache.";
  const Product products[] = {
      {"qkv", 4096, 6144, Prologue::kRmsNorm, Epilogue::kNone, DType::kBf16},
      {"attention out", 4096, 4096, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16},
      {"gate and up", 4096, 28672, Prologue::kRmsNorm, Epilogue::kSwiGlu, DType::kBf16},
      {"down", 14336, 4096, Prologue::kNone, Epilogue::kAddResidual, DType::kBf16},
      {"head", 4096, 32000, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32}};
  for (const Product& product : products) {
    const int64_t weight_bytes = int64_t{product.in} * product.out * 2;
    const int copies = device.CopiesBeyondCache(weight_bytes);
    auto* weights = static_cast<std::byte*>(device.AllocateRandom(copies * weight_bytes, 0.02f));
    for (const int32_t rows : {1, 2, 4, 8, 16}) {
      cuda::SmallLinearParams p = ParamsOf(product, rows);
      p.x = device.AllocateRandom(int64_t{rows} * product.in * 2);
      p.norm_weight = device.Upload(std::vector<float>(static_cast<size_t>(product.in), 1.0f));
      p.out = device.Allocate(int64_t{rows} * product.out * 4);
      const double seconds = device.MedianSeconds(copies, [&](int i, cudaStream_t stream) {
        p.weight = weights + i * weight_bytes;
        return cuda::LaunchSmallLinear(p, stream);
      });
      table.rows.push_back({std::string(product.name) + ", " + std::to_string(rows), seconds,
                            MemoryBound(static_cast<double>(weight_bytes), device.copy_bytes_per_second())});
    }
    device.FreeAll();
  }
  return table;
}

}  // namespace tramontane::gpu
