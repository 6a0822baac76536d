#include "engine/kv/held_text.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

std::shared_ptr<HeldText> HeldTexts::Hold(const Lease& lease, int64_t length) {
  auto text = std::make_shared<HeldText>();
  text->length = length;
  text->mark = names_.PinNewMark();
  if (text->mark == PrefixTree::kNone) return nullptr;
  bool has_room = true;
  const auto name = [&](PageId page, int64_t block) {
    Node node = pages_.pool().node(page);
    if (node == PrefixTree::kNone && pages_.pool().references(page) == 1) {
      node = names_.TakeInBelowMark(text->mark, block);
      if (node != PrefixTree::kNone) pages_.Name(page, node);
    }
    has_room = has_room && node != PrefixTree::kNone;
    if (node != PrefixTree::kNone) names_.tree().Pin(node);
    return node;
  };
  text->tables = lease.tables;
  for (PageTable& table : text->tables) {
    int64_t block = 0;
    for (Node& node : table.sinks) node = name(node, block++);
    block = paging().PageOf(table.kv_base);
    for (Node& node : table.pages) node = name(node, block++);
  }
  if (has_room) return text;
  Drop(*text);
  return nullptr;
}

bool HeldTexts::IsWhole(const HeldText& text, From from) const {
  bool is_whole = true;
  text.ForEachPage([&](Node node, size_t group) { is_whole = is_whole && pages_.Knows(node, group, from); });
  return is_whole;
}

bool HeldTexts::CanReturn(const HeldText& text) const {
  if (!IsWhole(text, From::kAnywhere)) return false;
  int64_t images = 0;
  text.ForEachPage([&](Node node, size_t group) {
    if (pages_.page(node, group) == kNoPage) ++images;
  });
  return images <= pages_.tier()->host_pages();
}

// Its own pages are free, unless they are leased. Those that others find by their names are like all others.
void HeldTexts::Drop(HeldText& text) {
  text.ForEachPage([&](Node node, size_t group) {
    if (node == PrefixTree::kNone) return;
    if (text.name != nullptr) pages_.EndPromise(node, group);
    const PageId page = pages_.page(node, group);
    const KvTier::Image image = pages_.image(node, group);
    if (names_.tree().above(node) == text.mark) {
      if (page != kNoPage) pages_.Unname(page);
      pages_.ForgetImage(node, group);
    } else {
      if (page != kNoPage) pages_.EndHold(page);
      if (image != KvTier::kNone) pages_.tier()->GoInTurn(image);
    }
    names_.tree().Unpin(node);
  });
  text.tables.clear();
  names_.tree().Unpin(text.mark);
  names_.LetGo(text.lease);
}

// ---- leasing them again -------------------------------------------------------------------------

// Of what is seen at `end`, in the order of the lease's lists.
std::vector<KnownPages::Wanted> HeldTexts::PagesOf(const HeldText& text, int64_t end, Lease& lease) const {
  std::vector<KnownPages::Wanted> wanted;
  for (size_t group = 0; group < text.tables.size(); ++group) {
    const PageTable& nodes = text.tables[group];
    PageTable& table = lease.tables[group];
    for (const Node node : nodes.sinks) wanted.push_back({node, group, &table.sinks});
    const auto pages = static_cast<size_t>(paging().PagesFor(end - nodes.kv_base));
    for (size_t i = 0; i < pages; ++i) wanted.push_back({nodes.pages[i], group, &table.pages});
  }
  return wanted;
}

void HeldTexts::LeasePages(const HeldText& text, int64_t end, bool is_preferred, Lease& lease) {
  for (size_t group = 0; group < text.tables.size(); ++group)
    lease.tables[group].kv_base = text.tables[group].kv_base;
  pages_.Lease(PagesOf(text, end, lease), is_preferred);
}

