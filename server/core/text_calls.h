// TextCalls: what is answered from a tokenizer and a chat format alone: Tokenize, Detokenize, RenderChat.
//
// Any thread: it does not change once made. It takes time in proportion to the input: on a WorkerPool.
#pragma once

#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "server/core/prompt_reader.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class TextCalls {
 public:
  TextCalls(const ServedModel& model, const PromptReader& prompts) : model_(model), prompts_(prompts) {}

  RpcError Tokenize(const v1::TokenizeRequest& proto, v1::TokenizeResponse* response) const;
  RpcError Detokenize(const v1::DetokenizeRequest& proto, v1::DetokenizeResponse* response) const;
  RpcError RenderChat(const v1::RenderChatRequest& proto, v1::RenderChatResponse* response) const;

 private:
  const ServedModel& model_;
  const PromptReader& prompts_;
};

}  // namespace tramontane
