// ThoughtInText: takes a leading <think>...</think> of an answer apart, where these marks are text and no
// control tokens.
//
// One of each choice, one thread at a time. Always: what it gives is what it was given, in its order, but for
// the two marks, white space in front of the first and new lines beside the thought. It holds back what may
// still become a mark, and End() gives the rest.
#pragma once

#include <string>
#include <string_view>

namespace tramontane {

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

// Whether a prompt's last text leaves a thought open: "...<think>\n".
bool LeavesThoughtOpen(std::string_view text);

}  // namespace tramontane
