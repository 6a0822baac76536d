#include "server/core/answer_bound.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/sampling.h"
#include "server/call/answer_cost.h"

namespace tramontane {
namespace {

constexpr int64_t kMostChoices = 4096;  // what is beyond any limit is refused elsewhere, by its own name

int64_t ChoicesOf(const Request& request) { return std::clamp<int64_t>(request.choices, 1, kMostChoices); }
int64_t ScoresOf(int32_t logprobs) { return std::clamp(logprobs, -1, kMaxTopLogprobs) + 1; }

// Of all choices.
struct Parts {
  int64_t prompt_scores = 0;
  int64_t candidate_scores = 0;
  int64_t prompt = 0;  // ids and text
  int64_t output_scores = 0;

  int64_t sum() const { return prompt_scores + candidate_scores + prompt + output_scores; }
};

int64_t ScoreBytesOfToken(const Request& request) {
  return ChoicesOf(request) * ScoresOf(request.output.logprobs) * kScoreTextBytes;
}

Parts PartsOf(const Request& request, const EngineLimits& limits) {
  const int64_t choices = ChoicesOf(request);
  const int64_t prompt_tokens = std::ssize(request.prompt);
  const int64_t score_bytes = kScoreMessageBytes + choices * kScoreTextBytes;
  Parts parts;
  parts.prompt_scores = prompt_tokens * ScoresOf(request.output.prompt_logprobs) * score_bytes;
  for (const auto& candidate : request.candidates)
    parts.candidate_scores += std::ssize(candidate) * score_bytes;
  if (request.output.prompt_tokens) parts.prompt = choices * prompt_tokens * kTokenBytes;
  const int64_t tokens = request.stopping.max_tokens.value_or(request.stopping.min_tokens);
  parts.output_scores = std::clamp<int64_t>(tokens, 0, limits.unread_tokens()) * ScoreBytesOfToken(request);
  return parts;
}

// Which part is the largest, by its field.
RpcError LargestPartError(const Request& request, const Parts& parts, int64_t bytes, int64_t most) {
  const auto is = [](int64_t value) { return "is " + std::to_string(value) + " for "; };
  const std::string of_choices =
      request.choices > 1 ? " in each of " + std::to_string(request.choices) + " choices" : "";
  const std::string of_prompt =
      "a prompt of " + std::to_string(request.prompt.size()) + " tokens" + of_choices;
  const int64_t largest =
      std::max({parts.prompt_scores, parts.candidate_scores, parts.prompt, parts.output_scores});
  if (largest == parts.prompt_scores) {
    return AnswerTooLarge("output.prompt_logprobs", is(request.output.prompt_logprobs) + of_prompt, bytes,
                          most);
  }
  if (largest == parts.output_scores) {
    const int64_t tokens = request.stopping.max_tokens.value_or(request.stopping.min_tokens);
    return AnswerTooLarge("output.logprobs",
                          is(request.output.logprobs) + std::to_string(tokens) + " tokens" + of_choices,
                          bytes, most);
  }
  if (largest == parts.prompt) {
    return AnswerTooLarge("output.prompt_tokens", "is true for " + of_prompt, bytes, most);
  }
  return AnswerTooLarge("candidates", "has " + std::to_string(request.candidates.size()) + " entries", bytes,
                        most);
}

}  // namespace

int64_t AnswerBytes(const Request& request, const EngineLimits& limits) {
  return PartsOf(request, limits).sum();
}

RpcError CheckAnswerBytes(const Request& request, const EngineLimits& limits, int64_t others, int64_t most) {
  const Parts parts = PartsOf(request, limits);
  const int64_t bytes = parts.sum() + others;
  if (most == 0 || bytes <= most) return {};
  RpcError error = LargestPartError(request, parts, bytes, most);
  if (others > 0) error.sentence += "; its other prompts take " + std::to_string(others) + " of these";
  return error;
}

std::optional<int64_t> MostScoredTokens(const Request& request, const EngineLimits& limits, int64_t most) {
  const int64_t token_bytes = ScoreBytesOfToken(request);
  if (most == 0 || token_bytes == 0) return std::nullopt;
  Parts parts = PartsOf(request, limits);
  parts.output_scores = 0;
  return std::max<int64_t>(1, (most - parts.sum()) / token_bytes);
}

RpcError AnswerTooLarge(std::string path, const std::string& what, int64_t bytes, int64_t most) {
  RpcError error = FieldError(std::move(path), what + ", which takes " + std::to_string(bytes) +
                                                   " bytes of an answer; at most " + std::to_string(most) +
                                                   " are allowed (max_answer_bytes)");
  error.reason = "ANSWER_TOO_LARGE";
  error.info = {{"answer_bytes", std::to_string(bytes)}, {"max_answer_bytes", std::to_string(most)}};
  return error;
}

}  // namespace tramontane
