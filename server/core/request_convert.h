// RequestConverter: requests of the .proto as the engine's, every field checked.
//
// Any thread: it does not change once made. It takes time in proportion to the input, and where a constraint
// has to be compiled more: on a WorkerPool. A request with faults gives one RpcError that names the first
// faulty field by its path in the .proto.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/request/request.h"
#include "models/chat/answer_syntax.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "server/core/prompt_reader.h"
#include "server/sessions/session_store.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class ThoughtVocabulary;
class Unenforced;

class RequestConverter {
 public:
  RequestConverter(const ServedModel& model, const PromptReader& prompts);  // borrowed

  // Fills in all of `request` but its id, caller, deadline and times.
  // `wanted` is asked while a constraint is compiled; false: CANCELLED. Empty: always wanted.
  // `session`: what the request goes on from; null: nothing. `unenforced` may be null.
  RpcError Generate(const v1::GenerateRequest& proto, Request* request,
                    const std::function<bool()>& wanted = {}, const SessionState* session = nullptr,
                    Unenforced* unenforced = nullptr) const;
  RpcError ScoreCandidates(const v1::ScoreCandidatesRequest& proto, Request* request) const;

 private:
  // `thoughts`: those that the prompt and the request leave room for; none, where the form holds from the
  // first token.
  RpcError ConstrainOutput(const v1::GenerateRequest& proto, const std::function<bool()>& wanted,
                           ThoughtMarks* thoughts, ConstraintParams* constraint,
                           Unenforced* unenforced) const;
  RpcError Constrain(const v1::GenerateRequest& proto, const std::function<bool()>& wanted,
                     ConstraintParams* constraint, Unenforced* unenforced) const;
  // Lets a thought come in front of what the answer is held to, where one may. False: none does.
  bool LetThink(const v1::GenerateRequest& proto, ThoughtMarks* thoughts, ConstraintParams* constraint) const;
  bool EndsWithinThought(const std::vector<int32_t>& prompt) const;
  SamplingParams ConvertSampling(const v1::Sampling& proto) const;

  const ServedModel& model_;
  const PromptReader& prompts_;
  const AnswerSyntax answer_syntax_;
  std::shared_ptr<const ThoughtVocabulary> thought_vocabulary_;  // null: the model has no thoughts
};

}  // namespace tramontane
