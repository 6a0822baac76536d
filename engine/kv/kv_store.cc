#include "engine/kv/kv_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace tramontane {

namespace {

// Blocks that the tree knows for each page of the pool: its windowed groups let pages go whose blocks lead to
// later ones.
constexpr int64_t kBlocksPerPage = 2;
// And of these one in so many may be behind live leases that name theirs by a policy.
constexpr int64_t kBlocksUnderPolicies = 4;
// And for each image, since of a text whose layers have windows a few are kept and the way to them is long.
constexpr int64_t kBlocksPerImage = 4;

// Names of live texts beyond these are not set aside: some 100 MB.
constexpr int64_t kMostLiveBlocks = 1 << 20;

// Of a text that goes by, one window in so many is kept as if a hit could end there: prefix_bench.
constexpr int64_t kWindowsPerKept = 8;

}  // namespace

int64_t KvStore::MostBlocks(int64_t pool_pages, int64_t images, int64_t live_blocks) {
  return kBlocksPerPage * pool_pages + kBlocksPerImage * images + live_blocks;
}

int64_t KvStore::LiveBlocks(const KvLayout& layout, int64_t texts, int64_t tokens) {
  const bool all_roll = std::all_of(layout.groups.begin(), layout.groups.end(),
                                    [](const KvGroupSpec& group) { return group.window > 0; });
  if (!all_roll) return 0;
  return std::min(texts * PagesFor(tokens, layout.format.page_size), kMostLiveBlocks);
}

int64_t KvStore::NameBytes(const KvLayout& layout, int64_t blocks) {
  const size_t groups = layout.groups.size();
  if (blocks == 0) return 0;
  return PrefixTree::BytesOf(blocks, layout.format.page_size, groups) +
         blocks * static_cast<int64_t>(sizeof(int32_t) * groups);
}

KvStore::KvStore(const KvLayout& layout, int64_t pool_pages, PrefixCache prefix_cache,
                 PrefixHashFunction hash, KvTier* tier, int64_t live_blocks)
    : layout_(layout),
      pages_(static_cast<size_t>(pool_pages)),
      held_pages_of_group_(layout.groups.size()),
      cached_pages_of_group_(layout.groups.size()),
      finds_(prefix_cache == PrefixCache::kOn),
      // A block's columns: its page in each group, then its image in each.
      tree_(MostBlocks(pool_pages, tier == nullptr ? 0 : tier->most_images(), live_blocks),
            layout.format.page_size, layout.groups.size() * (tier == nullptr ? 1 : 2), hash),
      tier_(tier),
      idle_uses_(static_cast<size_t>(tree_.capacity()) * layout.groups.size()) {
  TM_CHECK(page_size() > 0, "page size is %d", page_size());
  free_.reserve(pages_.size());
  for (int64_t page = pool_pages - 1; page >= 0; --page) free_.push_back(static_cast<PageId>(page));
  TM_CHECK(tier == nullptr || finds_, "a tier without names");
  prefix_groups_ = PrefixGroupsOf(layout, {});
  for (const KvGroupSpec& group : layout.groups) {
    const int64_t pages = PagesFor(kWindowsPerKept * group.window, page_size());
    kept_interval_ = std::max(kept_interval_, pages * page_size());
  }
}

