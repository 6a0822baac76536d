#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMapFrom = size_t{1}
                            << 20;  // smaller blocks come from the C library (and AddressSanitizer sees them)

// Stands in front of every block.
struct alignas(kAlignment) Header {
  size_t mapped_bytes = 0;  // 0: from the C library
};
static_assert(sizeof(Header) == kAlignment);

}  // namespace

void* AllocateZeroed(int64_t bytes) {
  TM_CHECK(bytes >= 0, "allocation of %lld bytes", static_cast<long long>(bytes));
  const size_t total =
      (static_cast<size_t>(bytes) + sizeof(Header) + kAlignment - 1) / kAlignment * kAlignment;
  Header header;
  void* block = nullptr;
  if (total < kMapFrom) {
    block = std::aligned_alloc(kAlignment, total);
    if (block == nullptr) return nullptr;
    std::memset(block, 0, total);
  } else {
    block = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    madvise(block, total, MADV_HUGEPAGE);  // advice: no harm where it is refused
    header.mapped_bytes = total;
  }
  std::memcpy(block, &header, sizeof header);
  return static_cast<std::byte*>(block) + sizeof header;
}

void FreeZeroed(void* memory) {
  if (memory == nullptr) return;
  void* block = static_cast<std::byte*>(memory) - sizeof(Header);
  Header header;
  std::memcpy(&header, block, sizeof header);
  if (header.mapped_bytes == 0) {
    std::free(block);
  } else {
    munmap(block, header.mapped_bytes);
  }
}

}  // namespace tramontane
