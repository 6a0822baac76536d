#include "tests/kv_vectors/stream_tables.h"

#include <algorithm>
#include <string>

#include "engine/rolling_trace.h"

namespace tramontane::kv_vectors {
namespace {

KvLayout LayoutOf(const KvFormat& format, int64_t window) {
  return MakeKvLayout({static_cast<int32_t>(window)}, format);
}

bool IsOfTheLease(const ContextPolicy& policy) {
  return policy.type == ContextPolicyType::kSinks || policy.type == ContextPolicyType::kShift;
}

int64_t PagesOf(const ContextPolicy& policy, const KvLayout& layout, int64_t tokens, int64_t longest) {
  if (IsOfTheLease(policy)) return PagesUnderPolicy(layout, policy, longest);
  const bool begins_again = policy.type == ContextPolicyType::kReevaluate;
  return layout.PagesForSequence(begins_again ? std::min(policy.n_ctx, tokens) : tokens, longest);
}

}  // namespace

StreamTables::StreamTables(const ContextPolicy& policy, const KvFormat& format, int64_t window,
                           int64_t tokens, int64_t longest)
    : policy_(policy),
      window_(window),
      store_(LayoutOf(format, window), PagesOf(policy, LayoutOf(format, window), tokens, longest),
             PrefixCache::kOn),
      lease_(store_.NewLease(LeasePolicy())) {
  store_.Acquire(lease_, {.tokens = ids_, .salt = ""});  // nothing is known: from now on pages get names
}

ContextPolicy StreamTables::LeasePolicy() const { return IsOfTheLease(policy_) ? policy_ : ContextPolicy(); }

StatusOr<StreamStep> StreamTables::Begin(const ContextEvent& event) {
  const bool begins_again = event.view.discarded != discarded_ && !IsOfTheLease(policy_);
  if (begins_again) {
    TM_RETURN_IF_ERROR(BeginAgain(event));
  } else {
    for (int64_t i = 0; i < event.count; ++i) ids_.push_back(static_cast<int32_t>(event.token + i));
  }
  StreamStep step;
  step.written = written_;
  step.end = std::ssize(ids_);
  step.begin = step.end - event.count;
  if (store_.available() < store_.PagesNeeded(lease_, written_, step.end)) {
    return Internal("the store has " + std::to_string(store_.available()) + " pages of " +
                    std::to_string(store_.total_pages()) + " for the event at token " +
                    std::to_string(event.token));
  }
  store_.Extend(lease_, written_, step.end, &step.copies);
  if (!step.copies.empty() && !begins_again) return Internal("a page that nobody shares is copied");
  written_ = step.end;
  step.table = lease_.tables[0];
  step.has_views = IsOfTheLease(policy_);
  for (int64_t position = step.begin; position < step.end; ++position)
    step.views.push_back(SeenAt(lease_, position));
  return step;
}

// What is left is a text of its own: it has the pages of the first tokens, the partial one too where windows
// have let go of none, else those that are known, and the rest is written again.
Status StreamTables::BeginAgain(const ContextEvent& event) {
  discarded_ = event.view.discarded;
  ids_.resize(static_cast<size_t>(policy_.n_keep));
  for (int64_t i = 0; i < event.count; ++i) ids_.push_back(static_cast<int32_t>(event.token + i));
  Lease old = std::move(lease_);
  if (old.tables[0].kv_base == 0) {
    lease_ = store_.Fork(old, policy_.n_keep);
    written_ = policy_.n_keep;
    store_.Release(old);
    return Status::Ok();
  }
  store_.Release(old);
  lease_ = store_.NewLease(LeasePolicy());
  written_ = store_.Acquire(lease_, {.tokens = ids_, .salt = ""});
  if (written_ <= policy_.n_keep) return Status::Ok();
  return Internal("a hit of " + std::to_string(written_) + " tokens, of which " +
                  std::to_string(policy_.n_keep) + " are where they were");
}

Status StreamTables::End() {
  store_.Seal(lease_, ids_, written_);
  store_.Roll(lease_, written_);
  store_.CheckAccounting();
  if (window_ > 0) return Status::Ok();  // sinks that its windows hide may stay until they meet them again
  const RowView next = SeenAt(lease_, written_);
  const PageTable& table = lease_.tables[0];
  const int32_t page_size = store_.page_size();
  const std::vector<int64_t> listed = PositionsOf(table, page_size, written_);
  for (const int64_t page_begin : listed) {
    if (page_begin % page_size != 0) continue;
    const int64_t page_end = page_begin + page_size;
    if (page_begin < next.sink_len || page_end > next.left) continue;
    return Internal("position " + std::to_string(page_begin) + " is still listed after " +
                    std::to_string(written_) + " tokens; what later rows see begins at " +
                    std::to_string(next.left));
  }
  return Status::Ok();
}

}  // namespace tramontane::kv_vectors
