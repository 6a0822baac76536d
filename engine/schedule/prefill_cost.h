// PrefillCost: what a chunk of a prompt costs, so that steps of long contexts take no longer than others.
// Any thread; a plain value.
//
//   cost of [begin, end) = tokens + attended keys / kappa        in token equivalents
//
// Attended keys: for each token the keys that its query sees, min(position + 1, window), as the mean over the
// model's layers. To make costs of chunks add up exactly they are counted in parts of a token equivalent.
#pragma once

#include <cstdint>
#include <vector>

#include "models/kv_layout.h"

namespace tramontane {

class PrefillCost {
 public:
  PrefillCost(const KvLayout& layout, int64_t attended_keys_per_token);

  // `most_keys`: a row sees no more, whatever its layers' windows.
  int64_t Parts(int64_t begin, int64_t end, int64_t most_keys = kMaxContext) const;
  // Added up over the layers.
  int64_t AttendedKeys(int64_t begin, int64_t end, int64_t most_keys = kMaxContext) const;
  int64_t parts_per_token() const { return parts_per_token_; }
  int64_t TokenEquivalents(int64_t parts) const { return (parts + parts_per_token_ - 1) / parts_per_token_; }

 private:
  struct WindowClass {
    int32_t window = 0;  // 0: none
    int64_t layers = 0;
  };
  std::vector<WindowClass> classes_;
  int64_t parts_per_token_ = 0;  // kappa * layers
};

}  // namespace tramontane
