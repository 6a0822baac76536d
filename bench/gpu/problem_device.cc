#include "bench/gpu/problem_device.h"

#include "bench/gpu/fill_normal.h"
#include "kernels/core/check.h"

namespace tramontane::gpu {

void* ProblemDevice::AllocateRandom(int64_t bytes, float scale) {
  const int64_t count = (bytes + 1) / 2;
  void* const memory = Allocate(count * 2);
  const int error = LaunchFillNormal({.out = memory, .count = count, .scale = scale, .seed = 17}, stream());
  TM_CHECK(error == 0, "filling %lld bytes: error %d", static_cast<long long>(bytes), error);
  return memory;
}

}  // namespace tramontane::gpu