uint64_t KvStore::NextLeaseId() {
  static std::atomic<uint64_t> last{0};  // stores may be on several threads, each with an engine
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Lease KvStore::NewLease(const ContextPolicy& policy, int64_t trunk_len) const {
  TM_CHECK(policy.type != ContextPolicyType::kReevaluate, "re-evaluation leaves what a row sees as it is");
  TM_CHECK(trunk_len == INT64_MAX || policy.type == ContextPolicyType::kNone, "branches under a policy");
  Lease lease;
  lease.id = NextLeaseId();
  lease.tables.resize(layout_.groups.size());
  lease.policy = policy;
  lease.plain_len = PlainLength(policy, layout_);
  lease.trunk_len = trunk_len;
  return lease;
}

int64_t KvStore::KnownPrefix(const Lease& lease, const PrefixQuery& query) {
  if (lease.is_parked() && IsWhole(lease, From::kAnywhere)) return lease.parked_tokens;
  const Idle* idle = FindIdle(query.owner);
  const int64_t left_idle = idle == nullptr ? 0 : IdlePrefix(*idle, lease, query, From::kHost);
  const PrefixTree::Node salt = FindSalt(query.salt());
  const int64_t named = salt == PrefixTree::kNone ? 0 : FindHit(salt, lease, query, From::kHost);
  return std::max(left_idle, named);
}

KvStore::HeldBlocks KvStore::HoldBlocks(const Lease& lease, const PrefixQuery& query) {
  const PrefixTree::Node salt = FindSalt(query.salt());
  if (salt == PrefixTree::kNone) return {};
  FindPath(salt, lease, query, std::min(query.tokens.size(), query.most_tokens));
  if (!path_.empty()) tree_.Pin(path_.back());
  return path_;
}

void KvStore::LetGo(HeldBlocks& blocks) {
  if (!blocks.empty()) tree_.Unpin(blocks.back());
  blocks.clear();
}

KvStore::KnownPage KvStore::KnownPageOf(PrefixTree::Node node, size_t group) const {
  KnownPage known = {.page = tree_.page(node, group), .node = node};
  const KvTier::Image image = this->image(node, group);
  if (known.page != kNoPage || image == KvTier::kNone) return known;
  known.is_beyond = tier_->place(image) != KvTier::Place::kHere;
  if (!known.is_beyond) known.image = tier_->bytes(image);
  return known;
}

bool KvStore::FetchPage(const KnownPage& page, size_t group) {
  const KvTier::Image image = this->image(page.node, group);
  if (image == KvTier::kNone || tier_->place(image) != KvTier::Place::kOnDisk) return true;
  const bool is_read = tier_->Read(image, &lost_);
  ForgetLost();
  return is_read;
}

// Its pages are not cached before all of them have the name: each would be useless without the others.
bool KvStore::Plant(Lease& above, std::span<const int32_t> block, const PrefixHash& hash,
                    const std::vector<bool>& wanted, std::vector<TakenPage>* taken) {
  if (!finds_ || !TakeInNext(above, block, &hash)) return false;
  const PrefixTree::Node node = above.tip;
  const size_t first = taken->size();
  for (size_t group = 0; group < layout_.groups.size() && available() > 0; ++group) {
    if (!wanted[group] || tree_.page(node, group) != kNoPage) continue;
    const PageId page = Take(group);
    NamePage(page, node);
    taken->push_back({.group = group, .page = page});
  }
  for (size_t i = first; i < taken->size(); ++i) Drop((*taken)[i].page, kOthers);
  RequeueUseful(node);
  return true;
}

// Leaves the known blocks below `salt` in path_, of at most so many tokens.
void KvStore::FindPath(PrefixTree::Node salt, const Lease& lease, const PrefixQuery& query, int64_t most) {
  const int64_t block = page_size();
  const int64_t plain_end = PlainBlocksEnd(lease);
  path_.clear();
  PrefixTree::Node node = salt;
  for (int64_t begin = 0; begin + block <= most; begin += block) {
    if (begin == plain_end) node = FindMark(node, MarkOf(lease.policy));
    if (node == PrefixTree::kNone) break;
    const std::span<const int32_t> ids = query.tokens.Piece(begin, block, &block_);
    const int64_t index = std::ssize(path_);
    const bool is_hashed = query.path != nullptr && index < query.path->blocks();
    if (!is_hashed) ++hashed_blocks_;
    node = tree_.Find(node, is_hashed ? query.path->at(index) : tree_.HashBelow(node, ids), ids);
    if (node == PrefixTree::kNone) break;
    path_.push_back(node);
  }
}

// Leaves the blocks below `salt` in path_.
int64_t KvStore::FindHit(PrefixTree::Node salt, const Lease& lease, const PrefixQuery& query, From from) {
  FindPath(salt, lease, query, std::min(query.tokens.size() - 1, query.most_tokens));
  asked_groups_ = prefix_groups_;
  for (PrefixGroup& group : asked_groups_) group.n_keep = SinksOf(lease.policy, group.window);
  return LongestPrefixHit(
      std::ssize(path_) * page_size() + 1, page_size(), asked_groups_,
      [this, from](size_t group, int64_t index) {
        return Knows(path_[static_cast<size_t>(index)], group, from);
      },
      [&lease](int64_t position) { return SeenAt(lease, position).left; });
}

bool KvStore::Knows(PrefixTree::Node node, size_t group, From from) const {
  if (tree_.page(node, group) != kNoPage) return true;
  if (from == From::kPool || tier_ == nullptr) return false;
  const KvTier::Image image = this->image(node, group);
  if (image == KvTier::kNone) return false;
  const KvTier::Place place = tier_->place(image);
  return place == KvTier::Place::kHere || from == From::kAnywhere;
}

int64_t KvStore::Acquire(Lease& lease, const PrefixQuery& query) {
  TM_CHECK(std::all_of(lease.tables.begin(), lease.tables.end(),
                       [](const PageTable& table) { return table.pages.empty() && table.kv_base == 0; }) &&
               (lease.is_parked() || lease.tip == PrefixTree::kRoot),
           "a lease of pages acquires others");
  if (lease.is_parked()) {
    if (TakeBack(lease)) return std::exchange(lease.parked_tokens, 0);
    Release(lease);
  }
  const PrefixTree::Node salt = finds_ ? PinMark(PrefixTree::kRoot, MarkOf(query.salt())) : PrefixTree::kNone;
  int64_t hit = salt == PrefixTree::kNone ? 0 : FindHit(salt, lease, query, From::kHost);
  if (tier_ != nullptr && !HasRoomFor(lease, hit)) hit = FindHit(salt, lease, query, From::kPool);
  if (const Idle* idle = FindIdle(query.owner)) {
    const int64_t end = IdlePrefix(*idle, lease, query, From::kHost);
    if (end > hit && (tier_ == nullptr || HasRoomForFork(*idle, end, lease))) {
      if (salt != PrefixTree::kNone) tree_.Unpin(salt);
      return ForkIdle(*idle, end, lease, query);
    }
  }
  if (salt == PrefixTree::kNone) return 0;
  lease.tip = salt;
  if (hit > 0) MoveTip(lease, path_[static_cast<size_t>(PagesFor(hit, page_size())) - 1]);
  LeaseKnown(lease.prefers_cache, [&](const auto& visit) {
    ForEachPageOfHit(lease, hit, [&](size_t group, size_t index, std::vector<PageId>* pages) {
      visit(path_[index], group, pages);
    });
  });
  lease.sealed = hit;
  lease.seals = true;
  lease.hit_tokens = hit;
  lease.known_tokens = static_cast<int64_t>(path_.size()) * page_size();
  lease.asked_tokens = query.tokens.size();
  blocks_under_policies_ += BlocksUnderPolicy(lease);
  return hit;
}

void KvStore::SealPages(Lease& lease, TokenView tokens, int64_t accepted, TextPath* path) {
  const auto end = std::min({accepted, tokens.size(), lease.trunk_len});
  if (path != nullptr) hashed_blocks_ += path->Extend(tokens, end);
  while (lease.seals && lease.sealed + page_size() <= end) {
    const int64_t begin = lease.sealed;
    const int64_t index = PageOf(begin, 0, page_size());
    const bool is_hashed = path != nullptr && index < path->blocks();
    lease.seals =
        TakeInNext(lease, tokens.Piece(begin, page_size(), &block_), is_hashed ? &path->at(index) : nullptr);
    if (lease.seals) NamePages(lease, lease.tip, begin);
  }
}

void KvStore::Forget(Lease& lease) {
  lease.seals = false;
  PrefixTree::Node above = PrefixTree::kNone;
  for (PrefixTree::Node node = lease.tip; node != PrefixTree::kRoot; node = above) {
    above = tree_.above(node);
    ForgetBlock(node);
  }
}

// Its pages and images are found no more.
void KvStore::ForgetBlock(PrefixTree::Node node) {
  for (size_t group = 0; group < layout_.groups.size(); ++group) {
    const PageId page = tree_.page(node, group);
    const bool has_image = image(node, group) != KvTier::kNone;
    if (page != kNoPage) Unname(page);
    if (has_image) ForgetImage(node, group);
  }
}

int64_t KvStore::PagesNeeded(const Lease& lease, int64_t written, int64_t end) const {
  int64_t pages = 0;
  for (const PageTable& table : lease.tables) {
    const int64_t table_end = EndOf(table);
    if (end > table_end) pages += PagesFor(end - table_end, page_size());
    ForEachSharedPage(lease, table, written, end, [&](int64_t) { ++pages; });
  }
  return pages;
}

int64_t KvStore::PagesToReach(const Lease& lease, int64_t end, int64_t ahead) const {
  ++sized_leases_;
  int64_t pages = 0;
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const int64_t most = lease.plain_len == INT64_MAX
                             ? PagesOfGroupUnderBranches(layout_, group, lease.trunk_len, end, ahead)
                             : std::min(PagesFor(end, page_size()),
                                        PagesOfGroupUnderPolicy(layout_, group, lease.policy, ahead));
    const PageTable& table = lease.tables[group];
    pages += std::max<int64_t>(0, most - static_cast<int64_t>(table.sinks.size() + table.pages.size()));
  }
  return pages;
}

