// The pieces of Linear that are compiled once per instruction set; linear.h tells what they are for.
#pragma once

#include <cstdint>

namespace tramontane {

struct LinearKernels {
  int32_t panel_width;  // outputs that lie side by side in a packed weight: two vectors
  int32_t tile_rows;    // most rows of x that one pass over a panel multiplies
};

}  // namespace tramontane
