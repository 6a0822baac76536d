#include "server/core/request_convert.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "models/chat/thought_in_text.h"
#include "server/answers/answer_constraint.h"
#include "server/answers/answer_splitter.h"
#include "server/answers/called_tools.h"
#include "server/answers/constraint_convert.h"
#include "server/answers/thought_budget.h"
#include "server/answers/thought_grammar.h"
#include "server/core/answer_bound.h"
#include "server/core/model_info.h"
#include "server/sessions/context_policy_convert.h"
#include "server/sessions/session_prompt.h"

namespace tramontane {
namespace {

constexpr int64_t kMaxTimeLimitMs = 24LL * 3600 * 1000;

// To clients that shorten what they send, output that does not fit is the same as a prompt that does not.
RpcError CheckOutputRoom(const Request& request, int64_t context) {
  const int64_t prompt = std::ssize(request.prompt);
  const int64_t output = request.stopping.max_tokens.value_or(0);
  if (output <= context - prompt) return {};
  return BeyondContext(
      FieldError("stopping.max_tokens", "is " + std::to_string(output) + " after a prompt of " +
                                            std::to_string(prompt) + " tokens; the context holds " +
                                            std::to_string(context) + " in all"),
      prompt, context);
}

RpcError ConvertPriority(const v1::GenerateRequest& proto, ShareParams* share) {
  share->priority = proto.priority();
  if (std::abs(int64_t{proto.priority()}) <= kMostPriority) return {};
  return FieldError("priority", "is " + std::to_string(proto.priority()) + "; it must be from " +
                                    std::to_string(-kMostPriority) + " to " + std::to_string(kMostPriority));
}

RpcError ConvertStopping(const v1::Stopping& proto, StoppingParams* stopping) {
  if (proto.has_max_tokens()) stopping->max_tokens = proto.max_tokens();
  stopping->min_tokens = proto.min_tokens();
  stopping->stop.assign(proto.stop().begin(), proto.stop().end());
  stopping->stop_token_ids.assign(proto.stop_token_ids().begin(), proto.stop_token_ids().end());
  stopping->include_stop = proto.include_stop();
  stopping->ignore_eos = proto.ignore_eos();
  if (proto.time_limit_ms() < 0 || proto.time_limit_ms() > kMaxTimeLimitMs) {
    return FieldError("stopping.time_limit_ms", "is " + std::to_string(proto.time_limit_ms()) +
                                                    "; it must be from 0 to " +
                                                    std::to_string(kMaxTimeLimitMs));
  }
  stopping->time_limit_ns = proto.time_limit_ms() * 1'000'000;
  return {};
}

// In the engine -1 means none; on the wire that is to leave the field out.
RpcError ConvertOutput(const v1::Output& proto, OutputParams* output) {
  if (proto.has_logprobs()) output->logprobs = proto.logprobs();
  if (proto.has_prompt_logprobs()) output->prompt_logprobs = proto.prompt_logprobs();
  if (proto.has_skip_special_tokens()) output->skip_special_tokens = proto.skip_special_tokens();
  output->prompt_tokens = proto.prompt_tokens();
  if (proto.logprobs() < 0) {
    return FieldError("output.logprobs", "is " + std::to_string(proto.logprobs()) + ", below 0");
  }
  if (proto.prompt_logprobs() < 0) {
    return FieldError("output.prompt_logprobs",
                      "is " + std::to_string(proto.prompt_logprobs()) + ", below 0");
  }
  return {};
}

// An output of log probabilities that may run to the end of the context runs as far as its answer has room.
RpcError BoundAnswer(int64_t most, const ContextPolicy& policy, const EngineLimits& limits,
                     Request* request) {
  if (RpcError error = CheckAnswerBytes(*request, limits, /*others=*/0, most); !error.ok()) return error;
  if (request->stopping.max_tokens) return {};
  const bool is_endless = policy.type != ContextPolicyType::kNone;
  const int64_t rest = (is_endless ? policy.n_ctx : limits.context) - std::ssize(request->prompt);
  const std::optional<int64_t> tokens = MostScoredTokens(*request, limits, most);
  if (tokens && *tokens < rest) request->stopping.max_tokens = tokens;
  return {};
}

// What asks a model not to think.
bool AsksForNoThought(const v1::Chat& chat) {
  if (chat.reasoning_effort() == "none") return true;
  const auto kwargs =
      nlohmann::json::parse(chat.chat_template_kwargs_json(), nullptr, /*allow_exceptions=*/false);
  const auto is_off = [&kwargs](const char* key) {
    return kwargs.is_object() && kwargs.contains(key) && kwargs[key] == false;
  };
  return is_off("enable_thinking") || is_off("thinking");
}

// An answer that has begun thinks no more, unless it is at it.
bool GoesOnWithAnswer(const v1::Chat& chat) {
  return chat.messages_size() > 0 && chat.messages(chat.messages_size() - 1).prefix();
}

}  // namespace

RequestConverter::RequestConverter(const ServedModel& model, const PromptReader& prompts)
    : model_(model), prompts_(prompts), answer_syntax_(model.chat_format->answer_syntax()) {
  const ThoughtMarks marks = answer_syntax_.thoughts();
  if (marks.any()) {
    thought_vocabulary_ =
        std::make_shared<const ThoughtVocabulary>(marks, *model.tokenizer, model.config.vocab_size);
  }
}

RpcError RequestConverter::Generate(const v1::GenerateRequest& proto, Request* request,
                                    const std::function<bool()>& wanted, const SessionState* session,
                                    Unenforced* unenforced) const {
  if (RpcError error = CheckModelName(model_, proto.model()); !error.ok()) return error;
  if (proto.prompt_case() != v1::GenerateRequest::kText) {
    if (proto.has_add_bos()) return FieldError("add_bos", "goes with text prompts only");
    if (proto.has_suffix()) return FieldError("suffix", "goes with text prompts only");
    if (proto.parse_special_tokens())
      return FieldError("parse_special_tokens", "goes with text prompts only");
  }
  if (proto.has_choices()) request->choices = proto.choices();
  request->cache_salt = proto.cache_salt();
  request->prefers_cache = !proto.session().empty();
  if (RpcError error = ConvertPriority(proto, &request->share); !error.ok()) return error;
  request->sampling = ConvertSampling(proto.sampling());
  if (RpcError error = ConvertStopping(proto.stopping(), &request->stopping); !error.ok()) return error;
  if (RpcError error = ConvertOutput(proto.output(), &request->output); !error.ok()) return error;
  if (proto.has_context_policy()) {
    RpcError error = ContextPolicyFromProto(proto.context_policy(), &request->context_policy.emplace());
    if (!error.ok()) return error;
  }
  const EngineLimits& limits = model_.engine->limits();
  const ContextPolicy policy = ContextPolicyOf(*request, limits);
  request->context_policy = policy;
  if (session != nullptr) {
    if (RpcError error = CheckSessionPolicy(*session, policy); !error.ok()) return error;
  }
  const PromptRoom room = {.context = MostTokens(policy, limits),
                           .scores_only = request->stopping.max_tokens == 0};
  if (RpcError error = prompts_.Read(proto, room, session, &request->prompt); !error.ok()) return error;
  if (policy.type == ContextPolicyType::kNone) {
    if (RpcError error = CheckOutputRoom(*request, limits.context); !error.ok()) return error;
  }
  if (RpcError error = BoundAnswer(model_.max_answer_bytes, policy, limits, request); !error.ok())
    return error;
  request->output.marked_ids = MarkedIds(answer_syntax_, proto.has_chat());
  ThoughtMarks& thoughts = request->output.thoughts;
  if (proto.has_chat()) {
    thoughts = answer_syntax_.thoughts();
    thoughts.open = thoughts.any() && EndsWithinThought(request->prompt);
  }
  const bool never_calls = proto.has_chat() && !MayCallTools(proto.chat());
  if (never_calls && answer_syntax_.calls != AnswerSyntax::Calls::kNone)
    request->sampling.banned.push_back(answer_syntax_.tool_calls);
  Unenforced dropped;
  return ConstrainOutput(proto, wanted, &thoughts, &request->constraint,
                         unenforced != nullptr ? unenforced : &dropped);
}

// The prompt is that of a Generate which generates nothing.
RpcError RequestConverter::ScoreCandidates(const v1::ScoreCandidatesRequest& proto, Request* request) const {
  v1::GenerateRequest scoring;
  scoring.set_model(proto.model());
  if (proto.has_text()) scoring.set_text(proto.text());
  if (proto.has_token_ids()) *scoring.mutable_token_ids() = proto.token_ids();
  if (proto.has_chat()) *scoring.mutable_chat() = proto.chat();
  if (proto.has_add_bos()) scoring.set_add_bos(proto.add_bos());
  if (proto.has_parse_special_tokens()) scoring.set_parse_special_tokens(proto.parse_special_tokens());
  scoring.set_cache_salt(proto.cache_salt());
  scoring.set_priority(proto.priority());
  scoring.mutable_stopping()->set_max_tokens(0);
  scoring.mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_NONE);
  if (MustCallTools(proto.chat())) {
    return FieldError("chat.tool_choice",
                      "makes the model call, but nothing is generated: auto and none are what it may be");
  }
  if (proto.candidates().empty()) return FieldError("candidates", "is empty: there must be at least one");
  if (proto.candidates_size() > kMaxCandidates) {
    return FieldError("candidates", "has " + std::to_string(proto.candidates_size()) + " entries; at most " +
                                        std::to_string(kMaxCandidates) + " are allowed");
  }
  if (RpcError error = Generate(scoring, request); !error.ok()) return error;
  const bool goes_on = !model_.tokenizer->IsControl(request->prompt.back());
  for (int i = 0; i < proto.candidates_size(); ++i) {
    RpcError error =
        prompts_.ReadCandidate(FieldElement("candidates", static_cast<size_t>(i)), proto.candidates(i),
                               goes_on, &request->candidates.emplace_back());
    if (!error.ok()) return error;
  }
  return CheckAnswerBytes(*request, model_.engine->limits(), /*others=*/0, model_.max_answer_bytes);
}

