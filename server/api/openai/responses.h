// POST /v1/responses: OpenAI's newer way to ask for an answer, without its memory. Nothing is kept between
// requests: what refers to an earlier response is refused, and the whole conversation comes with each
// request. Pure functions and plain values, any thread; a writer: one thread at a time; the endpoint:
// gateway.h.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "server/api/shared/endpoint.h"
#include "server/api/shared/generation.h"
#include "server/api/shared/generation_request.h"
#include "server/api/shared/shape.h"
#include "server/call/field_limits.h"

namespace tramontane {

Shape ResponsesShape(const FieldLimits& limits);  // of a body
const Shape& MessageTextShape();                  // of a message's content, and of what a call gave
const Shape& ResponsesAnswerShape();              // of an answer that is not streamed

// The fault of the body, if it has one. One call.
std::optional<ApiError> ParseResponses(std::string_view body, const RequestContext& context,
                                       GenerationRequest* request);

// The answer: one JSON object, or its events as they come.
std::unique_ptr<ResponseWriter> MakeResponsesWriter(AnswerOptions options, std::vector<FieldNames> names);

void AnswerResponses(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
