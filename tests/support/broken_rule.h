// While it lives, a rule of the KV cache is broken in this process (kernels/core/broken_rule.h). The test's
// thread, while nothing runs.
#pragma once

#include "kernels/core/broken_rule.h"

namespace tramontane {

class BrokenRule {
 public:
  explicit BrokenRule(KvRule rule) { broken_kv_rule = rule; }
  ~BrokenRule() { broken_kv_rule = KvRule::kNone; }
  BrokenRule(const BrokenRule&) = delete;
  BrokenRule& operator=(const BrokenRule&) = delete;
};

}  // namespace tramontane
