// KvStore: the one owner of the KV pool's pages, and of who has them. Paged and rolling.
// Engine thread only.
//
// A Lease is what a sequence holds: one PageTable per layer group. A table covers positions [kv_base, end):
// its pages, oldest first. In a windowed group, pages whose every position has left the window of all
// positions still to come are let go, and kv_base moves up; stored keys are never moved or rotated again.
// Pages may be leased several times (choices of one prompt, requests that begin alike): a lease that must
// write into a page it shares gets a copy first.
//
//   window 6, page 4, accepted 13, written 15:   the query at 13 sees 8..13, so pages [0,4) and [4,8) are
//   gone
//
//   let go       let go       page 2       page 3
//   |0  1  2  3 |4  5  6  7  |8  9 10 11  |12 13 14 --|
//                             ^ kv_base       ^ accepted_len
//
// Under a context policy the first n_keep positions of a group stay in sight: their pages move to the table's
// sinks when it rolls on. Pages from the first one on with a row that sees another set than without a policy
// (Lease::plain_len) are named by the policy, too: requests under the same one find them. Of such blocks,
// which make chains as long as the text, leases together name at most a kBlocksUnderPolicies-th of those that
// the tree can hold: what lies behind is not found again.
//
// Of a sequence with branches (CandidateTree) the tables list places, which from trunk_len on are not where
// their tokens stand: windows roll no further than a row at trunk_len needs, and no page from there on is
// named.
//
// With the prefix cache on, Seal names the full pages of a lease by the tokens they hold (PrefixTree), and a
// named page that nobody leases any more is *cached*: Acquire finds it again, or Extend takes it for another
// use when no page is free. What is evicted first:
//   1. pages that no hit can use, because a group that sees as far lacks its page there;
//   2. pages that left a window in the middle of a text, where a hit is unlikely to end;
//   3. the others; those at ends of prompts, of hits and of answers are among them, those where texts part,
//      and some on the way (EndsNear);
//   4. of these the ones that a lease has had which prefers them (Lease::prefers_cache), unless more than
//      half of the pool are such: then they are third.
// Each in the order in which they were let go, and the pages of one lease from its end: so no page goes
// before those that follow it.
//
// SetAside is Release for a lease that may come back: under a policy the pages whose rows saw what no other
// request's do are *parked*. They are cached under a name that only this lease knows, are evicted after all
// others, and Acquire leases them again, so that nothing of a text without an end is computed twice. Where
// one of them is gone, all are, and the sequence begins anew.
//
// LeaveIdle is Release for a lease whose owner will ask for more (KvOwner: a session), with the cache on or
// off: its pages, the partial one too, are cached as of kind 4, those without a name under one that only this
// lease knows. Acquire forks it for the owner's next sequence, as far as the tokens are the same and every
// page that is seen from there is held; the page that this one goes on in is copied before it is written. So
// nothing is computed twice, and what was left stays as it was until the owner leaves something new. It keeps
// nobody waiting: with the first of its pages that goes, and leaves no image, it is no more, its own pages
// are free, and those with names are cached like others.
//
// With a KvTier the images of evicted pages of kinds 3 and 4, and of parked ones, stay on the host or a disk
// under the same names, and Acquire brings them back into pages that it takes. What is to be copied for it is
// a list of moves, in order, that whoever runs steps does before the next one (TakeMoves).
//
// Always: each page is free, cached or leased, free_pages() + cached_pages() + held_pages() == total_pages(),
// each counted once; a windowed table holds at most ceil((window - 1 + ahead) / page_size) + 1 pages, where
// `ahead` is the tokens written beyond the accepted length (chunk x steps in flight).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv/kv_owner.h"
#include "engine/kv/lease.h"
#include "engine/kv/names/prefix_tree.h"
#include "engine/kv/names/text_path.h"
#include "engine/kv/names/token_view.h"
#include "engine/kv/tier/kv_tier.h"
#include "kernels/context_policy.h"
#include "kernels/paged_kv.h"
#include "models/kv_layout.h"

