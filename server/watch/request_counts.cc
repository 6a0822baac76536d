#include "server/watch/request_counts.h"

#include "engine/output/output_metrics.h"

namespace tramontane {
namespace {

constexpr char kNoKey[] = "-";
constexpr char kOtherKeys[] = "other";

}  // namespace

RequestCounts::RequestCounts() {
  keys_[kNoKey];
  for (size_t i = 0; i < kPromptLengths.size() * TtftStages::kCount; ++i) stages_.emplace_back(StageBounds());
}

RequestCounts::Key& RequestCounts::KeyOf(const Caller& caller) {
  const std::string& name = caller.key_name.empty() ? kNoKey : caller.key_name;
  const auto found = keys_.find(name);
  if (found != keys_.end()) return found->second;
  return keys_[keys_.size() <= kMostKeys ? name : kOtherKeys];
}

void RequestCounts::NoteEnd(const Caller& caller, const RequestEnd& end) {
  const std::lock_guard lock(mutex_);
  ++KeyOf(caller).ended[static_cast<size_t>(end.outcome)];
  if (end.outcome == RequestOutcome::kRefused) ++refused_[end.reason];
}

std::shared_ptr<TokenCounts> RequestCounts::TokensOf(const Caller& caller) {
  const std::lock_guard lock(mutex_);
  return KeyOf(caller).tokens;
}

void RequestCounts::ObserveStage(TtftStage stage, int64_t prompt_tokens, int64_t ns) {
  const std::lock_guard lock(mutex_);
  stages_[PromptLengthOf(prompt_tokens) * TtftStages::kCount + static_cast<size_t>(stage)].ObserveNs(ns);
}

void RequestCounts::AddTo(MetricsPage* page) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, key] : keys_) {
    for (size_t i = 0; i < key.ended.size(); ++i)
      page->Set("tramontane_requests_total", key.ended[i], {name, kRequestOutcomes[i]});
    page->Set("tramontane_key_tokens_total", key.tokens->prompt, {name, "prompt"});
    page->Set("tramontane_key_tokens_total", key.tokens->generation, {name, "generation"});
  }
  for (size_t i = 0; i < refused_.size(); ++i)
    page->Set("tramontane_refused_total", refused_[i], {kRefusalReasons[i]});
}

void RequestCounts::AddStagesTo(TtftStage first, MetricsPage* page) const {
  const std::lock_guard lock(mutex_);
  for (size_t length = 0; length < kPromptLengths.size(); ++length) {
    for (auto stage = static_cast<size_t>(first); stage < TtftStages::kCount; ++stage) {
      page->Set("tramontane_ttft_stage_seconds", stages_[length * TtftStages::kCount + stage],
                {TtftStages::Names()[stage], kPromptLengths[length]});
    }
  }
}

}  // namespace tramontane