void KvStore::Extend(Lease& lease, int64_t written, int64_t end, std::vector<PageCopy>* copies) {
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    TM_CHECK(written >= table.kv_base && written <= EndOf(table),
             "position %lld is outside a table that starts at %lld", static_cast<long long>(written),
             static_cast<long long>(table.kv_base));
    ForEachSharedPage(lease, table, written, end, [&](int64_t index) {
      const PageId shared = table.pages[index];
      const PageId own = Take(group);
      const int64_t first_position = table.kv_base + index * page_size();
      if (first_position < written) copies->push_back({.from = shared, .to = own});
      table.pages[index] = own;
      if (references(shared) > 1)
        Drop(shared, kOthers);
      else
        copied_.push_back(shared);
    });
    if (lease.is_cut) UnnameAt(table, written);
    while (EndOf(table) < end) table.pages.push_back(Take(group));
  }
  lease.is_cut = false;  // the page is its own by now
}

void KvStore::EndPlan() {
  for (const PageId page : copied_) Drop(page, kOthers);
  copied_.clear();
  DropBrokenIdle();
}

void KvStore::Roll(Lease& lease, int64_t accepted) {
  accepted = std::min(accepted, lease.trunk_len);
  const int64_t left = SeenAt(lease, accepted).left;
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    const int64_t first_visible = std::max(FirstVisible(accepted, layout_.groups[group].window), left);
    const int64_t drop =
        std::min(PageOf(first_visible, table.kv_base, page_size()), static_cast<int64_t>(table.pages.size()));
    const int64_t sinks = table.kv_base == 0 ? SinkPages(lease, layout_, group) : 0;
    if (drop <= sinks) continue;  // they stay, wherever they are listed
    table.sinks.insert(table.sinks.end(), table.pages.begin(), table.pages.begin() + sinks);
    for (int64_t index = sinks; index < drop; ++index) {
      const int64_t begin = table.kv_base + index * page_size();
      Drop(table.pages[index], EndsNear(lease, begin, layout_.groups[group].window) ? kOthers : kPassed);
    }
    table.pages.erase(table.pages.begin(), table.pages.begin() + drop);
    table.kv_base += drop * page_size();
  }
}

