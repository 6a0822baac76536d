// StopMatcher: finds stop strings in the text of one choice as it comes in pieces, and holds back what may
// become one. Where the text is cut into pieces makes no difference.
//
// One thread. The stop strings outlive it.
// Always: text shown + text held back = text appended, until a match; what is held back is the longest end of
// the text that begins a stop string, so at most max_stop_bytes - 1 bytes.
#pragma once

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
  const std::string* Append(std::string_view piece, std::string* shown);

  // The same for text in which no stop string counts yet. Its end may still begin one.
  void AppendUnmatched(std::string_view piece, std::string* shown);

  // The text ends here: shows what is held back.
  void Flush(std::string* shown);

 private:
  const std::string* StopEndingAt(size_t end) const;
  void ShowAllButTheBeginningOfAStop(std::string* shown);
  size_t BytesThatMayBeginAStop() const;

  const std::vector<std::string>* stops_;
  Matched matched_;
  std::string held_;
};

}  // namespace tramontane
