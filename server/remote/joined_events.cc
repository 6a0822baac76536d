#include "server/remote/joined_events.h"

#include <string>
#include <utility>

namespace tramontane {

void JoinedEvents::Add(v1::GenerateResponse event) {
  if (event.has_started()) {
    started_.MergeFrom(event.started());
    if (event.started().more()) return;
    started_.clear_more();
    *event.mutable_started() = std::exchange(started_, {});
  }
  bytes_ += event.ByteSizeLong();
  v1::Delta* before = event.has_delta() ? DeltaOf(event.delta().choice()) : nullptr;
  if (before == nullptr) return events_.push_back(std::move(event));
  std::string text = std::move(*before->mutable_text());
  const auto bytes_before = static_cast<int32_t>(text.size());
  text += event.delta().text();
  for (v1::Mark& mark : *event.mutable_delta()->mutable_marks()) mark.set_at(bytes_before + mark.at());
  std::string reasoning = std::move(*before->mutable_reasoning());
  reasoning += event.delta().reasoning();
  before->MergeFrom(event.delta());  // lists are joined, the rest is the newer one's
  before->set_text(std::move(text));
  before->set_reasoning(std::move(reasoning));
  if (event.delta().has_tool_calls_at()) {
    before->set_tool_calls_at(bytes_before + event.delta().tool_calls_at());
  }
}

std::vector<v1::GenerateResponse> JoinedEvents::Take() {
  bytes_ = 0;
  return std::exchange(events_, {});
}

v1::Delta* JoinedEvents::DeltaOf(int32_t choice) {
  for (v1::GenerateResponse& event : events_) {
    if (event.has_delta() && event.delta().choice() == choice) return event.mutable_delta();
  }
  return nullptr;
}

}  // namespace tramontane
