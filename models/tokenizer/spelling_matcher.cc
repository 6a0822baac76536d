#include "models/tokenizer/spelling_matcher.h"

#include <algorithm>

namespace tramontane {

SpellingMatcher::SpellingMatcher(std::vector<std::pair<std::string, int32_t>> spellings)
    : spellings_(std::move(spellings)) {
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  std::stable_sort(spellings_.begin(), spellings_.end(), before);
  spellings_.erase(std::unique(spellings_.begin(), spellings_.end(), same), spellings_.end());
  if (!spellings_.empty() && spellings_.front().first.empty()) spellings_.erase(spellings_.begin());
  for (const auto& [spelling, id] : spellings_) begins_[static_cast<uint8_t>(spelling.front())] = true;
}

std::optional<SpellingMatcher::Match> SpellingMatcher::Find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<uint8_t>(text[at])]) continue;
    if (const auto match = MatchAt(text, at)) return match;
  }
  return std::nullopt;
}

std::optional<SpellingMatcher::Match> SpellingMatcher::MatchAt(std::string_view text, size_t at) const {
  // Narrows the sorted spellings, byte by byte, to those that agree with the text so far; the shortest comes
  // first.
  auto begin = spellings_.begin();
  auto end = spellings_.end();
  std::optional<Match> longest;
  for (size_t depth = 0; at + depth < text.size() && begin != end; ++depth) {
    const auto byte_at = [depth](const auto& entry) { return static_cast<uint8_t>(entry.first[depth]); };
    const auto wanted = static_cast<uint8_t>(text[at + depth]);
    begin = std::partition_point(begin, end, [&](const auto& entry) { return byte_at(entry) < wanted; });
    end = std::partition_point(begin, end, [&](const auto& entry) { return byte_at(entry) == wanted; });
    if (begin != end && begin->first.size() == depth + 1) {
      longest = Match{at, at + depth + 1, begin->second};
      ++begin;
    }
  }
  return longest;
}

}  // namespace tramontane