namespace tramontane {

// What a lease is wanted for.
struct PrefixQuery {
  TokenView tokens;                        // prompt, and the output where a sequence begins again
  const TextIdentity* identity = nullptr;  // the text's; null: of no salt. Its policy is the lease's, too
  int64_t most_tokens = INT64_MAX;  // that may be found; what is asked of later positions must be computed
  // What it has left idle may be had, too; null: nobody. All that one asks is of one salt and one policy.
  const KvOwner* owner = nullptr;
  // The tokens' blocks, as far as they are hashed; the others are hashed each time. Null: none is.
  const TextPath* path = nullptr;

  std::string_view salt() const { return identity == nullptr ? std::string_view() : identity->salt; }
};

enum class PrefixCache : int32_t { kOff = 0, kOn = 1 };

class KvStore {
 public:
  // `hash`: tests bring worse ones. `tier`: where evicted pages go; borrowed, this store's alone. REQUIRES:
  // it comes with the cache. `live_blocks`: names set aside for live texts (LiveBlocks).
  KvStore(const KvLayout& layout, int64_t pool_pages, PrefixCache prefix_cache,
          PrefixHashFunction hash = ChainedHash, KvTier* tier = nullptr, int64_t live_blocks = 0);
  // Blocks that can have names at once: two for each page, four for each image in a tier, and `live_blocks`.
  static int64_t MostBlocks(int64_t pool_pages, int64_t images, int64_t live_blocks);
  // Those of texts that are alive, of which a page each is not in the pool: where every group has a window,
  // so that long texts hold few pages, all blocks of `texts` texts of `tokens` tokens, at most 2^20; else
  // none.
  static int64_t LiveBlocks(const KvLayout& layout, int64_t texts, int64_t tokens);
  // Host memory of so many names, without a tier.
  static int64_t NameBytes(const KvLayout& layout, int64_t blocks);

  const KvLayout& layout() const { return layout_; }
  int32_t page_size() const { return layout_.format.page_size; }

  // ---- pages ------------------------------------------------------------------------------------
  int64_t total_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t cached_pages() const { return cached_pages_; }  // evictable, all of them
  int64_t held_pages() const { return total_pages() - free_pages() - cached_pages(); }
  // What Extend can take: the one number to plan by.
  int64_t available() const { return free_pages() + cached_pages(); }
  // [groups] pages that leases hold in each group, a shared one counted once: together held_pages().
  const std::vector<int64_t>& held_pages_of_group() const { return held_pages_of_group_; }
  const std::vector<int64_t>& cached_pages_of_group() const { return cached_pages_of_group_; }    // [groups]
  int32_t references(PageId page) const { return pages_[static_cast<size_t>(page)].references; }  // leases
  // Whether its tokens are known: Acquire may find it.
  bool has_name(PageId page) const { return pages_[static_cast<size_t>(page)].node != PrefixTree::kNone; }

  // ---- leases -----------------------------------------------------------------------------------
  // Of no page. `policy`: what its rows see; kReevaluate is no such thing, its sequences begin again.
  // `trunk_len`: of a sequence with branches, which has no policy.
  Lease NewLease(const ContextPolicy& policy = {}, int64_t trunk_len = INT64_MAX) const;

  // Leases the pages of the longest known prefix of the tokens, so that the sequence can go on behind it;
  // returns its length (LongestPrefixHit, or what of an idle lease is the same, which may end within a page),
  // 0 where none is known. They may be cached until now, and are available() no more. REQUIRES: the lease has
  // no page.
  int64_t Acquire(Lease& lease, const PrefixQuery& query);
  // What Acquire would return now. Nothing is leased, so that it may be less by then.
  int64_t KnownPrefix(const Lease& lease, const PrefixQuery& query);

