// Which key a query sees, by its definition. Any thread; pure.
#pragma once

#include <cstdint>

namespace tramontane::reference {

// The key is not after the query, and it is among the last `window` positions up to and with the query's own.
// window 0: all of them.
inline bool Sees(int64_t query_position, int64_t key_position, int64_t window) {
  if (key_position < 0 || key_position > query_position) return false;
  return window == 0 || query_position - key_position < window;
}

}  // namespace tramontane::reference
