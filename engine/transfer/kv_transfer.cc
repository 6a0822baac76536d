#include "engine/transfer/kv_transfer.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "engine/kv/names/prefix_hit.h"
#include "engine/request/step_bounds.h"

namespace tramontane {
namespace {

PrefixQuery QueryOf(const CachedText& text, const TextPath& path) {
  return {.tokens = text.tokens, .identity = &text.identity, .owner = text.owner.get(), .path = &path};
}

int64_t PagesOfStep(const KvStore& store) {
  return std::clamp<int64_t>(KvTransfers::kBytesAStep / store.layout().page_bytes(), 1, kPagesCopied.most);
}

KvPages::Image NewImage(const KvStore& store) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(store.layout().page_bytes()));
}

// Moves that the store has decided on come in front of what is read or written here.
Status DoMoves(KvStore& store, ModelRunner& runner) {
  if (!store.has_moves()) return {};
  const KvStore::Moves moves = store.TakeMoves();
  TM_RETURN_IF_ERROR(runner.MovePages(moves.list));
  TM_RETURN_IF_ERROR(runner.ReadPages({}));
  store.MovesDone(moves.batch);
  return {};
}

int64_t CountImages(const KvPages& pages) {
  int64_t count = 0;
  for (const auto* lists : {&pages.groups, &pages.parts}) {
    for (const auto& group : *lists)
      count +=
          std::count_if(group.begin(), group.end(), [](const KvPages::Image& i) { return i != nullptr; });
  }
  return count;
}

}  // namespace

void KvPages::Resize(size_t groups_of_layers, int64_t blocks) {
  for (auto* lists : {&groups, &parts}) {
    lists->resize(groups_of_layers);
    for (auto& group : *lists) group.resize(static_cast<size_t>(blocks));
  }
}

SeenOfGroup SeenBehind(int64_t tokens, const KvLayout& layout, const ContextPolicy& policy, size_t group) {
  const PrefixGroup of = PrefixGroupsOf(layout, policy)[group];
  const SeenOfGroup seen = {.begin = FirstSeen(tokens, of.window, LeftAt(layout, policy, tokens)),
                            .sinks = of.n_keep};
  return seen.begin <= seen.sinks ? SeenOfGroup() : seen;
}

CachedText CachedTextOf(std::vector<int32_t> ids, std::string salt, const ContextPolicy& policy,
                        std::shared_ptr<const KvOwner> owner) {
  CachedText text = {.tokens = std::move(ids),
                     .identity = {.salt = std::move(salt), .policy = MaskPolicyOf(policy)},
                     .owner = std::move(owner)};
  if (policy.type != ContextPolicyType::kReevaluate) return text;
  const auto kept = text.tokens.begin() + std::min(policy.n_keep, std::ssize(text.tokens));
  text.tokens.erase(kept, kept + ViewAt(policy, std::ssize(text.tokens) - 1).discarded);
  return text;
}

int64_t HitOf(const KvPages& pages, const KvLayout& layout, const ContextPolicy& policy) {
  if (pages.groups.empty()) return 0;
  const Paging paging = layout.format;
  return LongestPrefixHit(
      paging.BeginOf(std::ssize(pages.groups[0])) + 1, paging, PrefixGroupsOf(layout, policy),
      [&](size_t group, int64_t block) { return pages.groups[group][static_cast<size_t>(block)] != nullptr; },
      [&](int64_t position) { return LeftAt(layout, policy, position); });
}

void KeepWholePages(KvPages* pages, const KvLayout& layout, const ContextPolicy& policy) {
  pages->tokens = HitOf(*pages, layout, policy);
  const auto blocks = static_cast<size_t>(Paging(layout.format).PageOf(pages->tokens));
  for (auto& group : pages->groups) group.resize(blocks);
  for (auto& group : pages->parts) {
    group.clear();
    group.resize(blocks);
  }
}

