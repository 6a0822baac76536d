// What KvStore does with pages beyond the pool: parking, and images in a tier.
#include <cstdint>
#include <utility>

#include "engine/kv_store.h"
#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace tramontane {

// ---- parking ------------------------------------------------------------------------------------

void KvStore::SetAside(Lease& lease, int64_t accepted) {
  if (!Park(lease, accepted)) Release(lease);
}

// What a row below plain_len computed any request finds by its tokens, which Release sees to.
bool KvStore::Park(Lease& lease, int64_t accepted) {
  if (!tree_ || accepted <= lease.plain_len || lease.is_cut) return false;
  for (PageTable& table : lease.tables) {  // what was taken for a step that did not count
    for (; EndOf(table) - page_size() >= accepted && !table.pages.empty(); table.pages.pop_back())
      Drop(table.pages.back(), kOthers);
  }
  std::vector<PageTable> named;
  if (!NameParked(lease, &named)) return false;
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    for (auto [pages, nodes] :
         {std::pair(&table.sinks, &named[group].sinks), std::pair(&table.pages, &named[group].pages)}) {
      for (size_t i = pages->size(); i-- > 0;) {
        const PageId page = (*pages)[i];
        if (pages_[page].node == PrefixTree::kNone) NamePage(page, (*nodes)[i]);
        Drop(page, kParked);
      }
      pages->clear();
    }
    table.kv_base = 0;
  }
  lease.id = NextLeaseId();
  lease.parked = std::move(named);
  lease.parked_tokens = accepted;
  return true;
}

// Nodes for all pages of the lease, each pinned: of those that have a name it is that; the others get one
// below a node that is the lease's alone. False: there is no room for all, or another lease writes to one.
bool KvStore::NameParked(Lease& lease, std::vector<PageTable>* named) {
  ++parkings_;
  mark_ = {INT32_MIN + static_cast<int32_t>(ContextPolicyType::kNone),  // no salt's, and no policy's
           static_cast<int32_t>(parkings_ & INT32_MAX), static_cast<int32_t>(parkings_ >> 31)};
  lease.parked_below = PinMark(PrefixTree::kRoot, WholeBlocksOfMark());
  std::vector<int32_t> own(static_cast<size_t>(page_size()));
  if (lease.parked_below == PrefixTree::kNone) return false;
  bool is_named = true;
  const auto name = [&](PageId id, int64_t block) {
    PrefixTree::Node node = pages_[id].node;
    if (node == PrefixTree::kNone && references(id) == 1) {
      own[0] = static_cast<int32_t>(block);
      node = TakeInBlock(lease.parked_below, own);
    }
    is_named = is_named && node != PrefixTree::kNone;
    if (node != PrefixTree::kNone) tree_->Pin(node);
    return node;
  };
  for (const PageTable& table : lease.tables) {
    PageTable& nodes = named->emplace_back();
    nodes.kv_base = table.kv_base;
    for (const PageId page : table.sinks) nodes.sinks.push_back(name(page, std::ssize(nodes.sinks)));
    for (const PageId page : table.pages) {
      nodes.pages.push_back(name(page, PageOf(table.kv_base, 0, page_size()) + std::ssize(nodes.pages)));
    }
  }
  if (is_named) return true;
  lease.parked = std::move(*named);
  DropParked(lease);
  return false;
}

// Calls visit(node, group, list) for each page that is parked.
template <typename Visit>
void KvStore::ForEachParked(const Lease& lease, const Visit& visit) {
  for (size_t group = 0; group < lease.parked.size(); ++group) {
    for (const PrefixTree::Node node : lease.parked[group].sinks) visit(node, group);
    for (const PrefixTree::Node node : lease.parked[group].pages) visit(node, group);
  }
}

bool KvStore::IsWhole(const Lease& lease, From from) const {
  bool is_whole = true;
  ForEachParked(
      lease, [&](PrefixTree::Node node, size_t group) { is_whole = is_whole && Knows(node, group, from); });
  return is_whole;
}