Lease KvStore::Fork(const Lease& lease, int64_t end) {
  Lease fork = lease;
  fork.id = NextLeaseId();
  CutNames(fork, end);
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const PageTable& table = lease.tables[group];
    const int64_t pages = PagesFor(end - table.kv_base, page_size());
    TM_CHECK(end >= table.kv_base && pages <= static_cast<int64_t>(table.pages.size()),
             "a table of %zu pages from position %lld does not reach %lld", table.pages.size(),
             static_cast<long long>(table.kv_base), static_cast<long long>(end));
    PageTable& shared = fork.tables[group];
    shared.pages.resize(static_cast<size_t>(pages));
    for (const PageId page : shared.pages) Share(page);
    for (const PageId page : shared.sinks) Share(page);
  }
  return fork;
}

// Of a copy of a lease: it goes on behind `end`, within what was named or a page that is shared.
void KvStore::CutNames(Lease& fork, int64_t end) {
  const int64_t plain_end = PlainBlocksEnd(fork);
  const auto mark_blocks = PagesFor(std::ssize(MarkOf(fork.policy)), page_size());
  while (fork.sealed > end) {
    fork.sealed -= page_size();
    const int64_t nodes = 1 + (fork.sealed == plain_end ? mark_blocks : 0);
    for (int64_t node = 0; node < nodes; ++node) fork.tip = tree_.above(fork.tip);
  }
  tree_.Pin(fork.tip);
  blocks_under_policies_ += BlocksUnderPolicy(fork);
  fork.is_cut = true;
}

void KvStore::Release(Lease& lease) {
  if (lease.is_parked()) DropParked(lease);
  DropPages(lease);
  lease.id = NextLeaseId();
  MoveTip(lease, PrefixTree::kRoot);
  blocks_under_policies_ -= BlocksUnderPolicy(lease);
  lease.sealed = 0;
  lease.seals = false;
  lease.begins.clear();
  lease.is_cut = false;
  lease.hit_tokens = 0;
  lease.known_tokens = 0;
  lease.asked_tokens = 0;
}

