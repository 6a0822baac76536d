#include "tests/support/fake_model_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"
#include "tests/reference/sampling.h"

namespace tramontane {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xbf58476d1ce4e5b9ull;
  return hash ^ (hash >> 29);
}

int64_t PageAt(const PageTable& table, int64_t position, int32_t page_size) {
  if (position < table.kv_base) return table.sinks.at(static_cast<size_t>(position / page_size));
  return table.pages.at(static_cast<size_t>(PageOf(position, table.kv_base, page_size)));
}

}  // namespace

FakeModelRunner::FakeModelRunner(const KvLayout& layout, int64_t pool_pages, int32_t vocab_size)
    : layout_(layout),
      vocab_size_(vocab_size),
      slots_(static_cast<size_t>(pool_pages * layout.format.page_size), -1) {}

Status FakeModelRunner::MovePages(std::span<const PageMove> moves) {
  const auto bytes = static_cast<size_t>(ImageBytes(layout_));
  for (const PageMove& move : moves) {
    int64_t* page = &slots_[static_cast<size_t>(move.page) * static_cast<size_t>(layout_.format.page_size)];
    if (move.way == PageMove::Way::kOut) {
      std::memcpy(move.image, page, bytes);
    } else {
      std::memcpy(page, move.image, bytes);
    }
  }
  return {};
}

Status FakeModelRunner::ReadPages(std::span<const PageImage> images) {
  TM_CHECK(images.empty(), "the fake model has no pages to read");
  return {};
}

StatusOr<StepTicket> FakeModelRunner::Forward(const StepPlan& plan) {
  if (on_forward) on_forward(plan);
  const int32_t page_size = layout_.format.page_size;
  for (const PageCopy& copy : plan.copies) {
    std::copy_n(slots_.begin() + int64_t{copy.from} * page_size, page_size,
                slots_.begin() + int64_t{copy.to} * page_size);
  }
  TM_CHECK(open_.empty() || open_.back().sampled, "step %lld begins before the last one is sampled",
           static_cast<long long>(plan.step));
  for (const StepRow& row : plan.rows) Write(row);
  OpenStep& step = open_.emplace_back();
  step.wants = plan.wants;
  for (const StepRow& row : plan.rows) {
    for (const Want& want : plan.WantsOf(row)) {
      step.rows.push_back(row.sequence);
      step.logits.push_back(LogitsAfter(row, want.position));
    }
  }
  step.ticket = {plan.step};
  return step.ticket;
}

Status FakeModelRunner::Sample(StepTicket ticket, const SampleInputs& inputs) {
  TM_CHECK(open_.size() == 1 && open_[0].ticket.id == ticket.id && !open_[0].sampled,
           "step %lld is sampled before the last one is collected", static_cast<long long>(ticket.id));
  OpenStep& step = open_[0];
  step.sampled = true;
  last_sampled_.clear();
  auto choice = inputs.choices.begin();
  for (size_t w = 0; w < step.wants.size(); ++w) {
    const Want& want = step.wants[w];
    const Request& request = *step.rows[w]->request;
    ChoiceSampling sampling;
    if (want.kind == Want::Kind::kScore) {
      sampling.row.forced_token = want.id;
      sampling.row.top_logprobs = std::max(request.output.prompt_logprobs, 0);
      const bool fails = not_finite && not_finite(request.id, step.rows[w]->choice, want.position + 1);
      step.result.wants.push_back(fails ? WantResult{.kind = want.kind}
                                        : Choose(step.logits[w], want.kind, sampling));
      continue;
    }
    sampling = *choice++;
    if (!sampling.mask.empty()) ++masked_draws;
    if (forced) sampling.row.forced_token = forced(request.id, sampling.row.choice, sampling.row.position);
    const bool fails = not_finite && not_finite(request.id, sampling.row.choice, sampling.row.position);
    step.result.wants.push_back(fails ? WantResult{} : Choose(step.logits[w], want.kind, sampling));
    if (want.id == step.rows[w]->choice)
      last_sampled_[step.rows[w]] = std::max(step.result.wants.back().token.token, 0);
  }
  TM_CHECK(choice == inputs.choices.end(), "%zu choices were given", inputs.choices.size());
  return {};
}

