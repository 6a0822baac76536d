// POST /v1/completions, and its /render: what follows a text, or each of several; with a suffix, what stands
// between the two. POST /v1/fim/completions: always that.
// Pure functions and plain values, any thread; a writer: one thread at a time; endpoints: gateway.h.
#pragma once

#include <cstdint>
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

inline constexpr int64_t kMaxPrompts = 256;  // of one completion; more: 400

Shape CompletionShape(const FieldLimits& limits);  // of a body
const Shape& CompletionAnswerShape();              // of an answer that is not streamed
const Shape& FillInMiddleAnswerShape();            // the same of /v1/fim/completions
const Shape& RenderedListShape();                  // of an answer of /render

// The fault of the body, if it has one. One call for each prompt.
std::optional<ApiError> ParseCompletion(std::string_view body, const RequestContext& context,
                                        GenerationRequest* request);

// The same for /v1/fim/completions: as Mistral's API, its answers are messages, and end where the model ends
// them.
std::optional<ApiError> ParseFillInMiddle(std::string_view body, const RequestContext& context,
                                          GenerationRequest* request);

// The answer: one JSON object, or chunks as they come.
std::unique_ptr<ResponseWriter> MakeCompletionWriter(AnswerOptions options, std::vector<FieldNames> names);

void AnswerCompletions(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
void AnswerFillInMiddle(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
// The prompts of such a request as token ids; nothing is generated.
void AnswerRenderCompletions(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
