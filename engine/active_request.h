// The engine thread's side of a request: its choices, each of which is a sequence for the scheduler. Engine
// thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/live_request.h"
#include "engine/output_constraint.h"
#include "engine/sampling_history.h"
#include "engine/sequence.h"

namespace tramontane {

struct ActiveRequest;

// A Sequence as the engine made it: every Sequence in a plan is the base of one of these.
struct Choice : Sequence {
  ActiveRequest* owner = nullptr;
  std::optional<SamplingHistory> history;        // from the first sample on
  std::shared_ptr<OutputConstraint> constraint;  // null: none; shared with the worker that fills its mask
  bool late = false;   // sits the step out that is being sampled: its mask was not filled in time
  bool ended = false;  // its end was given to the output thread
};

inline Choice& ChoiceOf(Sequence* sequence) { return *static_cast<Choice*>(sequence); }

struct ActiveRequest {
  std::shared_ptr<LiveRequest> live;
  uint64_t seed = 0;
  bool queued = true;                      // counts in the inbox
  bool started = false;                    // its Started was given to the output thread
  std::vector<Choice> choices;             // [n], never resized: the scheduler holds their addresses
  std::vector<TokenInfo> prompt_logprobs;  // the sequence's scores when asked for, filled chunk by chunk

  const Request& request() const { return live->request; }
};

}  // namespace tramontane
