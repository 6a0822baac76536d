// ProtoConverter: wire messages to the engine's structs, every field checked, and the engine's events to wire
// messages.
//
// Any thread: it does not change once made. No gRPC in here, so it is tested alone.
// Tokenise, Detokenise, RenderChat, Generate and ScoreCandidates take time in proportion to their input: they
// belong on a WorkerPool. A request with faults gives one RpcError that names the first faulty field by its
// path in the .proto.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "engine/token_stream.h"
#include "models/chat/answer_syntax.h"
#include "server/core/answer_splitter.h"
#include "server/core/rpc_error.h"
#include "server/core/served_model.h"
#include "server/core/session_store.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class ThoughtVocabulary;

class ProtoConverter {
 public:
  explicit ProtoConverter(const ServedModel& model);  // borrowed

  // Fills in all of `request` but its id, deadline and times.
  // `wanted` is asked while a constraint is compiled; false: CANCELLED. Empty: always wanted.
  // `session`: what the request goes on from; null: nothing.
  RpcError Generate(const v1::GenerateRequest& proto, Request* request,
                    const std::function<bool()>& wanted = {}, const SessionState* session = nullptr) const;
  RpcError ScoreCandidates(const v1::ScoreCandidatesRequest& proto, Request* request) const;
  RpcError Tokenize(const v1::TokenizeRequest& proto, v1::TokenizeResponse* response) const;
  RpcError Detokenize(const v1::DetokenizeRequest& proto, v1::DetokenizeResponse* response) const;
  RpcError RenderChat(const v1::RenderChatRequest& proto, v1::RenderChatResponse* response) const;
  RpcError GetModel(const v1::GetModelRequest& proto, v1::GetModelResponse* response) const;
  // What the engine bounds; the service adds its own.
  void EngineLimitsToProto(v1::Limits* limits) const;

  v1::GenerateResponse StartedToProto(const StreamStarted& started, const std::string& request_id) const;
  // Without `text` or `token_ids` that part stays empty.
  struct DeltaParts {
    bool text = true;
    bool token_ids = true;
  };
  // `splitter` is that of the delta's choice.
  v1::GenerateResponse DeltaToProto(StreamDelta delta, const DeltaParts& parts,
                                    AnswerSplitter* splitter) const;
  // Of a choice of that request, as Generate filled it in.
  AnswerSplitter NewSplitter(const Request& request, bool is_chat) const;
  static v1::GenerateResponse FinishedToProto(const StreamFinished& finished, const AnswerSplitter& splitter);
  static void LoadToProto(const EngineLoad& load, v1::GetLoadResponse* response);
  static v1::ContextPolicy ContextPolicyToProto(const ContextPolicy& policy);
  // What is left open is 0 for ContextPolicyOf. Its numbers may still be none of a policy
  // (CheckContextPolicy).
  static RpcError ConvertContextPolicy(const v1::ContextPolicy& proto, ContextPolicy* policy);

 private:
  RpcError CheckModelName(const std::string& name) const;
  // `thoughts`: those that the prompt and the request leave room for; none, where the form holds from the
  // first token.
  RpcError ConstrainOutput(const v1::GenerateRequest& proto, const std::function<bool()>& wanted,
                           ThoughtMarks* thoughts, ConstraintParams* constraint) const;
  RpcError Constrain(const v1::GenerateRequest& proto, const std::function<bool()>& wanted,
                     ConstraintParams* constraint) const;
  bool EndsWithinThought(const std::vector<int32_t>& prompt) const;
  // What a prompt has to leave.
  struct PromptRoom {
    int64_t context = 0;
    bool scores_only = false;  // no token of output
  };
  RpcError PromptIds(const v1::GenerateRequest& proto, const PromptRoom& room, const SessionState* session,
                     std::vector<int32_t>* ids) const;
  RpcError CandidateIds(const std::string& path, const v1::Candidate& candidate, bool goes_on,
                        std::vector<int32_t>* ids) const;
  RpcError ChatIds(const v1::Chat& chat, const SessionState* session, std::vector<int32_t>* ids) const;
  template <typename TextRequest>  // v1::GenerateRequest or v1::TokenizeRequest
  RpcError TextIds(const TextRequest& proto, std::vector<int32_t>* ids) const;
  RpcError CheckIds(const std::string& path, const google::protobuf::RepeatedField<int32_t>& ids) const;
  RpcError CheckBytes(const std::string& path, int64_t bytes, const PromptRoom& room) const;
  static RpcError CheckLength(const std::string& path, int64_t tokens, const PromptRoom& room);
  SamplingParams ConvertSampling(const v1::Sampling& proto) const;
  static RpcError ConvertStopping(const v1::Stopping& proto, StoppingParams* stopping);
  static RpcError ConvertOutput(const v1::Output& proto, OutputParams* output);
  std::string TokenBytes(int32_t id, PieceUse use) const;
  std::string PieceText(int32_t id) const;
  void TokenInfoToProto(const TokenInfo& info, v1::TokenLogprob* proto) const;

  const ServedModel& model_;
  int64_t longest_piece_bytes_ = 0;  // no token stands for more bytes of text; 0: unknown
  AnswerSyntax answer_syntax_;
  std::shared_ptr<const ThoughtVocabulary> thought_vocabulary_;  // null: the model has no thoughts
};

// Refuses a message of millions of tiny fields, and text that is not UTF-8, before anything is built from it:
// two bytes on the wire can become a hundred in memory. Worth its time for large messages only.
RpcError CheckWireFields(const google::protobuf::Descriptor& type, const std::string& bytes);

// Why `bytes` were refused by the protobuf parser as a message of this type: the path of the first string
// that is not UTF-8, or that the bytes are no such message.
RpcError ExplainParseFailure(const google::protobuf::Descriptor& type, const std::string& bytes);

}  // namespace tramontane
