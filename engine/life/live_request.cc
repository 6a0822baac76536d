#include "engine/life/live_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/core/broken_rule.h"

namespace tramontane {

void LiveChoice::Discard(int64_t count) {
  const int64_t spared = request->context_policy->n_keep + (IsBroken(KvRule::kDiscard) ? 1 : 0);
  tokens.Erase(spared, count);
  path.Clear();
  discarded += count;
  max_len -= count;
}

int64_t LiveChoice::DiscardedTokens() const {
  const ContextPolicy& policy = *request->context_policy;
  if (policy.type == ContextPolicyType::kNone || policy.type == ContextPolicyType::kReevaluate)
    return discarded;
  const int64_t last_row = static_cast<int64_t>(tokens.size()) - (output_tokens() > 0 ? 2 : 1);
  return ViewAt(policy, last_row).left - policy.n_keep;
}

void LiveRequest::MakeBranches() {
  const auto goes_on = [](const std::vector<int32_t>& candidate) { return candidate.size() > 1; };
  const auto count = std::count_if(request.candidates.begin(), request.candidates.end(), goes_on);
  branches = std::vector<LiveChoice>(static_cast<size_t>(count));
  int32_t number = 0;
  for (const std::vector<int32_t>& candidate : request.candidates) {
    if (!goes_on(candidate)) continue;
    LiveChoice& branch = branches[static_cast<size_t>(number)];
    branch.live = this;
    branch.request = &request;
    branch.choice = ++number;
    branch.candidate = &candidate;
    branch.tokens = choices[0].tokens;
    for (size_t i = 0; i + 1 < candidate.size(); ++i) branch.tokens.push_back(candidate[i]);
    branch.identity = &identity;
    branch.path = TextPath::Behind(path);
    branch.max_len = branch.prompt_tokens();
  }
}

std::vector<TokenInfo> LiveRequest::TakeScores() {
  for (const auto* list : {&choices, &branches}) {
    for (const LiveChoice& choice : *list) {
      if (std::ssize(choice.scores) < choice.ScoresBefore(choice.prompt_tokens())) return {};
    }
  }
  if (branches.empty()) return std::move(choices[0].scores);
  std::vector<TokenInfo> scores;
  auto branch = branches.begin();
  auto first = choices[0].scores.begin();
  for (const std::vector<int32_t>& candidate : request.candidates) {
    scores.push_back(std::move(*first++));
    if (candidate.size() == 1) continue;
    std::move(branch->scores.begin(), branch->scores.end(), std::back_inserter(scores));
    ++branch;
  }
  return scores;
}

}  // namespace tramontane