RpcError RequestConverter::ConstrainOutput(const v1::GenerateRequest& proto,
                                           const std::function<bool()>& wanted, ThoughtMarks* thoughts,
                                           ConstraintParams* constraint, Unenforced* unenforced) const {
  const int32_t budget = proto.chat().has_thinking_token_budget() ? proto.chat().thinking_token_budget() : -1;
  if (budget < -1) {
    return FieldError("chat.thinking_token_budget",
                      "is " + std::to_string(budget) + "; it must be -1, for no limit, or from 0 on");
  }
  if (RpcError error = Constrain(proto, wanted, constraint, unenforced); !error.ok()) return error;
  if (!thoughts->any()) return {};
  const bool is_held = proto.has_constraint() || MustCallTools(proto.chat());
  const bool thinks = !is_held || LetThink(proto, thoughts, constraint);
  if (!thinks || budget < 0) return {};
  constraint->grammar =
      std::make_shared<ThoughtBudget>(thought_vocabulary_, *thoughts, budget, std::move(constraint->grammar));
  constraint->goes_before_min_tokens = true;
  return {};
}

bool RequestConverter::LetThink(const v1::GenerateRequest& proto, ThoughtMarks* thoughts,
                                ConstraintParams* constraint) const {
  const v1::Chat& chat = proto.chat();
  const bool may_begin = !AsksForNoThought(chat) && !GoesOnWithAnswer(chat);
  const bool lists_calls = answer_syntax_.calls == AnswerSyntax::Calls::kJsonList && MustCallTools(chat);
  const bool from_first_token =
      proto.constraint().from_first_token() || !constraint->forced_prefix.empty() || lists_calls;
  if (from_first_token || !(thoughts->open || may_begin) || !thought_vocabulary_->MayThink(thoughts->open)) {
    thoughts->open = false;  // what is held to its form from here on is no thought
    return false;
  }
  constraint->grammar =
      std::make_shared<ThoughtGrammar>(thought_vocabulary_, std::move(constraint->grammar), thoughts->open);
  return true;
}