  // Names the full pages among [0, accepted), so that later requests find them. Of two pages with the same
  // tokens the first keeps the name, and the other one is free once let go. `tokens`: the sequence's, at
  // least [0, accepted); of what was named before the same as then. Where nothing was acquired nothing is
  // named.
  // `path`: the tokens', which is extended; null: their blocks are hashed here.
  void Seal(Lease& lease, TokenView tokens, int64_t accepted, TextPath* path = nullptr) {
    if (lease.seals && lease.sealed + page_size() <= accepted) SealPages(lease, tokens, accepted, path);
  }
  // Blocks that were hashed on this thread so far, marks apart.
  int64_t hashed_blocks() const { return hashed_blocks_; }
  // Leases whose need of pages was worked out so far (PagesToReach): what admission costs.
  int64_t sized_leases() const { return sized_leases_; }

  // What this lease has found or sealed cannot be trusted: nobody finds it any more.
  void Forget(Lease& lease);

  // Pages that Extend would take so that positions [written, end) can be written.
  int64_t PagesNeeded(const Lease& lease, int64_t written, int64_t end) const;

  // Pages the lease still lacks on its way to `end` tokens, window pages returning as they go and at most
  // `ahead` tokens written beyond the window at a time. What a hit will lease counts here until Acquire has
  // leased it: so where available() was enough before, it is enough after.
  int64_t PagesToReach(const Lease& lease, int64_t end, int64_t ahead) const;

  // Makes room for positions [written, end): free pages, then evicted ones, and a copy of a shared page that
  // would be written to (appended to `copies`). REQUIRES: available() is at least PagesNeeded().
  void Extend(Lease& lease, int64_t written, int64_t end, std::vector<PageCopy>* copies);
  // The copies so far come before all that is decided from now on: until then nobody else has an idle page
  // that is copied. After each plan.
  void EndPlan();

  // Lets go of pages of windowed groups that no position >= accepted can see.
  void Roll(Lease& lease, int64_t accepted);

  // A second lease of the pages that hold positions below `end`, the partial one too.
  Lease Fork(const Lease& lease, int64_t end);

  // ---- pages copied from and to elsewhere (KvTransfers): never leased for it -----------------------
  // Where a page is.
  struct KnownPage {
    PageId page = kNoPage;             // in the pool,
    const std::byte* image = nullptr;  // or else on the host, until the tier or the store is asked for more,
    bool is_beyond = false;            // or else on its way there, or on the disk
    bool is_own = false;               // an idle lease alone knows it, and not all of its rows may be there
    PrefixTree::Node node = PrefixTree::kNone;

    bool is_known() const { return page != kNoPage || image != nullptr || is_beyond; }
  };
  KnownPage KnownPageOf(PrefixTree::Node node, size_t group) const;
  // The first known blocks of these tokens, whose names stay until LetGo; their pages may go meanwhile.
  // `lease`: by whose policy.
  using HeldBlocks = std::vector<PrefixTree::Node>;
  HeldBlocks HoldBlocks(const Lease& lease, const PrefixQuery& query);
  void LetGo(HeldBlocks& blocks);
  // What the query's owner has left: its tokens as far as they are the query's and one can go on from there,
  // in front of `tokens`, which may be within the last block. 0: nowhere.
  struct IdleText {
    uint64_t lease = 0;
    int64_t tokens = 0;
  };
  IdleText FindIdleText(const Lease& lease, const PrefixQuery& query) const;
  // A page of it; not known where the owner has left something else since.
  KnownPage KnownIdlePage(const KvOwner* owner, uint64_t lease, int64_t block, size_t group) const;
  // Asks the disk for one that is beyond, where it is not on its way yet. False: the host has no room that is
  // not busy. It, and only it, may make others unknown.
  bool FetchPage(const KnownPage& page, size_t group);
  // Moves `above`, a lease of no page that has acquired a salt, down by a block, and takes a page in each
  // group that is wanted and has none there, appended to `taken`: the caller writes it at once. It is cached
  // from now on. False: there is no room, or the block's hash is another one's.
  struct TakenPage {
    size_t group = 0;
    PageId page = kNoPage;
  };
  // `hash`: the block's in its text.
  bool Plant(Lease& above, std::span<const int32_t> block, const PrefixHash& hash,
             const std::vector<bool>& wanted, std::vector<TakenPage>* taken);
  // An idle lease of an owner that has none, of a text's first `tokens`, out of pages that are put there
  // block by block, each group's from the first on that it has. Nobody goes on from it before FinishIdle, and
  // nobody waits for it meanwhile either: false where it is no more, or has found no room, and so is none.
  //   begins: [groups] positions in front are not there, but for those that the policy keeps in sight.
  bool BeginIdle(const std::shared_ptr<const KvOwner>& owner, const ContextPolicy& policy,
                 std::vector<int64_t> begins, int64_t tokens);
  // A page of a block, which is cached from now on: that of the block of tokens `above` is at, or, where that
  // has none, its own, taken and appended to `taken` for the caller to write at once.
  enum class Known : int32_t { kByTokens = 0, kByLease = 1 };
  bool PlantIdle(const KvOwner& owner, const Lease& above, int64_t block, size_t group, Known known,
                 std::vector<TakenPage>* taken);
  bool FinishIdle(const KvOwner& owner, const Lease& above, TokenView tokens);

