// One attention call of Mistral 7B's shapes (32 query and 8 kv heads of 128, bf16, pages of 16 tokens), with
// random keys and values in so many pools that the L2 cache holds none of them, and what it must move and
// compute. One thread; the device outlives it, and FreeAll takes its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "bench/gpu/device.h"
#include "kernels/cuda/attention.h"

namespace tramontane::gpu {

struct AttentionShape {
  int32_t batch;
  int32_t context;
  int32_t queries;  // of each sequence: its last tokens
  int32_t window;   // 0: none
};

// "8 x 32k", "8 x 32k, window 4k".
std::string NameOf(const AttentionShape& shape);

class AttentionProblem {
 public:
  AttentionProblem(Device& device, const AttentionShape& shape);

  int copies() const { return copies_; }
  // Queues the call over the i-th pool; an error of the device, or 0.
  int Run(int i, cudaStream_t stream) const;
  // Queues what makes the work list, once a step in a server.
  int Plan(cudaStream_t stream) const { return cuda::PlanAttention(plan_, stream); }

  double Bytes() const;  // keys, values, queries and outputs, each once
  double Flops() const;  // of the (query, key) pairs that see each other

 private:
  double Pairs() const;

  const AttentionShape shape_;
  std::byte* pool_ = nullptr;
  int64_t pool_bytes_ = 0;
  int copies_ = 1;
  cuda::AttentionPlanParams plan_{};
  cuda::AttentionRunParams run_{};
};

}  // namespace tramontane::gpu
