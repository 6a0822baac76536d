// POST /v1/score: how likely a model thinks given texts are behind a prompt or a chat. Nothing is generated.
// Pure functions and plain values, any thread; the endpoint: gateway.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/openai/request_shapes.h"
#include "server/api/shared/endpoint.h"
#include "server/api/shared/generation_request.h"
#include "server/api/shared/shape.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

Shape ScoreShape();          // of a body
const Shape& ScoredShape();  // of an answer

struct ScoreBody {
  v1::ScoreCandidatesRequest request;
  FieldNames names{StandardShapes().score};
  std::vector<std::string> ignored;
};
std::optional<ApiError> ParseScore(std::string_view body, const RequestContext& context, ScoreBody* parsed);

void AnswerScore(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