// Pages without a name first, as they lie; then the named ones from the end, so that none is evicted before
// what follows it.
void KvStore::DropPages(Lease& lease) {
  for (PageTable& table : lease.tables) {
    for (std::vector<PageId>* list : {&table.sinks, &table.pages}) {
      for (PageId& page : *list) {
        if (pages_[page].node != PrefixTree::kNone) continue;
        Drop(page, kOthers);
        page = kNoPage;
      }
    }
  }
  int64_t least = INT64_MAX;
  int64_t end = 0;
  for (const PageTable& table : lease.tables) {
    least = std::min(least, table.kv_base);
    end = std::max(end, EndOf(table));
  }
  for (int64_t begin = end - page_size(); begin >= least; begin -= page_size()) {
    for (const PageTable& table : lease.tables) {
      if (begin < table.kv_base || begin >= EndOf(table)) continue;
      const PageId page = table.pages[static_cast<size_t>(PageOf(begin, table.kv_base, page_size()))];
      if (page != kNoPage) Drop(page, kOthers);
    }
  }
  for (PageTable& table : lease.tables) {
    for (size_t index = table.sinks.size(); index-- > 0;) {
      if (table.sinks[index] != kNoPage) Drop(table.sinks[index], kOthers);
    }
    table.sinks.clear();
    table.pages.clear();
    table.kv_base = 0;
  }
}

void KvStore::CheckAccounting() const {
  enum class State { kLeased, kFree, kCached };
  std::vector<State> states(pages_.size(), State::kLeased);
  const auto mark = [&](PageId page, State state) {
    TM_CHECK(pages_[page].references == 0, "page %d is not leased, and has %d leases", page,
             pages_[page].references);
    TM_CHECK(states[page] == State::kLeased, "page %d is free or cached twice", page);
    states[page] = state;
  };
  for (const PageId page : free_) mark(page, State::kFree);
  for (const Ends& ends : queues_) {
    PageId older = kNoPage;
    for (PageId page = ends.oldest; page != kNoPage; page = pages_[page].newer) {
      mark(page, State::kCached);
      TM_CHECK(pages_[page].older == older, "page %d does not know the one in front of it", page);
      older = page;
    }
    TM_CHECK(ends.newest == older, "page %d is not the newest", ends.newest);
  }
  int64_t preferred = 0;
  for (PageId page = queues_[kPreferred].oldest; page != kNoPage; page = pages_[page].newer) ++preferred;
  TM_CHECK(preferred == preferred_pages_, "%lld cached pages are preferred, not %lld",
           static_cast<long long>(preferred), static_cast<long long>(preferred_pages_));
  int64_t shared = 0;
  std::vector<int64_t> held(layout_.groups.size());
  std::vector<int64_t> cached(layout_.groups.size());
  for (size_t i = 0; i < pages_.size(); ++i) {
    const Page& page = pages_[i];
    const bool is_named = page.node != PrefixTree::kNone;
    TM_CHECK(states[i] != State::kLeased || page.references > 0, "page %zu is in no state", i);
    TM_CHECK(is_named ? states[i] != State::kFree : states[i] != State::kCached,
             "page %zu is free with a name, or cached without one", i);
    TM_CHECK(!is_named || tree_.page(page.node, static_cast<size_t>(page.group)) == static_cast<PageId>(i),
             "page %zu has a name that is another one's", i);
    if (states[i] == State::kLeased) ++held[static_cast<size_t>(page.group)];
    if (states[i] == State::kCached) ++cached[static_cast<size_t>(page.group)];
    if (page.references > 1 && !is_named) shared += page.references - 1;
  }
  TM_CHECK(shared == shared_references_, "%lld references are shared, not %lld",
           static_cast<long long>(shared), static_cast<long long>(shared_references_));
  TM_CHECK(held == held_pages_of_group_ && cached == cached_pages_of_group_,
           "the pages of a group are not those that are counted");
  TM_CHECK(std::accumulate(held.begin(), held.end(), int64_t{0}) == held_pages() &&
               std::accumulate(cached.begin(), cached.end(), int64_t{0}) == cached_pages(),
           "%lld pages are held and %lld cached, which no group has", static_cast<long long>(held_pages()),
           static_cast<long long>(cached_pages()));
  std::vector<int32_t> idle_uses(idle_uses_.size());
  for (const Idle& idle : idle_) {
    TM_CHECK(has_broken_idle_ || IsWhole(idle.lease, From::kAnywhere), "an idle lease lacks a page");
    ForEachParked(idle.lease, [&](PrefixTree::Node node, size_t group) {
      ++idle_uses[static_cast<size_t>(node) * layout_.groups.size() + group];
    });
  }
  TM_CHECK(idle_uses == idle_uses_, "the pages of idle leases are not those that are counted");
  if (tier_ != nullptr) tier_->CheckAccounting();
}

// The page that position `written` lies in, where it is the lease's alone, holds what its name says no more.
// Behind a cut it may have one: whom it was shared with has filled and sealed it, and let go.
void KvStore::UnnameAt(const PageTable& table, int64_t written) {
  if (written >= EndOf(table)) return;
  const PageId page = table.pages[static_cast<size_t>(PageOf(written, table.kv_base, page_size()))];
  if (pages_[page].node != PrefixTree::kNone) Unname(page);
}

