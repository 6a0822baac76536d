// StopMatcher: finds stop strings in the text of one choice as it comes in pieces, and holds back what may
// become one. Where the text is cut into pieces makes no difference.
//
// One thread. The stop strings outlive it.
// Always: text shown + text held back = text appended, until a match; what is held back is the longest end of
// the text that begins a stop string, so at most max_stop_bytes - 1 bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tramontane {

class StopMatcher {
 public:
  enum class Matched { kDropped, kShown };  // what becomes of the stop string itself

  StopMatcher(const std::vector<std::string>& stops, Matched matched) : stops_(&stops), matched_(matched) {}

  // Takes the next piece of text and appends to `shown` what cannot be part of a stop string any more.
  // Returns the stop string that is complete first, byte by byte (of two that end together, the longer),
  // after which nothing is held back and nothing may be appended; null when there is none.
  const std::string* Append(std::string_view piece, std::string* shown) {
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

  // The same for text in which no stop string counts yet. Its end may still begin one.
  void AppendUnmatched(std::string_view piece, std::string* shown) {
    held_ += piece;
    ShowAllButTheBeginningOfAStop(shown);
  }

  // The text ends here: shows what is held back.
  void Flush(std::string* shown) {
    *shown += held_;
    held_.clear();
  }

 private:
  const std::string* StopEndingAt(size_t end) const {
    const std::string_view text(held_.data(), end);
    const std::string* longest = nullptr;
    for (const std::string& stop : *stops_) {
      if (text.ends_with(stop) && (longest == nullptr || stop.size() > longest->size())) longest = &stop;
    }
    return longest;
  }
  void ShowAllButTheBeginningOfAStop(std::string* shown) {
    const size_t safe = held_.size() - BytesThatMayBeginAStop();
    shown->append(held_, 0, safe);
    held_.erase(0, safe);
  }
  size_t BytesThatMayBeginAStop() const {
    const std::string_view text = held_;
    size_t most = 0;
    for (const std::string& stop : *stops_) {
      for (size_t bytes = std::min(stop.size() - 1, text.size()); bytes > most; --bytes) {
        if (text.ends_with(std::string_view(stop).substr(0, bytes))) most = bytes;
      }
    }
    return most;
  }

  const std::vector<std::string>* stops_;
  Matched matched_;
  std::string held_;
};

}  // namespace tramontane
