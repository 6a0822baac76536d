// PromptReader: prompts and candidates of requests as token ids, every fault by its field.
//
// Any thread: it does not change once made. It takes time in proportion to the input: on a WorkerPool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/chat/answer_syntax.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "server/sessions/session_store.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// What a prompt has to leave.
struct PromptRoom {
  int64_t context = 0;
  bool scores_only = false;  // no token of output
};

class PromptReader {
 public:
  explicit PromptReader(const ServedModel& model);  // borrowed

  // `session`: what the prompt goes on from; null: nothing.
  RpcError Read(const v1::GenerateRequest& proto, const PromptRoom& room, const SessionState* session,
                std::vector<int32_t>* ids) const;
  // `path`: of the candidate. `goes_on`: behind text, where the space that encoders put in front of a text
  // stands for one that it begins with.
  RpcError ReadCandidate(const std::string& path, const v1::Candidate& candidate, bool goes_on,
                         std::vector<int32_t>* ids) const;
  template <typename TextRequest>  // v1::GenerateRequest or v1::TokenizeRequest
  RpcError TextIds(const TextRequest& proto, std::vector<int32_t>* ids) const;
  RpcError CheckIds(const std::string& path, const google::protobuf::RepeatedField<int32_t>& ids) const;

 private:
  RpcError ChatIds(const v1::Chat& chat, const SessionState* session, std::vector<int32_t>* ids) const;
  RpcError CheckBytes(const std::string& path, int64_t bytes, const PromptRoom& room) const;

  const ServedModel& model_;
  const int64_t longest_piece_bytes_;  // no token stands for more bytes of text; 0: unknown
  const int32_t answer_end_;           // of the chat format's answers
};

// INVALID_ARGUMENT with reason CONTEXT_LENGTH_EXCEEDED.
RpcError BeyondContext(RpcError error, int64_t prompt_tokens, int64_t context);

}  // namespace tramontane
