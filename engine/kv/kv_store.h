// KvStore: the one owner of the KV pool's pages, and of who has them. Paged and rolling.
// Engine thread only.
//
// A Lease (lease.h) is what a sequence holds. Pages may be leased several times (choices of one prompt,
// requests that begin alike): a lease that must write into a page it shares gets a copy first.
//
// With the prefix cache on, Seal names the full pages of a lease by the tokens they hold (TextNames), and a
// named page that nobody leases any more is *cached*: Acquire finds it again, or Extend takes it for another
// use when no page is free (KnownPages, EvictionRank). Those of one lease go from the text's end: so no page
// goes before those that follow it. What sequences come back to is held for them (HeldText): SetAside is
// Release for a lease that may come back, LeaveIdle for one whose owner will ask for more.
//
// Always: each page is free, cached or leased (PagePool).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv/held_text.h"
#include "engine/kv/known_pages.h"
#include "engine/kv/kv_owner.h"
#include "engine/kv/lease.h"
#include "engine/kv/names/paging.h"
#include "engine/kv/names/prefix_tree.h"
#include "engine/kv/names/text_path.h"
#include "engine/kv/names/token_view.h"
#include "engine/kv/text_names.h"
#include "engine/kv/tier/kv_tier.h"
#include "kernels/context_policy.h"
#include "models/kv_layout.h"

namespace tramontane {

enum class PrefixCache : int32_t { kOff = 0, kOn = 1 };

class KvStore {
 public:
  // `hash`: tests bring worse ones. `tier`: where evicted pages go; borrowed, this store's alone. REQUIRES:
  // it comes with the cache. `live_blocks`: names set aside for live texts (LiveBlocks).
  KvStore(const KvLayout& layout, int64_t pool_pages, PrefixCache prefix_cache,
          PrefixHashFunction hash = ChainedHash, KvTier* tier = nullptr, int64_t live_blocks = 0);
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;
  // Blocks that can have names at once: two for each page, four for each image in a tier, and `live_blocks`.
  static int64_t MostBlocks(int64_t pool_pages, int64_t images, int64_t live_blocks);
  // Those of `texts` live texts of `tokens` tokens where every group has a window, so that they hold fewer
  // pages than they have blocks, at most 2^20; else none.
  static int64_t LiveBlocks(const KvLayout& layout, int64_t texts, int64_t tokens);
  // Host memory of so many names, without a tier.
  static int64_t NameBytes(const KvLayout& layout, int64_t blocks);

  const KvLayout& layout() const { return layout_; }
  Paging paging() const { return layout_.format; }

  // ---- pages (PagePool) ---------------------------------------------------------------------------
  const PagePool& pool() const { return pages_.pool(); }
  int64_t total_pages() const { return pool().total_pages(); }
  int64_t free_pages() const { return pool().free_pages(); }
  int64_t cached_pages() const { return pool().cached_pages(); }
  int64_t held_pages() const { return pool().held_pages(); }
  // What Extend can take: the one number to plan by.
  int64_t available() const { return pool().available(); }
  int32_t references(PageId page) const { return pool().references(page); }
  bool has_name(PageId page) const { return pool().has_name(page); }

  // ---- leases -----------------------------------------------------------------------------------
  // Of no page. `policy`: what its rows see; kReevaluate is no such thing, its sequences begin again.
  Lease NewLease(const ContextPolicy& policy = {}) const;

  // Leases the pages of the longest known prefix of the tokens, so that the sequence can go on behind it;
  // returns its length (LongestPrefixHit, or what of an idle text is the same, which may end within a page),
  // 0 where none is known. They may be cached until now, and are available() no more. REQUIRES: the lease has
  // no page.
  int64_t Acquire(Lease& lease, const PrefixQuery& query);
  // What Acquire would return now.
  int64_t KnownPrefix(const Lease& lease, const PrefixQuery& query);
  // Writes Lease::expected: that, or `at_least`, where it is more; and whether more is on its way from the
  // tier, which the disk is asked for, or is not, or as it was.
  // What it waited for last it looks for first: as long as that is on its way nothing else changes.
  enum class Beyond { kFetch, kLook, kAsItWas };
  void Expect(Lease& lease, const PrefixQuery& query, Beyond beyond, int64_t at_least = 0);

  // Names the full pages among [0, accepted), so that later requests find them; of two pages with the same
  // tokens the first. `tokens`: the sequence's, at least [0, accepted); of what was named before the same as
  // then. `path`: theirs, which is extended; null: their blocks are hashed here.
  void Seal(Lease& lease, TokenView tokens, int64_t accepted, TextPath* path = nullptr) {
    if (lease.seals && lease.sealed + paging().tokens() <= accepted) SealPages(lease, tokens, accepted, path);
  }
  // Blocks that were hashed on this thread so far, marks apart.
  int64_t hashed_blocks() const { return names_.hashed_blocks(); }
  // Blocks of texts that were looked up, and pages that were leased again, so far, each weighed by what it
  // takes (many that a fork shares count as one): what it costs to find texts.
  int64_t walked_blocks() const { return names_.walked() + pages_.walked() + looked_blocks_; }
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

  // Lets go of everything.
  void Release(Lease& lease);
  // The same, and what positions below `accepted` need is held for the lease, where no name tells of it.
  void SetAside(Lease& lease, int64_t accepted);
  // The same, and what goes on behind `accepted` needs is held for the owner, in place of what it had left
  // before; that stays where this lease cannot be left (it has no page, or never wrote to one). `tokens`: at
  // least [0, accepted), which are copied.
  void LeaveIdle(Lease& lease, TokenView tokens, int64_t accepted,
                 const std::shared_ptr<const KvOwner>& owner);
  // Nobody gets it any more. Of an owner that has none it does nothing.
  void ForgetIdle(const KvOwner* owner) { held_.Forget(owner); }
  void ForgetOrphans() { held_.ForgetOrphans(); }
  int64_t idle_texts() const { return held_.count(); }

