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
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMapFrom = size_t{1}
                            << 20;  // smaller blocks come from the C library (and AddressSanitizer sees them)

// Stands in front of every block.
struct alignas(kAlignment) Header {
  void* mapping = nullptr;  // null: from the C library
  size_t mapped_bytes = 0;
};
static_assert(sizeof(Header) == kAlignment);

constexpr size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Null when there is not enough.
std::byte* Map(size_t bytes) {
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapping == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapping);
}

void AskForHugePages(void* memory, size_t bytes) {
  madvise(memory, bytes, MADV_HUGEPAGE);  // advice: no harm where it is refused
}

std::byte* AlignToHugePage(std::byte* memory) {
  return memory +
         (RoundUp(reinterpret_cast<uintptr_t>(memory), kHugePage) - reinterpret_cast<uintptr_t>(memory));
}

// A block whose first byte begins a huge page, so that all of it but the last part of one can lie in huge
// pages. The header stands in a small page before it; what else is mapped for the alignment is never touched.
void* MapZeroed(size_t bytes) {
  const size_t mapped_bytes = RoundUp(bytes, kAlignment) + sizeof(Header) + kHugePage;
  std::byte* mapping = Map(mapped_bytes);
  if (mapping == nullptr) return nullptr;
  std::byte* block = AlignToHugePage(mapping + sizeof(Header));
  const Header header = {.mapping = mapping, .mapped_bytes = mapped_bytes};
  std::memcpy(block - sizeof header, &header, sizeof header);
  AskForHugePages(block, RoundUp(bytes, kAlignment));
  return block;
}

}  // namespace

void* AllocateZeroed(int64_t bytes) {
  TM_CHECK(bytes >= 0, "allocation of %lld bytes", static_cast<long long>(bytes));
  const size_t total = RoundUp(static_cast<size_t>(bytes) + sizeof(Header), kAlignment);
  if (total >= kMapFrom) return MapZeroed(static_cast<size_t>(bytes));
  void* block = std::aligned_alloc(kAlignment, total);
  if (block == nullptr) return nullptr;
  std::memset(block, 0, total);
  return static_cast<std::byte*>(block) + sizeof(Header);
}

void FreeZeroed(void* memory) {
  if (memory == nullptr) return;
  void* block = static_cast<std::byte*>(memory) - sizeof(Header);
  Header header;
  std::memcpy(&header, block, sizeof header);
  if (header.mapping == nullptr) {
    std::free(block);
  } else {
    munmap(header.mapping, header.mapped_bytes);
  }
}

WeightArena::~WeightArena() {
  for (const Mapping& mapping : mappings_) munmap(mapping.begin, mapping.bytes);
}

void* WeightArena::Allocate(int64_t bytes) {
  // A mapping ends with a huge page that is not full, so there are few: each is as large as all before it.
  constexpr size_t kLeastMapping = size_t{64} << 20;
  constexpr size_t kMostMapping = size_t{1} << 30;
  const size_t needed = RoundUp(static_cast<size_t>(bytes), kAlignment);
  if (mappings_.empty() || mappings_.back().bytes - mappings_.back().used < needed) {
    size_t mapped = 0;
    for (const Mapping& mapping : mappings_) mapped += mapping.bytes;
    mapped =
        std::max(std::clamp(mapped, kLeastMapping, kMostMapping), RoundUp(needed + kHugePage, kHugePage));
    std::byte* begin = Map(mapped);
    if (begin == nullptr) return nullptr;
    AskForHugePages(begin, mapped);
    const auto to_huge_page = static_cast<size_t>(AlignToHugePage(begin) - begin);
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
