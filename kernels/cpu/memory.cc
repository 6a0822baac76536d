#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

constexpr size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Null when there is not enough.
void* MapZeroed(size_t bytes) {
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  madvise(mapping, bytes, MADV_HUGEPAGE);  // advice: no harm where it is refused
  return mapping;
}

}  // namespace

void* AllocateZeroed(int64_t bytes) {
  TM_CHECK(bytes >= 0, "allocation of %lld bytes", static_cast<long long>(bytes));
  const size_t total = RoundUp(static_cast<size_t>(bytes) + sizeof(Header), kAlignment);
  Header header;
  void* block = nullptr;
  if (total < kMapFrom) {
    block = std::aligned_alloc(kAlignment, total);
    if (block == nullptr) return nullptr;
    std::memset(block, 0, total);
  } else {
    block = MapZeroed(total);
    if (block == nullptr) return nullptr;
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

WeightArena::~WeightArena() {
  for (const Mapping& mapping : mappings_) munmap(mapping.begin, mapping.bytes);
}

void* WeightArena::Allocate(int64_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  constexpr size_t kMappingBytes = size_t{64} << 20;
  const size_t needed = RoundUp(static_cast<size_t>(bytes), kAlignment);
  if (mappings_.empty() || mappings_.back().bytes - mappings_.back().used < needed) {
    const size_t mapped = std::max(kMappingBytes, RoundUp(needed + kHugePage, kHugePage));
    auto* begin = static_cast<std::byte*>(MapZeroed(mapped));
    if (begin == nullptr) return nullptr;
    const size_t to_huge_page =
        RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
    mappings_.push_back({.begin = begin, .bytes = mapped, .used = to_huge_page, .blocks = 0});
  }
  Mapping& last = mappings_.back();
  std::byte* block = last.begin + last.used;
  last.used += needed;
  ++last.blocks;
  return block;
}

void WeightArena::Free(void* memory) {
  const auto* at = static_cast<const std::byte*>(memory);
  const auto mapping = std::find_if(mappings_.begin(), mappings_.end(), [&](const Mapping& m) {
    return at >= m.begin && at < m.begin + m.bytes;
  });
  TM_CHECK(mapping != mappings_.end(), "a block of another arena");
  if (--mapping->blocks > 0) return;
  munmap(mapping->begin, mapping->bytes);
  mappings_.erase(mapping);
}

}  // namespace tramontane
