#include "tests/kv_vectors/engine_stream.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "engine/kv/kv_store.h"
#include "engine/threads/clock.h"
#include "engine/threads/signal.h"
#include "server/commands/rolling_trace.h"

namespace tramontane::kv_vectors {
namespace {

constexpr int64_t kChunk = 3;  // of prompts that are cut

bool IsOfMasks(const ContextPolicy& policy) {
  return policy.type == ContextPolicyType::kSinks || policy.type == ContextPolicyType::kShift;
}

// Where pages are shared with what is kept for a discard, one that is written to is copied.
int64_t PagesOf(const StreamCase& stream, const KvLayout& layout, const EngineLimits& limits) {
  const int64_t pages = layout.PagesForSequence(limits.context, limits.max_step_tokens);
  if (IsOfMasks(stream.policy))
    return std::max(pages, PagesUnderPolicy(layout, stream.policy, limits.max_step_tokens));
  if (stream.policy.type == ContextPolicyType::kNone) return pages;
  return pages + PagesFor(stream.policy.n_keep, limits.page_size) + 1;
}

// Notes the rows of the one sequence there is, and what its pages hold.
class EventNotes final : public ModelRunner {
 public:
  EventNotes(const StreamSetup& setup, ModelRunner* runner)
      : policy_(setup.stream.policy),
        window_(setup.layout.groups[0].window),
        page_size_(setup.limits.page_size),
        runner_(runner),
        held_(static_cast<size_t>(setup.limits.pool_pages * page_size_), -1) {}

  StatusOr<StepTicket> Forward(const StepPlan& plan) override {
    status_ = Note(plan);
    if (!status_.ok()) return status_;
    if (runner_ != nullptr) return runner_->Forward(plan);
    drawn_.wants.assign(plan.wants.size(), {.token = {next_token_, 0.0f}, .rank = 1});
    return StepTicket{plan.step};
  }
  Status Sample(StepTicket ticket, const SampleInputs& inputs) override {
    return runner_ != nullptr ? runner_->Sample(ticket, inputs) : Status::Ok();
  }
  StatusOr<StepResult> Collect(StepTicket ticket) override {
    if (runner_ != nullptr) return runner_->Collect(ticket);
    return std::move(drawn_);
  }

  const Status& status() const { return status_; }
  const std::vector<StreamEvent>& events() const { return events_; }

 private:
  Status Note(const StepPlan& plan);
  void Write(const StepPlan& plan, const StepRow& row);
  Status CheckTable(const StepRow& row) const;
  int32_t HeldAt(const PageTable& table, int64_t position) const {
    const int64_t slot = PoolSlotOf(table, page_size_, position);
    return slot < 0 ? -1 : held_[static_cast<size_t>(slot)];
  }

