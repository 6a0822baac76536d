// Zero-filled, 64-byte aligned memory. Any thread.
#pragma once

#include <cstdint>

namespace tramontane {

// Null when there is not enough. Large blocks are mapped on their own: untouched pages cost nothing, and the
// kernel is asked for huge ones (a decode step reads all weights once, so page walks count).
void* AllocateZeroed(int64_t bytes);
void FreeZeroed(void* memory);  // null is harmless

}  // namespace tramontane