  // Lets go of everything. The only other places that drop a page are Roll, SetAside, LeaveIdle, and Extend
  // (EndPlan) for a page it copies.
  void Release(Lease& lease);
  // The same, and what positions below `accepted` need is parked where nobody else can have it.
  void SetAside(Lease& lease, int64_t accepted);

  // ---- idle leases: one for each owner, at most --------------------------------------------------
  // Lets go of everything, and what goes on behind `accepted` needs stays idle, in place of what the owner
  // had left before; that stays where this lease cannot be left (it has no page, or never wrote to one).
  // `tokens`: at least [0, accepted), which are copied.
  void LeaveIdle(Lease& lease, TokenView tokens, int64_t accepted,
                 const std::shared_ptr<const KvOwner>& owner);
  // Nobody gets it any more. Of an owner that has none it does nothing.
  void ForgetIdle(const KvOwner* owner);
  // Of owners that nobody shares any more.
  void ForgetOrphans();
  int64_t idle_leases() const { return std::ssize(idle_); }

  // ---- the tier ---------------------------------------------------------------------------------
  bool has_tier() const { return tier_ != nullptr; }
  const KvTier* tier() const { return tier_; }  // null: none
  // Asks the disk for what Acquire could then bring back, of a prefix or of what is parked. Whether something
  // is on its way: Acquire finds more when it has come.
  bool Fetch(const Lease& lease, const PrefixQuery& query);
  // Whether something of the prefix is on its way still; nothing is asked for.
  bool IsComing(const Lease& lease, const PrefixQuery& query);
  // What the disk has done since the last call; whether it has read something.
  bool PollTier();
  bool tier_reads() const { return tier_ != nullptr && tier_->reads(); }
  void TurnDiskOff(const std::string& fault);
  // Computing a token takes about so long: pages that are copied no faster are not kept. 0: not known.
  void SetTokenNs(double ns);

  // Moves to be done before anything that reads or writes pages, in order.
  bool has_moves() const { return !moves_.empty(); }
  struct Moves {
    std::vector<PageMove> list;  // their images are busy until MovesDone
    int64_t batch = 0;
  };
  Moves TakeMoves();
  // Those of this batch and of all before are done.
  void MovesDone(int64_t batch);

  // Aborts when an invariant is broken. Reads every page: for tests, debug builds and idle moments.
  void CheckAccounting() const;

 private:
  // The order of eviction.
  enum Queue : int32_t { kUseless = 0, kPassed = 1, kOthers = 2, kPreferred = 3, kParked = 4, kQueues = 5 };

