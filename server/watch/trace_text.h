// TraceText: what happens from the moment it is made, as Chrome's trace events: one JSON array, bit by bit.
// One thread at a time.
#pragma once

#include <string>

namespace tramontane {

class TraceText {
 public:
  virtual ~TraceText() = default;
  // What has ended since the last call.
  virtual std::string Next() = 0;
  // The same, and the end of the array. Once, last.
  virtual std::string End() = 0;
};

}  // namespace tramontane
