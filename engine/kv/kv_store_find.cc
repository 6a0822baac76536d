// What KvStore finds, asks the tier for, and has read or written by others.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/kv/kv_store.h"
#include "engine/kv/names/prefix_hit.h"
#include "kernels/core/check.h"

namespace tramontane {

namespace {

// At least one token is computed.
int64_t MostTokens(const PrefixQuery& query) { return std::min(query.tokens.size() - 1, query.most_tokens); }

}  // namespace

// Leaves the blocks below `salt` in path_.
int64_t KvStore::FindHit(Node salt, const Lease& lease, const PrefixQuery& query, From from) {
  names_.FindPath(salt, lease, query, MostTokens(query), &path_);
  return LongestPrefixHit(
      paging().BeginOf(std::ssize(path_)) + 1, paging(), PrefixGroupsOf(layout_, lease.policy),
      [&](size_t group, int64_t index) {
        return pages_.Knows(path_[static_cast<size_t>(index)], group, from);
      },
      [&lease](int64_t position) { return SeenAt(lease, position).left; });
}

// Those that a hit of path_ leases, in the order of the lease's lists.
KvStore::WantedPages KvStore::PagesOfHit(Lease& lease, int64_t hit) const {
  WantedPages wanted;
  const auto end = static_cast<size_t>(paging().PagesFor(hit));
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    const auto sinks = static_cast<size_t>(SinkPages(lease, layout_, group));
    auto first = static_cast<size_t>(paging().PageOf(FirstSeen(lease, layout_, group, hit)));
    if (first <= sinks) first = 0;  // the sinks are not behind it
    table.kv_base = paging().BeginOf(static_cast<int64_t>(first));
    for (size_t i = 0; first > 0 && i < sinks; ++i) wanted.push_back({path_[i], group, &table.sinks});
    for (size_t i = first; i < end; ++i) wanted.push_back({path_[i], group, &table.pages});
  }
  return wanted;
}

int64_t KvStore::KnownPrefix(const Lease& lease, const PrefixQuery& query) {
  if (lease.is_set_aside() && held_.IsWhole(*lease.returns_to, From::kAnywhere))
    return lease.returns_to->length;
  const HeldText* idle = held_.Find(query.owner);
  const int64_t left_idle = idle == nullptr ? 0 : held_.PrefixFor(*idle, lease, query, From::kHost);
  const Node salt = FindSalt(query.salt());
  const int64_t named = salt == PrefixTree::kNone ? 0 : FindHit(salt, lease, query, From::kHost);
  return std::max(left_idle, named);
}

void KvStore::Expect(Lease& lease, const PrefixQuery& query, Beyond beyond, int64_t at_least) {
  const AwaitedPage& awaited = lease.awaited;
  if (beyond == Beyond::kLook && awaited.node != PrefixTree::kNone &&
      names_.tree().life(awaited.node) == awaited.life && pages_.IsComing(awaited.node, awaited.group))
    return;
  if (const Node salt = FindSalt(query.salt()); salt == PrefixTree::kNone || lease.is_set_aside()) {
    lease.found = {};
  } else {
    names_.FindPath(salt, lease, query, MostTokens(query), &path_);
    names_.Note(path_, &lease.found);
  }
  ExpectedHit& expected = lease.expected;
  if (beyond == Beyond::kFetch) expected.is_coming = Fetch(lease, query);
  if (beyond == Beyond::kLook) expected.is_coming = IsComing(lease, query);
  expected.tokens = std::max(KnownPrefix(lease, query), at_least);
  expected.ends_within_page = !lease.is_set_aside() && paging().OffsetOf(expected.tokens) != 0;
}

