// Lease: the pages of one sequence, a table for each layer group; and how many of them rows need, whatever
// the windows and the context policy: what a row sees at a position, which first pages stay, which a window
// leaves, and how many pages a sequence without an end may hold.
//
// A table covers positions [kv_base, end): its pages, oldest first. In a windowed group, pages whose every
// position has left the window of all positions still to come are let go, and kv_base moves up
// (KvStore::Roll, and nowhere else); stored keys are never moved or rotated again.
//
//   window 6, page 4, accepted 13, written 15:   the query at 13 sees 8..13, so pages [0,4) and [4,8) are
//   gone
//
//   let go       let go       page 2       page 3
//   |0  1  2  3 |4  5  6  7  |8  9 10 11  |12 13 14 --|
//                             ^ kv_base       ^ accepted_len
//
// Under a context policy the first n_keep positions of a group stay in sight: their pages move to the table's
// sinks when it rolls on.
//
// Always, in prefill and in decode: a windowed table holds at most PagesFor(window - 1 + ahead) + 1 pages,
// where `ahead` is the tokens written beyond the accepted length (chunk x steps in flight).
//
// Filled and emptied by KvStore alone. Engine thread; the functions are pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/kv/names/paging.h"
#include "engine/kv/names/prefix_hit.h"
#include "engine/kv/names/prefix_tree.h"
#include "kernels/context_policy.h"
#include "kernels/paged_kv.h"
#include "models/kv_layout.h"

namespace tramontane {

struct HeldText;

struct PageTable {
  std::vector<PageId> pages;  // oldest first
  int64_t kv_base = 0;        // absolute position of pages[0]'s first token; a page's border
  // The pages of positions 0 and on that stay in sight under a context policy, once kv_base has passed them
  // all: no page is in both lists.
  std::vector<PageId> sinks = {};

  int64_t pages_in_all() const { return std::ssize(sinks) + std::ssize(pages); }
  int64_t End(Paging paging) const { return kv_base + paging.BeginOf(std::ssize(pages)); }
  PageId At(int64_t position, Paging paging) const {
    return pages[static_cast<size_t>(paging.PageOf(position - kv_base))];
  }
};

// What a row sees at a position, beside its layers' windows (AttentionSinks).
struct RowView {
  int64_t sink_len = 0;       // it sees [0, sink_len)
  int64_t left = 0;           // and [left, position]
  int64_t sink_position = 0;  // where its query stands for sink keys
  int64_t sink_limit = 0;     // a sink that lies a window or more behind this is hidden
};

// A page to be copied before the step that writes to it runs. Within one step no page is both `from` and
// `to`.
struct PageCopy {
  PageId from = 0;
  PageId to = 0;
};

// What Acquire would find for a lease of no page, when the store looked last (KvStore::Expect).
struct ExpectedHit {
  int64_t tokens = 0;
  bool ends_within_page = false;  // which is another lease's, too, and is to be copied
  bool is_coming = false;         // some of it is on its way from the tier
};

// The names of a text's first blocks, as they were found. What is known of them is looked up no more while
// the last one lives.
struct FoundNames {
  std::vector<PrefixTree::Node> blocks;
  uint32_t life = 0;  // of the last (PrefixTree::life)
};

// A page that is on its way from the tier: of those that a lease waits for the one asked for last.
struct AwaitedPage {
  PrefixTree::Node node = PrefixTree::kNone;
  uint32_t life = 0;
  size_t group = 0;
};

// The pages of one sequence. Filled and emptied by the store alone; read by whoever packs a step.
struct Lease {
  // Another one after each Release and Fork, of no other lease in this process: who has a copy of the tables
  // (SlotTables) sees by it whether they are these. As long as it stays, only pages of positions that are
  // written next become others.
  uint64_t id = 0;
  std::vector<PageTable> tables;  // [groups]
  ContextPolicy policy;           // kNone, kSinks or kShift
  // Positions below see what those of a request without a policy see: their pages are anybody's. Those
  // behind are of requests under the same policy.
  int64_t plain_len = INT64_MAX;
  bool prefers_cache = false;  // Request::prefers_cache

