// Finds given spellings in text: of control tokens, of tokens that were added to a vocabulary.
//
// Any thread; does not change after it is made. A plain value.
// Always: a search looks at each byte at most once for each byte of the longest spelling.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tramontane {

class SpellingMatcher {
 public:
  // [begin, end) of the text.
  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };

  SpellingMatcher() = default;
  // Spellings with their ids. Empty ones never match; of equal ones the first counts.
  explicit SpellingMatcher(std::vector<std::pair<std::string, int32_t>> spellings);

  bool empty() const { return spellings_.empty(); }
  // The leftmost spelling from byte `from` on; of several that begin there, the longest.
  std::optional<Match> Find(std::string_view text, size_t from) const;
  // The longest spelling that begins at byte `at`.
  std::optional<Match> MatchAt(std::string_view text, size_t at) const;

 private:
  std::vector<std::pair<std::string, int32_t>> spellings_;  // sorted, distinct
  std::array<bool, 256> begins_{};                          // [byte]: some spelling begins with it
};

}  // namespace tramontane
