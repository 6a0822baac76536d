#include "engine/output/stop_matcher.h"

#include <algorithm>

namespace tramontane {

const std::string* StopMatcher::Append(std::string_view piece, std::string* shown) {
  const size_t old_bytes = held_.size();
  held_ += piece;
  for (size_t end = old_bytes + 1; end <= held_.size(); ++end) {
    const std::string* stop = StopEndingAt(end);
    if (stop == nullptr) continue;
    shown->append(held_, 0, matched_ == Matched::kShown ? end : end - stop->size());
    held_.clear();
    return stop;
  }
  ShowAllButTheBeginningOfAStop(shown);
  return nullptr;
}

void StopMatcher::AppendUnmatched(std::string_view piece, std::string* shown) {
  held_ += piece;
  ShowAllButTheBeginningOfAStop(shown);
}

void StopMatcher::Flush(std::string* shown) {
  *shown += held_;
  held_.clear();
}

const std::string* StopMatcher::StopEndingAt(size_t end) const {
  const std::string_view text(held_.data(), end);
  const std::string* longest = nullptr;
  for (const std::string& stop : *stops_) {
    if (text.ends_with(stop) && (longest == nullptr || stop.size() > longest->size())) longest = &stop;
  }
  return longest;
}

void StopMatcher::ShowAllButTheBeginningOfAStop(std::string* shown) {
  const size_t safe = held_.size() - BytesThatMayBeginAStop();
  shown->append(held_, 0, safe);
  held_.erase(0, safe);
}

size_t StopMatcher::BytesThatMayBeginAStop() const {
  const std::string_view text = held_;
  size_t most = 0;
  for (const std::string& stop : *stops_) {
    for (size_t bytes = std::min(stop.size() - 1, text.size()); bytes > most; --bytes) {
      if (text.ends_with(std::string_view(stop).substr(0, bytes))) most = bytes;
    }
  }
  return most;
}

}  // namespace tramontane