bool HeldTexts::TakeBack(Lease& lease) {
  const std::shared_ptr<HeldText> text = std::exchange(lease.returns_to, nullptr);
  const bool is_whole = IsWhole(*text, From::kHost);
  if (is_whole) {
    std::swap(lease, text->lease);
    lease.expected = text->lease.expected;
    LeasePages(*text, text->length, false, lease);
  }
  Drop(*text);
  return is_whole;
}

void HeldTexts::Fork(const HeldText& text, int64_t end, Lease& lease) {
  names_.Follow(lease, text.lease, end);
  lease.begins = text.lease.begins;
  lease.is_cut = true;
  LeasePages(text, end, true, lease);
}

// ---- idle ---------------------------------------------------------------------------------------

HeldText& HeldTexts::LeaveIdle(HeldText text, std::vector<int32_t> tokens,
                               const std::shared_ptr<const KvOwner>& owner) {
  HeldText& idle = idle_.emplace_back(std::move(text));
  idle.owner = owner;
  idle.name = owner.get();
  idle.tokens = std::move(tokens);
  idle.ForEachPage([&](Node node, size_t group) {
    pages_.Promise(node, group);
    pages_.Prefer(pages_.page(node, group), true);
  });
  return idle;
}

const HeldText* HeldTexts::Find(const KvOwner* owner) const {
  if (owner == nullptr) return nullptr;
  const auto found = std::find_if(idle_.begin(), idle_.end(), [owner](const HeldText& idle) {
    return idle.name == owner && !idle.owner.expired();
  });
  return found == idle_.end() ? nullptr : &*found;
}

int64_t HeldTexts::PrefixFor(const HeldText& text, const Lease& lease, const PrefixQuery& query,
                             From from) const {
  const int64_t most = std::min(query.tokens.size() - 1, query.most_tokens);
  return EndFor(text, lease, std::min(most, query.tokens.CountAlike(text.tokens)), from);
}

// What is seen there must be held.
int64_t HeldTexts::EndFor(const HeldText& text, const Lease& lease, int64_t end, From from) const {
  const bool is_alike = text.lease.policy == lease.policy;
  if (end <= 0 || !is_alike || !IsWhole(text, from)) return 0;
  for (size_t group = 0; group < text.tables.size(); ++group) {
    const int64_t first_seen = FirstSeen(lease, layout_, group, end);
    const bool has_hole = !text.lease.begins.empty() && first_seen < text.lease.begins[group];
    if (paging().RoundDown(first_seen) < text.tables[group].kv_base || has_hole) return 0;
  }
  return end;
}

void HeldTexts::Forget(const KvOwner* owner) {
  const auto found =
      std::find_if(idle_.begin(), idle_.end(), [owner](const HeldText& idle) { return idle.name == owner; });
  if (found != idle_.end()) DropIdle(found);
}

void HeldTexts::ForgetOrphans() {
  const uint64_t gone = KvOwner::gone.load(std::memory_order_acquire);
  if (std::exchange(gone_owners_, gone) == gone) return;
  for (auto idle = idle_.begin(); idle != idle_.end();)
    idle = idle->owner.expired() ? DropIdle(idle) : std::next(idle);
}

void HeldTexts::DropBroken() {
  if (!pages_.TakeBrokenPromise()) return;
  for (auto idle = idle_.begin(); idle != idle_.end();)
    idle = IsWhole(*idle, From::kAnywhere) ? std::next(idle) : DropIdle(idle);
}

bool HeldTexts::DropOldest(bool under_policy) {
  const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const HeldText& idle) {
    return !under_policy || names_.BlocksUnderPolicy(idle.lease) > 0;
  });
  if (found == idle_.end()) return false;
  DropIdle(found);
  return true;
}

std::list<HeldText>::iterator HeldTexts::DropIdle(std::list<HeldText>::iterator idle) {
  Drop(*idle);
  return idle_.erase(idle);
}

// ---- pages that are put there -------------------------------------------------------------------

