// What endpoints are written with: each reads a body, asks the InferenceClient and writes the answer. As
// every Endpoint (gateway.h), on a handler thread where its route says no other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/shared/gateway_exchange.h"
#include "server/api/shared/generation.h"
#include "server/api/shared/generation_request.h"
#include "server/api/shared/json.h"
#include "server/call/caller.h"
#include "server/http/http.h"

namespace tramontane {

struct GatewayContext;

int64_t SecondsSince1970();

// Who asks: as the gateway found when the header was whole.
Caller CallerOf(const HttpExchange& exchange);

RequestContext RequestContextOf(const GatewayContext& context, const HttpExchange& exchange);

// 200 with `body`; `ignored`: fields of the request that changed nothing, told in a header.
void RespondWith(HttpExchange& exchange, const Json& body, const std::vector<std::string>& ignored = {});

// Answers what is asked in a dialect: its body is parsed, its calls are made, its writer says what they say.
using ParseRequest = std::optional<ApiError> (*)(std::string_view body, const RequestContext& context,
                                                 GenerationRequest* request);
using MakeWriter = std::unique_ptr<ResponseWriter> (*)(AnswerOptions options, std::vector<FieldNames> names);
void AnswerGeneration(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange,
                      ParseRequest parse, MakeWriter make_writer);

// 200 with `body`, which is JSON.
void RespondWithText(HttpExchange& exchange, std::string body, const std::vector<std::string>& ignored = {});

// What /render says of a prompt, as JSON: its token ids, and `text` where there is one.
std::string RenderedJson(const v1::GenerateRequest& call, const google::protobuf::RepeatedField<int32_t>& ids,
                         const std::string* text);

// [1,2,3] and ["a","b"]: lists of any length, without a tree of them.
std::string IdsJson(const google::protobuf::RepeatedField<int32_t>& ids);
std::string TextsJson(const google::protobuf::RepeatedPtrField<std::string>& texts);

}  // namespace tramontane
