// Log probabilities in the three notations of OpenAI-style answers.
// One thread at a time; no state but what is said.
//
// How a token is written, where a token needs a name: as its text; in completions, whose lists have no field
// for bytes, one that is not UTF-8 by itself as "bytes:\xe5\x8c". A token that adds no text is in chats the
// vocabulary's piece, "</s>", and in completions "token_id:2". With `tokens_as_ids` every token is written in
// the last way.
#pragma once

#include <cstdint>
#include <string>

#include "server/api/shared/generation_request.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// Of a chat: {"token", "logprob", "bytes", "top_logprobs"} for each token, joined by commas.
void AppendChatLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tokens,
                        const AnswerOptions& options, std::string* out);

// Of a completion: four lists side by side. Dictionaries of likely tokens always hold the token that was
// taken.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const AnswerOptions& options) : options_(&options) {}  // outlives this

  // The prompt's token at `position`; the first has no probability.
  void AddPrompt(const v1::Started& started, int position);
  void Add(const v1::TokenLogprob& token);

  // {"tokens": [...], "token_logprobs": ..., "top_logprobs": ..., "text_offset": ...}
  void AppendTo(std::string* out) const;
  bool empty() const { return tokens_.empty(); }
  // Forgets the tokens; offsets go on.
  void Clear();

 private:
  void AddToken(int32_t id, const std::string& bytes, const v1::TokenLogprob* scored);

  const AnswerOptions* options_;
  int64_t characters_ = 0;                         // that the tokens so far began
  std::string tokens_, logprobs_, top_, offsets_;  // entries, joined by commas
};

// vLLM's prompt_logprobs: a list with null, then {"17": {"logprob", "rank", "decoded_token"}, ...} for each
// token.
std::string PromptLogprobs(const v1::Started& started, const AnswerOptions& options);

}  // namespace tramontane
