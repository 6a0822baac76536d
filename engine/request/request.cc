#include "engine/request/request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "engine/request/limits.h"
#include "kernels/core/utf8.h"
#include "kernels/sampling.h"
#include "models/kv_layout.h"

namespace tramontane {
namespace {

constexpr float kMaxTemperature = 100.0f;
constexpr float kMaxPenalty = 2.0f;             // presence and frequency, either sign
constexpr float kMinRepetitionPenalty = 0.01f;  // a logit divided by much less is no number
constexpr float kMaxRepetitionPenalty = 100.0f;
constexpr float kMaxLogitBias = 100.0f;

// The shortest text that is this number and no other: "1.5", "1e-30", "nan".
std::string Text(float value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

Status Refuse(const std::string& field, const std::string& what) {
  return InvalidArgument(what).WithField(field, FieldForm::kSubject);
}

// NaN is in no interval.
Status CheckInterval(const char* field, float value, float least, float most) {
  if (value >= least && value <= most) return {};
  return Refuse(field, "is " + Text(value) + "; it must be from " + Text(least) + " to " + Text(most));
}

Status CheckPositiveUpTo(const char* field, float value, float most) {
  if (value > 0.0f && value <= most) return {};
  return Refuse(field, "is " + Text(value) + "; it must be above 0 and at most " + Text(most));
}

Status CheckRange(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return Refuse(field, "is " + std::to_string(value) + "; it must be from " + std::to_string(least) + " to " +
                           std::to_string(most));
}

Status CheckCount(const char* field, size_t count, int32_t most) {
  if (count <= static_cast<size_t>(most)) return {};
  return Refuse(
      field, "has " + std::to_string(count) + " entries; at most " + std::to_string(most) + " are allowed");
}

Status CheckToken(const char* field, size_t index, int32_t token, int32_t vocab_size) {
  if (token >= 0 && token < vocab_size) return {};
  return Refuse(field, "has the id " + std::to_string(token) + " at index " + std::to_string(index) +
                           "; the vocabulary has the ids 0 to " + std::to_string(vocab_size - 1));
}

Status CheckTokens(const char* field, const std::vector<int32_t>& tokens, int32_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) TM_RETURN_IF_ERROR(CheckToken(field, i, tokens[i], vocab_size));
  return {};
}

Status CheckPrompt(const Request& request, const ContextPolicy& policy, const EngineLimits& limits,
                   int32_t vocab_size) {
  if (request.prompt.empty()) return Refuse("prompt", "is empty; it must hold at least one token");
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t output = request.stopping.max_tokens.value_or(1);  // unset: at least one must fit
  const int64_t most = MostTokens(policy, limits);
  if (tokens > most || (output > 0 && tokens == most)) {
    return Refuse("prompt", "has " + std::to_string(tokens) + " tokens; the context holds " +
                                std::to_string(most) + ", output included");
  }
  return CheckTokens("prompt", request.prompt, vocab_size);
}

Status CheckSampling(const SamplingParams& sampling, const EngineLimits& limits, int32_t vocab_size) {
  TM_RETURN_IF_ERROR(CheckInterval("sampling.temperature", sampling.temperature, 0.0f, kMaxTemperature));
  TM_RETURN_IF_ERROR(CheckPositiveUpTo("sampling.top_p", sampling.top_p, 1.0f));
  TM_RETURN_IF_ERROR(CheckRange("sampling.top_k", sampling.top_k, -1, std::numeric_limits<int32_t>::max()));
  TM_RETURN_IF_ERROR(CheckInterval("sampling.min_p", sampling.min_p, 0.0f, 1.0f));
  TM_RETURN_IF_ERROR(CheckInterval("sampling.repetition_penalty", sampling.repetition_penalty,
                                   kMinRepetitionPenalty, kMaxRepetitionPenalty));
  TM_RETURN_IF_ERROR(
      CheckInterval("sampling.presence_penalty", sampling.presence_penalty, -kMaxPenalty, kMaxPenalty));
  TM_RETURN_IF_ERROR(
      CheckInterval("sampling.frequency_penalty", sampling.frequency_penalty, -kMaxPenalty, kMaxPenalty));
  TM_RETURN_IF_ERROR(CheckCount("sampling.logit_bias", sampling.logit_bias.size(), limits.max_logit_bias));
  std::vector<int32_t> biased;
  for (size_t i = 0; i < sampling.logit_bias.size(); ++i) {
    const auto& [token, bias] = sampling.logit_bias[i];
    TM_RETURN_IF_ERROR(CheckToken("sampling.logit_bias", i, token, vocab_size));
    TM_RETURN_IF_ERROR(CheckInterval("sampling.logit_bias", bias, -kMaxLogitBias, kMaxLogitBias));
    biased.push_back(token);
  }
  std::sort(biased.begin(), biased.end());
  const auto twice = std::adjacent_find(biased.begin(), biased.end());
  if (twice != biased.end()) {
    return Refuse("sampling.logit_bias", "names the id " + std::to_string(*twice) + " twice");
  }
  return {};
}

// A policy's n_ctx is what a request without max_tokens gets, as without one the context.
Status CheckLengths(const Request& request, const ContextPolicy& policy, const EngineLimits& limits) {
  const StoppingParams& stopping = request.stopping;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const bool endless = policy.type != ContextPolicyType::kNone;
  if (endless && !stopping.max_tokens && prompt >= policy.n_ctx) {
    return Refuse("stopping.max_tokens", "is not given, and a prompt of " + std::to_string(prompt) +
                                             " tokens leaves nothing of context_policy.n_ctx, " +
                                             std::to_string(policy.n_ctx) + ", that it could default to");
  }
  const int64_t rest = (endless ? policy.n_ctx : limits.context) - prompt;
  const int64_t max_tokens = stopping.max_tokens.value_or(rest);
  if (endless) {
    TM_RETURN_IF_ERROR(CheckRange("stopping.max_tokens", max_tokens, 0, kMaxContext));
    return CheckRange("stopping.min_tokens", stopping.min_tokens, 0, max_tokens);
  }
  if (max_tokens < 0) return Refuse("stopping.max_tokens", "is " + std::to_string(max_tokens) + ", below 0");
  if (max_tokens > rest) {
    return Refuse("stopping.max_tokens", "is " + std::to_string(max_tokens) + " after a prompt of " +
                                             std::to_string(request.prompt.size()) +
                                             " tokens; the context holds " + std::to_string(limits.context) +
                                             " in all");
  }
  return CheckRange("stopping.min_tokens", stopping.min_tokens, 0, max_tokens);
}

Status CheckStops(const StoppingParams& stopping, const EngineLimits& limits, int32_t vocab_size) {
  TM_RETURN_IF_ERROR(CheckCount("stopping.stop", stopping.stop.size(), limits.max_stop_strings));
  for (size_t i = 0; i < stopping.stop.size(); ++i) {
    const std::string& stop = stopping.stop[i];
    const std::string which = "has at index " + std::to_string(i) + " a string ";
    if (stop.empty()) return Refuse("stopping.stop", which + "that is empty");
    if (stop.size() > static_cast<size_t>(limits.max_stop_bytes)) {
      return Refuse("stopping.stop", which + "of " + std::to_string(stop.size()) + " bytes; at most " +
                                         std::to_string(limits.max_stop_bytes) + " are allowed");
    }
    if (FirstInvalidUtf8(stop)) return Refuse("stopping.stop", which + "that is not UTF-8");
  }
  TM_RETURN_IF_ERROR(
      CheckCount("stopping.stop_token_ids", stopping.stop_token_ids.size(), limits.max_stop_token_ids));
  TM_RETURN_IF_ERROR(CheckTokens("stopping.stop_token_ids", stopping.stop_token_ids, vocab_size));
  if (stopping.time_limit_ns < 0) {
    return Refuse("stopping.time_limit", "is " + std::to_string(stopping.time_limit_ns) + " ns, below 0");
  }
  return {};
}

Status CheckConstraint(const ConstraintParams& constraint, const EngineLimits& limits, int32_t vocab_size) {
  const std::vector<int32_t>& forced = constraint.forced_prefix;
  if (!forced.empty() && constraint.grammar == nullptr) {
    return Refuse("constraint.forced_prefix_ids", "needs a grammar behind it");
  }
  TM_RETURN_IF_ERROR(CheckCount("constraint.forced_prefix_ids", forced.size(), limits.max_forced_prefix_ids));
  return CheckTokens("constraint.forced_prefix_ids", forced, vocab_size);
}

Status CheckPolicy(const ContextPolicy& policy, const OutputParams& output, const EngineLimits& limits) {
  if (policy.type == ContextPolicyType::kNone) return {};
  TM_RETURN_IF_ERROR(CheckRange("context_policy.n_ctx", policy.n_ctx, 1, limits.context));
  Status status = CheckContextPolicy(policy);
  if (!status.ok()) return std::move(status).InField("context_policy");
  if (policy.type != ContextPolicyType::kReevaluate) return {};
  TM_RETURN_IF_ERROR(CheckRange("context_policy.n_discard", policy.n_discard, LeastReevaluatedDiscard(policy),
                                policy.n_ctx - policy.n_keep));
  if (output.prompt_logprobs < 0) return {};
  return Refuse("output.prompt_logprobs",
                "is " + std::to_string(output.prompt_logprobs) +
                    "; together with context_policy.type reevaluate it must be unset, for positions change");
}

Status CheckCacheSalt(const std::string& salt) {
  if (salt.size() <= kMaxCacheSaltBytes) return {};
  return Refuse("cache_salt", "has " + std::to_string(salt.size()) + " bytes; at most " +
                                  std::to_string(kMaxCacheSaltBytes) + " are allowed");
}

// What is computed of them fits together, though each has a sequence of its own: a bound on what is asked.
Status CheckCandidates(const Request& request, const ContextPolicy& policy, const EngineLimits& limits,
                       int32_t vocab_size) {
  const std::vector<std::vector<int32_t>>& candidates = request.candidates;
  if (candidates.empty()) return {};
  TM_RETURN_IF_ERROR(CheckCount("candidates", candidates.size(), kMaxCandidates));
  for (size_t c = 0; c < candidates.size(); ++c) {
    const std::string field = "candidates[" + std::to_string(c) + "]";
    if (candidates[c].empty()) return Refuse(field, "is empty; it must hold at least one token");
    TM_RETURN_IF_ERROR(CheckTokens(field.c_str(), candidates[c], vocab_size));
  }
  if (request.stopping.max_tokens != 0)
    return Refuse("stopping.max_tokens", "must be 0 where candidates are scored");
  if (request.choices != 1) return Refuse("choices", "must be 1 where candidates are scored");
  if (policy.type != ContextPolicyType::kNone) {
    return Refuse("context_policy.type", std::string("is ") + ContextPolicyName(policy.type) +
                                             "; it must be none where candidates are scored");
  }
  int64_t positions = std::ssize(request.prompt);
  for (const std::vector<int32_t>& candidate : candidates) positions += std::ssize(candidate) - 1;
  if (positions <= limits.context) return {};
  return Refuse("candidates", "take " + std::to_string(positions) +
                                  " positions together with their prompt of " +
                                  std::to_string(request.prompt.size()) + " tokens; the context holds " +
                                  std::to_string(limits.context));
}

Status CheckShare(const ShareParams& share) {
  TM_RETURN_IF_ERROR(CheckRange("share.weight", share.weight, 1, kMostWeight));
  return CheckRange("priority", share.priority, -kMostPriority, kMostPriority);
}

Status CheckOutput(const OutputParams& output) {
  TM_RETURN_IF_ERROR(CheckRange("output.logprobs", output.logprobs, -1, kMaxTopLogprobs));
  return CheckRange("output.prompt_logprobs", output.prompt_logprobs, -1, kMaxTopLogprobs);
}

}  // namespace

int64_t LeastReevaluatedDiscard(const ContextPolicy& policy) {
  return std::max<int64_t>(1, (policy.n_ctx - policy.n_keep) / kLeastDiscardPart);
}

int64_t MostTokens(const ContextPolicy& policy, const EngineLimits& limits) {
  return policy.type == ContextPolicyType::kNone ? limits.context : kMaxContext;
}

ContextPolicy ContextPolicyOf(const Request& request, const EngineLimits& limits) {
  ContextPolicy policy = request.context_policy.value_or(limits.context_policy);
  if (policy.type == ContextPolicyType::kNone) return {};
  if (policy.n_ctx == 0) policy.n_ctx = limits.context;
  if (policy.n_discard == 0 && policy.type == ContextPolicyType::kShift) policy.n_discard = 1;
  if (policy.n_discard == 0 && policy.type == ContextPolicyType::kReevaluate)
    policy.n_discard = std::max<int64_t>(1, (policy.n_ctx - policy.n_keep) / 2);
  return policy;
}

Status ValidateRequest(const Request& request, const EngineLimits& limits, int32_t vocab_size) {
  if (request.id.empty()) return Refuse("request_id", "is empty");
  TM_RETURN_IF_ERROR(
      CheckRange("choices", request.choices, 1, std::min(limits.max_choices, limits.max_sequences)));
  const ContextPolicy policy = ContextPolicyOf(request, limits);
  TM_RETURN_IF_ERROR(CheckPolicy(policy, request.output, limits));
  TM_RETURN_IF_ERROR(CheckPrompt(request, policy, limits, vocab_size));
  TM_RETURN_IF_ERROR(CheckCandidates(request, policy, limits, vocab_size));
  TM_RETURN_IF_ERROR(CheckCacheSalt(request.cache_salt));
  TM_RETURN_IF_ERROR(CheckShare(request.share));
  TM_RETURN_IF_ERROR(CheckSampling(request.sampling, limits, vocab_size));
  TM_RETURN_IF_ERROR(CheckLengths(request, policy, limits));
  TM_RETURN_IF_ERROR(CheckStops(request.stopping, limits, vocab_size));
  TM_RETURN_IF_ERROR(CheckConstraint(request.constraint, limits, vocab_size));
  return CheckOutput(request.output);
}

}  // namespace tramontane