// Calls visit(index) for each page of the table that positions [written, end) lie in and that other leases
// have, idle ones among them.
template <typename Visit>
void KvStore::ForEachSharedPage(const Lease& lease, const PageTable& table, int64_t written, int64_t end,
                                const Visit& visit) const {
  if (shared_references_ == 0 && !lease.is_cut) return;  // the usual case: no page to look at
  end = std::min(end, EndOf(table));
  for (int64_t at = written; at < end; at = (PageOf(at, 0, page_size()) + 1) * page_size()) {
    const int64_t index = PageOf(at, table.kv_base, page_size());
    if (IsShared(table.pages[index])) visit(index);
  }
}

// Where the blocks end that are named without the policy.
int64_t KvStore::PlainBlocksEnd(const Lease& lease) const {
  return lease.plain_len == INT64_MAX ? INT64_MAX : PageOf(lease.plain_len, 0, page_size()) * page_size();
}

int64_t KvStore::BlocksUnderPolicy(const Lease& lease) const {
  return PagesFor(std::max<int64_t>(0, lease.sealed - PlainBlocksEnd(lease)), page_size());
}

int64_t KvStore::EndOf(const PageTable& table) const {
  return table.kv_base + static_cast<int64_t>(table.pages.size()) * page_size();
}

// ---- names --------------------------------------------------------------------------------------

// The view lives until the next one.
std::span<const int32_t> KvStore::MarkOf(std::string_view salt) {
  SaltMark(salt, page_size(), &mark_);
  return mark_;
}

std::span<const int32_t> KvStore::MarkOf(const ContextPolicy& policy) {
  PolicyMark(policy, page_size(), &mark_);
  return mark_;
}

// kNone: not known, or nothing is.
PrefixTree::Node KvStore::FindSalt(std::string_view salt) {
  return finds_ ? FindMark(PrefixTree::kRoot, MarkOf(salt)) : PrefixTree::kNone;
}

// kNone: not known.
PrefixTree::Node KvStore::FindMark(PrefixTree::Node above, std::span<const int32_t> mark) const {
  const auto block = static_cast<size_t>(page_size());
  for (size_t begin = 0; begin < mark.size() && above != PrefixTree::kNone; begin += block) {
    above = tree_.Find(above, mark.subspan(begin, block));
  }
  return above;
}

// kNone: there is no room for it. REQUIRES: `above` is pinned, and stays so.
PrefixTree::Node KvStore::PinMark(PrefixTree::Node above, std::span<const int32_t> mark) {
  const auto block = static_cast<size_t>(page_size());
  PrefixTree::Node node = above;
  tree_.Pin(node);
  for (size_t begin = 0; begin < mark.size() && node != PrefixTree::kNone; begin += block) {
    const std::span<const int32_t> ids = mark.subspan(begin, block);
    const PrefixTree::Node below = TakeInBlock(node, tree_.HashBelow(node, ids), ids);
    if (below != PrefixTree::kNone) tree_.Pin(below);
    tree_.Unpin(node);
    node = below;
  }
  return node;
}

// Takes in the block behind those that the lease has named, which is named from now on. False: there is no
// room for it, or too much under policies has names, or its hash is another one's.
bool KvStore::TakeInNext(Lease& lease, std::span<const int32_t> ids, const PrefixHash* hash) {
  const bool under_policy = lease.sealed >= PlainBlocksEnd(lease);
  const auto is_too_much = [this] {
    return (blocks_under_policies_ + 1) * kBlocksUnderPolicies > tree_.capacity();
  };
  while (under_policy && is_too_much()) {
    if (!DropOldestUnderPolicy()) return false;
  }
  const bool marks = lease.sealed == PlainBlocksEnd(lease);
  const PrefixTree::Node above = marks ? PinMark(lease.tip, MarkOf(lease.policy)) : lease.tip;
  if (hash == nullptr) ++hashed_blocks_;
  const PrefixTree::Node node =
      above == PrefixTree::kNone
          ? above
          : TakeInBlock(above, hash == nullptr ? tree_.HashBelow(above, ids) : *hash, ids);
  if (node != PrefixTree::kNone) {
    MoveTip(lease, node);
    lease.sealed += page_size();
    if (under_policy) ++blocks_under_policies_;
  }
  if (marks && above != PrefixTree::kNone) tree_.Unpin(above);
  return node != PrefixTree::kNone;
}

