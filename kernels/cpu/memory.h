// Zero-filled, 64-byte aligned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tramontane {

// Any thread. Null when there is not enough. Blocks of a MiB and more are mapped on their own, from the
// border of a 2 MiB page that the system is asked to back them by (keys and values lie scattered in their
// pool: in small pages each of them costs a walk through the page table); untouched pages cost nothing.
void* AllocateZeroed(int64_t bytes);
void FreeZeroed(void* memory);  // null is harmless

// Where packed weights stand: side by side in large mappings that the system is asked to back by huge pages.
// A decode step reads every weight once, and over small pages that took half as long again (a layer's weights
// are about as large as one huge page, so each in a mapping of its own would have none). One thread at a
// time.
class WeightArena {
 public:
  WeightArena() = default;
  ~WeightArena();
  WeightArena(const WeightArena&) = delete;
  WeightArena& operator=(const WeightArena&) = delete;

  void* Allocate(int64_t bytes);  // zero-filled, 64-byte aligned; null when there is not enough
  void Free(void* memory);        // of Allocate; a mapping goes when its last block does

 private:
  struct Mapping {
    std::byte* begin;
    size_t bytes;
    size_t used;     // from begin; never reused, so what is handed out is zero
    int64_t blocks;  // live
  };

  std::vector<Mapping> mappings_;  // blocks are taken from the last
};

}  // namespace tramontane
