// From the body of an HTTP request to the messages of the .proto: what every endpoint that generates has in
// common. A body is parsed, checked against its endpoint's table and converted; and a server's error finds
// its way back to the name of the field in that body. Pure functions and plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/shared/api_error.h"
#include "server/api/shared/json.h"
#include "server/api/shared/shape.h"
#include "server/call/rpc_error.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

struct RequestShapes;

// What a request brings besides its body.
struct RequestContext {
  std::string id;          // unique among the requests in progress
  int64_t created_s = 0;   // since 1970
  bool any_model = false;  // whatever name it asks for is the model that is served
  std::string system_fingerprint =
      {};                     // of what answers: another one may give other tokens for the same seed
  bool strict_fields = true;  // fields that no row knows are refused, else ignored
  const RequestShapes* shapes = nullptr;  // null: those of FieldLimits as built
};

// The names of a body's fields, by their paths in the .proto.
class FieldNames {
 public:
  explicit FieldNames(const Shape& body) : body_(&body) {}  // one of RequestShapes; outlives this

  // From now on what lies at `path` or inside it is called `name`.
  void Rename(std::string path, std::string name) { renamed_.emplace_back(std::move(path), std::move(name)); }

  // "sampling.top_p" -> "top_p", "chat.tools[0].name" -> "tools[0].function.name".
  std::string NameOf(const std::string& path) const;

  // What the server said, in the words of the body.
  ApiError Explain(const RpcError& error) const;

 private:
  const Shape* body_;
  std::vector<std::pair<std::string, std::string>> renamed_;
};

// What a body says of its answer, beyond what the server has to know.
struct AnswerOptions {
  std::string id;  // without what its kind puts in front: "chatcmpl-"
  int64_t created_s = 0;
  std::string model;  // as asked for; "": the served name, which comes with Started
  std::string system_fingerprint;
  bool stream = false;
  bool usage_chunk = false;
  bool usage_in_every_chunk = false;
  bool metrics = false;          // chats and completions: vLLM's times of the answer (timing.h)
  int32_t choices = 1;           // of each call
  int32_t logprobs = -1;         // -1: none; N: the token's own and the N likeliest
  int32_t prompt_logprobs = -1;  // in a field of its own; -1: none
  bool token_ids = false;
  bool tokens_as_ids = false;     // "token_id:17" instead of the text of a token
  bool echo = false;              // completions
  bool as_message = false;        // completions: each text also as the message of a chat
  bool tools = false;             // chats: the answer may hold tool calls
  bool only_tool_calls = false;   // chats: it has to be calls, so what is no whole call is no text either
  bool one_tool_call = false;     // chats: of several calls only the first is passed on
  std::string call_id_seed = {};  // chats with tools: what the ids of calls are drawn from
  Json repeated = {};  // responses: what the answer repeats of the request, in the order of its keys
};

// A request for an answer.
struct GenerationRequest {
  std::vector<v1::GenerateRequest> calls;  // one for each prompt
  v1::GenerateRequest shared;              // of several prompts: what all calls have besides their own fields
  AnswerOptions answer;
  std::vector<FieldNames> names;     // one for each call
  std::vector<std::string> ignored;  // IgnoredKeys of the body
};

// The JSON of a body that has the shape, or what is wrong with it. `ignored`: its IgnoredKeys.
std::optional<ApiError> ParseBody(std::string_view body, const Shape& shape, const RequestContext& context,
                                  Json* json, std::vector<std::string>* ignored);

// The same, and what every body says that asks for an answer: every row with `apply`, the model, whether it
// streams. The prompt of `request->calls[0]` is not in it yet.
std::optional<ApiError> ParseGeneration(std::string_view body, const Shape& shape,
                                        const RequestContext& context, Json* json,
                                        GenerationRequest* request);
// That, and what chats and completions have besides (choices_fields.h).
std::optional<ApiError> ParseChoicesGeneration(std::string_view body, const Shape& shape,
                                               const RequestContext& context, Json* json,
                                               GenerationRequest* request);

}  // namespace tramontane
