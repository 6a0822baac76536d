#include "server/api/openai/score.h"

#include <cmath>
#include <utility>

#include "server/api/openai/chat.h"
#include "server/api/openai/choices_fields.h"
#include "server/api/shared/answer_record.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/field_rows.h"
#include "server/api/shared/foreign_fields.h"
#include "server/api/shared/gateway_context.h"
#include "server/call/inference_client.h"

namespace tramontane {

// ---- fields -------------------------------------------------------------------------------------

namespace {

constexpr double kLeastScore = -1e300;

Shape TextOrIds() { return AnyOf({String(), ArrayOf(Integer(0, kMaxInt32), 1)}); }

// Other servers score pairs with models made for that, or label tokens behind each of several items.
std::vector<Field> ForeignScoreFields() {
  std::vector<Field> fields;
  for (const char* name : {"text_1", "text_2", "queries", "documents", "query", "items", "label_token_ids",
                           "apply_softmax", "item_first"}) {
    fields.push_back(Refused(name, {}, "use prompt, or messages, and candidates"));
  }
  return fields;
}

}  // namespace

Shape ScoreShape() {
  return ClosedObject(std::vector<Field>{
                          ModelRow(),
                          {.name = "prompt",
                           .shape = TextOrIds(),
                           .doc = "Text or token ids. Exactly one of this and `messages`."},
                          {.name = "candidates",
                           .shape = ArrayOf(TextOrIds(), 1),
                           .doc = "What may follow the prompt: texts or token ids, one score each.",
                           .required = true,
                           .path = "candidates"},
                          {.name = "cache_salt",
                           .shape = String(0, kMaxCacheSaltFieldBytes),
                           .doc = "Prompts share cached pages only with those of the same salt.",
                           .path = "cache_salt"},
                          PriorityRow(),
                      } +
                      ChatPromptFields() + ForeignScoreFields());
}

const Shape& ScoredShape() {
  static const Shape shape = [] {
    const Shape score =
        Object({Always("index", Integer(0)), Always("object", OneOfStrings({"score"})),
                Always("score", Number(kLeastScore, 0)), Always("token_ids", ArrayOf(Integer(0), 1)),
                Always("logprobs", ArrayOf(Logprob(), 1)), Always("ranks", ArrayOf(Integer(1), 1))});
    const Shape usage =
        Object({Always("prompt_tokens", Integer(0)), Always("candidate_tokens", Integer(1)),
                Always("completion_tokens", Integer(0)), Always("total_tokens", Integer(0)),
                Always("prompt_tokens_details", Object({Always("cached_tokens", Integer(0))}))});
    return Object({Always("id", String(1)), Always("object", OneOfStrings({"list"})),
                   Always("created", Integer(0)), Always("model", String(1)),
                   Always("data", ArrayOf(score, 1)), Always("usage", usage)});
  }();
  return shape;
}

// ---- requests -----------------------------------------------------------------------------------

namespace {

void SetIds(const Json& json, v1::TokenIds* ids) {
  for (const Json& id : json) ids->add_ids(id.get<int32_t>());
}

std::optional<ApiError> SetScoredPrompt(const Json& json, ScoreBody* parsed) {
  const Json* prompt = Find(json, "prompt");
  const bool is_chat = Find(json, "messages") != nullptr;
  if (is_chat == (prompt != nullptr)) {
    return FieldFault("prompt", is_chat ? "is given beside messages" : "is missing, and so is messages");
  }
  if (is_chat) return ConvertChat(json, parsed->request.mutable_chat(), &parsed->names);
  for (const char* path : {"text", "token_ids.ids"}) parsed->names.Rename(path, "prompt");
  if (prompt->is_string()) {
    parsed->request.set_text(prompt->get<std::string>());
  } else {
    SetIds(*prompt, parsed->request.mutable_token_ids());
  }
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ParseScore(std::string_view body, const RequestContext& context, ScoreBody* parsed) {
  const Shape& shape = ShapesOf(context).score;
  parsed->names = FieldNames(shape);
  Json json;
  if (auto fault = ParseBody(body, shape, context, &json, &parsed->ignored)) return fault;
  if (!context.any_model) parsed->request.set_model(TextOf(json, "model"));
  parsed->request.set_cache_salt(TextOf(json, "cache_salt"));
  if (const Json* priority = Find(json, "priority")) parsed->request.set_priority(priority->get<int32_t>());
  if (auto fault = SetScoredPrompt(json, parsed)) return fault;
  for (const Json& candidate : json["candidates"]) {
    v1::Candidate& proto = *parsed->request.add_candidates();
    if (candidate.is_string()) {
      proto.set_text(candidate.get<std::string>());
    } else {
      SetIds(candidate, proto.mutable_token_ids());
    }
  }
  return std::nullopt;
}

// ---- the endpoint -------------------------------------------------------------------------------

namespace {

constexpr double kNoProbability = -9999;  // as of a token (json.h)

template <typename Numbers, typename Append>
void AppendList(const char* name, const Numbers& numbers, Append append, std::string* out) {
  ((*out += ",\"") += name) += "\":[";
  for (int i = 0; i < numbers.size(); ++i) {
    if (i > 0) *out += ',';
    append(numbers[i], out);
  }
  *out += ']';
}

std::string ScoresJson(const v1::ScoreCandidatesResponse& scores, int64_t created_s) {
  std::string out = "{\"id\":";
  AppendJsonString("score-" + scores.request_id(), &out);
  out += ",\"object\":\"list\",\"created\":" + std::to_string(created_s) + ",\"model\":";
  AppendJsonString(scores.model(), &out);
  out += ",\"data\":[";
  for (int i = 0; i < scores.candidates_size(); ++i) {
    const v1::CandidateScore& candidate = scores.candidates(i);
    out += i > 0 ? ",{\"index\":" : "{\"index\":";
    out += std::to_string(i) + ",\"object\":\"score\",\"score\":";
    out += PrintJson(std::isfinite(candidate.logprob_sum()) ? candidate.logprob_sum() : kNoProbability);
    const auto integer = [](int32_t number, std::string* to) { AppendJsonInteger(number, to); };
    AppendList("token_ids", candidate.token_ids(), integer, &out);
    AppendList("logprobs", candidate.logprobs(), AppendJsonLogprob, &out);
    AppendList("ranks", candidate.ranks(), integer, &out);
    out += '}';
  }
  const v1::Usage& usage = scores.usage();
  out += "],\"usage\":{\"prompt_tokens\":" + std::to_string(usage.prompt_tokens()) +
         ",\"candidate_tokens\":" + std::to_string(scores.candidate_tokens()) +
         ",\"completion_tokens\":0,\"total_tokens\":" +
         std::to_string(usage.prompt_tokens() + scores.candidate_tokens()) +
         ",\"prompt_tokens_details\":{\"cached_tokens\":" + std::to_string(usage.cached_tokens()) + "}}}";
  return out;
}

}  // namespace

void AnswerScore(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  const RequestContext request_context = RequestContextOf(context, *exchange);
  ScoreBody body;
  if (auto fault = ParseScore(exchange->request().body, request_context, &body))
    return exchange->Fail(*fault);
  body.request.set_request_id(request_context.id);
  if (const auto record = RecordOf(exchange->request())) record->NoteScores(body.request);
  context.client.Ask(CallerOf(*exchange), std::move(body.request),
                     [exchange, created_s = request_context.created_s, names = std::move(body.names),
                      ignored = std::move(body.ignored)](const RpcError& error,
                                                         const v1::ScoreCandidatesResponse& scores) mutable {
                       if (!error.ok()) return exchange->Fail(names.Explain(error));
                       if (const auto record = RecordOf(exchange->request())) record->NoteScored(scores);
                       for (const std::string& field : scores.ignored())
                         ignored.push_back(names.NameOf(field));
                       RespondWithText(*exchange, ScoresJson(scores, created_s), ignored);
                     });
}

}  // namespace tramontane
