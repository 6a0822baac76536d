// ThoughtMarks: how the thoughts in one request's answers are told from the rest, for whoever matches stop
// texts or holds an answer to a form. A plain value; any thread. The default: there are none, all is the
// answer.
#pragma once

#include <cstdint>

namespace tramontane {

struct ThoughtMarks {
  // Control tokens; -1: none. A call ends a thought too.
  int32_t begin = -1;
  int32_t end = -1;
  int32_t call = -1;
  bool in_text = false;  // the marks are text instead: thought_in_text.h
  bool open = false;     // the prompt ended within a thought

  bool any() const { return begin >= 0 || in_text; }
};

}  // namespace tramontane