int64_t KvStore::Acquire(Lease& lease, const PrefixQuery& query) {
  TM_CHECK(lease.tip == PrefixTree::kRoot &&
               std::all_of(lease.tables.begin(), lease.tables.end(),
                           [](const PageTable& table) { return table.pages.empty() && table.kv_base == 0; }),
           "a lease of pages acquires others");
  if (lease.is_set_aside()) {
    const int64_t length = lease.returns_to->length;
    if (held_.TakeBack(lease)) return length;
  }
  const Node salt = finds_ ? names_.PinSalt(query.salt()) : PrefixTree::kNone;
  int64_t hit = salt == PrefixTree::kNone ? 0 : FindHit(salt, lease, query, From::kHost);
  if (has_tier() && !pages_.HasRoomFor(PagesOfHit(lease, hit)))
    hit = FindHit(salt, lease, query, From::kPool);
  const HeldText* idle = held_.Find(query.owner);
  const int64_t idle_end = idle == nullptr ? 0 : held_.PrefixFor(*idle, lease, query, From::kHost);
  const bool forks = idle_end > hit && (!has_tier() || held_.HasRoomToFork(*idle, idle_end, lease));
  if (salt == PrefixTree::kNone && !forks) return 0;
  if (forks) {
    if (salt != PrefixTree::kNone) names_.tree().Unpin(salt);
    held_.Fork(*idle, idle_end, lease);
  } else {
    names_.Follow(lease, hit > 0 ? path_[static_cast<size_t>(paging().PagesFor(hit)) - 1] : salt, hit);
    names_.tree().Unpin(salt);
    lease.seals = true;
    pages_.Lease(PagesOfHit(lease, hit), lease.prefers_cache);
  }
  lease.hit_tokens = forks ? idle_end : hit;
  lease.known_tokens = forks ? idle_end : paging().BeginOf(std::ssize(path_));
  lease.asked_tokens = query.tokens.size();
  return lease.hit_tokens;
}

// ---- the tier -----------------------------------------------------------------------------------

// Asks the disk for what Acquire could then bring back. Whether something is on its way.
bool KvStore::Fetch(Lease& lease, const PrefixQuery& query) {
  if (!has_tier()) return false;
  lease.awaited = {};
  bool is_coming = false;
  const auto fetch = [&](Node node, size_t group) {
    const KvTier::Image image = pages_.image(node, group);
    if (pages_.page(node, group) != kNoPage || image == KvTier::kNone) return;
    const bool is_on_disk = tier()->place(image) == KvTier::Place::kOnDisk;
    if (!is_on_disk) pages_.tier()->Touch(image);
    const bool waits_for_room = is_on_disk && !pages_.Fetch(node, group) && lease.is_set_aside();
    is_coming = NoteComing(node, group, lease) || waits_for_room || is_coming;
  };
  if (lease.is_set_aside()) {
    if (held_.CanReturn(*lease.returns_to)) lease.returns_to->ForEachPage(fetch);
    return is_coming;
  }
  const Node salt = FindSalt(query.salt());
  const int64_t hit = salt == PrefixTree::kNone ? 0 : HitThatCanCome(salt, lease, query);
  const HeldText* idle = held_.Find(query.owner);
  if (idle != nullptr && held_.PrefixFor(*idle, lease, query, From::kAnywhere) > hit &&
      held_.CanReturn(*idle) && pages_.DiskPays()) {
    idle->ForEachPage(fetch);
  } else if (hit > 0) {
    Lease asked = Anew(lease);
    for (const KnownPages::Wanted& page : PagesOfHit(asked, hit)) fetch(page.node, page.group);
  }
  return is_coming;
}

// Whether something of the prefix is on its way still; nothing is asked for.
bool KvStore::IsComing(Lease& lease, const PrefixQuery& query) {
  bool is_coming = false;
  const auto look = [&](Node node, size_t group) {
    ++looked_blocks_;
    is_coming = NoteComing(node, group, lease) || is_coming;
  };
  if (lease.is_set_aside()) {
    lease.returns_to->ForEachPage(look);
    return is_coming;
  }
  if (const HeldText* idle = held_.Find(query.owner)) idle->ForEachPage(look);
  if (const Node salt = FindSalt(query.salt()); salt != PrefixTree::kNone) {
    names_.FindPath(salt, lease, query, query.tokens.size(), &path_);
    for (const Node node : path_) {
      for (size_t group = 0; group < layout_.groups.size(); ++group) look(node, group);
    }
  }
  return is_coming;
}

bool KvStore::NoteComing(Node node, size_t group, Lease& lease) const {
  if (!pages_.IsComing(node, group)) return false;
  lease.awaited = {.node = node, .life = names_.tree().life(node), .group = group};
  return true;
}

// The longest hit, of those tried, whose images have room on the host; that of the host alone, where reading
// takes longer than computing. Leaves its blocks in path_.
int64_t KvStore::HitThatCanCome(Node salt, const Lease& lease, PrefixQuery query) {
  const int64_t here = FindHit(salt, lease, query, From::kHost);
  if (!pages_.DiskPays()) return here;
  while (true) {
    const int64_t hit = FindHit(salt, lease, query, From::kAnywhere);
    if (hit <= here) return here;
    Lease asked = Anew(lease);
    const WantedPages wanted = PagesOfHit(asked, hit);
    const auto images = std::count_if(wanted.begin(), wanted.end(), [this](const auto& page) {
      return pages_.page(page.node, page.group) == kNoPage;
    });
    if (images <= tier()->host_pages()) return hit;
    query.most_tokens = here + (hit - here) / 2;
  }
}

