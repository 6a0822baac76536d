// How much work an Encode() was, for tests: each number is linear in the text's length.
#pragma once

#include <cstdint>

namespace tramontane {

struct EncodeWork {
  uint64_t symbols = 0;       // before any merge
  uint64_t pair_lookups = 0;  // at most 3 per symbol
  uint64_t heap_pops = 0;     // at most one per lookup
};

}  // namespace tramontane
