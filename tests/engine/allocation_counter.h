// What a thread asks of operator new, which is replaced in a program that this is part of. Any thread.
#pragma once

#include <cstdint>

namespace tramontane {

// Calls by this thread so far.
int64_t AllocationsOfThread();
// Bytes that it asked for.
int64_t AllocatedBytesOfThread();

}  // namespace tramontane