  const ContextPolicy policy_;
  const int32_t window_;
  const int32_t page_size_;
  ModelRunner* const runner_;
  std::vector<int32_t> held_;  // [slots of the pool] the token written there last; -1: none
  std::vector<StreamEvent> events_;
  bool is_open_ = false;  // the last event goes on with the next row
  int32_t next_token_ = 0;
  StepResult drawn_;
  Status status_;
};

Status EventNotes::Note(const StepPlan& plan) {
  if (plan.rows.size() != 1) return Internal("a step has " + std::to_string(plan.rows.size()) + " rows");
  const StepRow& row = plan.rows[0];
  const SequenceTokens& tokens = row.sequence->tokens;
  Write(plan, row);
  TM_RETURN_IF_ERROR(CheckTable(row));
  // Those of the n_keep that a discard did not find in their pages are no part of what it left.
  const int64_t first = std::max(row.start, row.sequence->discarded > 0 ? policy_.n_keep : 0);
  if (first >= EndOf(row)) return Status::Ok();
  if (!is_open_) events_.push_back({.token = tokens[static_cast<size_t>(first)]});
  StreamEvent& event = events_.back();
  event.count += EndOf(row) - first;
  is_open_ = plan.Draws(row) == 0;
  if (is_open_) return Status::Ok();

  const int64_t position = EndOf(row) - 1;
  next_token_ = tokens[static_cast<size_t>(position)] + 1;
  const Lease& lease = row.sequence->lease();
  const RowView view = SeenAt(lease, position);
  const bool is_moved = lease.policy.type == ContextPolicyType::kShift && position >= lease.plain_len;
  event.query_position = is_moved ? view.sink_limit : position;
  event.left = policy_.n_keep;
  bool sees_others = false;  // than the n_keep
  for (const int64_t listed : PositionsOf(lease.tables[0], page_size_, EndOf(row))) {
    if (listed >= view.sink_len && listed < view.left) continue;
    ++event.held;
    if (listed < policy_.n_keep || std::exchange(sees_others, true)) continue;
    event.left = HeldAt(lease.tables[0], listed);
  }
  return Status::Ok();
}

void EventNotes::Write(const StepPlan& plan, const StepRow& row) {
  for (const PageCopy& copy : plan.copies) {
    std::copy_n(held_.begin() + int64_t{copy.from} * page_size_, page_size_,
                held_.begin() + int64_t{copy.to} * page_size_);
  }
  for (int64_t position = row.start; position < EndOf(row); ++position) {
    const int64_t slot = PoolSlotOf(row.sequence->lease().tables[0], page_size_, position);
    TM_CHECK(slot >= 0, "position %lld has no page", static_cast<long long>(position));
    held_[static_cast<size_t>(slot)] = row.sequence->tokens[static_cast<size_t>(position)];
  }
}

// Each listed position has its token, and each page has a position that this row or a later one sees. Pages
// of the n_keep may be listed where a window hides them.
Status EventNotes::CheckTable(const StepRow& row) const {
  const Lease& lease = row.sequence->lease();
  const PageTable& table = lease.tables[0];
  const int64_t left = std::max(SeenAt(lease, row.start).left, FirstVisible(row.start, window_));
  for (const int64_t position : PositionsOf(table, page_size_, EndOf(row))) {
    const int32_t want = row.sequence->tokens[static_cast<size_t>(position)];
    const int32_t got = HeldAt(table, position);
    if (got != want) {
      return Internal("position " + std::to_string(position) + " of the table holds token " +
                      std::to_string(got) + ", not " + std::to_string(want));
    }
    const int64_t page_begin = position - OffsetInPage(position, page_size_);
    if (page_begin < policy_.n_keep || page_begin + page_size_ > left) continue;
    return Internal("position " + std::to_string(position) + " is still listed at " +
                    std::to_string(row.start) + ", from where on rows see what begins at " +
                    std::to_string(left));
  }
  return Status::Ok();
}

// What the end of the request, and the engine after it, say.
Status CheckEnd(const StreamCase& stream, const StreamFinished& end, const StreamEvent& last,
                const EngineLoad& load) {
  if (end.reason != FinishReason::kLength) {
    return Internal(std::string("the request ended with ") + FinishReasonName(end.reason));
  }
  const int64_t discarded = end.usage.discarded_tokens.value_or(0);
  const bool counts_others = stream.policy.type == ContextPolicyType::kSinks;  // those out of sight
  if (!counts_others && discarded != last.Discarded()) {
    return Internal("the request ended with " + std::to_string(discarded) + " tokens discarded, and " +
                    std::to_string(last.Discarded()) + " had gone before its last row");
  }
  if (end.usage.preemptions > 0 || load.held_pages > 0) {
    return Internal(std::to_string(end.usage.preemptions) + " preemptions, " +
                    std::to_string(load.held_pages) + " pages are still held");
  }
  return Status::Ok();
}

}  // namespace

StreamSetup MakeStreamSetup(const StreamCase& stream, const KvFormat& format, int64_t window,
                            StreamPrompts prompts) {
  const bool is_endless = stream.policy.type != ContextPolicyType::kNone;
  const bool is_computed_again = stream.policy.type == ContextPolicyType::kReevaluate;
  const int64_t longest = is_computed_again
                              ? std::max(stream.prompt, std::min(stream.policy.n_ctx, stream.tokens))
                              : stream.prompt;
  StreamSetup setup;
  setup.stream = stream;
  setup.layout = MakeKvLayout({static_cast<int32_t>(window)}, format);
  EngineLimits& limits = setup.limits;
  limits.context = is_endless ? stream.policy.n_ctx : stream.tokens + 1;
  limits.max_sequences = limits.max_choices = limits.max_logit_rows = 1;
  limits.page_size = format.page_size;
  limits.max_step_tokens = static_cast<int32_t>(prompts == StreamPrompts::kCut ? kChunk : longest);
  limits.pool_pages = PagesOf(stream, setup.layout, limits);
  setup.vocab_size = static_cast<int32_t>(stream.tokens + 1);
  return setup;
}

StatusOr<std::vector<StreamEvent>> RunStream(const StreamSetup& setup, ModelRunner* runner) {
  TM_RETURN_IF_ERROR(setup.limits.Validate());
  const StreamCase& stream = setup.stream;
  EventNotes notes(setup, runner);
  const SteadyClock clock;
  Engine engine(setup.limits, {.vocab_size = setup.vocab_size, .eos_ids = {}, .kv_layout = setup.layout},
                notes, /*tokenizer=*/nullptr, clock);
  Request request;
  request.id = "stream";
  request.prompt.resize(static_cast<size_t>(stream.prompt));
  std::iota(request.prompt.begin(), request.prompt.end(), 0);
  request.sampling.temperature = 0.0f;
  request.stopping.max_tokens = stream.tokens + 1 - stream.prompt;  // the last is drawn, and not computed
  request.context_policy = stream.policy;
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<TokenStream> reader,
                      engine.Submit(std::move(request), [&engine] { engine.Wake(); }));
  std::optional<StreamFinished> end;
  StreamUpdate update;
  while (!update.done) {
    if (engine.Step() != StepOutcome::kWorked) engine.WaitForWork(Signal::kForever);
    update = reader->Take();
    for (StreamFinished& finished : update.finished) end = std::move(finished);
  }
  TM_RETURN_IF_ERROR(notes.status());
  TM_RETURN_IF_ERROR(update.status);
  TM_CHECK(end && !notes.events().empty(), "a request of %lld tokens ended well and without an end",
           static_cast<long long>(stream.tokens));
  TM_RETURN_IF_ERROR(CheckEnd(stream, *end, notes.events().back(), engine.Load()));
  return notes.events();
}

}  // namespace tramontane::kv_vectors
