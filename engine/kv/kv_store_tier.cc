// What KvStore does with the pages of leases that may come back: parking, idle leases; and with pages beyond
// the pool: images in a tier.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/kv/kv_store.h"
#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace tramontane {

// ---- parking ------------------------------------------------------------------------------------

void KvStore::SetAside(Lease& lease, int64_t accepted) {
  if (!Park(lease, accepted)) Release(lease);
}

// What a row below plain_len computed any request finds by its tokens, which Release sees to.
bool KvStore::Park(Lease& lease, int64_t accepted) {
  if (!finds_ || accepted <= lease.plain_len || lease.is_cut) return false;
  TrimBehind(lease, accepted);
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

// Drops what was taken for a step that did not count.
void KvStore::TrimBehind(Lease& lease, int64_t accepted) {
  for (PageTable& table : lease.tables) {
    for (; EndOf(table) - page_size() >= accepted && !table.pages.empty(); table.pages.pop_back())
      Drop(table.pages.back(), kOthers);
  }
}

// Nodes for all pages of the lease, each pinned: of those that have a name it is that; the others get one
// below a node that is the lease's alone. False: there is no room for all, or another lease writes to one.
bool KvStore::NameParked(Lease& lease, std::vector<PageTable>* named) {
  named->clear();
  lease.parked_below = PinNewMark();
  std::vector<int32_t> own(static_cast<size_t>(page_size()));
  if (lease.parked_below == PrefixTree::kNone) return false;
  bool is_named = true;
  const auto name = [&](PageId id, int64_t block) {
    PrefixTree::Node node = pages_[id].node;
    if (node == PrefixTree::kNone && references(id) == 1) {
      own[0] = static_cast<int32_t>(block);
      node = TakeInBlock(lease.parked_below, tree_.HashBelow(lease.parked_below, own), own);
    }
    is_named = is_named && node != PrefixTree::kNone;
    if (node != PrefixTree::kNone) tree_.Pin(node);
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

// A name that nothing else has. kNone: there is no room for it.
PrefixTree::Node KvStore::PinNewMark() {
  ++parkings_;
  mark_ = {INT32_MIN + static_cast<int32_t>(ContextPolicyType::kNone),  // no salt's, and no policy's
           static_cast<int32_t>(parkings_ & INT32_MAX), static_cast<int32_t>(parkings_ >> 31)};
  mark_.resize(static_cast<size_t>(PagesFor(std::ssize(mark_), page_size()) * page_size()));
  return PinMark(PrefixTree::kRoot, mark_);
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
    const PageId page = tree_.page(node, group);
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
        PageId page = tree_.page(node, group);
        const bool is_own = tree_.above(node) == lease.parked_below;
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
    const PageId page = tree_.page(node, group);
    if (page == kNoPage) return;
    if (tree_.above(node) == lease.parked_below) {
      Unname(page);
    } else if (references(page) == 0 && (pages_[page].queue == kParked || IsUseless(page))) {
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
    if (tree_.above(node) == lease.parked_below) {
      ForgetImage(node, group);
    } else if (known != KvTier::kNone) {
      tier_->GoInTurn(known);
    }
    tree_.Unpin(node);
  });
  lease.parked.clear();
  tree_.Unpin(lease.parked_below);
  lease.parked_below = PrefixTree::kNone;
}

// ---- idle leases --------------------------------------------------------------------------------

void KvStore::LeaveIdle(Lease& lease, TokenView tokens, int64_t accepted,
                        const std::shared_ptr<const KvOwner>& owner) {
  ForgetOrphans();
  const bool has_pages = accepted > 0 && !lease.is_parked() && !lease.is_cut;
  if (!has_pages || lease.trunk_len != INT64_MAX) return Release(lease);
  ForgetIdle(owner.get());
  Roll(lease, accepted);
  TrimBehind(lease, accepted);
  std::vector<PageTable> named;
  if (!NameParked(lease, &named)) {
    DropNames(lease);
    if (!NameParked(lease, &named)) return Release(lease);
  }
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const PageTable& table = lease.tables[group];
    for (auto [pages, nodes] :
         {std::pair(&table.sinks, &named[group].sinks), std::pair(&table.pages, &named[group].pages)}) {
      for (size_t i = 0; i < pages->size(); ++i) {
        const PageId page = (*pages)[i];
        if (pages_[page].node == PrefixTree::kNone) NamePage(page, (*nodes)[i]);
        pages_[page].is_preferred = true;
        ++IdleUses((*nodes)[i], group);
      }
    }
  }
  Lease empty = NewLease(lease.policy);
  empty.prefers_cache = lease.prefers_cache;
  lease.parked = std::move(named);
  lease.parked_tokens = accepted;
  idle_.push_back({.owner = owner,
                   .name = owner.get(),
                   .tokens = tokens.First(accepted).ToVector(),
                   .lease = std::exchange(lease, std::move(empty))});
  DropPages(idle_.back().lease);
}

// Of a text whose own names fill the tree: nobody finds it by them any more.
void KvStore::DropNames(Lease& lease) {
  for (const PageTable& table : lease.tables) {
    for (const auto* list : {&table.sinks, &table.pages}) {
      for (const PageId page : *list) {
        const bool is_named = pages_[page].node != PrefixTree::kNone;
        if (is_named && references(page) == 1 && !IsOfIdle(page)) Unname(page);
      }
    }
  }
  blocks_under_policies_ -= BlocksUnderPolicy(lease);
  MoveTip(lease, PrefixTree::kRoot);
  lease.sealed = 0;
  lease.seals = false;
}

void KvStore::ForgetIdle(const KvOwner* owner) {
  const auto found =
      std::find_if(idle_.begin(), idle_.end(), [owner](const Idle& idle) { return idle.name == owner; });
  if (found != idle_.end()) DropIdle(found);
}

void KvStore::ForgetOrphans() {
  const uint64_t gone = KvOwner::gone.load(std::memory_order_acquire);
  if (std::exchange(gone_owners_, gone) == gone) return;
  for (auto idle = idle_.begin(); idle != idle_.end();) {
    const auto next = std::next(idle);
    if (idle->owner.expired()) DropIdle(idle);
    idle = next;
  }
}

const KvStore::Idle* KvStore::FindIdle(const KvOwner* owner) const {
  if (owner == nullptr) return nullptr;
  const auto found = std::find_if(idle_.begin(), idle_.end(), [owner](const Idle& idle) {
    return idle.name == owner && !idle.owner.expired();
  });
  return found == idle_.end() ? nullptr : &*found;
}

KvStore::Idle* KvStore::FindIdle(const KvOwner* owner) {
  return const_cast<Idle*>(std::as_const(*this).FindIdle(owner));
}

// Where a sequence of these tokens can go on from: up to where they differ, if what is seen there is held.
int64_t KvStore::IdlePrefix(const Idle& idle, const Lease& lease, const PrefixQuery& query, From from) const {
  const int64_t most = std::min(query.tokens.size() - 1, query.most_tokens);
  return IdleEnd(idle, lease, std::min(most, query.tokens.CountAlike(idle.tokens)), from);
}

// `end`, or 0 where one cannot go on from there.
int64_t KvStore::IdleEnd(const Idle& idle, const Lease& lease, int64_t end, From from) const {
  const bool is_alike = idle.lease.policy == lease.policy && lease.trunk_len == INT64_MAX;
  if (end <= 0 || !is_alike || !IsWhole(idle.lease, from)) return 0;
  const int64_t left = SeenAt(lease, end).left;
  for (size_t group = 0; group < idle.lease.parked.size(); ++group) {
    const int64_t first_seen = std::max(FirstVisible(end, layout_.groups[group].window), left);
    const int64_t first_page = PageOf(first_seen, 0, page_size()) * page_size();
    const bool has_hole = !idle.lease.begins.empty() && first_seen < idle.lease.begins[group];
    if (first_page < idle.lease.parked[group].kv_base || has_hole) return 0;
  }
  return end;
}

// Calls visit(node, group, list) for each page of an idle lease that one which goes on at `end` leases, in
// the order of its lists.
template <typename Visit>
void KvStore::ForEachForked(const Idle& idle, int64_t end, Lease& fork, const Visit& visit) const {
  for (size_t group = 0; group < idle.lease.parked.size(); ++group) {
    const PageTable& parked = idle.lease.parked[group];
    for (const PrefixTree::Node node : parked.sinks) visit(node, group, &fork.tables[group].sinks);
    const auto pages = static_cast<size_t>(PagesFor(end - parked.kv_base, page_size()));
    for (size_t i = 0; i < pages; ++i) visit(parked.pages[i], group, &fork.tables[group].pages);
  }
}

bool KvStore::HasRoomForFork(const Idle& idle, int64_t end, Lease& lease) const {
  int64_t pages = 0;
  ForEachForked(idle, end, lease, [&](PrefixTree::Node node, size_t group, std::vector<PageId>*) {
    const PageId page = tree_.page(node, group);
    if (page == kNoPage || references(page) == 0) ++pages;
  });
  return pages <= available();
}

int64_t KvStore::ForkIdle(const Idle& idle, int64_t end, Lease& lease, const PrefixQuery& query) {
  lease.sealed = idle.lease.sealed;
  lease.tip = idle.lease.tip;
  lease.seals = idle.lease.seals;
  lease.begins = idle.lease.begins;
  CutNames(lease, end);
  lease.hit_tokens = end;
  lease.known_tokens = end;
  lease.asked_tokens = query.tokens.size();
  for (size_t group = 0; group < lease.tables.size(); ++group)
    lease.tables[group].kv_base = idle.lease.parked[group].kv_base;
  LeaseKnown(true, [&](const auto& visit) { ForEachForked(idle, end, lease, visit); });
  return end;
}

KvStore::IdleText KvStore::FindIdleText(const Lease& lease, const PrefixQuery& query) const {
  const Idle* idle = FindIdle(query.owner);
  if (idle == nullptr) return {};
  const int64_t alike = query.tokens.CountAlike(idle->tokens);
  return {.lease = idle->lease.id, .tokens = IdleEnd(*idle, lease, alike, From::kAnywhere)};
}

KvStore::KnownPage KvStore::KnownIdlePage(const KvOwner* owner, uint64_t lease, int64_t block,
                                          size_t group) const {
  const Idle* idle = FindIdle(owner);
  if (idle == nullptr || idle->lease.id != lease) return {};
  const PageTable& parked = idle->lease.parked[group];
  const int64_t first = PageOf(parked.kv_base, 0, page_size());
  const std::vector<PageId>& list = block < std::ssize(parked.sinks) ? parked.sinks : parked.pages;
  const int64_t index = block < std::ssize(parked.sinks) ? block : block - first;
  if (index < 0 || index >= std::ssize(list)) return {};
  const PrefixTree::Node node = list[static_cast<size_t>(index)];
  KnownPage page = KnownPageOf(node, group);
  page.is_own = tree_.above(node) == idle->lease.parked_below;
  return page;
}

bool KvStore::BeginIdle(const std::shared_ptr<const KvOwner>& owner, const ContextPolicy& policy,
                        std::vector<int64_t> begins, int64_t tokens) {
  ForgetIdle(owner.get());
  Lease lease = NewLease(policy);
  lease.parked_below = PinNewMark();
  if (lease.parked_below == PrefixTree::kNone) return false;
  lease.parked.resize(lease.tables.size());
  for (size_t group = 0; group < lease.parked.size(); ++group) {
    const int64_t first = PageOf(begins[group], 0, page_size());
    if (first > SinkPages(lease, layout_, group)) lease.parked[group].kv_base = first * page_size();
  }
  lease.begins = std::move(begins);
  lease.parked_tokens = tokens;
  idle_.push_back({.owner = owner, .name = owner.get(), .tokens = {}, .lease = std::move(lease)});
  return true;
}

// A sequence of the owner may have left something else meanwhile.
KvStore::Idle* KvStore::FindUnfinished(const KvOwner& owner) {
  Idle* idle = FindIdle(&owner);
  return idle == nullptr || !idle->tokens.empty() ? nullptr : idle;
}

bool KvStore::PlantIdle(const KvOwner& owner, const Lease& above, int64_t block, size_t group, Known known,
                        std::vector<TakenPage>* taken) {
  DropBrokenIdle();
  Idle* idle = FindUnfinished(owner);
  if (idle == nullptr) return false;
  const PrefixTree::Node below = idle->lease.parked_below;
  PrefixTree::Node node = above.tip;
  tree_.Pin(below);  // whatever goes for the room of another block
  if (known == Known::kByLease) {
    std::vector<int32_t> own(static_cast<size_t>(page_size()));
    own[0] = static_cast<int32_t>(block);
    node = TakeInBlock(below, tree_.HashBelow(below, own), own);
  }
  if (node != PrefixTree::kNone) tree_.Pin(node);
  tree_.Unpin(below);
  // Those that were taken for this block are not written yet, and are not what makes room: one of them might
  // be copied to the host as it is, and come back from there.
  const bool is_known = node != PrefixTree::kNone && Knows(node, group, From::kAnywhere);
  const bool has_room = is_known || available() > std::ssize(*taken);
  idle = FindUnfinished(owner);
  if (node == PrefixTree::kNone || idle == nullptr || !has_room) {
    if (node != PrefixTree::kNone) tree_.Unpin(node);
    if (idle != nullptr) ForgetIdle(&owner);
    return false;
  }
  if (!is_known) {
    for (const TakenPage& unwritten : *taken) Share(unwritten.page);
    const PageId page = Take(group);
    for (const TakenPage& unwritten : *taken) Drop(unwritten.page, kOthers);
    NamePage(page, node);
    taken->push_back({.group = group, .page = page});
  }
  PageTable& parked = idle->lease.parked[group];
  const bool is_sink = block * page_size() < parked.kv_base;
  (is_sink ? parked.sinks : parked.pages).push_back(node);
  ++IdleUses(node, group);
  const PageId page = tree_.page(node, group);
  if (page == kNoPage) return true;
  pages_[page].is_preferred = true;
  if (!is_known) {
    Drop(page, kOthers);
  } else if (references(page) == 0 && pages_[page].queue == kUseless) {
    Dequeue(page);
    Enqueue(page, kOthers);
  }
  return true;
}

bool KvStore::FinishIdle(const KvOwner& owner, const Lease& above, TokenView tokens) {
  DropBrokenIdle();
  Idle* idle = FindUnfinished(owner);
  if (idle == nullptr) return false;
  Lease& lease = idle->lease;
  idle->tokens = tokens.First(lease.parked_tokens).ToVector();
  MoveTip(lease, above.tip);
  lease.sealed = above.sealed;
  lease.seals = above.seals;
  blocks_under_policies_ += BlocksUnderPolicy(lease);
  return true;
}

void KvStore::DropIdle(std::list<Idle>::iterator idle) {
  ForEachParked(idle->lease, [&](PrefixTree::Node node, size_t group) { --IdleUses(node, group); });
  Release(idle->lease);
  idle_.erase(idle);
}

void KvStore::DropBrokenIdle() {
  if (!has_broken_idle_) return;
  has_broken_idle_ = false;
  for (auto idle = idle_.begin(); idle != idle_.end();) {
    const auto next = std::next(idle);
    if (!IsWhole(idle->lease, From::kAnywhere)) DropIdle(idle);
    idle = next;
  }
}

// Of those that name blocks by a policy. False: there is none.
bool KvStore::DropOldestUnderPolicy() {
  const auto found = std::find_if(idle_.begin(), idle_.end(),
                                  [this](const Idle& idle) { return BlocksUnderPolicy(idle.lease) > 0; });
  if (found == idle_.end()) return false;
  DropIdle(found);
  return true;
}

// ---- the tier -----------------------------------------------------------------------------------

bool KvStore::Fetch(const Lease& lease, const PrefixQuery& query) {
  if (tier_ == nullptr) return false;
  bool is_coming = false;
  const auto fetch = [&](PrefixTree::Node node, size_t group) {
    const KvTier::Image image = this->image(node, group);
    if (tree_.page(node, group) != kNoPage || image == KvTier::kNone) return;
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
    return is_coming;
  }
  const PrefixTree::Node salt = FindSalt(query.salt());
  const int64_t hit = salt == PrefixTree::kNone ? 0 : HitThatCanCome(salt, lease, query);
  const Idle* idle = FindIdle(query.owner);
  if (idle != nullptr && IdlePrefix(*idle, lease, query, From::kAnywhere) > hit && CanReturn(idle->lease) &&
      DiskPays()) {
    ForEachParked(idle->lease, fetch);
  } else if (hit > 0) {
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
    const bool is_wanted = tree_.page(node, group) == kNoPage && image != KvTier::kNone;
    is_coming = is_coming || (is_wanted && tier_->place(image) == KvTier::Place::kComing);
  };
  if (lease.is_parked()) {
    ForEachParked(lease, look);
    return is_coming;
  }
  if (const Idle* idle = FindIdle(query.owner)) ForEachParked(idle->lease, look);
  if (const PrefixTree::Node salt = FindSalt(query.salt()); salt != PrefixTree::kNone) {
    FindPath(salt, lease, query, query.tokens.size());
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
    if (tree_.page(node, group) == kNoPage) ++images;
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
      if (tree_.page(path_[index], group) == kNoPage) ++images;
    });
    if (images <= tier_->host_pages()) return hit;
    query.most_tokens = here + (hit - here) / 2;
  }
}

// Whether the pages of a hit can be taken and leased without any of them making room for another.
bool KvStore::HasRoomFor(Lease& lease, int64_t hit) {
  int64_t pages = 0;
  ForEachPageOfHit(lease, hit, [&](size_t group, size_t index, std::vector<PageId>*) {
    const PageId page = tree_.page(path_[index], group);
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
  tree_.SetPage(page.node, ImageColumn(group), added);
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
  tree_.ClearPage(node, ImageColumn(group));
  has_broken_idle_ = has_broken_idle_ || IsOfIdle(node, group);
}

// The names of images that are gone.
void KvStore::ForgetLost() {
  for (const KvTier::Name& name : lost_) {
    const auto group = static_cast<size_t>(name.group);
    if (tree_.page(name.block, group) == kNoPage) {
      has_broken_idle_ = has_broken_idle_ || IsOfIdle(name.block, group);
      MakePartnersUseless(name.block, group);
    }
    tree_.ClearPage(name.block, ImageColumn(group));
  }
  lost_.clear();
}

}  // namespace tramontane