bool KvTransfers::Push(std::shared_ptr<KvTransfer> transfer, const KvLayout& layout) {
  if (count_.fetch_add(1, std::memory_order_relaxed) >= kMost) {
    count_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  const CachedText& text = transfer->text_;
  transfer->path_ = TextPath(text.identity, PlainBlocksEnd(text.identity.policy, layout), layout.format);
  transfer->path_.Extend(text.tokens, std::ssize(text.tokens));
  pushed_.Push(std::move(transfer));
  return true;
}

void KvTransfers::TakeAll() {
  while (auto transfer = pushed_.Pop()) waiting_.push_back(*std::move(transfer));
}

void KvTransfers::EndOldest(Status status) {
  const std::shared_ptr<KvTransfer> transfer = std::move(waiting_.front());
  waiting_.pop_front();
  count_.fetch_sub(1, std::memory_order_relaxed);
  transfer->status_ = std::move(status);
  transfer->done_.store(true, std::memory_order_release);
  transfer->done_.notify_all();
}

void KvTransfers::EndAll(const Status& status) {
  TakeAll();
  while (!waiting_.empty()) EndOldest(status);
}

Status KvTransfers::Work(KvStore& store, ModelRunner& runner) {
  TakeAll();
  waits_for_disk_ = false;
  KvTransfer& transfer = *waiting_.front();
  const StatusOr<bool> done =
      transfer.writes_ ? Write(transfer, store, runner) : Read(transfer, store, runner);
  if (!done.ok()) {
    EndOldest(done.status());
    return done.status();
  }
  if (*done) EndOldest({});
  return {};
}

KvStore::KnownPage KvTransfers::PageAt(const KvTransfer& transfer, const KvStore& store,
                                       KvTransfer::Place place) {
  if (transfer.of_idle_) {
    return store.KnownIdlePage(transfer.text_.owner.get(), transfer.idle_lease_,
                               static_cast<int64_t>(place.block), place.group);
  }
  return place.block < transfer.known_.size() ? store.KnownPageOf(transfer.known_[place.block], place.group)
                                              : KvStore::KnownPage();
}

// What is seen from where the text goes on: of what its owner has left, or of the longest hit, whichever is
// more. From the end: so pages are evicted.
void KvTransfers::BeginReading(KvTransfer& transfer, KvStore& store) {
  const KvLayout& layout = store.layout();
  const ContextPolicy& policy = transfer.text_.identity.policy;
  const Lease lease = store.NewLease(policy);
  const PrefixQuery query = QueryOf(transfer.text_, transfer.path_);
  transfer.known_ = store.HoldBlocks(lease, query);
  const std::vector<PrefixGroup> groups = PrefixGroupsOf(layout, policy);
  const auto is_known = [&](size_t group, int64_t block) {
    return store.KnownPageOf(transfer.known_[static_cast<size_t>(block)], group).is_known();
  };
  const auto left = [&](int64_t position) { return LeftAt(layout, policy, position); };
  const Paging paging = store.paging();
  const int64_t known_tokens = paging.BeginOf(std::ssize(transfer.known_));
  const int64_t hit = LongestPrefixHit(known_tokens + 1, paging, groups, is_known, left);
  const KvStore::IdleText idle = store.FindIdleText(lease, query);
  transfer.of_idle_ = idle.tokens > hit;
  transfer.idle_lease_ = idle.lease;
  transfer.pages_.tokens = std::max(idle.tokens, hit);
  const int64_t blocks = paging.PagesFor(transfer.pages_.tokens);
  transfer.pages_.Resize(groups.size(), blocks);
  std::vector<SeenOfGroup> seen;
  for (size_t group = 0; group < groups.size(); ++group)
    seen.push_back(SeenBehind(transfer.pages_.tokens, layout, policy, group));
  for (int64_t block = 0; block < blocks; ++block) {
    for (size_t group = 0; group < groups.size(); ++group) {
      if (seen[group].Sees(block, paging))
        transfer.wanted_.push_back({.group = group, .block = static_cast<size_t>(block)});
    }
  }
}

// Asks the disk for the next few, as far as the host has room.
void KvTransfers::FetchNext(const KvTransfer& transfer, KvStore& store) {
  int64_t pages = PagesOfStep(store);
  for (size_t left = transfer.wanted_.size(); left > 0 && pages > 0; --left, --pages) {
    const KvTransfer::Place place = transfer.wanted_[left - 1];
    const KvStore::KnownPage known = PageAt(transfer, store, place);
    if (known.is_beyond && !store.FetchPage(known, place.group)) return;
  }
}

StatusOr<bool> KvTransfers::Read(KvTransfer& transfer, KvStore& store, ModelRunner& runner) {
  if (!std::exchange(transfer.begun_, true)) {
    BeginReading(transfer, store);
    if (std::ssize(transfer.wanted_) > PagesOfStep(store))
      return false;  // of a long text that is a step's work
  }
  TM_RETURN_IF_ERROR(DoMoves(store, runner));
  std::vector<PageImage> images;
  int64_t copied = 0;
  while (!transfer.wanted_.empty() && copied < PagesOfStep(store)) {
    const KvTransfer::Place place = transfer.wanted_.back();
    const KvStore::KnownPage known = PageAt(transfer, store, place);
    if (known.is_beyond) break;
    transfer.wanted_.pop_back();
    if (!known.is_known()) {  // evicted meanwhile
      transfer.pages_.tokens = 0;
      continue;
    }
    auto& lists = known.is_own ? transfer.pages_.parts : transfer.pages_.groups;
    KvPages::Image& image = lists[place.group][place.block];
    image = NewImage(store);
    ++copied;
    if (known.page == kNoPage) {
      std::memcpy(image.get(), known.image, static_cast<size_t>(store.layout().page_bytes()));
    } else {
      images.push_back({.page = known.page, .bytes = image.get()});
    }
  }
  if (!images.empty()) TM_RETURN_IF_ERROR(runner.ReadPages(images));
  if (!transfer.wanted_.empty()) {
    FetchNext(transfer, store);
    waits_for_disk_ = copied == 0;
    return false;
  }
  store.LetGo(transfer.known_);
  if (transfer.pages_.tokens == 0)
    KeepWholePages(&transfer.pages_, store.layout(), transfer.text_.identity.policy);
  transfer.tokens_found_ = transfer.pages_.tokens;
  return true;
}

void KvTransfers::BeginWriting(KvTransfer& transfer, KvStore& store) {
  const KvPages& pages = transfer.pages_;
  const CachedText& text = transfer.text_;
  transfer.above_ = store.NewLease(text.identity.policy);
  store.Acquire(transfer.above_, {.tokens = {}, .identity = &text.identity});
  if (CountImages(pages) > store.available()) transfer.next_block_ = pages.blocks();
  if (text.owner == nullptr || pages.tokens == 0 || transfer.next_block_ > 0) return;
  std::vector<int64_t> begins;
  for (size_t group = 0; group < pages.groups.size(); ++group)
    begins.push_back(SeenBehind(pages.tokens, store.layout(), text.identity.policy, group).begin);
  transfer.of_idle_ = store.BeginIdle(text.owner, text.identity.policy, std::move(begins), pages.tokens);
}

// Whole pages are found by their tokens; the others, and without the prefix cache all, by the owner alone.
// False: there is no room for more.
bool KvTransfers::PlantBlock(KvTransfer& transfer, KvStore& store, size_t block,
                             std::vector<KvStore::TakenPage>* taken) {
  const KvPages& pages = transfer.pages_;
  const CachedText& text = transfer.text_;
  const Paging paging = store.paging();
  const auto index = static_cast<int64_t>(block);
  std::vector<bool> wanted(pages.groups.size());
  for (size_t group = 0; group < wanted.size(); ++group)
    wanted[group] = pages.groups[group][block] != nullptr;
  const bool is_full = paging.BeginOf(index + 1) <= pages.tokens;
  bool is_named = false;
  if (is_full && transfer.above_.seals) {
    const auto ids = TokenView(text.tokens).Piece(paging.BeginOf(index), paging.tokens(), nullptr);
    is_named = transfer.above_.seals =
        store.Plant(transfer.above_, ids, transfer.path_.at(index), wanted, taken);
  }
  for (size_t group = 0; group < wanted.size() && transfer.of_idle_; ++group) {
    const SeenOfGroup seen = SeenBehind(pages.tokens, store.layout(), text.identity.policy, group);
    if (!seen.Sees(index, paging)) continue;
    const auto known = is_named && wanted[group] ? KvStore::Known::kByTokens : KvStore::Known::kByLease;
    transfer.of_idle_ = store.PlantIdle(*text.owner, transfer.above_, index, group, known, taken);
  }
  return transfer.above_.seals || transfer.of_idle_;
}

StatusOr<bool> KvTransfers::Write(KvTransfer& transfer, KvStore& store, ModelRunner& runner) {
  KvPages& pages = transfer.pages_;
  const size_t blocks = pages.blocks();
  if (!std::exchange(transfer.begun_, true)) BeginWriting(transfer, store);
  const bool is_all_put = transfer.next_block_ >= blocks;
  std::vector<PageImage> images;
  std::vector<KvStore::TakenPage> taken;
  int64_t pages_of_step = PagesOfStep(store);
  while (transfer.next_block_ < blocks && std::ssize(images) < pages_of_step) {
    const size_t block = transfer.next_block_++;
    taken.clear();
    if (!PlantBlock(transfer, store, block, &taken)) transfer.next_block_ = blocks;
    if (store.has_moves()) {  // what makes room may be a page of a block before, which is cached already
      if (!images.empty()) TM_RETURN_IF_ERROR(runner.WritePages(images));
      pages_of_step -= std::ssize(images);
      images.clear();
      TM_RETURN_IF_ERROR(DoMoves(store, runner));
    }
    for (const KvStore::TakenPage& page : taken)
      images.push_back({.page = page.page, .bytes = pages.at(page.group, block).get()});
  }
  if (!images.empty()) TM_RETURN_IF_ERROR(runner.WritePages(images));
  if (transfer.next_block_ < blocks) return false;
  if (!is_all_put && std::ssize(transfer.text_.tokens) > store.paging().BeginOf(kPagesCopied.most))
    return false;
  EndWriting(transfer, store);
  return true;
}

void KvTransfers::EndWriting(KvTransfer& transfer, KvStore& store) {
  const CachedText& text = transfer.text_;
  const bool is_idle = transfer.of_idle_ && store.FinishIdle(*text.owner, transfer.above_, text.tokens);
  const int64_t hit = store.Renew(
      transfer.above_, {.tokens = text.tokens, .identity = &text.identity, .path = &transfer.path_});
  store.Release(transfer.above_);
  transfer.tokens_found_ = is_idle ? transfer.pages_.tokens : hit;
}

}  // namespace tramontane
