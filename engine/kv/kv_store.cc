#include "engine/kv/kv_store.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// Blocks that the tree knows for each page of the pool: its windowed groups let pages go whose blocks lead to
// later ones.
constexpr int64_t kBlocksPerPage = 2;
// And for each image, since of a text whose layers have windows a few are kept and the way to them is long.
constexpr int64_t kBlocksPerImage = 4;
// Names of live texts beyond these are not set aside: some 100 MB.
constexpr int64_t kMostLiveBlocks = 1 << 20;
// To look for a block takes as long as to share so many pages with a fork.
constexpr int64_t kForkedAsOne = 32;

uint64_t NextLeaseId() {
  static std::atomic<uint64_t> last{0};  // stores may be on several threads, each with an engine
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

int64_t KvStore::MostBlocks(int64_t pool_pages, int64_t images, int64_t live_blocks) {
  return kBlocksPerPage * pool_pages + kBlocksPerImage * images + live_blocks;
}

int64_t KvStore::LiveBlocks(const KvLayout& layout, int64_t texts, int64_t tokens) {
  const bool all_roll = std::all_of(layout.groups.begin(), layout.groups.end(),
                                    [](const KvGroupSpec& group) { return group.window > 0; });
  if (!all_roll) return 0;
  return std::min(texts * Paging(layout.format).PagesFor(tokens), kMostLiveBlocks);
}

int64_t KvStore::NameBytes(const KvLayout& layout, int64_t blocks) {
  const size_t groups = layout.groups.size();
  if (blocks == 0) return 0;
  return PrefixTree::BytesOf(blocks, Paging(layout.format).tokens(), groups) +
         blocks * static_cast<int64_t>(sizeof(int32_t) * groups);
}

KvStore::KvStore(const KvLayout& layout, int64_t pool_pages, PrefixCache prefix_cache,
                 PrefixHashFunction hash, KvTier* tier, int64_t live_blocks)
    : layout_(layout),
      finds_(prefix_cache == PrefixCache::kOn),
      // A block's columns: its page in each group, then its image in each.
      names_(layout_, MostBlocks(pool_pages, tier == nullptr ? 0 : tier->most_images(), live_blocks),
             layout.groups.size() * (tier == nullptr ? 1 : 2), hash,
             [this](TextNames::Room room) { return MakeRoom(room); }),
      pages_(layout, pool_pages, names_.tree(), tier),
      held_(layout_, pages_, names_) {
  TM_CHECK(paging().tokens() > 0, "a page of %d tokens", paging().tokens());
  TM_CHECK(tier == nullptr || finds_, "a tier without names");
}

// Ends of texts that nobody holds go, then what is left idle for longest.
bool KvStore::MakeRoom(TextNames::Room room) {
  const Node end = names_.tree().OldestEnd();
  if (room == TextNames::Room::kUnderPolicy || end == PrefixTree::kNone)
    return held_.DropOldest(room == TextNames::Room::kUnderPolicy);
  pages_.Forget(end);
  return true;
}

// ---- leases -------------------------------------------------------------------------------------

Lease KvStore::NewLease(const ContextPolicy& policy) const {
  TM_CHECK(policy.type != ContextPolicyType::kReevaluate, "re-evaluation leaves what a row sees as it is");
  Lease lease;
  lease.id = NextLeaseId();
  lease.tables.resize(layout_.groups.size());
  lease.policy = policy;
  lease.plain_len = PlainLength(policy, layout_);
  return lease;
}

// Of no page, for the sequence that had this one.
Lease KvStore::Anew(const Lease& lease) const {
  Lease anew = NewLease(lease.policy);
  anew.prefers_cache = lease.prefers_cache;
  anew.expected = lease.expected;
  return anew;
}

void KvStore::Forget(Lease& lease) {
  lease.seals = false;
  PrefixTree::Node above = PrefixTree::kNone;
  for (PrefixTree::Node node = lease.tip; node != PrefixTree::kRoot; node = above) {
    above = names_.tree().above(node);
    pages_.Forget(node);
  }
}

void KvStore::SealPages(Lease& lease, TokenView tokens, int64_t accepted, TextPath* path) {
  const auto end = std::min(accepted, tokens.size());
  if (path != nullptr) names_.Extend(*path, tokens, end);
  std::vector<int32_t> copy;  // of a block that lies in two pieces
  while (lease.seals && lease.sealed + paging().tokens() <= end) {
    const int64_t begin = lease.sealed;
    const int64_t index = paging().PageOf(begin);
    const bool is_hashed = path != nullptr && index < path->blocks();
    lease.seals = names_.TakeInNext(lease, tokens.Piece(begin, paging().tokens(), &copy),
                                    is_hashed ? &path->at(index) : nullptr);
    if (lease.seals) NamePages(lease, begin);
  }
}

// Gives the lease's pages of the block that begins at `begin`, its last one, to the block's node, where that
// has none.
void KvStore::NamePages(const Lease& lease, int64_t begin) {
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const PageTable& table = lease.tables[group];
    const bool is_there = begin >= table.kv_base && (lease.begins.empty() || begin >= lease.begins[group]);
    if (!is_there || pages_.page(lease.tip, group) != kNoPage) continue;
    const PageId page = table.At(begin, paging());
    pages_.Name(page, lease.tip);
    pages_.Prefer(page, lease.prefers_cache);
  }
  pages_.RequeueUseful(lease.tip);
}