StatusOr<StepResult> FakeModelRunner::Collect(StepTicket ticket) {
  TM_CHECK(!open_.empty() && open_[0].ticket.id == ticket.id && open_[0].sampled, "ticket %lld",
           static_cast<long long>(ticket.id));
  if (device_lost) return Internal("the fake device is lost");
  StepResult result = std::move(open_[0].result);
  open_.pop_front();
  return result;
}

void FakeModelRunner::Write(const StepRow& row) {
  const int32_t page_size = layout_.format.page_size;
  for (const PageTable& table : row.sequence->lease().tables) {
    for (int64_t p = row.start; p < row.start + row.count; ++p) {
      const SequenceTokens& tokens = row.sequence->tokens;
      const bool in_flight = p == static_cast<int64_t>(tokens.size());
      TM_CHECK(p <= static_cast<int64_t>(tokens.size()), "position %lld has no token",
               static_cast<long long>(p));
      const int32_t token = in_flight ? last_sampled_.at(row.sequence) : tokens[static_cast<size_t>(p)];
      slots_[static_cast<size_t>(SlotOf(PageAt(table, p, page_size), p, page_size))] =
          p * vocab_size_ + token;
    }
  }
}

std::vector<float> FakeModelRunner::LogitsAfter(const StepRow& row, int64_t position) const {
  const int32_t page_size = layout_.format.page_size;
  uint64_t hash = 1;
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const PageTable& table = row.sequence->lease().tables[g];
    // Every position that the policy lets a row see, by its definition.
    const int32_t window = layout_.groups[g].window;
    const ContextPolicy& policy = row.sequence->lease().policy;
    const ContextView view = ViewAt(policy, position);
    const int64_t sinks_from =
        policy.type == ContextPolicyType::kSinks ? 0 : FirstVisible(view.sink_query_position, window);
    for (int64_t p = 0; p <= position; ++p) {
      const bool is_sink = p < view.sink_len && p >= sinks_from;
      if (!is_sink && p < std::max(view.left, FirstVisible(position, window))) continue;
      const size_t slot = static_cast<size_t>(SlotOf(PageAt(table, p, page_size), p, page_size));
      hash = Mix(hash, static_cast<uint64_t>(slots_[slot]) + 2);
    }
  }
  std::vector<float> logits(static_cast<size_t>(vocab_size_));
  for (size_t t = 0; t < logits.size(); ++t) {
    logits[t] = static_cast<float>(Mix(Mix(hash, t + 1), 7) >> 40) * 0x1p-21f;  // 0 to 8
  }
  return logits;
}

WantResult FakeModelRunner::Choose(const std::vector<float>& logits, Want::Kind kind,
                                   const ChoiceSampling& choice) const {
  const SamplingRow& row = choice.row;
  reference::SamplingProblem problem;
  problem.logits = logits;
  problem.temperature = row.temperature;
  problem.top_p = row.top_p;
  problem.min_p = row.min_p;
  problem.top_k = row.top_k;
  problem.repetition_penalty = row.repetition_penalty;
  problem.presence_penalty = row.presence_penalty;
  problem.frequency_penalty = row.frequency_penalty;
  if (choice.history != nullptr) {
    for (const LogitAdjust& adjust : choice.history->adjusts()) {
      problem.adjustments.push_back({adjust.token, adjust.bias, adjust.output_count, adjust.in_context != 0});
    }
  }
  for (int32_t t = 0; !choice.mask.empty() && t < vocab_size_; ++t) {
    problem.allowed.push_back(MaskAllows(choice.mask, t));
  }
  problem.forced_token = row.forced_token;
  problem.top_logprobs = row.top_logprobs;
  problem.exponential = [&row](int32_t token) {
    return -std::log1p(-RaceUniform(row.seed, row.choice, row.position, token));
  };
  const reference::SamplingAnswer answer = reference::Sample(problem);
  WantResult scored = {.kind = kind};
  scored.token = {answer.failed ? -1 : answer.token, static_cast<float>(answer.logprob)};
  scored.rank = answer.rank;
  for (const auto& [token, logprob] : answer.top) scored.top.push_back({token, static_cast<float>(logprob)});
  return scored;
}

}  // namespace tramontane
