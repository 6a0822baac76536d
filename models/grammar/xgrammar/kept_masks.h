// KeptMasks: the masks of the places where one text has been of late. Included by the library's
// grammar_matcher.cc (changes.patch).
//
// In the middle of a rule, above all of a string, a text comes back to the same states token after token, and
// what may follow them stays: they say where their rules began, and what lies before that does not change.
// The library tries the hundreds of tokens that end the string again at each of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace xgrammar {

class KeptMasks {
 public:
  // False: there is none of these states.
  template <typename States>
  bool Find(const States& states, bool is_complete, int32_t* mask) const {
    for (const Kept& kept : kept_) {
      if (kept.is_complete != is_complete || !AreSame(kept.states, states)) continue;
      std::copy(kept.mask.begin(), kept.mask.end(), mask);
      return true;
    }
    return false;
  }

  // Not where a rule begins just here: what it began in is no part of its state.
  template <typename States>
  void Keep(const States& states, bool is_complete, const int32_t* mask, size_t words, int32_t row) {
    int32_t last_begin = -1;
    for (const ParserState& state : states) last_begin = std::max(last_begin, state.rule_start_pos);
    if (last_begin >= row) return;
    Kept& kept = kept_[next_];
    next_ = (next_ + 1) % kept_.size();
    kept.states.assign(states.begin(), states.end());
    kept.is_complete = is_complete;
    kept.last_begin = last_begin;
    kept.mask.assign(mask, mask + words);
  }

  // The text has only so many rows any more.
  void ForgetFrom(int32_t rows) {
    for (Kept& kept : kept_) {
      if (kept.last_begin >= rows) kept.states.clear();
    }
  }

 private:
  struct Kept {
    std::vector<ParserState> states;  // none: nothing is kept here
    bool is_complete = false;
    int32_t last_begin = -1;
    std::vector<int32_t> mask;
  };

  template <typename States>
  static bool AreSame(const std::vector<ParserState>& kept, const States& states) {
    return !kept.empty() &&
           std::equal(kept.begin(), kept.end(), states.begin(), states.end(),
                      [](const ParserState& a, const ParserState& b) { return !(a < b) && !(b < a); });
  }

  std::array<Kept, 4> kept_;
  size_t next_ = 0;
};

}  // namespace xgrammar