int64_t KvStore::PagesNeeded(const Lease& lease, int64_t written, int64_t end) const {
  int64_t pages = 0;
  for (const PageTable& table : lease.tables) {
    const int64_t table_end = table.End(paging());
    if (end > table_end) pages += paging().PagesFor(end - table_end);
    ForEachSharedPage(lease, table, written, end, [&](int64_t) { ++pages; });
  }
  return pages;
}

int64_t KvStore::PagesToReach(const Lease& lease, int64_t end, int64_t ahead) const {
  ++sized_leases_;
  int64_t pages = 0;
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const int64_t most =
        lease.plain_len == INT64_MAX
            ? layout_.PagesForGroup(static_cast<int32_t>(group), end, ahead)
            : std::min(paging().PagesFor(end), PagesOfGroupUnderPolicy(layout_, group, lease.policy, ahead));
    const PageTable& table = lease.tables[group];
    pages += std::max<int64_t>(0, most - table.pages_in_all());
  }
  return pages;
}

void KvStore::Extend(Lease& lease, int64_t written, int64_t end, std::vector<PageCopy>* copies) {
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    TM_CHECK(written >= table.kv_base && written <= table.End(paging()),
             "position %lld is outside a table that starts at %lld", static_cast<long long>(written),
             static_cast<long long>(table.kv_base));
    ForEachSharedPage(lease, table, written, end, [&](int64_t index) {
      const PageId shared = table.pages[index];
      const PageId own = pages_.Take(group);
      const int64_t first_position = table.kv_base + paging().BeginOf(index);
      if (first_position < written) copies->push_back({.from = shared, .to = own});
      table.pages[index] = own;
      if (references(shared) > 1)
        pages_.Drop(shared, EvictionRank::kOthers);
      else
        copied_.push_back(shared);
    });
    if (lease.is_cut) UnnameAt(table, written);
    while (table.End(paging()) < end) table.pages.push_back(pages_.Take(group));
  }
  lease.is_cut = false;  // the page is its own by now
}

void KvStore::EndPlan() {
  for (const PageId page : copied_) pages_.Drop(page, EvictionRank::kOthers);
  copied_.clear();
  held_.DropBroken();
}

// Calls visit(index) for each page of the table that positions [written, end) lie in and that others have,
// those to whom it is promised among them.
template <typename Visit>
void KvStore::ForEachSharedPage(const Lease& lease, const PageTable& table, int64_t written, int64_t end,
                                const Visit& visit) const {
  if (pool().shared_references() == 0 && !lease.is_cut) return;  // the usual case: no page to look at
  end = std::min(end, table.End(paging()));
  for (int64_t at = written; at < end; at = paging().BeginOf(paging().PageOf(at) + 1)) {
    const int64_t index = paging().PageOf(at - table.kv_base);
    if (pages_.IsShared(table.pages[index])) visit(index);
  }
}

// The page that position `written` lies in, where it is the lease's alone, holds what its name says no more.
// Behind a cut it may have one: whom it was shared with has filled and sealed it, and let go.
void KvStore::UnnameAt(const PageTable& table, int64_t written) {
  if (written >= table.End(paging())) return;
  const PageId page = table.At(written, paging());
  if (has_name(page)) pages_.Unname(page);
}

void KvStore::Roll(Lease& lease, int64_t accepted) {
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    const int64_t first_seen = FirstSeen(lease, layout_, group, accepted);
    const int64_t passed = std::min(paging().PageOf(first_seen - table.kv_base), std::ssize(table.pages));
    const int64_t sinks = table.kv_base == 0 ? SinkPages(lease, layout_, group) : 0;
    if (passed <= sinks) continue;  // they stay, wherever they are listed
    table.sinks.insert(table.sinks.end(), table.pages.begin(), table.pages.begin() + sinks);
    for (int64_t i = sinks; i < passed; ++i) {
      const bool is_near = EndsNear(lease, layout_, table.kv_base + paging().BeginOf(i), group);
      pages_.Drop(table.pages[i], is_near ? EvictionRank::kOthers : EvictionRank::kPassed);
    }
    table.pages.erase(table.pages.begin(), table.pages.begin() + passed);
    table.kv_base += paging().BeginOf(passed);
  }
}

