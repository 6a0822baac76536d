#include "tests/engine/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace tramontane {
namespace {
thread_local int64_t allocations = 0;
}

int64_t AllocationsOfThread() { return allocations; }

}  // namespace tramontane

void* operator new(std::size_t bytes) {
  ++tramontane::allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
