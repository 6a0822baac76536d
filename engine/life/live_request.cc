#include "engine/life/live_request.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "engine/life/constrain/output_constraint.h"
#include "kernels/core/broken_rule.h"

namespace tramontane {
namespace {

// Whether a token is allowed that the adjustments do not ban.
bool AllowsAny(std::span<const uint32_t> mask, std::span<const LogitAdjust> adjusts) {
  int64_t allowed = 0;
  for (const uint32_t word : mask) allowed += std::popcount(word);
  for (const LogitAdjust& adjust : adjusts) {
    const bool banned = adjust.bias == -std::numeric_limits<float>::infinity();
    if (banned && MaskAllows(mask, adjust.token)) --allowed;
  }
  return allowed > 0;
}

// What all choices of a request, and all its branches, begin with.
void Prepare(LiveRequest& live, int32_t number, LiveChoice& choice) {
  choice.live = &live;
  choice.request = &live.request;
  choice.choice = number;
  choice.identity = &live.identity;
  choice.path = TextPath::Behind(live.path);
}

bool GoesOn(const std::vector<int32_t>& candidate) { return candidate.size() > 1; }

}  // namespace

void LiveChoice::FillSamplingRow(int64_t position, SamplingRow* row) const {
  const SamplingParams& sampling = request->sampling;
  row->temperature = sampling.temperature;
  row->top_p = sampling.top_p;
  row->min_p = sampling.min_p;
  row->top_k = std::max(sampling.top_k, 0);
  row->repetition_penalty = sampling.repetition_penalty;
  row->presence_penalty = sampling.presence_penalty;
  row->frequency_penalty = sampling.frequency_penalty;
  row->choice = choice;
  row->seed = live->seed;
  row->position = discarded + position + 1;  // in the whole text
  row->top_logprobs = std::max(request->output.logprobs, 0);
  row->wants_logprob = request->output.logprobs >= 0 ? 1 : 0;
}

std::span<const uint32_t> LiveChoice::mask() const {
  if (constraint == nullptr || ended || late) return {};
  return constraint->mask();
}

void LiveChoice::AllowWhatTheMaskAllows() {
  if (!request->constraint.goes_before_min_tokens || mask().empty() || !history->bans_endings()) return;
  if (!AllowsAny(mask(), history->adjusts())) history->AllowEndings();
}

Status NotFinite() { return Internal("the model's logits are not finite"); }

Status LiveChoice::WhyNoToken() const {
  if (mask().empty() || AllowsAny(mask(), history->adjusts())) return NotFinite();
  // What it allows is the end alone, and that is banned until then.
  if (AllowsAny(mask(), {})) {
    return InvalidArgument(
               "is " + std::to_string(request->stopping.min_tokens) +
               ", but the text that the constraint allows is whole before and can neither end nor go on")
        .WithField("stopping.min_tokens", FieldForm::kSubject);
  }
  return InvalidArgument("allows no token here: the vocabulary cannot go on with the text")
      .WithField("constraint", FieldForm::kSubject);
}

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

int64_t LiveRequest::queued_bytes() const {
  const auto copies = static_cast<size_t>(request.choices) + 1;
  size_t bytes = request.prompt.size() * sizeof(int32_t);
  for (const std::vector<int32_t>& candidate : request.candidates)
    bytes += sizeof(std::vector<int32_t>) + candidate.size() * sizeof(int32_t);
  for (const std::string& stop : request.stopping.stop) bytes += stop.size() * copies;
  bytes += request.stopping.stop_token_ids.size() * sizeof(int32_t);
  bytes += static_cast<size_t>(history_after_prompt.bytes()) * copies;
  bytes += static_cast<size_t>(path.bytes());
  return static_cast<int64_t>(bytes);
}

void LiveRequest::MakeChoices(const EngineLimits& limits) {
  const ContextPolicy& policy = *request.context_policy;
  const int64_t prompt_tokens = std::ssize(request.prompt);
  const int64_t context = policy.type == ContextPolicyType::kNone ? limits.context : policy.n_ctx;
  choices.resize(static_cast<size_t>(request.choices));
  for (LiveChoice& choice : choices) {
    Prepare(*this, static_cast<int32_t>(&choice - choices.data()), choice);
    choice.tokens = SequenceTokens(request.prompt);
    choice.max_len = prompt_tokens + request.stopping.max_tokens.value_or(context - prompt_tokens);
    if (policy.type == ContextPolicyType::kReevaluate)
      choice.Discard(ViewAt(policy, prompt_tokens - 1).discarded);
    choice.moments.received_ns = request.received_ns;
    choice.moments.tokenized_ns = request.tokenized_ns;
    if (request.constraint.grammar == nullptr) continue;
    choice.constraint = std::make_shared<OutputConstraint>(shared_from_this(), limits.max_constraint_step_ns);
  }
}

void LiveRequest::PrepareBranches() {
  branches_to_make = branches_left =
      static_cast<size_t>(std::count_if(request.candidates.begin(), request.candidates.end(), GoesOn));
  branches.reserve(branches_to_make);
}

LiveChoice& LiveRequest::MakeBranch() {
  const std::vector<int32_t>* next = request.candidates.data();
  if (!branches.empty()) next = branches.back().candidate + 1;
  while (!GoesOn(*next)) ++next;
  --branches_to_make;
  LiveChoice& branch = branches.emplace_back();
  Prepare(*this, static_cast<int32_t>(branches.size()), branch);
  branch.candidate = next;
  branch.tokens = choices[0].tokens;
  for (size_t i = 0; i + 1 < next->size(); ++i) branch.tokens.push_back((*next)[i]);
  branch.max_len = branch.prompt_tokens();
  branch.computed = std::ssize(request.prompt);
  return branch;
}

std::vector<TokenInfo> LiveRequest::TakeScores() {
  if (branches_to_make > 0) return {};
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
