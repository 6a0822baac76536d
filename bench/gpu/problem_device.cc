#include "bench/gpu/problem_device.h"

#include <algorithm>
#include <cstddef>

#include "bench/gpu/random_weights.h"

namespace tramontane::gpu {
namespace {

constexpr int64_t kRandomBlockBytes = int64_t{64} << 20;

}  // namespace

void* ProblemDevice::AllocateRandom(int64_t bytes, float scale) {
  const std::vector<uint16_t> block = RandomBf16(std::min(bytes, kRandomBlockBytes) / 2, scale, 17);
  auto* memory = static_cast<std::byte*>(Allocate(bytes));
  const auto block_bytes = static_cast<int64_t>(block.size() * 2);
  for (int64_t done = 0; done < bytes; done += block_bytes)
    CopyToDevice(memory + done, block.data(), std::min(block_bytes, bytes - done));
  return memory;
}

}  // namespace tramontane::gpu