  struct Page {
    int32_t references = 0;                     // leases
    int32_t group = 0;                          // where it is leased or cached
    PrefixTree::Node node = PrefixTree::kNone;  // the block whose tokens it holds; kNone: it has no name
    bool is_preferred = false;                  // it goes to kPreferred in place of kOthers
    Queue queue = kOthers;                      // while it is cached:
    PageId older = kNoPage;
    PageId newer = kNoPage;
  };
  struct Ends {
    PageId oldest = kNoPage;
    PageId newest = kNoPage;
  };

  template <typename Visit>
  void ForEachSharedPage(const Lease& lease, const PageTable& table, int64_t written, int64_t end,
                         const Visit& visit) const;
  static uint64_t NextLeaseId();
  int64_t EndOf(const PageTable& table) const;
  int64_t PlainBlocksEnd(const Lease& lease) const;
  int64_t BlocksUnderPolicy(const Lease& lease) const;

  // ---- names ------------------------------------------------------------------------------------
  void SealPages(Lease& lease, TokenView tokens, int64_t accepted, TextPath* path);
  void FindPath(PrefixTree::Node salt, const Lease& lease, const PrefixQuery& query, int64_t most);
  // What counts as known: pages of the pool; and images on the host; and those that come or can be read.
  enum class From : int32_t { kPool = 0, kHost = 1, kAnywhere = 2 };
  int64_t FindHit(PrefixTree::Node salt, const Lease& lease, const PrefixQuery& query, From from);
  bool Knows(PrefixTree::Node node, size_t group, From from) const;
  template <typename Visit>
  void ForEachPageOfHit(Lease& lease, int64_t hit, const Visit& visit) const;
  template <typename Each>
  void LeaseKnown(bool is_preferred, const Each& each);
  PrefixTree::Node FindSalt(std::string_view salt);
  PrefixTree::Node FindMark(PrefixTree::Node above, std::span<const int32_t> mark) const;
  PrefixTree::Node PinMark(PrefixTree::Node above, std::span<const int32_t> mark);
  std::span<const int32_t> MarkOf(std::string_view salt);
  std::span<const int32_t> MarkOf(const ContextPolicy& policy);
  PrefixTree::Node TakeInBlock(PrefixTree::Node above, const PrefixHash& hash, std::span<const int32_t> ids);
  bool TakeInNext(Lease& lease, std::span<const int32_t> ids, const PrefixHash* hash);
  void MoveTip(Lease& lease, PrefixTree::Node node);
  void NamePages(const Lease& lease, PrefixTree::Node node, int64_t begin);
  void NamePage(PageId id, PrefixTree::Node node);
  void RequeueUseful(PrefixTree::Node node);
  void Unname(PageId page);
  void UnnameAt(const PageTable& table, int64_t written);
  void ForgetBlock(PrefixTree::Node node);
  bool IsUseless(PageId page) const;
  bool EndsNear(const Lease& lease, int64_t begin, int32_t window) const;

  // ---- parking ----------------------------------------------------------------------------------
  bool Park(Lease& lease, int64_t accepted);
  bool NameParked(Lease& lease, std::vector<PageTable>* named);
  bool TakeBack(Lease& lease);
  void DropParked(Lease& lease);
  void UnpinParked(Lease& lease);
  bool IsWhole(const Lease& lease, From from) const;
  template <typename Visit>
  static void ForEachParked(const Lease& lease, const Visit& visit);

  // ---- idle leases ------------------------------------------------------------------------------
  struct Idle {
    std::weak_ptr<const KvOwner> owner;
    const KvOwner* name = nullptr;  // the same; it does not lie elsewhere while `owner` is there
    std::vector<int32_t> tokens;
    Lease lease;  // its pages are in `parked`
  };

