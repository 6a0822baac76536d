#include "engine/kv/known_pages.h"

#include <algorithm>
#include <utility>

#include "engine/kv/lease.h"
#include "kernels/core/check.h"

namespace tramontane {
namespace {

// A page that is brought in, which may evict another one, takes as long as so many that are there.
constexpr int64_t kWalkedToBringIn = 4;

}  // namespace

KnownPages::KnownPages(const KvLayout& layout, int64_t pages, PrefixTree& tree, KvTier* tier)
    : groups_(layout.groups),
      pool_(pages, groups_.size()),
      tree_(tree),
      tier_(tier),
      promised_(static_cast<size_t>(tree.capacity()) * groups_.size()) {}

bool KnownPages::Knows(Node node, size_t group, From from) const {
  if (page(node, group) != kNoPage) return true;
  if (from == From::kPool) return false;
  const KvTier::Image image = this->image(node, group);
  if (image == KvTier::kNone) return false;
  return from == From::kAnywhere || tier_->place(image) == KvTier::Place::kHere;
}

// ---- leasing ------------------------------------------------------------------------------------

PageId KnownPages::Take(size_t group) {
  if (pool_.free_pages() == 0 && pool_.cached_pages() > 0) Evict();
  return pool_.Take(group);
}

void KnownPages::Drop(PageId page, EvictionRank rank) {
  if (pool_.Drop(page)) pool_.Cache(page, RankOf(page, rank));
}

bool KnownPages::HasRoomFor(const std::vector<Wanted>& wanted) const {
  return std::count_if(wanted.begin(), wanted.end(), [this](const Wanted& each) {
           const PageId page = this->page(each.node, each.group);
           return page == kNoPage || pool_.references(page) == 0;
         }) <= pool_.available();
}

void KnownPages::Lease(const std::vector<Wanted>& wanted, bool is_preferred) {
  walked_ += std::ssize(wanted);
  for (const Wanted& each : wanted) {
    const PageId page = this->page(each.node, each.group);
    if (page == kNoPage) {
      tier_->Use(image(each.node, each.group));
    } else {
      Share(page);
      if (is_preferred) Prefer(page, true);
    }
  }
  for (const Wanted& each : wanted) {
    PageId page = this->page(each.node, each.group);
    if (page == kNoPage) {
      page = BringIn(each.node, each.group);
      Name(page, each.node);
      Prefer(page, is_preferred);
    }
    each.list->push_back(page);
  }
}

// ---- names --------------------------------------------------------------------------------------

void KnownPages::Name(PageId page, Node node) {
  tree_.SetPage(node, pool_.group(page), page);
  pool_.Name(page, node);
}

void KnownPages::Unname(PageId page) {
  has_broken_promise_ = has_broken_promise_ || IsPromised(page);
  tree_.ClearPage(pool_.node(page), pool_.group(page));
  pool_.Unname(page);
}

void KnownPages::Forget(Node node) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    const PageId page = this->page(node, group);
    const bool has_image = image(node, group) != KvTier::kNone;
    if (page != kNoPage) Unname(page);
    if (has_image) ForgetImage(node, group);
  }
}

void KnownPages::ForgetImage(Node node, size_t group) {
  const KvTier::Image known = image(node, group);
  if (known == KvTier::kNone) return;
  tier_->Remove(known);
  tree_.ClearPage(node, ImageColumn(group));
  has_broken_promise_ = has_broken_promise_ || IsPromised(node, group);
}

// ---- when a cached page goes --------------------------------------------------------------------

bool KnownPages::SeesAsFar(size_t group, size_t as) const {
  return Reach(groups_[group].window) >= Reach(groups_[as].window);
}

// A hit that needs this page needs that of each group that sees as far, too.
bool KnownPages::IsUseless(PageId page) const {
  for (size_t group = 0; group < groups_.size(); ++group) {
    const bool is_needed = SeesAsFar(group, pool_.group(page));
    if (is_needed && !Knows(pool_.node(page), group, From::kAnywhere)) return true;
  }
  return false;
}

EvictionRank KnownPages::RankOf(PageId page, EvictionRank rank) const {
  if (rank == EvictionRank::kSetAside) return rank;
  if (IsPromised(page)) return EvictionRank::kOthers;  // whoever let go of it
  return IsUseless(page) ? EvictionRank::kUseless : rank;
}

void KnownPages::RequeueUseful(Node node) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    const PageId page = this->page(node, group);
    if (page == kNoPage || !IsCachedAs(page, EvictionRank::kUseless) || IsUseless(page)) continue;
    pool_.CacheAnew(page, EvictionRank::kOthers);
  }
}

void KnownPages::Renew(Node node, size_t group) {
  const PageId page = this->page(node, group);
  if (page == kNoPage) return tier_->Touch(image(node, group));
  Prefer(page, true);
  if (pool_.references(page) == 0) pool_.CacheAnew(page, RankOf(page, EvictionRank::kOthers));
}

