#include "tests/reference/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace tramontane::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool IsUsable(double logit) { return !std::isnan(logit) && logit != kInfinity; }

struct Candidate {
  int32_t token = 0;
  double logit = 0;
  double weight = 0;  // softmax numerator at the row's temperature
};

// Logits after adjustments and mask, highest first; equal ones by token.
std::vector<Candidate> SortedCandidates(const SamplingProblem& p, bool* failed) {
  std::vector<float> logits = p.logits;
  for (const Adjustment& adjustment : p.adjustments) {
    float& logit = logits[static_cast<size_t>(adjustment.token)];
    logit = Adjusted(logit, adjustment, p);
    if (!IsUsable(logit)) *failed = true;
  }
  std::vector<Candidate> candidates;
  for (size_t token = 0; token < logits.size(); ++token) {
    if (!p.allowed.empty() && !p.allowed[token]) continue;
    if (logits[token] == -kInfinity) continue;
    candidates.push_back({static_cast<int32_t>(token), logits[token], 0});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  return candidates;
}

void KeepTopK(int32_t top_k, std::vector<Candidate>* candidates) {
  if (top_k > 0 && candidates->size() > static_cast<size_t>(top_k))
    candidates->resize(static_cast<size_t>(top_k));
}

// The shortest head of the list whose probability reaches top_p.
void KeepTopP(double top_p, std::vector<Candidate>* candidates) {
  if (top_p >= 1) return;
  double total = 0;
  for (const Candidate& c : *candidates) total += c.weight;
  double sum = 0;
  size_t kept = 0;
  while (kept < candidates->size() && sum < top_p * total) sum += (*candidates)[kept++].weight;
  candidates->resize(kept);
}

void KeepMinP(double min_p, std::vector<Candidate>* candidates) {
  const double highest = candidates->front().weight;
  std::erase_if(*candidates, [&](const Candidate& c) { return c.weight < min_p * highest; });
}

void Report(const SamplingProblem& p, int32_t token, SamplingAnswer* answer) {
  const std::vector<double> logprobs = LogSoftmax(p.logits);
  answer->token = token;
  answer->logprob = logprobs[static_cast<size_t>(token)];
  answer->rank = 1 + static_cast<int32_t>(std::count_if(p.logits.begin(), p.logits.end(), [&](float logit) {
                   return logit > p.logits[static_cast<size_t>(token)];
                 }));
  std::vector<int32_t> order(p.logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return p.logits[static_cast<size_t>(a)] > p.logits[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(p.top_logprobs)));
  for (const int32_t top : order) answer->top.emplace_back(top, logprobs[static_cast<size_t>(top)]);
}

}  // namespace

float Adjusted(float logit, const Adjustment& adjustment, const SamplingProblem& p) {
  if (adjustment.in_context) logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  const float count_penalty = p.frequency_penalty * static_cast<float>(adjustment.output_count);
  logit = logit - count_penalty;
  if (adjustment.output_count > 0) logit = logit - p.presence_penalty;
  return logit + adjustment.bias;
}

SamplingAnswer Sample(const SamplingProblem& p) {
  SamplingAnswer answer;
  answer.failed = !std::all_of(p.logits.begin(), p.logits.end(), IsUsable) ||
                  std::all_of(p.logits.begin(), p.logits.end(), [](float l) { return l == -kInfinity; });
  if (answer.failed) return answer;
  if (p.forced_token >= 0) {
    Report(p, p.forced_token, &answer);
    return answer;
  }

  std::vector<Candidate> candidates = SortedCandidates(p, &answer.failed);
  if (candidates.empty()) answer.failed = true;
  if (answer.failed) return answer;
  if (p.temperature == 0) {
    answer.candidates = {{candidates.front().token, 1.0}};
    Report(p, candidates.front().token, &answer);
    return answer;
  }

  const double highest = candidates.front().logit;
  for (Candidate& c : candidates) c.weight = std::exp((c.logit - highest) / p.temperature);
  KeepTopK(p.top_k, &candidates);
  KeepTopP(p.top_p, &candidates);
  KeepMinP(p.min_p, &candidates);

  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  int32_t winner = -1;
  double best = kInfinity;
  for (const Candidate& c : candidates) {
    answer.candidates.emplace_back(c.token, c.weight / total);
    const double time = p.exponential(c.token) / c.weight;
    if (time < best || (time == best && time < kInfinity && c.token < winner)) {
      best = time;
      winner = c.token;
    }
  }
  Report(p, winner, &answer);
  return answer;
}

}  // namespace tramontane::reference