// Where there is no room for another block, ends of texts that nobody holds go, then what is left idle for
// longest. kNone: all names are of what is alive, or the block's hash is another one's. REQUIRES: `above` is
// pinned.
PrefixTree::Node KvStore::TakeInBlock(PrefixTree::Node above, const PrefixHash& hash,
                                      std::span<const int32_t> ids) {
  while (tree_.full() && (tree_.OldestEnd() != PrefixTree::kNone || !idle_.empty())) {
    if (tree_.OldestEnd() != PrefixTree::kNone)
      ForgetBlock(tree_.OldestEnd());
    else
      DropIdle(idle_.begin());
  }
  return tree_.full() ? tree_.Find(above, hash, ids) : tree_.FindOrInsert(above, hash, ids);
}

void KvStore::MoveTip(Lease& lease, PrefixTree::Node node) {
  tree_.Pin(node);
  tree_.Unpin(lease.tip);
  lease.tip = node;
}

// Gives the lease's pages of the block that begins at `begin` to the node, where it has none.
void KvStore::NamePages(const Lease& lease, PrefixTree::Node node, int64_t begin) {
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const PageTable& table = lease.tables[group];
    const bool is_there = begin >= table.kv_base && (lease.begins.empty() || begin >= lease.begins[group]);
    if (!is_there || tree_.page(node, group) != kNoPage) continue;
    const PageId page = table.pages[static_cast<size_t>(PageOf(begin, table.kv_base, page_size()))];
    NamePage(page, node);
    pages_[page].is_preferred = lease.prefers_cache;
    shared_references_ -= references(page) - 1;
  }
  RequeueUseful(node);
}

// REQUIRES: the node has no page in the page's group, and the page no name.
void KvStore::NamePage(PageId id, PrefixTree::Node node) {
  Page& page = pages_[id];
  tree_.SetPage(node, static_cast<size_t>(page.group), id);
  page.node = node;
}

// Pages of the block that were useless and are no more, since others have come.
void KvStore::RequeueUseful(PrefixTree::Node node) {
  for (size_t group = 0; group < layout_.groups.size(); ++group) {
    const PageId page = tree_.page(node, group);
    if (page == kNoPage || references(page) > 0 || pages_[page].queue != kUseless || IsUseless(page))
      continue;
    Dequeue(page);
    Enqueue(page, kOthers);
  }
}

// It is found no more; a cached one is free.
void KvStore::Unname(PageId id) {
  Page& page = pages_[id];
  has_broken_idle_ = has_broken_idle_ || IsOfIdle(id);
  tree_.ClearPage(page.node, static_cast<size_t>(page.group));
  page.node = PrefixTree::kNone;
  if (page.references > 0) {
    shared_references_ += page.references - 1;
    return;
  }
  Dequeue(id);
  free_.push_back(id);
}

// A hit that needs this page needs that of each group that sees as far, too.
bool KvStore::IsUseless(PageId id) const {
  const Page& page = pages_[id];
  const int64_t reach = Reach(layout_.groups[static_cast<size_t>(page.group)].window);
  for (size_t group = 0; group < layout_.groups.size(); ++group) {
    const bool sees_as_far = Reach(layout_.groups[group].window) >= reach;
    if (sees_as_far && !Knows(page.node, group, From::kAnywhere)) return true;
  }
  return false;
}

// Whether the page of the block at `begin` is in the window of a place where a later hit is likely to end:
// where this lease's own hit did, where its text parts from those before it, the end of what it was asked
// for; and some places on the way, for a text that parts from this one.
bool KvStore::EndsNear(const Lease& lease, int64_t begin, int32_t window) const {
  const bool under_policy = begin >= PlainBlocksEnd(lease);
  const auto is_seen = [&](int64_t least_end, int64_t most_end) {
    const int64_t left = under_policy ? SeenAt(lease, least_end).left : 0;
    return begin < most_end && begin + page_size() > std::max(FirstVisible(least_end, window), left);
  };
  const auto border = [&](int64_t tokens) { return PageOf(tokens, 0, page_size()) * page_size(); };
  const int64_t asked = lease.asked_tokens;
  // The first of the places kept at intervals that is not in front of the page's end.
  const int64_t interval = kept_interval_;
  const int64_t next = interval == 0 ? 0 : (begin + page_size() + interval - 1) / interval * interval;
  return is_seen(lease.hit_tokens, lease.hit_tokens) || is_seen(lease.known_tokens, lease.known_tokens) ||
         (interval > 0 && is_seen(next, next)) || (asked > 0 && is_seen(border(asked - 1), border(asked)));
}

// ---- states of a page ---------------------------------------------------------------------------

