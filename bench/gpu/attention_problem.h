// One attention call of Mistral 7B's shapes (32 query and 8 kv heads of 128, pages of 16 tokens), with
// random keys and values in so many pools that the L2 cache holds none of them, and what it must move and
// compute. It goes by the kernels, tiles and splits that the backend would choose on the device, though
// nobody looks for sharers; or by others, over the same numbers. Quantised pages of many rows are decoded
// with each call, as a server's are of each layer. One thread; the device outlives it and owns its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/problem_device.h"
#include "kernels/core/format.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/decoded_pages.h"
#include "kernels/cuda/hopper_attention.h"

namespace tramontane::gpu {

struct AttentionShape {
  int32_t batch;
  int32_t context;
  int32_t queries;  // of each sequence: its last tokens
  int32_t window;   // 0: none
  Format pages = DType::kBf16;
};

// "8 x 32k", "8 x 32k, window 4k", "8 x 4k, int8 pages".
std::string NameOf(const AttentionShape& shape);

class AttentionProblem {
 public:
  // Queues the work list on the device's stream. By the kernels that the backend would choose.
  AttentionProblem(ProblemDevice& device, const AttentionShape& shape);
  // By these. REQUIRES: the chosen ones, or kMmaSync, or over quantised pages kByRow, which decodes none of
  // them first.
  AttentionProblem(ProblemDevice& device, const AttentionShape& shape, cuda::AttentionKernels kernels);

  cuda::AttentionKernels kernels() const { return kernels_; }
  bool decodes_pages() const { return decoded_pages_ != nullptr; }
  // "HopperPrefillKernel, 128 rows", "DecodePagesKernel, HopperPrefillKernel, 128 rows".
  std::string KernelName() const;
  int copies() const { return copies_; }
  // Queues the call over the i-th pool; an error of the device, or 0.
  int Run(int i, void* stream) const;
  // Queues what makes the work list, once a step in a server, as is the list of pages that are decoded.
  int Plan(void* stream) const { return cuda::PlanAttention(plan_, stream); }
  const void* out() const { return run_.out; }  // device: OutElements of bf16, of the call that ran last
  int64_t OutElements() const;

  double Bytes() const;  // keys, values and their scales, queries and outputs, each once
  double Flops() const;  // of the (query, key) pairs that see each other

 private:
  AttentionProblem(ProblemDevice& device, const AttentionShape& shape,
                   std::optional<cuda::AttentionKernels> kernels);

  // As the backend would be called.
  AttentionParams MakeCall(ProblemDevice& device);
  // The call over what its pages are decoded to, in memory of the device.
  AttentionParams DecodedCall(ProblemDevice& device);
  void PlanFor(const AttentionParams& call, ProblemDevice& device);
  KvLayerView PoolOf(int i) const;
  bool IsHopper() const;
  double Pairs() const;

  const AttentionShape shape_;
  AttentionParams call_;                               // over the first pool
  std::unique_ptr<cuda::DecodedPages> decoded_pages_;  // null: pages are read as they are
  cuda::AttentionKernels kernels_ = cuda::AttentionKernels::kMmaSync;
  std::byte* pool_ = nullptr;
  int64_t pool_bytes_ = 0;
  int copies_ = 1;
  cuda::AttentionPlanParams plan_{};
  cuda::AttentionRunParams run_{};
  std::vector<cuda::TensorMap> pool_maps_;  // [copies] where the kernels are Hopper's; of decoded pages one
  int32_t multiprocessors_ = 0;
};

}  // namespace tramontane::gpu