// Leases all that is parked again, as it was; false: some of it is not here.
bool KvStore::TakeBack(Lease& lease) {
  if (!IsWhole(lease, From::kHost)) return false;
  ForEachParked(lease, [&](PrefixTree::Node node, size_t group) {
    const PageId page = tree_->page(node, group);
    if (page != kNoPage)
      Share(page);
    else
      tier_->Use(image(node, group));
  });
  for (size_t group = 0; group < lease.parked.size(); ++group) {
    const PageTable& parked = lease.parked[group];
    PageTable& table = lease.tables[group];
    table.kv_base = parked.kv_base;
    for (auto [nodes, pages] :
         {std::pair(&parked.sinks, &table.sinks), std::pair(&parked.pages, &table.pages)}) {
      for (const PrefixTree::Node node : *nodes) {
        PageId page = tree_->page(node, group);
        const bool is_own = tree_->above(node) == lease.parked_below;
        if (page == kNoPage) {
          page = BringIn(node, group);
          if (!is_own) NamePage(page, node);
        } else if (is_own) {
          Unname(page);
        }
        pages->push_back(page);
      }
    }
  }
  UnpinParked(lease);
  return true;
}

// Nobody can have it any more. Pages with names of their own are like all others.
void KvStore::DropParked(Lease& lease) {
  ForEachParked(lease, [&](PrefixTree::Node node, size_t group) {
    if (node == PrefixTree::kNone) return;
    const PageId page = tree_->page(node, group);
    const bool is_cached = page != kNoPage && references(page) == 0;
    if (is_cached && tree_->above(node) == lease.parked_below) {
      Unname(page);
    } else if (is_cached && pages_[page].queue == kParked) {
      Dequeue(page);
      Enqueue(page, IsUseless(page) ? kUseless : kOthers);
    }
  });
  UnpinParked(lease);
  lease.parked_tokens = 0;
}

void KvStore::UnpinParked(Lease& lease) {
  ForEachParked(lease, [&](PrefixTree::Node node, size_t group) {
    if (node == PrefixTree::kNone) return;
    const KvTier::Image known = image(node, group);
    if (tree_->above(node) == lease.parked_below) {
      ForgetImage(node, group);
    } else if (known != KvTier::kNone) {
      tier_->GoInTurn(known);
    }
    tree_->Unpin(node);
  });
  lease.parked.clear();
  tree_->Unpin(lease.parked_below);
  lease.parked_below = PrefixTree::kNone;
}

// ---- the tier -----------------------------------------------------------------------------------

bool KvStore::Fetch(const Lease& lease, const PrefixQuery& query) {
  if (tier_ == nullptr) return false;
  bool is_coming = false;
  const auto fetch = [&](PrefixTree::Node node, size_t group) {
    const KvTier::Image image = this->image(node, group);
    if (tree_->page(node, group) != kNoPage || image == KvTier::kNone) return;
    bool waits_for_room = false;
    if (tier_->place(image) == KvTier::Place::kOnDisk) {
      waits_for_room = !tier_->Read(image, &lost_) && lease.is_parked();
      ForgetLost();  // the next image looked at may be one of those
    } else {
      tier_->Touch(image);
    }
    is_coming = is_coming || waits_for_room || tier_->place(image) == KvTier::Place::kComing;
  };
  if (lease.is_parked()) {
    if (CanReturn(lease)) ForEachParked(lease, fetch);
  } else if (const PrefixTree::Node salt = FindSalt(query.salt); salt != PrefixTree::kNone) {
    const int64_t hit = HitThatCanCome(salt, lease, query);
    Lease asked = NewLease(lease.policy, lease.trunk_len);
    ForEachPageOfHit(asked, hit,
                     [&](size_t group, size_t index, std::vector<PageId>*) { fetch(path_[index], group); });
  }
  return is_coming;
}

bool KvStore::IsComing(const Lease& lease, const PrefixQuery& query) {
  bool is_coming = false;
  const auto look = [&](PrefixTree::Node node, size_t group) {
    const KvTier::Image image = this->image(node, group);
    const bool is_wanted = tree_->page(node, group) == kNoPage && image != KvTier::kNone;
    is_coming = is_coming || (is_wanted && tier_->place(image) == KvTier::Place::kComing);
  };
  if (lease.is_parked()) {
    ForEachParked(lease, look);
  } else if (const PrefixTree::Node salt = FindSalt(query.salt); salt != PrefixTree::kNone) {
    FindPath(salt, lease, query.tokens, query.tokens.size());
    for (const PrefixTree::Node node : path_) {
      for (size_t group = 0; group < layout_.groups.size(); ++group) look(node, group);
    }
  }
  return is_coming;
}

// Images that are to be read all lie on the host at once.
bool KvStore::CanReturn(const Lease& lease) const {
  if (!IsWhole(lease, From::kAnywhere)) return false;
  int64_t images = 0;
  ForEachParked(lease, [&](PrefixTree::Node node, size_t group) {
    if (tree_->page(node, group) == kNoPage) ++images;
  });
  return images <= tier_->host_pages();
}