PageId KvStore::Take(size_t group) {
  TM_CHECK(available() > 0, "the pool of %zu pages is empty", pages_.size());
  PageId page = kNoPage;
  if (free_.empty()) {
    page = Evict();
  } else {
    page = free_.back();
    free_.pop_back();
  }
  pages_[page].references = 1;
  pages_[page].is_preferred = false;
  pages_[page].group = static_cast<int32_t>(group);
  ++held_pages_of_group_[group];
  return page;
}

// One lease more, of a page that is leased or cached.
void KvStore::Share(PageId id) {
  Page& page = pages_[id];
  if (page.references > 0) {
    if (page.node == PrefixTree::kNone) ++shared_references_;
  } else {
    Dequeue(id);
    ++held_pages_of_group_[static_cast<size_t>(page.group)];
  }
  ++page.references;
}

// One lease less. After the last one a page with a name is cached.
void KvStore::Drop(PageId id, Queue queue) {
  Page& page = pages_[id];
  TM_CHECK(page.references > 0, "page %d is released once too often", id);
  if (--page.references > 0) {
    if (page.node == PrefixTree::kNone) --shared_references_;
    return;
  }
  --held_pages_of_group_[static_cast<size_t>(page.group)];
  if (page.node == PrefixTree::kNone) {
    free_.push_back(id);
  } else if (queue == kParked) {
    Enqueue(id, queue);
  } else if (IsOfIdle(id)) {
    Enqueue(id, kOthers);  // whoever let go of it, and whatever else is there of its block
  } else {
    Enqueue(id, IsUseless(id) ? kUseless : queue);
  }
}

// The next cached page to go, which is then in no state. What it makes useless goes after it.
// REQUIRES: a page is cached.
PageId KvStore::Evict() {
  const PageId victim = queues_[FirstToGo()].oldest;
  Page& page = pages_[victim];
  const bool is_kept = tier_ != nullptr && Spill(victim);
  has_broken_idle_ = has_broken_idle_ || (!is_kept && IsOfIdle(victim));
  if (!is_kept) MakePartnersUseless(page.node, static_cast<size_t>(page.group));
  Dequeue(victim);
  tree_.ClearPage(page.node, static_cast<size_t>(page.group));
  page.node = PrefixTree::kNone;
  return victim;
}

// Cached pages of the block that no hit can use without its page in this group.
void KvStore::MakePartnersUseless(PrefixTree::Node node, size_t group) {
  const int64_t reach = Reach(layout_.groups[group].window);
  for (size_t other = 0; other < layout_.groups.size(); ++other) {
    const PageId partner = tree_.page(node, other);
    const bool sees_no_farther = Reach(layout_.groups[other].window) <= reach;
    if (other == group || partner == kNoPage || references(partner) > 0 || !sees_no_farther) continue;
    if (IsOfIdle(partner)) continue;
    if (pages_[partner].queue == kUseless) continue;
    Dequeue(partner);
    Enqueue(partner, kUseless);
  }
}

// The first queue that has a page. REQUIRES: one has.
KvStore::Queue KvStore::FirstToGo() const {
  constexpr std::array usual = {kUseless, kPassed, kOthers, kPreferred, kParked};
  constexpr std::array crowded = {kUseless, kPassed, kPreferred, kOthers, kParked};
  const bool is_crowded = 2 * preferred_pages_ > total_pages();
  const auto& order = is_crowded ? crowded : usual;
  return *std::find_if(order.begin(), order.end(),
                       [this](Queue queue) { return queues_[queue].oldest != kNoPage; });
}

void KvStore::Enqueue(PageId id, Queue queue) {
  Page& page = pages_[id];
  if (queue == kOthers && page.is_preferred) queue = kPreferred;
  if (queue == kPreferred) ++preferred_pages_;
  Ends& ends = queues_[queue];
  page.queue = queue;
  page.older = ends.newest;
  page.newer = kNoPage;
  (ends.newest == kNoPage ? ends.oldest : pages_[ends.newest].newer) = id;
  ends.newest = id;
  ++cached_pages_;
  ++cached_pages_of_group_[static_cast<size_t>(page.group)];
}

void KvStore::Dequeue(PageId id) {
  const Page& page = pages_[id];
  Ends& ends = queues_[page.queue];
  (page.older == kNoPage ? ends.oldest : pages_[page.older].newer) = page.newer;
  (page.newer == kNoPage ? ends.newest : pages_[page.newer].older) = page.older;
  if (page.queue == kPreferred) --preferred_pages_;
  --cached_pages_;
  --cached_pages_of_group_[static_cast<size_t>(page.group)];
}

}  // namespace tramontane