  // ---- the store's own --------------------------------------------------------------------------
  PrefixTree::Node tip = PrefixTree::kRoot;  // the last block sealed, pinned
  int64_t sealed = 0;                        // tokens whose pages have names
  bool seals = false;                        // its further pages get names
  // [groups] positions in front of these are not in their pages, though the first one listed may begin there
  // (KvStore::PlantIdle). None: they are.
  std::vector<int64_t> begins = {};
  bool is_cut = false;       // its last page is another lease's too, maybe part of a full one
  int64_t hit_tokens = 0;    // found by Acquire,
  int64_t known_tokens = 0;  // of whose tokens so many were known, with their pages or not,
  int64_t asked_tokens = 0;  // of so many
  ExpectedHit expected;
  // Of the tokens that it was asked for when the store looked last (Expect); its text stays the same as long
  // as they are there.
  FoundNames found;
  AwaitedPage awaited;
  // It has no page: Acquire gives it those that its sequence had when it was set aside.
  std::shared_ptr<HeldText> returns_to = nullptr;

  bool is_set_aside() const { return returns_to != nullptr; }
  int64_t pages() const {
    int64_t pages = 0;
    for (const PageTable& table : tables) pages += table.pages_in_all();
    return pages;
  }
};

RowView SeenAt(const Lease& lease, int64_t position);
// Pages of the first positions that its policy keeps in a group's sight; 0: none.
int64_t SinkPages(const Lease& lease, const KvLayout& layout, size_t group);

// The first position that a row there sees in a group, but for sinks.
inline int64_t FirstSeen(const Lease& lease, const KvLayout& layout, size_t group, int64_t position) {
  const int64_t left = position < lease.plain_len ? 0 : SeenAt(lease, position).left;
  return FirstSeen(position, layout.groups[group].window, left);
}

// Whether the page at `begin` is in the window of a place where a later hit is likely to end: where this
// lease's own hit did, where its text parts from those before it, the end of what it was asked for; and some
// places on the way, for a text that parts from this one.
bool EndsNear(const Lease& lease, const KvLayout& layout, int64_t begin, size_t group);

// What a hit needs of each group under a policy (kNone, kSinks or kShift): LongestPrefixHit's `groups`, and
// its `left`.
std::vector<PrefixGroup> PrefixGroupsOf(const KvLayout& layout, const ContextPolicy& policy);
int64_t LeftAt(const KvLayout& layout, const ContextPolicy& policy, int64_t position);

// Pages that one sequence without an end may hold over all groups under a policy (kSinks or kShift), at most
// `ahead` tokens written beyond its window at a time.
int64_t PagesUnderPolicy(const KvLayout& layout, const ContextPolicy& policy, int64_t ahead);

// ---- of a policy, whoever has it ------------------------------------------------------------------
// First positions that layers with this window keep in sight.
int64_t SinksOf(const ContextPolicy& policy, int32_t window);
// The first position at which some layer sees another set than without the policy.
int64_t PlainLength(const ContextPolicy& policy, const KvLayout& layout);
// Where the first block begins that is named by the policy; INT64_MAX: none is.
int64_t PlainBlocksEnd(const ContextPolicy& policy, const KvLayout& layout);
// What of a policy is a matter of masks. Re-evaluation is not: its sequences begin again.
inline ContextPolicy MaskPolicyOf(const ContextPolicy& policy) {
  return policy.type == ContextPolicyType::kReevaluate ? ContextPolicy() : policy;
}
// Pages of one group, at most `ahead` tokens written beyond what it sees: sinks, and what the narrower of the
// two windows holds.
int64_t PagesOfGroupUnderPolicy(const KvLayout& layout, size_t group, const ContextPolicy& policy,
                                int64_t ahead);
// Without sinks: what a row sees of `most` keys.
int64_t PagesInSight(const KvLayout& layout, size_t group, int64_t most, int64_t ahead);
// The keys that a window shows; without one, all.
inline int64_t Reach(int32_t window) { return window == 0 ? INT64_MAX : window; }

}  // namespace tramontane
