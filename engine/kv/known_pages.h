// KnownPages: what there is of a named block (a node of the PrefixTree) in each layer group: a page of the
// pool, an image of it in the tier, both or neither. It takes pages for leases, evicts others for them, and
// says of a page that is let go when it goes (EvictionRank).
//
// Where a page of kOthers, kPreferred or kSetAside is evicted its image stays on the host or a disk, if there
// is a tier and copying there and back is faster than computing; leasing brings it back into a page that is
// taken for it. What is to be copied for that is a list of moves, in order, that whoever runs steps does
// before the next one (TakeMoves).
//
// A page may be *promised* to those who come back to a text (HeldText): it is never useless, whatever else is
// there of its block, and it is copied before a lease writes to it. The promise is broken once the page is
// gone and left no image.
//
// Engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/names/prefix_tree.h"
#include "engine/kv/pages/page_pool.h"
#include "engine/kv/tier/kv_tier.h"
#include "kernels/paged_kv.h"
#include "models/kv_layout.h"

namespace tramontane {

class KnownPages {
 public:
  using Node = PrefixTree::Node;

  // `tree`: a column for pages a group, and with a tier (null: none) another one a group for images.
  KnownPages(const KvLayout& layout, int64_t pages, PrefixTree& tree, KvTier* tier);

  const PagePool& pool() const { return pool_; }
  PageId page(Node node, size_t group) const { return tree_.page(node, group); }
  KvTier::Image image(Node node, size_t group) const {
    return tier_ == nullptr ? KvTier::kNone : tree_.page(node, ImageColumn(group));
  }
  // What counts as known: pages of the pool; and images on the host; and those that come or can be read.
  enum class From : int32_t { kPool = 0, kHost = 1, kAnywhere = 2 };
  bool Knows(Node node, size_t group, From from) const;

  // ---- leasing ----------------------------------------------------------------------------------
  // A page without a name: a free one, or the next to be evicted. REQUIRES: one is available.
  PageId Take(size_t group);
  // One lease more, or less; after the last one a page with a name is cached.
  void Share(PageId page) { pool_.Share(page); }
  void Drop(PageId page, EvictionRank rank);
  // A known page that is to be leased, at the end of a list of a lease's tables.
  struct Wanted {
    Node node = PrefixTree::kNone;
    size_t group = 0;
    std::vector<PageId>* list = nullptr;
  };
  // Whether all can be leased without any of them making room for another.
  bool HasRoomFor(const std::vector<Wanted>& wanted) const;
  // Those that are there first, so that none of them makes room for one that is brought in. REQUIRES: all
  // are known, from kHost.
  void Lease(const std::vector<Wanted>& wanted, bool is_preferred);
  // Pages that were leased by that, and images that were asked for, so far. What is brought in counts as
  // often as it takes longer.
  int64_t walked() const { return walked_; }

  // ---- names ------------------------------------------------------------------------------------
  // REQUIRES: the node has no page in the page's group, and the page no name, and a lease.
  void Name(PageId page, Node node);
  // It is found no more; a cached one is free.
  void Unname(PageId page);
  // The block's pages and images are found no more.
  void Forget(Node node);
  void ForgetImage(Node node, size_t group);
  // It goes as kPreferred in place of kOthers, or no more.
  void Prefer(PageId page, bool is_preferred) { pool_.Prefer(page, is_preferred); }
  bool IsCachedAs(PageId page, EvictionRank rank) const {
    return pool_.references(page) == 0 && pool_.rank(page) == rank;
  }
  // A cached page goes as if it were let go now.
  void Requeue(PageId page, EvictionRank rank) { pool_.CacheAnew(page, rank); }
  // The same for what there is of a block, which is preferred now.
  void Renew(Node node, size_t group);
  // The same, where a text that was held is no more.
  void EndHold(PageId page);
  // Cached pages of the block that were useless and are no more, since others have come.
  void RequeueUseful(Node node);

  // ---- promises ---------------------------------------------------------------------------------
  void Promise(Node node, size_t group) { CountPromise(node, group, 1); }
  void EndPromise(Node node, size_t group) { CountPromise(node, group, -1); }
  const std::vector<int32_t>& promised() const { return promised_; }  // [nodes, groups]
  size_t At(Node node, size_t group) const { return static_cast<size_t>(node) * groups_.size() + group; }
  bool IsPromised(Node node, size_t group) const { return promises_ > 0 && promised_[At(node, group)] > 0; }
  bool IsPromised(PageId page) const {
    return pool_.has_name(page) && IsPromised(pool_.node(page), pool_.group(page));
  }
  // Who writes to it needs a copy.
  bool IsShared(PageId page) const { return pool_.references(page) > 1 || IsPromised(page); }
  // One is broken: whoever holds it looks for it, and says so.
  bool has_broken_promise() const { return has_broken_promise_; }
  bool TakeBrokenPromise() { return std::exchange(has_broken_promise_, false); }

  // ---- the tier ---------------------------------------------------------------------------------
  KvTier* tier() const { return tier_; }
  bool IsComing(Node node, size_t group) const;  // it is not in the pool, and on its way
  // Asks the disk for the image, where it is there alone. False: the host has no room that is not busy. It
  // may make others unknown.
  bool Fetch(Node node, size_t group);
  bool Poll();
  void TurnDiskOff(const std::string& fault);
  // Computing a page's worth takes about so long; 0: not known.
  void SetPageNs(double ns) { page_ns_ = ns; }
  bool HostPays() const { return page_ns_ == 0 || 2 * tier_->copy_ns() <= page_ns_; }  // there and back
  bool DiskPays() const { return page_ns_ == 0 || tier_->read_ns() + tier_->copy_ns() <= page_ns_; }

  bool has_moves() const { return !moves_.empty(); }
  struct Moves {
    std::vector<PageMove> list;  // their images are busy until KvTier::BatchDone
    int64_t batch = 0;
  };
  Moves TakeMoves();

  void CheckAccounting() const;

 private:
  size_t ImageColumn(size_t group) const { return groups_.size() + group; }
  void CountPromise(Node node, size_t group, int32_t count) {
    promised_[At(node, group)] += count;
    promises_ += count;
  }
  bool IsUseless(PageId page) const;
  bool SeesAsFar(size_t group, size_t as) const;
  EvictionRank RankOf(PageId page, EvictionRank rank) const;
  void Evict();
  bool Spill(PageId page);
  PageId BringIn(Node node, size_t group);
  void ForgetLost();
  void MakePartnersUseless(Node node, size_t group);

  const std::vector<KvGroupSpec> groups_;
  PagePool pool_;
  PrefixTree& tree_;
  KvTier* const tier_;
  std::vector<PageMove> moves_;     // of the current batch
  std::vector<KvTier::Name> lost_;  // scratch: images that are gone, and have their columns still
  double page_ns_ = 0;
  int64_t walked_ = 0;
  std::vector<int32_t> promised_;  // [nodes, groups]
  int64_t promises_ = 0;
  bool has_broken_promise_ = false;
};

}  // namespace tramontane
