// What an op of the CPU backend works with. Engine thread; a view, made per call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backends/cpu_backend.h"
#include "kernels/cpu/shared_prefix.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/variant.h"

namespace tramontane {

// Scratch memory, taken once by Backend::Reserve. Each op may use all of it while it runs; nothing in it
// outlives the op. 64-byte aligned.
struct CpuWorkspace {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

struct CpuContext {
  const CpuKernels& kernels;
  ThreadPool& pool;
  CpuWorkspace workspace;
  SharedPrefixMemo& shared_prefixes;
  LinearMode linear = kDefaultLinearMode;
};

}  // namespace tramontane
