// RequestCounts: requests that generate or score, as their clients see them, for /metrics: how they ended and
// by whose key, why they were refused, where the time behind their first token went.
//
// Any thread; a request takes the lock a few times, a token never does.
// Always: labels are of closed sets. Keys are as many as there are names, up to kMostKeys: all later ones are
// "other" together, and "-" is who has none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "engine/request/token_counts.h"
#include "server/call/caller.h"
#include "server/call/request_end.h"
#include "server/watch/metrics_page.h"
#include "server/watch/ttft_stages.h"

namespace tramontane {

class RequestCounts {
 public:
  static constexpr size_t kMostKeys = 256;

  RequestCounts();

  void NoteEnd(const Caller& caller, const RequestEnd& end);
  // Where tokens of the caller's key are counted; may outlive this.
  std::shared_ptr<TokenCounts> TokensOf(const Caller& caller);
  // Of a request with such a prompt: a stage took so long.
  void ObserveStage(TtftStage stage, int64_t prompt_tokens, int64_t ns);

  void AddTo(MetricsPage* page) const;
  // Of tramontane_ttft_stage_seconds, those from `first` on: others are the engine's.
  void AddStagesTo(TtftStage first, MetricsPage* page) const;

 private:
  struct Key {
    std::array<int64_t, kRequestOutcomes.size()> ended{};
    std::shared_ptr<TokenCounts> tokens = std::make_shared<TokenCounts>();
  };
  Key& KeyOf(const Caller& caller);  // holds mutex_

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Key> keys_;
  std::array<int64_t, kRefusalReasons.size()> refused_{};
  std::deque<Histogram> stages_;  // [prompt lengths, stages]
};

}  // namespace tramontane
