// AnswerSplitter: what of a choice's text is the answer, what is thinking, and where its calls begin. The
// engine says where the control tokens of the chat format stand; what they mean is said here.
//
// One of each choice, one thread at a time. Always: the texts it was given are `text` and `reasoning`, each
// in its order, with nothing lost but the marks of thoughts that are text (thought_in_text.h), however the
// model nests or forgets its control tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/output/token_stream.h"
#include "models/chat/answer_syntax.h"
#include "models/chat/thought_in_text.h"
#include "models/tokenizer/tokenizer.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// What the engine is asked to mark (OutputParams::marked_ids). Only answers to chats are told from thinking.
std::vector<int32_t> MarkedIds(const AnswerSyntax& syntax, bool is_chat);

class AnswerSplitter {
 public:
  // `marked`: what MarkedIds gave. Of no chat, `syntax` knows of no thoughts in text. `thinks`: the prompt
  // ended in the middle of a thought. `tokenizer` outlives it.
  AnswerSplitter(const AnswerSyntax& syntax, std::span<const int32_t> marked, bool thinks,
                 const Tokenizer& tokenizer);

  // The choice's next text, to text, reasoning, tool_calls_at and marks of `proto`, which has none of them
  // yet.
  void Split(std::string text, std::span<const TextMark> marks, v1::Delta* proto);

  // What was held back of the choice's text, to `proto`, which has none yet. False: nothing.
  bool End(v1::Delta* proto);

  // The choice's next tokens; they may be ahead of its text.
  void Count(std::span<const int32_t> ids);
  int64_t reasoning_tokens() const { return thought_tokens_ ? thought_tokens_->count() : reasoning_tokens_; }

 private:
  static void TellParts(ThoughtInText::Parts parts, v1::Delta* proto);
  void AddText(std::string_view text, v1::Delta* proto) const;
  void AddMark(int32_t token, v1::Delta* proto);

  // Where thoughts are text; then there are no marks.
  std::optional<ThoughtInText> thought_;
  std::optional<ThoughtTokens> thought_tokens_;
  const Tokenizer* tokenizer_;
  AnswerSyntax syntax_;  // without thinking where it is not marked
  bool thinks_ = false;
  bool calls_ = false;   // a call has begun
  bool counts_ = false;  // thinks_, at the last token counted
  int64_t reasoning_tokens_ = 0;
};

}  // namespace tramontane
