// AnswerSyntax: the ids that give an answer its structure, for whoever takes the model's output apart. Ids,
// not text: a model may well write "[TOOL_CALLS]" in words.
//
// Any thread. A plain value.
//
// An answer is: [THINK] thinking [/THINK]? text? calls? end. What has an id of -1 does not occur.
#pragma once

#include <cstdint>
#include <optional>

#include "models/chat/thought_marks.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

struct AnswerSyntax {
  enum class Calls {
    kNone,
    kJsonList,          // v2 to v7, once: tool_calls, [{"name": ..., "arguments": {...}}, ...]
    kNameAndArguments,  // v11 on, for each call: tool_calls, name, (call_id, the id,) args, JSON
  };

  Calls calls = Calls::kNone;
  int32_t end = -1;          // </s>, <|im_end|>: ends the answer, its calls too
  int32_t tool_calls = -1;   // [TOOL_CALLS]
  int32_t call_id = -1;      // [CALL_ID]: of v11 alone, and a model may leave it out
  int32_t args = -1;         // [ARGS]
  int32_t begin_think = -1;  // [THINK]: from v13 on, where the vocabulary has both
  int32_t end_think = -1;    // [/THINK]
  // Without these ids: an answer that begins with the text <think> is thinking up to the text </think>.
  bool thinks_in_text = false;

  // How an answer's thoughts are marked; `open` is not known here.
  ThoughtMarks thoughts() const {
    return {.begin = begin_think, .end = end_think, .call = tool_calls, .in_text = thinks_in_text};
  }
};

// Of one of Mistral's formats. Without the control tokens that calls need there are none.
AnswerSyntax MistralAnswerSyntax(const Tokenizer& tokenizer, TokenizerVersion version);

// Of a model whose template is run: calls are text, and so is thinking where the vocabulary has no control
// tokens <think> and </think>. `end`: none is the vocabulary's end of a text.
AnswerSyntax TemplateAnswerSyntax(const Tokenizer& tokenizer, std::optional<int32_t> end = {});

}  // namespace tramontane
