// Log probabilities in the three notations of OpenAI-style answers.
// One thread at a time; no state but what is said.
//
// How a token is written, where a token needs a name: as its text; in completions, whose lists have no field
// for bytes, one that is not UTF-8 by itself as "bytes:\xe5\x8c". A token that adds no text is in chats the
// vocabulary's piece, "</s>", and in completions "token_id:2". With `tokens_as_ids` every token is written in
// the last way.
#pragma once

#include <cstdint>
#include <memory>
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

  // The prompt's tokens; the first has no probability.
  void AddPrompt(const v1::Started& started);
  // What comes from now on stands behind `before`, which several lists may share. REQUIRES: nothing was
  // added.
  void GoOnFrom(std::shared_ptr<const CompletionLogprobs> before);
  void Add(const v1::TokenLogprob& token);

  // {"tokens": [...], "token_logprobs": ..., "top_logprobs": ..., "text_offset": ...}
  void AppendTo(std::string* out) const;
  bool empty() const { return tokens_.empty() && (before_ == nullptr || before_->empty()); }
  // Forgets the tokens; offsets go on.
  void Clear();

 private:
  void AddToken(int32_t id, const std::string& bytes, const v1::TokenLogprob* scored);
  void AppendList(std::string CompletionLogprobs::* list, std::string* out) const;

  const AnswerOptions* options_;
  std::shared_ptr<const CompletionLogprobs> before_;  // null: nothing
  int64_t characters_ = 0;                            // that the tokens so far began
  std::string tokens_, logprobs_, top_, offsets_;     // entries, joined by commas
};

// vLLM's prompt_logprobs: a list with null, then {"17": {"logprob", "rank", "decoded_token"}, ...} for each
// token.
std::string PromptLogprobs(const v1::Started& started, const AnswerOptions& options);

}  // namespace tramontane
