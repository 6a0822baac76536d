#include "tests/server/call_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace tramontane {
CallReader::CallReader(InferenceClient& client, v1::GenerateRequest request,
                       const InferenceCallOptions& options, const Caller& caller) {
  call_ = client.Generate(
      caller, std::move(request), options,
      [bell = bell_] {
        const std::lock_guard lock(bell->mutex);
        bell->rung = true;
        bell->rung_changed.notify_one();
      },
      &refusal_);
}

bool CallReader::Next() {
  while (true) {
    {
      std::unique_lock lock(bell_->mutex);
      if (!bell_->rung_changed.wait_for(lock, kCallHangs, [this] { return bell_->rung; })) {
        ADD_FAILURE() << "a call that has not ended has had nothing to take for " << kCallHangs.count()
                      << " s";
        return false;
      }
      bell_->rung = false;
    }
    InferenceEvents taken = call_->Take();
    std::move(taken.events.begin(), taken.events.end(), std::back_inserter(events_));
    outcome_ = taken.outcome;
    if (taken.done) return false;
    if (!taken.events.empty()) return true;
  }
}

RpcError CallReader::ReadAll() {
  while (Next()) {
  }
  return outcome_;
}

int64_t CallReader::deltas() const {
  return std::count_if(events_.begin(), events_.end(), [](const auto& event) { return event.has_delta(); });
}

std::string CallReader::text(int32_t choice) const {
  std::string text;
  for (const auto& event : events_) {
    if (event.has_delta() && event.delta().choice() == choice) text += event.delta().text();
  }
  return text;
}

std::vector<int32_t> CallReader::token_ids(int32_t choice) const {
  std::vector<int32_t> ids;
  for (const auto& event : events_) {
    if (!event.has_delta() || event.delta().choice() != choice) continue;
    ids.insert(ids.end(), event.delta().token_ids().begin(), event.delta().token_ids().end());
  }
  return ids;
}

std::vector<std::string> CallReader::logprobs(int32_t choice) const {
  std::vector<std::string> logprobs;
  for (const auto& event : events_) {
    if (!event.has_delta() || event.delta().choice() != choice) continue;
    for (const v1::TokenLogprob& logprob : event.delta().logprobs()) {
      logprobs.push_back(logprob.SerializeAsString());
    }
  }
  return logprobs;
}

const v1::Finished& CallReader::finished(int32_t choice) const {
  for (const auto& event : events_) {
    if (event.has_finished() && event.finished().choice() == choice) return event.finished();
  }
  static const v1::Finished none;
  ADD_FAILURE() << "choice " << choice << " never finished";
  return none;
}

}  // namespace tramontane
