#include "models/chat/answer_syntax.h"

#include <string_view>

#include "models/chat/chat_prompt.h"

namespace tramontane {
namespace {

int32_t IdOf(const Tokenizer& tokenizer, std::string_view piece) {
  return tokenizer.ControlId(piece).value_or(-1);
}

void AddCalls(const Tokenizer& tokenizer, TokenizerVersion version, AnswerSyntax* syntax) {
  if (version < TokenizerVersion::kV2 || IdOf(tokenizer, "[TOOL_CALLS]") < 0) return;
  if (version < TokenizerVersion::kV11) {
    syntax->calls = AnswerSyntax::Calls::kJsonList;
  } else if (IdOf(tokenizer, "[ARGS]") >= 0) {
    syntax->calls = AnswerSyntax::Calls::kNameAndArguments;
    syntax->args = IdOf(tokenizer, "[ARGS]");
    if (version == TokenizerVersion::kV11) syntax->call_id = IdOf(tokenizer, "[CALL_ID]");
  } else {
    return;
  }
  syntax->tool_calls = IdOf(tokenizer, "[TOOL_CALLS]");
}

}  // namespace

AnswerSyntax MistralAnswerSyntax(const Tokenizer& tokenizer, TokenizerVersion version) {
  AnswerSyntax syntax;
  syntax.end = EndOf(tokenizer);
  AddCalls(tokenizer, version, &syntax);
  const int32_t begin_think = IdOf(tokenizer, "[THINK]");
  const int32_t end_think = IdOf(tokenizer, "[/THINK]");
  if (version >= TokenizerVersion::kV13 && begin_think >= 0 && end_think >= 0) {
    syntax.begin_think = begin_think;
    syntax.end_think = end_think;
  }
  return syntax;
}

AnswerSyntax TemplateAnswerSyntax(const Tokenizer& tokenizer, std::optional<int32_t> end) {
  AnswerSyntax syntax;
  syntax.end = end.value_or(tokenizer.eos_id());
  const int32_t begin_think = IdOf(tokenizer, "<think>");
  const int32_t end_think = IdOf(tokenizer, "</think>");
  syntax.thinks_in_text = begin_think < 0 || end_think < 0;
  if (!syntax.thinks_in_text) {
    syntax.begin_think = begin_think;
    syntax.end_think = end_think;
  }
  return syntax;
}

}  // namespace tramontane
