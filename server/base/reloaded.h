// What came of a look at a file that may have changed. A plain value.
#pragma once

namespace tramontane {

enum class Reloaded {
  kUnchanged,
  kTaken,   // its new content is in force
  kFailed,  // its new content has a fault: what was in force still is
};

}  // namespace tramontane
