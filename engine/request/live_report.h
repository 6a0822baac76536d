// LiveReport: the requests that have been in a plan and have not ended, between two steps, for whoever wants
// to look. What waits for its first plan is not in it: nobody visits that. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/request/sequence.h"

namespace tramontane {

class TokenStream;

struct LiveReport {
  static constexpr size_t kRequests = 1024;  // those that began first

  struct OfRequest {
    const TokenStream* stream = nullptr;  // a name, and no more
    SequenceState state =
        SequenceState::kWaiting;  // of the choice that is furthest; waiting: it was preempted
    int64_t output_tokens = 0;    // of all choices
    int64_t pages = 0;            // that they hold, shared ones as often as they are
  };
  std::vector<OfRequest> requests;
};

}  // namespace tramontane