void KnownPages::EndHold(PageId page) {
  const bool is_useless = IsUseless(page);
  const bool is_cached = pool_.references(page) == 0;
  if (is_cached && (is_useless || IsCachedAs(page, EvictionRank::kSetAside)))
    pool_.CacheAnew(page, is_useless ? EvictionRank::kUseless : EvictionRank::kOthers);
}

// Cached pages of the block that no hit can use without its page in this group.
void KnownPages::MakePartnersUseless(Node node, size_t group) {
  for (size_t other = 0; other < groups_.size(); ++other) {
    const PageId partner = page(node, other);
    const bool is_cached = other != group && partner != kNoPage && pool_.references(partner) == 0;
    if (!is_cached || !SeesAsFar(group, other) || IsPromised(partner)) continue;
    if (pool_.rank(partner) != EvictionRank::kUseless) pool_.CacheAnew(partner, EvictionRank::kUseless);
  }
}

// What it makes useless goes after it.
void KnownPages::Evict() {
  const PageId victim = pool_.NextToGo();
  const Node node = pool_.node(victim);
  const size_t group = pool_.group(victim);
  if (tier_ == nullptr || !Spill(victim)) {
    has_broken_promise_ = has_broken_promise_ || IsPromised(victim);
    MakePartnersUseless(node, group);
  }
  tree_.ClearPage(node, group);
  pool_.Unname(victim);
}

// ---- the tier -----------------------------------------------------------------------------------

bool KnownPages::IsComing(Node node, size_t group) const {
  const KvTier::Image image = this->image(node, group);
  const bool is_wanted = page(node, group) == kNoPage && image != KvTier::kNone;
  return is_wanted && tier_->place(image) == KvTier::Place::kComing;
}

bool KnownPages::Fetch(Node node, size_t group) {
  const KvTier::Image image = this->image(node, group);
  if (image == KvTier::kNone || tier_->place(image) != KvTier::Place::kOnDisk) return true;
  ++walked_;
  const bool is_read = tier_->Read(image, &lost_);
  ForgetLost();
  return is_read;
}

bool KnownPages::Poll() {
  const bool has_read = tier_->Poll(&lost_);
  ForgetLost();
  return has_read;
}

void KnownPages::TurnDiskOff(const std::string& fault) {
  tier_->TurnDiskOff(fault, &lost_);
  ForgetLost();
}

KnownPages::Moves KnownPages::TakeMoves() {
  return {.list = std::exchange(moves_, {}), .batch = tier_ == nullptr ? 0 : tier_->CloseBatch()};
}

// Keeps an image of a cached page that is about to go, where that is worth it and there is room. Whether
// there is one.
bool KnownPages::Spill(PageId page) {
  const Node node = pool_.node(page);
  const size_t group = pool_.group(page);
  if (const KvTier::Image known = image(node, group); known != KvTier::kNone) {
    tier_->Touch(known);
    return true;
  }
  const EvictionRank rank = pool_.rank(page);
  const bool is_set_aside = rank == EvictionRank::kSetAside;
  const bool is_wanted = rank == EvictionRank::kOthers || rank == EvictionRank::kPreferred;
  if (!is_set_aside && !(is_wanted && HostPays())) return false;
  const KvTier::Image added = tier_->Add({.block = node, .group = static_cast<int32_t>(group)},
                                         is_set_aside ? KvTier::Goes::kLast : KvTier::Goes::kInTurn, &lost_);
  ForgetLost();
  if (added == KvTier::kNone) return false;
  tree_.SetPage(node, ImageColumn(group), added);
  moves_.push_back({.way = PageMove::Way::kOut, .page = page, .image = tier_->bytes(added)});
  return true;
}

// A page with what the node's image holds, leased, without a name. REQUIRES: Use was called for the image.
PageId KnownPages::BringIn(Node node, size_t group) {
  walked_ += kWalkedToBringIn - 1;
  const PageId page = Take(group);
  moves_.push_back({.way = PageMove::Way::kIn, .page = page, .image = tier_->bytes(image(node, group))});
  return page;
}

// The names of images that are gone.
void KnownPages::ForgetLost() {
  for (const KvTier::Name& name : lost_) {
    const auto group = static_cast<size_t>(name.group);
    if (page(name.block, group) == kNoPage) {
      has_broken_promise_ = has_broken_promise_ || IsPromised(name.block, group);
      MakePartnersUseless(name.block, group);
    }
    tree_.ClearPage(name.block, ImageColumn(group));
  }
  lost_.clear();
}

void KnownPages::CheckAccounting() const {
  pool_.CheckAccounting();
  for (PageId page = 0; page < pool_.total_pages(); ++page) {
    TM_CHECK(!pool_.has_name(page) || this->page(pool_.node(page), pool_.group(page)) == page,
             "page %d has a name that is another one's", page);
  }
  if (tier_ != nullptr) tier_->CheckAccounting();
}

}  // namespace tramontane
