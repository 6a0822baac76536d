// The bound of one answer, max_answer_bytes: what a request asks for is counted before anything is computed.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/request/limits.h"
#include "engine/request/request.h"
#include "server/call/rpc_error.h"

namespace tramontane {

// What a request is sure to ask of its answer, in bytes (server/call/answer_cost.h): log probabilities of the
// prompt and of the candidates, once as messages and in each choice as text; what is repeated of the prompt;
// log probabilities of the output, up to max_tokens, or without it up to min_tokens, but of no more tokens
// than may wait for their reader.
int64_t AnswerBytes(const Request& request, const EngineLimits& limits);

// INVALID_ARGUMENT, reason ANSWER_TOO_LARGE, where that is more than `most` (0: no bound), by the field that
// takes the most of it. `others`: what the answers to other prompts of the same request take beside it.
RpcError CheckAnswerBytes(const Request& request, const EngineLimits& limits, int64_t others, int64_t most);

// Where there is no max_tokens: how many tokens of output there is room for with their log probabilities.
// Nothing: for any number. REQUIRES: CheckAnswerBytes is OK.
std::optional<int64_t> MostScoredTokens(const Request& request, const EngineLimits& limits, int64_t most);

// Reason ANSWER_TOO_LARGE. `path`: the field that asks for `bytes` of an answer; `what` is said of it: "is
// 20".
RpcError AnswerTooLarge(std::string path, const std::string& what, int64_t bytes, int64_t most);

}  // namespace tramontane
