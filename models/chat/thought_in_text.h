// ThoughtInText: takes a leading <think>...</think> of an answer apart, where these marks are text and no
// control tokens. ThoughtTokens: counts the tokens between the marks.
//
// One of each for a choice, one thread at a time. Always: what ThoughtInText gives is what it was given, in
// its order, but for the two marks, white space in front of the first and new lines beside the thought. It
// holds back what may still become a mark, and End() gives the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tramontane {

inline constexpr std::string_view kBeginOfThought = "<think>";
inline constexpr std::string_view kEndOfThought = "</think>";

// How many bytes at the end of `text` may begin the mark of a thought's end.
size_t BytesOfEndMark(std::string_view text);

class ThoughtInText {
 public:
  struct Parts {
    std::string reasoning;
    std::string text;
  };

  // `thinks`: the prompt ended in the middle of a thought.
  explicit ThoughtInText(bool thinks) : state_(thinks ? State::kThoughtBegins : State::kBegin) {}

  Parts Take(std::string_view text);
  Parts End();

  // What was given so far may still become a thought or the answer.
  bool undecided() const { return state_ == State::kBegin; }
  // The answer has begun: all that is given from here on is part of it.
  bool answers() const { return state_ == State::kText; }

 private:
  enum class State {
    kBegin,          // nothing said
    kThoughtBegins,  // new lines are dropped
    kThought,
    kTextBegins,  // behind a thought; new lines are dropped
    kText,
  };

  // Takes what can be told of `held_`, and goes on to the next state; false: more is needed.
  bool Step(Parts* parts);
  bool DropNewLines();

  State state_;
  std::string held_;
};

// Counts by the bytes of the tokens, which come when the model says them; their text may come later, joined,
// or not at all. A token is of the thought that begins behind the one mark and before the other; those that
// spell a mark are not.
class ThoughtTokens {
 public:
  // `thinks`: the prompt ended in the middle of a thought.
  explicit ThoughtTokens(bool thinks) : state_(thinks ? State::kThought : State::kBegin) {}

  // The answer's next token, as bytes. "": one without text.
  void Take(std::string_view piece);
  // The answer ends: what follows is no thought.
  void End() { state_ = State::kText; }
  bool thinks() const { return state_ == State::kThought; }
  // The answer has begun, or there is no more.
  bool answers() const { return state_ == State::kText; }
  // In a thought: of what may be the beginning of the mark of its end, and is counted.
  size_t held_bytes() const { return held_.size(); }
  // Of what was taken so far, if nothing follows.
  int64_t count() const { return counted_ + static_cast<int64_t>(undecided_.size()); }

 private:
  enum class State { kBegin, kThought, kText };

  State state_;
  std::string held_;               // what may be the beginning of a mark, and in front of the first, blanks
  std::vector<size_t> undecided_;  // where in `held_` tokens begin, that a mark there would leave uncounted
  int64_t counted_ = 0;
};

// Whether a prompt's last text leaves a thought open: "...<think>\n".
bool LeavesThoughtOpen(std::string_view text);

}  // namespace tramontane
