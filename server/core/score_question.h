// A ScoreCandidates of this process: the one unary call that runs on the engine.
#pragma once

#include <memory>

#include "server/call/inference_client.h"
#include "server/core/inference_core.h"

namespace tramontane {

// Submits on a worker; `done` is called there, once, when the scores are there or it has failed. Any thread.
void AskScores(InferenceCore& core, const Caller& caller,
               std::shared_ptr<const v1::ScoreCandidatesRequest> request,
               InferenceClient::Done<google::protobuf::Message> done);

}  // namespace tramontane
