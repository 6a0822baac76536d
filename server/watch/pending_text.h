// PendingText: a text that another thread still has to make. One thread at a time.
#pragma once

#include <optional>
#include <string>

namespace tramontane {

class PendingText {
 public:
  virtual ~PendingText() = default;
  // Nothing: not yet. The text once, when it is there.
  virtual std::optional<std::string> Take() = 0;
};

}  // namespace tramontane