// ---- pages copied from and to elsewhere ---------------------------------------------------------

KvStore::HeldBlocks KvStore::HoldBlocks(const Lease& lease, const PrefixQuery& query) {
  const Node salt = FindSalt(query.salt());
  if (salt == PrefixTree::kNone) return {};
  names_.FindPath(salt, lease, query, std::min(query.tokens.size(), query.most_tokens), &path_);
  if (!path_.empty()) names_.tree().Pin(path_.back());
  return path_;
}

void KvStore::LetGo(HeldBlocks& blocks) {
  if (!blocks.empty()) names_.tree().Unpin(blocks.back());
  blocks.clear();
}

KvStore::KnownPage KvStore::KnownPageOf(Node node, size_t group) const {
  KnownPage known = {.page = pages_.page(node, group), .node = node};
  const KvTier::Image image = pages_.image(node, group);
  if (known.page != kNoPage || image == KvTier::kNone) return known;
  known.is_beyond = tier()->place(image) != KvTier::Place::kHere;
  if (!known.is_beyond) known.image = pages_.tier()->bytes(image);
  return known;
}

KvStore::IdleText KvStore::FindIdleText(const Lease& lease, const PrefixQuery& query) const {
  const HeldText* idle = held_.Find(query.owner);
  if (idle == nullptr) return {};
  const int64_t alike = query.tokens.CountAlike(idle->tokens);
  return {.lease = idle->lease.id, .tokens = held_.EndFor(*idle, lease, alike, From::kAnywhere)};
}

KvStore::KnownPage KvStore::KnownIdlePage(const KvOwner* owner, uint64_t lease, int64_t block,
                                          size_t group) const {
  const HeldText* idle = held_.Find(owner);
  if (idle == nullptr || idle->lease.id != lease) return {};
  const PageTable& nodes = idle->tables[group];
  const bool is_sink = block < std::ssize(nodes.sinks);
  const std::vector<Node>& list = is_sink ? nodes.sinks : nodes.pages;
  const int64_t index = is_sink ? block : block - paging().PageOf(nodes.kv_base);
  if (index < 0 || index >= std::ssize(list)) return {};
  const Node node = list[static_cast<size_t>(index)];
  KnownPage page = KnownPageOf(node, group);
  page.is_own = names_.tree().above(node) == idle->mark;
  return page;
}

// Its pages are not cached before all of them have the name: each would be useless without the others.
bool KvStore::Plant(Lease& above, std::span<const int32_t> block, const PrefixHash& hash,
                    const std::vector<bool>& wanted, std::vector<TakenPage>* taken) {
  if (!finds_ || !names_.TakeInNext(above, block, &hash)) return false;
  const size_t first = taken->size();
  for (size_t group = 0; group < layout_.groups.size() && available() > 0; ++group) {
    if (!wanted[group] || pages_.page(above.tip, group) != kNoPage) continue;
    const PageId page = pages_.Take(group);
    pages_.Name(page, above.tip);
    taken->push_back({.group = group, .page = page});
  }
  for (size_t i = first; i < taken->size(); ++i) pages_.Drop((*taken)[i].page, EvictionRank::kOthers);
  pages_.RequeueUseful(above.tip);
  return true;
}

int64_t KvStore::Renew(const Lease& lease, const PrefixQuery& query) {
  const Node salt = FindSalt(query.salt());
  const int64_t hit = salt == PrefixTree::kNone ? 0 : FindHit(salt, lease, query, From::kHost);
  for (int64_t block = paging().PageOf(hit); block-- > 0;) {
    for (size_t group = 0; group < layout_.groups.size(); ++group) {
      const int64_t first_seen = FirstSeen(lease, layout_, group, hit);
      if (block < SinkPages(lease, layout_, group) || paging().BeginOf(block + 1) > first_seen)
        pages_.Renew(path_[static_cast<size_t>(block)], group);
    }
  }
  return hit;
}

bool KvStore::BeginIdle(const std::shared_ptr<const KvOwner>& owner, const ContextPolicy& policy,
                        std::vector<int64_t> begins, int64_t tokens) {
  Lease lease = NewLease(policy);
  lease.begins = std::move(begins);
  return held_.Begin(owner, std::move(lease), tokens);
}

}  // namespace tramontane
