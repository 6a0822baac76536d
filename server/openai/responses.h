// POST /v1/responses: OpenAI's newer way to ask for an answer, without its memory. Nothing is kept between
// requests: what refers to an earlier response is refused, and the whole conversation comes with each
// request. Pure functions and plain values; any thread. A writer: one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/api_error.h"
#include "server/openai/generation.h"
#include "server/openai/generation_request.h"
#include "server/openai/shape.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// The fields of the body, as in openai_fields.h, and of an answer that is not streamed.
Shape ResponsesShape(const FieldLimits& limits);
const Shape& ResponsesAnswerShape();

struct ResponsesRequest {
  v1::GenerateRequest call;
  AnswerOptions answer;
  FieldNames names{StandardShapes().responses};
  std::vector<std::string> ignored;  // IgnoredKeys of the body
  Json echo;                         // what the answer repeats of the request, in the order of its keys
};

// The fault of the body, if it has one.
std::optional<ApiError> ParseResponses(std::string_view body, const RequestContext& context,
                                       ResponsesRequest* request);

// The answer: one JSON object, or its events as they come.
std::unique_ptr<ResponseWriter> MakeResponsesWriter(const ResponsesRequest& request);

}  // namespace tramontane