RpcError RequestConverter::Constrain(const v1::GenerateRequest& proto, const std::function<bool()>& wanted,
                                     ConstraintParams* constraint, Unenforced* unenforced) const {
  const v1::Chat& chat = proto.chat();
  if (proto.has_constraint()) {
    if (MustCallTools(chat)) {
      return FieldError("constraint", "does not go with a tool_choice that makes the model call");
    }
    RpcError error = ConvertConstraint(model_, {"constraint"}, proto.constraint(), wanted, constraint);
    if (!error.ok() || !constraint->forced_prefix.empty()) return error;
  }
  if (!MayCallTools(chat)) return {};
  return ConstrainCalls(model_, answer_syntax_, chat, constraint, unenforced);
}

bool RequestConverter::EndsWithinThought(const std::vector<int32_t>& prompt) const {
  const auto last_control = std::find_if(prompt.rbegin(), prompt.rend(),
                                         [this](int32_t id) { return model_.tokenizer->IsControl(id); });
  if (!answer_syntax_.thinks_in_text) {
    return last_control != prompt.rend() && *last_control == answer_syntax_.begin_think;
  }
  constexpr ptrdiff_t kMostIds = 64;  // of the text behind a prompt's last control token
  const ptrdiff_t count = std::min(kMostIds, last_control - prompt.rbegin());
  const StatusOr<std::string> text = model_.tokenizer->Decode({prompt.end() - count, prompt.end()});
  return text.ok() && LeavesThoughtOpen(*text);
}

SamplingParams RequestConverter::ConvertSampling(const v1::Sampling& proto) const {
  const ModelConfig::Defaults& defaults = model_.config.defaults;
  SamplingParams sampling;
  sampling.temperature = proto.has_temperature() ? proto.temperature() : defaults.temperature;
  sampling.top_p = proto.has_top_p() ? proto.top_p() : defaults.top_p;
  sampling.top_k = proto.has_top_k() ? proto.top_k() : defaults.top_k;
  sampling.min_p = proto.has_min_p() ? proto.min_p() : defaults.min_p;
  sampling.repetition_penalty =
      proto.has_repetition_penalty() ? proto.repetition_penalty() : defaults.repetition_penalty;
  if (proto.has_presence_penalty()) sampling.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) sampling.frequency_penalty = proto.frequency_penalty();
  if (proto.has_seed()) sampling.seed = proto.seed();
  sampling.logit_bias.assign(proto.logit_bias().begin(), proto.logit_bias().end());
  std::sort(sampling.logit_bias.begin(), sampling.logit_bias.end());  // a map has no order of its own
  return sampling;
}

}  // namespace tramontane
