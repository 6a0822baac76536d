// Choosing a token by its definition, in double precision and with a full sort. Any thread; pure.
//
// The race's random numbers are given by the caller: this file says who wins, not how they are drawn.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace tramontane::reference {

// Every entry -inf stays -inf.
template <typename Number>
std::vector<double> LogSoftmax(const std::vector<Number>& logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - highest);
  std::vector<double> logprobs;
  for (const double logit : logits) logprobs.push_back(logit - highest - std::log(sum));
  return logprobs;
}

struct Adjustment {
  int32_t token = 0;
  float bias = 0;
  int32_t output_count = 0;
  bool in_context = false;
};

struct SamplingProblem {
  std::vector<float> logits;
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<Adjustment> adjustments;
  std::vector<bool> allowed;  // [vocab]; empty: all
  int32_t forced_token = -1;
  int32_t top_logprobs = 0;
  std::function<double(int32_t token)> exponential;  // the token's exponential random number
};

struct SamplingAnswer {
  bool failed = false;
  int32_t token = -1;
  double logprob = 0;
  int32_t rank = 0;
  std::vector<std::pair<int32_t, double>> top;  // (token, logprob), highest first
  std::vector<std::pair<int32_t, double>>
      candidates;  // (token, probability) that the filters left, highest first
};

SamplingAnswer Sample(const SamplingProblem& problem);

// What an adjustment makes of a logit. Adjusted logits are f32: each step rounds once.
float Adjusted(float logit, const Adjustment& adjustment, const SamplingProblem& problem);

}  // namespace tramontane::reference
