// EventCounts: tokens and stages of one HTTP request, counted by what the events of its calls say: for a
// gateway, which has no engine that counts them. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "server/api/shared/generation_timing.h"
#include "server/call/caller.h"
#include "server/http/http.h"
#include "server/watch/request_counts.h"
#include "server/watch/ttft_stages.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class EventCounts {
 public:
  // `counts` null: nothing is counted.
  EventCounts(std::shared_ptr<RequestCounts> counts, const Caller& caller)
      : counts_(std::move(counts)), tokens_(counts_ == nullptr ? nullptr : counts_->TokensOf(caller)) {}

  // Each event of a call once.
  void Note(size_t call, const v1::GenerateResponse& event) {
    if (counts_ == nullptr) return;
    if (event.has_started()) {
      prompt_tokens_ = event.started().prompt_tokens();
      tokens_->prompt += event.started().prompt_tokens();
    }
    if (event.has_finished()) told_[call] = event.finished().timings();
    if (!event.has_delta()) return;
    int64_t& known = tokens_of_[{call, event.delta().choice()}];
    tokens_->generation += event.delta().completion_tokens() - known;
    known = event.delta().completion_tokens();
  }
  // Where the time to the first content went. `timing`: a copy, which is told of the choice's end here: only
  // answers that say the time have told it before.
  void NoteStages(GenerationTiming timing, const HttpRequest& request) const {
    if (counts_ == nullptr || !timing.first_call()) return;
    const auto told = told_.find(*timing.first_call());
    if (told == told_.end()) return;
    timing.NoteEnd(told->first, told->second, request);
    const v1::Timings& timings = timing.timings();
    if (!timings.has_deliver_ms()) return;
    for (size_t i = 0; i < TtftStages::kCount; ++i) {
      const auto stage = static_cast<TtftStage>(i);
      counts_->ObserveStage(stage, prompt_tokens_, TtftStages::NsOf(timings, stage));
    }
  }

 private:
  const std::shared_ptr<RequestCounts> counts_;
  const std::shared_ptr<TokenCounts> tokens_;
  int64_t prompt_tokens_ = 0;
  std::map<std::pair<size_t, int32_t>, int64_t> tokens_of_;  // by call and choice
  std::map<size_t, v1::Timings> told_;                       // by call, at the end of a choice of it
};

}  // namespace tramontane
