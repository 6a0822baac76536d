#include "tests/engine/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace tramontane {
namespace {
thread_local int64_t allocations = 0;
thread_local int64_t allocated_bytes = 0;
}  // namespace

int64_t AllocationsOfThread() { return allocations; }
int64_t AllocatedBytesOfThread() { return allocated_bytes; }

}  // namespace tramontane

void* operator new(std::size_t bytes) {
  ++tramontane::allocations;
  tramontane::allocated_bytes += static_cast<int64_t>(bytes);
  if (void* memory = std::malloc(bytes)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