Lease KvStore::Fork(const Lease& lease, int64_t end) {
  Lease fork = lease;
  fork.id = NextLeaseId();
  fork.is_cut = true;
  names_.Follow(fork, lease, end);
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const PageTable& table = lease.tables[group];
    const int64_t pages = paging().PagesFor(end - table.kv_base);
    TM_CHECK(end >= table.kv_base && pages <= static_cast<int64_t>(table.pages.size()),
             "a table of %zu pages from position %lld does not reach %lld", table.pages.size(),
             static_cast<long long>(table.kv_base), static_cast<long long>(end));
    PageTable& shared = fork.tables[group];
    shared.pages.resize(static_cast<size_t>(pages));
    looked_blocks_ += pages / kForkedAsOne;
    for (const PageId page : shared.pages) pages_.Share(page);
    for (const PageId page : shared.sinks) pages_.Share(page);
  }
  return fork;
}

// ---- letting go ---------------------------------------------------------------------------------

void KvStore::Release(Lease& lease) {
  if (lease.is_set_aside()) held_.Drop(*lease.returns_to);
  DropPages(lease);
  names_.LetGo(lease);
  lease = Anew(lease);
}

// Any request finds by their tokens what rows below plain_len computed, which Release sees to.
void KvStore::SetAside(Lease& lease, int64_t accepted) {
  if (!finds_ || accepted <= lease.plain_len || lease.is_cut) return Release(lease);
  TrimBehind(lease, accepted);
  std::shared_ptr<HeldText> text = held_.Hold(lease, accepted);
  if (text == nullptr) return Release(lease);
  for (PageTable& table : lease.tables) {
    for (std::vector<PageId>* list : {&table.sinks, &table.pages}) {
      for (; !list->empty(); list->pop_back()) pages_.Drop(list->back(), EvictionRank::kSetAside);
    }
    table.kv_base = 0;
  }
  text->lease = std::exchange(lease, Anew(lease));
  text->lease.id = NextLeaseId();
  lease.returns_to = std::move(text);
}

void KvStore::LeaveIdle(Lease& lease, TokenView tokens, int64_t accepted,
                        const std::shared_ptr<const KvOwner>& owner) {
  held_.ForgetOrphans();
  if (accepted == 0 || lease.is_set_aside() || lease.is_cut) return Release(lease);
  held_.Forget(owner.get());
  Roll(lease, accepted);
  TrimBehind(lease, accepted);
  std::shared_ptr<HeldText> text = held_.Hold(lease, accepted);
  if (text == nullptr) {
    DropNames(lease);
    text = held_.Hold(lease, accepted);
  }
  if (text == nullptr) return Release(lease);
  HeldText& idle = held_.LeaveIdle(std::move(*text), tokens.First(accepted).ToVector(), owner);
  DropPages(lease);
  idle.lease = std::exchange(lease, Anew(lease));
}

// Drops what was taken for a step that did not count.
void KvStore::TrimBehind(Lease& lease, int64_t accepted) {
  for (PageTable& table : lease.tables) {
    for (; table.End(paging()) - paging().tokens() >= accepted && !table.pages.empty();
         table.pages.pop_back())
      pages_.Drop(table.pages.back(), EvictionRank::kOthers);
  }
}

// Of a text whose own names fill the tree: nobody finds it by them any more.
void KvStore::DropNames(Lease& lease) {
  for (const PageTable& table : lease.tables) {
    for (const auto* list : {&table.sinks, &table.pages}) {
      for (const PageId page : *list) {
        if (has_name(page) && !pages_.IsShared(page)) pages_.Unname(page);
      }
    }
  }
  names_.LetGo(lease);
}

// Pages without a name first, as they lie; then the named ones from the end, so that none is evicted before
// what follows it.
void KvStore::DropPages(Lease& lease) {
  const auto drop = [this](PageId page, bool is_named) {
    if (has_name(page) == is_named) pages_.Drop(page, EvictionRank::kOthers);
  };
  int64_t least = INT64_MAX;
  int64_t end = 0;
  for (const PageTable& table : lease.tables) {
    for (const PageId page : table.sinks) drop(page, false);
    for (const PageId page : table.pages) drop(page, false);
    least = std::min(least, table.kv_base);
    end = std::max(end, table.End(paging()));
  }
  for (int64_t begin = end - paging().tokens(); begin >= least; begin -= paging().tokens()) {
    for (const PageTable& table : lease.tables) {
      if (begin < table.kv_base || begin >= table.End(paging())) continue;
      drop(table.At(begin, paging()), true);
    }
  }
  for (PageTable& table : lease.tables) {
    for (size_t index = table.sinks.size(); index-- > 0;) drop(table.sinks[index], true);
    table = {};
  }
}

}  // namespace tramontane