  // ---- pages copied from and to elsewhere (KvTransfers): never leased for it -----------------------
  // Where a page is.
  struct KnownPage {
    PageId page = kNoPage;             // in the pool,
    const std::byte* image = nullptr;  // or else on the host, until the tier or the store is asked for more,
    bool is_beyond = false;            // or else on its way there, or on the disk
    bool is_own = false;               // an idle text alone knows it, and not all of its rows may be there
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
  bool FetchPage(const KnownPage& page, size_t group) { return pages_.Fetch(page.node, group); }
  // Moves `above`, a lease of no page that has acquired a salt, down by a block, and takes a page in each
  // group that is wanted and has none there, appended to `taken`. False: there is no room, or the block's
  // hash is another one's.
  using TakenPage = tramontane::TakenPage;
  // `hash`: the block's in its text.
  bool Plant(Lease& above, std::span<const int32_t> block, const PrefixHash& hash,
             const std::vector<bool>& wanted, std::vector<TakenPage>* taken);
  // An idle text of an owner that has none, of a text's first `tokens`, out of pages that are put there
  // block by block, each group's from the first on that it has. Nobody goes on from it before FinishIdle, and
  // nobody waits for it meanwhile either: false where it is no more, or has found no room, and so is none.
  //   begins: [groups] positions in front are not there, but for those that the policy keeps in sight.
  bool BeginIdle(const std::shared_ptr<const KvOwner>& owner, const ContextPolicy& policy,
                 std::vector<int64_t> begins, int64_t tokens);
  // A page of a block, which is cached from now on: that of the block of tokens `above` is at, or, where that
  // has none, its own, taken and appended to `taken`.
  enum class Known : int32_t { kByTokens = 0, kByLease = 1 };
  bool PlantIdle(const KvOwner& owner, const Lease& above, int64_t block, size_t group, Known known,
                 std::vector<TakenPage>* taken) {
    return held_.Plant(owner, above, block, group, known == Known::kByLease, taken);
  }
  // Cached pages of the longest known prefix go as if a sequence that prefers the cache had let go of them
  // now, the end first; returns its length. `lease`: by whose policy.
  int64_t Renew(const Lease& lease, const PrefixQuery& query);
  bool FinishIdle(const KvOwner& owner, const Lease& above, TokenView tokens) {
    return held_.Finish(owner, above, tokens);
  }

  // ---- the tier ---------------------------------------------------------------------------------
  bool has_tier() const { return tier() != nullptr; }
  const KvTier* tier() const { return pages_.tier(); }  // null: none
  // What the disk has done since the last call; whether it has read something.
  bool PollTier() { return pages_.Poll(); }
  bool tier_reads() const { return has_tier() && tier()->reads(); }
  void TurnDiskOff(const std::string& fault) { pages_.TurnDiskOff(fault); }
  // Computing a token takes about so long: pages that are copied no faster are not kept. 0: not known.
  void SetTokenNs(double ns) {
    pages_.SetPageNs(ns * static_cast<double>(paging().tokens()) /
                     static_cast<double>(layout_.groups.size()));
  }

  // Moves to be done before anything that reads or writes pages, in order.
  bool has_moves() const { return pages_.has_moves(); }
  using Moves = KnownPages::Moves;
  Moves TakeMoves() { return pages_.TakeMoves(); }
  // Those of this batch and of all before are done.
  void MovesDone(int64_t batch) { pages_.tier()->BatchDone(batch); }

  // Aborts when an invariant is broken. Reads every page: for tests, debug builds and idle moments.
  void CheckAccounting() const {
    pages_.CheckAccounting();
    held_.CheckAccounting();
  }

 private:
  using Node = PrefixTree::Node;
  using From = KnownPages::From;
  using WantedPages = std::vector<KnownPages::Wanted>;

  Lease Anew(const Lease& lease) const;
  template <typename Visit>
  void ForEachSharedPage(const Lease& lease, const PageTable& table, int64_t written, int64_t end,
                         const Visit& visit) const;
  void UnnameAt(const PageTable& table, int64_t written);
  void DropPages(Lease& lease);
  void DropNames(Lease& lease);
  void TrimBehind(Lease& lease, int64_t accepted);
  void SealPages(Lease& lease, TokenView tokens, int64_t accepted, TextPath* path);
  void NamePages(const Lease& lease, int64_t begin);

  bool MakeRoom(TextNames::Room room);
  Node FindSalt(std::string_view salt) { return finds_ ? names_.FindSalt(salt) : PrefixTree::kNone; }
  int64_t FindHit(Node salt, const Lease& lease, const PrefixQuery& query, From from);
  WantedPages PagesOfHit(Lease& lease, int64_t hit) const;
  bool Fetch(Lease& lease, const PrefixQuery& query);
  bool IsComing(Lease& lease, const PrefixQuery& query);
  bool NoteComing(Node node, size_t group, Lease& lease) const;
  int64_t HitThatCanCome(Node salt, const Lease& lease, PrefixQuery query);

  const KvLayout layout_;
  const bool finds_;  // the cache is on: pages get names by their tokens
  TextNames names_;   // those, and what is held
  KnownPages pages_;
  HeldTexts held_;
  std::vector<Node> path_;      // scratch of Acquire
  std::vector<PageId> copied_;  // idle pages that the plan copies, leased until EndPlan
  int64_t looked_blocks_ = 0;   // for what is on its way
  mutable int64_t sized_leases_ = 0;
};

}  // namespace tramontane
