#include "server/api/openai/choices_fields.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/shared/field_rows.h"
#include "server/api/shared/output_constraint.h"
#include "server/api/shared/timing.h"

namespace tramontane {

// ---- requests -----------------------------------------------------------------------------------

namespace {

using Request = v1::GenerateRequest;

// 64 bits, whichever sign they were written with. -1 is no seed: clients say so that cannot leave it out.
void ApplySeed(const Json& value, Request* request) {
  v1::Sampling* sampling = request->mutable_sampling();
  const bool is_negative = value.is_number_float() ? value.get<double>() < 0 : !value.is_number_unsigned();
  if (is_negative && value == -1) return sampling->clear_seed();
  sampling->set_seed(is_negative ? static_cast<uint64_t>(value.get<int64_t>()) : value.get<uint64_t>());
}

void ApplyStop(const Json& value, Request* request) {
  v1::Stopping* stopping = request->mutable_stopping();
  if (value.is_string()) {
    stopping->add_stop(value.get<std::string>());
  } else {
    for (const Json& stop : value) stopping->add_stop(stop.get<std::string>());
  }
}

void ApplyStopTokenIds(const Json& value, Request* request) {
  for (const Json& id : value) request->mutable_stopping()->add_stop_token_ids(id.get<int32_t>());
}

void ApplyChoices(const Json& value, Request* request) { request->set_choices(value.get<int32_t>()); }

void ApplyCacheSalt(const Json& value, Request* request) {
  request->set_cache_salt(value.get<std::string>());
}

void ApplySession(const Json& value, Request* request) { request->set_session(value.get<std::string>()); }

void ApplyPriority(const Json& value, Request* request) { request->set_priority(value.get<int32_t>()); }

void ApplyContextPolicy(const Json& value, Request* request) {
  v1::ContextPolicy* policy = request->mutable_context_policy();
  static constexpr std::pair<std::string_view, v1::ContextPolicy::Type> kTypes[] = {
      {"none", v1::ContextPolicy::TYPE_NONE},
      {"sinks", v1::ContextPolicy::TYPE_SINKS},
      {"shift", v1::ContextPolicy::TYPE_SHIFT},
      {"reevaluate", v1::ContextPolicy::TYPE_REEVALUATE}};
  const std::string named = TextOf(value, "type");
  for (const auto& [name, type] : kTypes) {
    if (name == named) policy->set_type(type);
  }
  if (const Json* n_ctx = Find(value, "n_ctx")) policy->set_n_ctx(n_ctx->get<int64_t>());
  if (const Json* n_keep = Find(value, "n_keep")) policy->set_n_keep(n_keep->get<int64_t>());
  if (const Json* n_discard = Find(value, "n_discard")) policy->set_n_discard(n_discard->get<int64_t>());
}

void ApplyReturnTokenIds(const Json& value, Request* request) {
  request->mutable_output()->set_prompt_tokens(value.get<bool>());
  request->mutable_output()->set_token_ids(value.get<bool>());
}

std::vector<Field> SamplingFields(const FieldLimits& limits) {
  return {
      {.name = "temperature",
       .shape = Number(0, 100),
       .doc = "0 always takes the likeliest token. Default: the model's, else 1.",
       .path = "sampling.temperature",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_temperature>},
      {.name = "top_p",
       .shape = NumberAbove(0, 1),
       .doc = "Only the likeliest tokens that together reach this share. Default: the model's, else 1.",
       .path = "sampling.top_p",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_top_p>},
      {.name = "top_k",
       .shape = Integer(-1, kMaxInt32),
       .doc = "Only the k likeliest tokens; 0 or -1: all. Default: the model's, else 0.",
       .path = "sampling.top_k",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_top_k>},
      {.name = "min_p",
       .shape = Number(0, 1),
       .doc = "Only tokens at least this likely, relative to the likeliest. Default: the model's, else 0.",
       .path = "sampling.min_p",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_min_p>},
      {.name = "repetition_penalty",
       .shape = Number(0.01, 100),
       .doc = "Above 1: what was said before is less likely. Default: the model's, else 1.",
       .path = "sampling.repetition_penalty",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_repetition_penalty>},
      {.name = "presence_penalty",
       .shape = Number(-2, 2),
       .doc = "Taken once from tokens that were generated. Default 0.",
       .path = "sampling.presence_penalty",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_presence_penalty>},
      {.name = "frequency_penalty",
       .shape = Number(-2, 2),
       .doc = "Taken once for each time a token was generated. Default 0.",
       .path = "sampling.frequency_penalty",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_frequency_penalty>},
      {.name = "seed",
       .shape = Integer64(),
       .doc = "The same request with the same seed gives the same tokens. Default, and -1: drawn.",
       .path = "sampling.seed",
       .apply = ApplySeed},
      {.name = "random_seed",
       .shape = Integer64(),
       .doc = "Mistral's name of `seed`; wins where both are given.",
       .path = "sampling.seed",
       .apply = ApplySeed},
      {.name = "logit_bias",
       .shape = MapOf(Number(-100, 100), limits.max_logit_bias),
       .doc = "Token id (as a key, so in quotes) to the amount added to its logit.",
       .path = "sampling.logit_bias"},
  };
}

std::vector<Field> StoppingFields(const FieldLimits& limits) {
  const Shape stop = String(1, limits.max_stop_bytes);
  return {
      {.name = "stop",
       .shape = AnyOf({stop, ArrayOf(stop, 0, limits.max_stop_strings)}),
       .doc = "Texts that end the answer; they are not part of it.",
       .path = "stopping.stop",
       .apply = ApplyStop},
      {.name = "stop_token_ids",
       .shape = ArrayOf(Integer(0, kMaxInt32), 0, limits.max_stop_token_ids),
       .doc = "Tokens that end the answer.",
       .path = "stopping.stop_token_ids",
       .apply = ApplyStopTokenIds},
      {.name = "include_stop_str_in_output",
       .shape = Boolean(),
       .doc = "Keep a matched stop text. Default false.",
       .path = "stopping.include_stop",
       .apply = Into<&Request::mutable_stopping, &v1::Stopping::set_include_stop>},
      {.name = "min_tokens",
       .shape = Integer(0),
       .doc = "Until then nothing ends the answer. Default 0.",
       .path = "stopping.min_tokens",
       .apply = Into<&Request::mutable_stopping, &v1::Stopping::set_min_tokens>},
      {.name = "ignore_eos",
       .shape = Boolean(),
       .doc = "Go on past the token that ends the text (to measure). Default false.",
       .path = "stopping.ignore_eos",
       .apply = Into<&Request::mutable_stopping, &v1::Stopping::set_ignore_eos>},
      {.name = "time_limit_ms",
       .shape = Integer(0, kMostTimeLimitMsField),
       .doc = "Milliseconds from the request on, after which the answer ends with what there is, as at its "
              "length. Default 0: none.",
       .path = "stopping.time_limit_ms",
       .apply = Into<&Request::mutable_stopping, &v1::Stopping::set_time_limit_ms>},
  };
}

std::vector<Field> OutputFields(const FieldLimits& limits) {
  return {
      {.name = "n",
       .shape = Integer(1, static_cast<double>(limits.max_choices)),
       .doc = "Independent answers to the one prompt, as many as the server allows. Default 1.",
       .path = "choices",
       .apply = ApplyChoices},
      {.name = "stream", .shape = Boolean(), .doc = "Send the answer as it comes. Default false."},
      {.name = "stream_options",
       .shape = ClosedObject({
           {.name = "include_usage", .shape = Boolean(), .doc = "One more chunk at the end, with `usage`."},
           {.name = "continuous_usage_stats", .shape = Boolean(), .doc = "`usage` in every chunk."},
           {.name = "include_obfuscation", .shape = Boolean(), .doc = "Accepted; changes nothing."},
       }),
       .doc = "Without `stream` they change nothing."},
      {.name = "skip_special_tokens",
       .shape = Boolean(),
       .doc = "Leave control tokens out of the text. Default true.",
       .path = "output.skip_special_tokens",
       .apply = Into<&Request::mutable_output, &v1::Output::set_skip_special_tokens>},
      {.name = "prompt_logprobs",
       .shape = Integer(0, 20),
       .doc = "Log probabilities of the prompt's tokens, with the N likeliest of each. Not with `stream`.",
       .path = "output.prompt_logprobs",
       .apply = Into<&Request::mutable_output, &v1::Output::set_prompt_logprobs>},
      {.name = "return_token_ids",
       .shape = Boolean(),
       .doc = "Also `prompt_token_ids` and, of each choice, `token_ids`. Default false.",
       .apply = ApplyReturnTokenIds},
      {.name = "return_tokens_as_token_ids",
       .shape = Boolean(),
       .doc = "Write the tokens of log probabilities as \"token_id:17\". Default false."},
      {.name = "cache_salt",
       .shape = String(0, kMaxCacheSaltFieldBytes),
       .doc = "What is remembered of prompts is shared only with requests of the same salt. Default: none.",
       .path = "cache_salt",
       .apply = ApplyCacheSalt},
      PriorityRow(),
      {.name = "context_policy",
       .shape = ClosedObject({
           {.name = "type",
            .shape = OneOfStrings({"none", "sinks", "shift", "reevaluate"}),
            .doc = "What a token sees once the context is full.",
            .required = true},
           {.name = "n_ctx",
            .shape = Integer(1),
            .doc = "Tokens held. Default: the served context, the most."},
           {.name = "n_keep", .shape = Integer(0), .doc = "First tokens that stay. Default 4."},
           {.name = "n_discard",
            .shape = Integer(1),
            .doc = "Tokens that go at once. Default 1 (shift), half of the rest (reevaluate)."},
       }),
       .doc = "How the text goes on when its context is full. Default: the server's, which is none.",
       .path = "context_policy",
       .apply = ApplyContextPolicy},
      {.name = "session",
       .shape = String(1, kMaxSessionFieldBytes),
       .doc = "A conversation that the server keeps under this name; the prompt must go on from it. Default: "
              "none.",
       .path = "session",
       .apply = ApplySession},
      {.name = "request_id",
       .shape = String(1, kMaxRequestIdFieldBytes),
       .doc =
           "The answer's id, printable ASCII without spaces. Default: the header x-request-id, else drawn.",
       .path = "request_id"},
  };
}

}  // namespace

Field PriorityRow() {
  return {.name = "priority",
          .shape = Integer(-kMostPriorityField, kMostPriorityField),
          .doc =
              "Of requests that wait the lowest is admitted first. Better than the key's own is taken as "
              "that. Default 0.",
          .path = "priority",
          .apply = ApplyPriority};
}

std::vector<Field> GenerationFields(const FieldLimits& limits) {
  return SamplingFields(limits) + StoppingFields(limits) + OutputFields(limits) + ConstraintFields(limits);
}

// ---- answers ------------------------------------------------------------------------------------

namespace {

constexpr double kLeastLogprob = -9999.0;  // in the place of minus infinity
constexpr double kMostLogprob = 0.001;     // 0, and what rounding may add

Shape Count() { return Integer(0); }

Shape UsageShape() {
  return Object({Always("prompt_tokens", Count()), Always("completion_tokens", Count()),
                 Always("total_tokens", Count()),
                 Always("prompt_tokens_details", Object({Always("cached_tokens", Count())})),
                 Always("completion_tokens_details", Object({Always("reasoning_tokens", Count())})),
                 Maybe("discarded_tokens", Count())});
}

}  // namespace

std::vector<Field> ChoicesAnswerFields(const char* object, Shape choice) {
  return {Always("id", String()),
          Always("object", OneOfStrings({object})),
          Always("created", Count()),
          Always("model", String()),
          Maybe("system_fingerprint", String()),
          Always("choices", ArrayOf(std::move(choice))),
          Always("usage", UsageShape()),
          Maybe("timing", TimingShape()),
          Maybe("metrics", MetricsShape())};
}

Field StopReason() {
  return Maybe("stop_reason", AnyOf({String(), Integer(0)}), "The stop text or stop token id that ended it.");
}

Shape TokenIds() { return ArrayOf(Integer(0)); }
Shape Logprob() { return Number(kLeastLogprob, kMostLogprob); }

std::vector<Field> ScoredToken() {
  return {Always("token", String()), Always("logprob", Logprob()), Maybe("bytes", ArrayOf(Integer(0, 255)))};
}

Shape PromptLogprobsShape() {
  const Shape entry =
      Object({Always("logprob", Logprob()), Always("rank", Integer(1)), Always("decoded_token", String())});
  return ArrayOf(AnyOf({Only({nullptr}, ""), MapOf(entry)}));
}

const Shape& RenderedShape() {
  static const Shape shape = Object({Always("request_id", String()), Maybe("model", String()),
                                     Always("token_ids", TokenIds()), Maybe("text", String())});
  return shape;
}

}  // namespace tramontane
