// A sequence without an end in the real store: a lease by its policy, whose tables are extended for each
// event, looked at, and then roll on. The pool holds what the store says that such a sequence needs and no
// page more, so that pages which left are written again. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv_store.h"
#include "kernels/context_policy.h"
#include "kernels/core/status.h"
#include "kernels/paged_kv.h"

namespace tramontane::kv_vectors {

// An event as the store has it: positions are places in the lease, which under kReevaluate are those among
// the tokens that are left.
struct StreamStep {
  int64_t written = 0;  // rows of positions [written, end) have no keys and values in their pages yet;
  int64_t begin = 0;    // of these the event is [begin, end), and what is in front of it was lost
  int64_t end = 0;
  PageTable table;               // before it rolls
  std::vector<PageCopy> copies;  // come first: of a page that holds sinks, and is known to the cache
  std::vector<RowView> views;    // [event's rows]
  bool has_views = false;        // false: rows see what windows show
};

class StreamTables {
 public:
  // `longest`: tokens of the longest event.
  StreamTables(const ContextPolicy& policy, const KvFormat& format, int64_t window, int64_t tokens,
               int64_t longest);

  int64_t pages() const { return store_.total_pages(); }
  // INTERNAL: the store has fewer pages to give than it has said that it needs.
  StatusOr<StreamStep> Begin(const ContextEvent& event);
  // The event has run. INTERNAL: a page is listed that no later row sees.
  Status End();

 private:
  ContextPolicy LeasePolicy() const;
  Status BeginAgain(const ContextEvent& event);

  const ContextPolicy policy_;
  const int64_t window_;
  KvStore store_;
  Lease lease_;
  std::vector<int32_t> ids_;  // of the tokens held, or of all: what pages are named by
  int64_t written_ = 0;
  int64_t discarded_ = 0;
};

}  // namespace tramontane::kv_vectors