bool HeldTexts::Begin(const std::shared_ptr<const KvOwner>& owner, Lease lease, int64_t length) {
  Forget(owner.get());
  const Node mark = names_.PinNewMark();
  if (mark == PrefixTree::kNone) return false;
  HeldText text = {
      .tables = lease.tables, .mark = mark, .length = length, .owner = owner, .name = owner.get()};
  for (size_t group = 0; group < text.tables.size(); ++group) {
    const int64_t first = paging().PageOf(lease.begins[group]);
    if (first > SinkPages(lease, layout_, group)) text.tables[group].kv_base = paging().BeginOf(first);
  }
  text.lease = std::move(lease);
  idle_.push_back(std::move(text));
  return true;
}

// A sequence of the owner may have left something else meanwhile.
HeldText* HeldTexts::FindUnfinished(const KvOwner& owner) {
  auto* text = const_cast<HeldText*>(Find(&owner));
  return text == nullptr || !text->tokens.empty() ? nullptr : text;
}

bool HeldTexts::Plant(const KvOwner& owner, const Lease& above, int64_t block, size_t group, bool is_own,
                      std::vector<TakenPage>* taken) {
  DropBroken();
  HeldText* text = FindUnfinished(owner);
  if (text == nullptr) return false;
  PrefixTree& tree = names_.tree();
  const Node mark = text->mark;
  tree.Pin(mark);  // whatever goes for the room of another block
  const Node node = is_own ? names_.TakeInBelowMark(mark, block) : above.tip;
  if (node != PrefixTree::kNone) tree.Pin(node);
  tree.Unpin(mark);
  text = FindUnfinished(owner);
  const size_t taken_before = taken->size();
  if (text == nullptr || node == PrefixTree::kNone || !HasPage(node, group, taken)) {
    if (node != PrefixTree::kNone) tree.Unpin(node);
    if (text != nullptr) Forget(&owner);
    return false;
  }
  PageTable& nodes = text->tables[group];
  const bool is_sink = paging().BeginOf(block) < nodes.kv_base;
  (is_sink ? nodes.sinks : nodes.pages).push_back(node);
  pages_.Promise(node, group);
  const PageId page = pages_.page(node, group);
  if (page == kNoPage) return true;
  pages_.Prefer(page, true);
  if (taken->size() > taken_before) {
    pages_.Drop(page, EvictionRank::kOthers);
  } else if (pages_.IsCachedAs(page, EvictionRank::kUseless)) {
    pages_.Requeue(page, EvictionRank::kOthers);
  }
  return true;
}

// Whether the node has a page, maybe beyond the pool; or has one now, leased. Those that were taken for this
// block are not written yet, and are not what makes room: one of them might be copied to the host as it is,
// and come back from there.
bool HeldTexts::HasPage(Node node, size_t group, std::vector<TakenPage>* taken) {
  if (pages_.Knows(node, group, From::kAnywhere)) return true;
  if (pages_.pool().available() <= std::ssize(*taken)) return false;
  for (const TakenPage& unwritten : *taken) pages_.Share(unwritten.page);
  const PageId page = pages_.Take(group);
  for (const TakenPage& unwritten : *taken) pages_.Drop(unwritten.page, EvictionRank::kOthers);
  pages_.Name(page, node);
  taken->push_back({.group = group, .page = page});
  return true;
}

bool HeldTexts::Finish(const KvOwner& owner, const Lease& above, TokenView tokens) {
  DropBroken();
  HeldText* text = FindUnfinished(owner);
  if (text == nullptr) return false;
  text->tokens = tokens.First(text->length).ToVector();
  names_.Follow(text->lease, above, INT64_MAX);
  return true;
}

void HeldTexts::CheckAccounting() const {
  std::vector<int32_t> promised(pages_.promised().size());
  for (const HeldText& idle : idle_) {
    TM_CHECK(pages_.has_broken_promise() || IsWhole(idle, From::kAnywhere), "an idle text lacks a page");
    idle.ForEachPage([&](Node node, size_t group) { ++promised[pages_.At(node, group)]; });
  }
  TM_CHECK(promised == pages_.promised(), "the pages of idle texts are not those that are promised");
}

}  // namespace tramontane
