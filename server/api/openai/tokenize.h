// POST /tokenize and /detokenize: text and chats to token ids, and back.
// Pure functions and plain values, any thread; endpoints: gateway.h.
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

Shape TokenizeShape();  // of bodies
Shape DetokenizeShape();
const Shape& TokenizedShape();  // of answers
const Shape& DetokenizedShape();

struct TokenizeBody {
  v1::TokenizeRequest request;
  FieldNames names{StandardShapes().tokenize};
  bool token_strings = false;
  std::vector<std::string> ignored;
};
std::optional<ApiError> ParseTokenize(std::string_view body, const RequestContext& context,
                                      TokenizeBody* parsed);
struct DetokenizeBody {
  v1::DetokenizeRequest request;
  FieldNames names{StandardShapes().detokenize};
  std::vector<std::string> ignored;
};
std::optional<ApiError> ParseDetokenize(std::string_view body, const RequestContext& context,
                                        DetokenizeBody* parsed);

void AnswerTokenize(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
void AnswerDetokenize(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