  const Idle* FindIdle(const KvOwner* owner) const;
  Idle* FindIdle(const KvOwner* owner);
  Idle* FindUnfinished(const KvOwner& owner);
  int64_t IdleEnd(const Idle& idle, const Lease& lease, int64_t end, From from) const;
  PrefixTree::Node PinNewMark();
  int64_t IdlePrefix(const Idle& idle, const Lease& lease, const PrefixQuery& query, From from) const;
  template <typename Visit>
  void ForEachForked(const Idle& idle, int64_t end, Lease& fork, const Visit& visit) const;
  bool HasRoomForFork(const Idle& idle, int64_t end, Lease& lease) const;
  int64_t ForkIdle(const Idle& idle, int64_t end, Lease& lease, const PrefixQuery& query);
  void DropNames(Lease& lease);
  void DropIdle(std::list<Idle>::iterator idle);
  void DropBrokenIdle();
  bool DropOldestUnderPolicy();
  int32_t& IdleUses(PrefixTree::Node node, size_t group) {
    return idle_uses_[static_cast<size_t>(node) * layout_.groups.size() + group];
  }
  bool IsOfIdle(PrefixTree::Node node, size_t group) const {
    return !idle_.empty() && idle_uses_[static_cast<size_t>(node) * layout_.groups.size() + group] > 0;
  }
  bool IsOfIdle(PageId page) const {
    const Page& of = pages_[static_cast<size_t>(page)];
    return of.node != PrefixTree::kNone && IsOfIdle(of.node, static_cast<size_t>(of.group));
  }
  // Who writes to it needs a copy.
  bool IsShared(PageId page) const { return references(page) > 1 || IsOfIdle(page); }

  // ---- images -----------------------------------------------------------------------------------
  size_t ImageColumn(size_t group) const { return layout_.groups.size() + group; }
  KvTier::Image image(PrefixTree::Node node, size_t group) const {
    return tier_ == nullptr ? KvTier::kNone : tree_.page(node, ImageColumn(group));
  }
  bool CanReturn(const Lease& lease) const;
  int64_t HitThatCanCome(PrefixTree::Node salt, const Lease& lease, PrefixQuery query);
  bool HasRoomFor(Lease& lease, int64_t hit);
  bool Spill(PageId id);
  PageId BringIn(PrefixTree::Node node, size_t group);
  void ForgetImage(PrefixTree::Node node, size_t group);
  void ForgetLost();
  void MakePartnersUseless(PrefixTree::Node node, size_t group);
  bool HostPays() const;
  bool DiskPays() const;

  // ---- states of a page -------------------------------------------------------------------------
  PageId Take(size_t group);
  void Share(PageId page);
  void Drop(PageId page, Queue queue);
  void DropPages(Lease& lease);
  void CutNames(Lease& fork, int64_t end);
  void TrimBehind(Lease& lease, int64_t accepted);
  PageId Evict();
  Queue FirstToGo() const;
  void Enqueue(PageId page, Queue queue);
  void Dequeue(PageId page);

  const KvLayout layout_;
  std::vector<PrefixGroup> prefix_groups_;  // [groups]
  // Tokens from one place on the way of a text to the next whose windows are kept, for all groups the same:
  // by the widest window. 0: no group has one.
  int64_t kept_interval_ = 0;
  std::vector<PageId> free_;  // last in, first out: a page just freed is warm in the caches
  std::vector<Page> pages_;
  std::array<Ends, kQueues> queues_;
  // Beyond the first of each page without a name: 0 when none of them is shared. (Those with a name are full,
  // and nobody writes to them but behind a cut.)
  int64_t shared_references_ = 0;
  int64_t cached_pages_ = 0;
  int64_t preferred_pages_ = 0;  // of these, in kPreferred
  std::vector<int64_t> held_pages_of_group_;
  std::vector<int64_t> cached_pages_of_group_;
  const bool finds_;  // the cache is on: pages get names by their tokens
  PrefixTree tree_;   // those, and what is parked or idle
  // Of live leases, behind what is named without their policies; one that is shared counts for each.
  int64_t blocks_under_policies_ = 0;
  std::vector<PrefixTree::Node> path_;  // scratch of Acquire
  std::vector<PrefixGroup> asked_groups_;
  std::vector<int32_t> mark_;  // scratch of MarkOf
  int64_t hashed_blocks_ = 0;
  mutable int64_t sized_leases_ = 0;
  std::vector<int32_t> block_;  // scratch: one that lies in two pieces