// The longest hit, of those tried, whose images have room on the host; that of the host alone, where reading
// takes longer than computing. Leaves its blocks in path_.
int64_t KvStore::HitThatCanCome(PrefixTree::Node salt, const Lease& lease, PrefixQuery query) {
  const int64_t here = FindHit(salt, lease, query, From::kHost);
  if (!DiskPays()) return here;
  while (true) {
    const int64_t hit = FindHit(salt, lease, query, From::kAnywhere);
    if (hit <= here) return here;
    int64_t images = 0;
    Lease asked = NewLease(lease.policy, lease.trunk_len);
    ForEachPageOfHit(asked, hit, [&](size_t group, size_t index, std::vector<PageId>*) {
      if (tree_->page(path_[index], group) == kNoPage) ++images;
    });
    if (images <= tier_->host_pages()) return hit;
    query.most_tokens = here + (hit - here) / 2;
  }
}

// Whether the pages of a hit can be taken and leased without any of them making room for another.
bool KvStore::HasRoomFor(Lease& lease, int64_t hit) {
  int64_t pages = 0;
  ForEachPageOfHit(lease, hit, [&](size_t group, size_t index, std::vector<PageId>*) {
    const PageId page = tree_->page(path_[index], group);
    if (page == kNoPage || references(page) == 0) ++pages;
  });
  return pages <= available();
}

bool KvStore::PollTier() {
  const bool has_read = tier_->Poll(&lost_);
  ForgetLost();
  return has_read;
}

void KvStore::TurnDiskOff(const std::string& fault) {
  tier_->TurnDiskOff(fault, &lost_);
  ForgetLost();
}

// Computing a page's worth of tokens fills a page of each group.
void KvStore::SetTokenNs(double ns) {
  page_ns_ = ns * page_size() / static_cast<double>(layout_.groups.size());
}

// There and back.
bool KvStore::HostPays() const { return page_ns_ == 0 || 2 * tier_->copy_ns() <= page_ns_; }
bool KvStore::DiskPays() const { return page_ns_ == 0 || tier_->read_ns() + tier_->copy_ns() <= page_ns_; }

KvStore::Moves KvStore::TakeMoves() {
  return {.list = std::exchange(moves_, {}), .batch = tier_ == nullptr ? 0 : tier_->CloseBatch()};
}

void KvStore::MovesDone(int64_t batch) { tier_->BatchDone(batch); }

// Keeps an image of a cached page that is about to go, where that is worth it and there is room. Whether
// there is one.
bool KvStore::Spill(PageId id) {
  const Page& page = pages_[id];
  const auto group = static_cast<size_t>(page.group);
  if (const KvTier::Image known = image(page.node, group); known != KvTier::kNone) {
    tier_->Touch(known);
    return true;
  }
  const bool is_parked = page.queue == kParked;
  const bool is_wanted = page.queue == kOthers || page.queue == kPreferred;
  if (!is_parked && !(is_wanted && HostPays())) return false;
  const KvTier::Image added = tier_->Add({.block = page.node, .group = page.group},
                                         is_parked ? KvTier::Goes::kLast : KvTier::Goes::kInTurn, &lost_);
  ForgetLost();
  if (added == KvTier::kNone) return false;
  tree_->SetPage(page.node, ImageColumn(group), added);
  moves_.push_back({.way = PageMove::Way::kOut, .page = id, .image = tier_->bytes(added)});
  return true;
}

// A page with what the node's image holds, leased, without a name. REQUIRES: Use was called for the image.
PageId KvStore::BringIn(PrefixTree::Node node, size_t group) {
  const PageId page = Take(group);
  moves_.push_back({.way = PageMove::Way::kIn, .page = page, .image = tier_->bytes(image(node, group))});
  return page;
}

void KvStore::ForgetImage(PrefixTree::Node node, size_t group) {
  const KvTier::Image known = image(node, group);
  if (known == KvTier::kNone) return;
  tier_->Remove(known);
  tree_->ClearPage(node, ImageColumn(group));
}

// The names of images that are gone.
void KvStore::ForgetLost() {
  for (const KvTier::Name& name : lost_) {
    const auto group = static_cast<size_t>(name.group);
    if (tree_->page(name.block, group) == kNoPage) MakePartnersUseless(name.block, group);
    tree_->ClearPage(name.block, ImageColumn(group));
  }
  lost_.clear();
}

}  // namespace tramontane