  KvTier* const tier_;              // null: none
  std::vector<PageMove> moves_;     // of the current batch
  std::vector<KvTier::Name> lost_;  // scratch: images that are gone, and have their columns still
  double page_ns_ = 0;              // that computing a page's worth takes; 0: not known
  int64_t parkings_ = 0;            // so far: what a parked or idle lease's own name is made of

  // The one that was left first is in front. At most one for each owner that somebody shares, and each has a
  // block of the tree for itself.
  std::list<Idle> idle_;
  std::vector<int32_t> idle_uses_;  // [blocks, groups] idle leases that have the block's page there
  uint64_t gone_owners_ = 0;        // KvOwner::gone when orphans were looked for last
  bool has_broken_idle_ = false;    // of one a page is gone: until DropBrokenIdle
  std::vector<PageId> copied_;      // idle pages that the plan copies, leased until EndPlan
};

// Calls visit(group, index, list) for each page that a hit leases: the block of path_ it is of, and where in
// the lease's tables it comes.
template <typename Visit>
void KvStore::ForEachPageOfHit(Lease& lease, int64_t hit, const Visit& visit) const {
  const auto end = static_cast<size_t>(PagesFor(hit, page_size()));
  const int64_t left = SeenAt(lease, hit).left;
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    const auto sinks = static_cast<size_t>(SinkPages(lease, layout_, group));
    const int64_t first_visible = std::max(FirstVisible(hit, layout_.groups[group].window), left);
    auto first = static_cast<size_t>(PageOf(first_visible, 0, page_size()));
    if (first <= sinks) first = 0;  // the sinks are not behind it
    table.kv_base = static_cast<int64_t>(first) * page_size();
    for (size_t index = 0; first > 0 && index < sinks; ++index) visit(group, index, &table.sinks);
    for (size_t index = first; index < end; ++index) visit(group, index, &table.pages);
  }
}

// Leases known pages, each at the end of its list: `each` calls visit(node, group, list) for all of them, in
// order. First those that are there, so that none of them makes room for one that is brought in.
template <typename Each>
void KvStore::LeaseKnown(bool is_preferred, const Each& each) {
  struct Absent {
    PrefixTree::Node node = PrefixTree::kNone;
    size_t group = 0;
    std::vector<PageId>* pages = nullptr;
    size_t at = 0;
  };
  std::vector<Absent> absent;
  each([&](PrefixTree::Node node, size_t group, std::vector<PageId>* pages) {
    const PageId page = tree_.page(node, group);
    if (page == kNoPage) {
      tier_->Use(image(node, group));
      absent.push_back({.node = node, .group = group, .pages = pages, .at = pages->size()});
    } else {
      Share(page);
      if (is_preferred) pages_[page].is_preferred = true;
    }
    pages->push_back(page);
  });
  for (const Absent& wanted : absent) {
    const PageId page = BringIn(wanted.node, wanted.group);
    NamePage(page, wanted.node);
    pages_[page].is_preferred = is_preferred;
    (*wanted.pages)[wanted.at] = page;
  }
}

// Calls visit(node, group) for each page of a lease that is parked or idle.
template <typename Visit>
void KvStore::ForEachParked(const Lease& lease, const Visit& visit) {
  for (size_t group = 0; group < lease.parked.size(); ++group) {
    for (const PrefixTree::Node node : lease.parked[group].sinks) visit(node, group);
    for (const PrefixTree::Node node : lease.parked[group].pages) visit(node, group);
  }
}

}  // namespace tramontane
