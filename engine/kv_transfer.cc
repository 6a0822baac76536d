#include "engine/kv_transfer.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "engine/prefix_hit.h"
#include "kernels/paged_kv.h"

namespace tramontane {
namespace {

PrefixQuery QueryOf(const CachedText& text) { return {.tokens = text.tokens, .salt = text.salt}; }

int64_t PagesOfStep(const KvStore& store) {
  return std::max<int64_t>(1, KvTransfers::kBytesAStep / store.layout().page_bytes());
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
  for (const auto& group : pages.groups) {
    count += std::count_if(group.begin(), group.end(), [](const KvPages::Image& i) { return i != nullptr; });
  }
  return count;
}

}  // namespace

CachedText CachedTextOf(std::vector<int32_t> ids, std::string salt, const ContextPolicy& policy) {
  CachedText text = {.tokens = std::move(ids), .salt = std::move(salt), .policy = policy};
  if (policy.type != ContextPolicyType::kReevaluate) return text;
  text.policy = {};
  const auto kept = text.tokens.begin() + std::min(policy.n_keep, std::ssize(text.tokens));
  text.tokens.erase(kept, kept + ViewAt(policy, std::ssize(text.tokens) - 1).discarded);
  return text;
}

int64_t HitOf(const KvPages& pages, const KvLayout& layout, const ContextPolicy& policy) {
  if (pages.groups.empty()) return 0;
  const int64_t tokens = std::ssize(pages.groups[0]) * layout.format.page_size;
  return LongestPrefixHit(
      tokens + 1, layout.format.page_size, PrefixGroupsOf(layout, policy),
      [&](size_t group, int64_t block) { return pages.groups[group][static_cast<size_t>(block)] != nullptr; },
      [&](int64_t position) { return LeftAt(layout, policy, position); });
}

bool KvTransfers::Push(std::shared_ptr<KvTransfer> transfer) {
  if (count_.fetch_add(1, std::memory_order_relaxed) >= kMost) {
    count_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  pushed_.Push(std::move(transfer));
  return true;
}

void KvTransfers::TakeAll() {
  for (std::shared_ptr<KvTransfer>& transfer : pushed_.TakeAll()) waiting_.push_back(std::move(transfer));
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

std::vector<KvStore::KnownPage> KvTransfers::KnownPages(const KvTransfer& transfer, KvStore& store) {
  return store.KnownPages(store.NewLease(transfer.text_.policy), QueryOf(transfer.text_));
}

// What the longest hit needs, and a little more on either side of what is not seen. From the end: so pages
// are evicted.
void KvTransfers::BeginReading(KvTransfer& transfer, KvStore& store) {
  const KvLayout& layout = store.layout();
  const ContextPolicy& policy = transfer.text_.policy;
  const std::vector<KvStore::KnownPage> known = KnownPages(transfer, store);
  const std::vector<PrefixGroup> groups = PrefixGroupsOf(layout, policy);
  const auto is_known = [&](size_t group, int64_t block) {
    return known[static_cast<size_t>(block) * groups.size() + group].is_known();
  };
  const auto left = [&](int64_t position) { return LeftAt(layout, policy, position); };
  const int32_t page_size = store.page_size();
  const int64_t known_tokens = std::ssize(known) / std::ssize(groups) * page_size;
  const int64_t hit = LongestPrefixHit(known_tokens + 1, page_size, groups, is_known, left);
  const int64_t blocks = PageOf(hit, 0, page_size);
  transfer.pages_.groups.resize(groups.size());
  for (auto& group : transfer.pages_.groups) group.resize(static_cast<size_t>(blocks));
  for (size_t group = 0; group < groups.size(); ++group) {
    const auto want = [&](int64_t block) {
      transfer.wanted_.push_back({.group = group, .block = static_cast<size_t>(block)});
    };
    const int64_t seen = std::max(FirstVisible(hit, groups[group].window), left(hit));
    const int64_t least = PageOf(std::max<int64_t>(0, seen - KvTransfer::kMarginTokens), 0, page_size);
    int64_t first = std::min(PageOf(seen, 0, page_size), blocks);
    while (first > least && is_known(group, first - 1)) --first;
    for (int64_t block = first; block < blocks; ++block) want(block);
    const int64_t n_keep = groups[group].n_keep;
    const int64_t sinks = n_keep == 0 ? 0 : PagesFor(n_keep + KvTransfer::kMarginTokens, page_size);
    for (int64_t block = 0; block < std::min(sinks, first) && is_known(group, block); ++block) want(block);
  }
  std::stable_sort(transfer.wanted_.begin(), transfer.wanted_.end(),
                   [](const auto& a, const auto& b) { return a.block < b.block; });
}

// Asks the disk for the next few, as far as the host has room.
void KvTransfers::FetchNext(const KvTransfer& transfer, const std::vector<KvStore::KnownPage>& known,
                            KvStore& store) {
  int64_t pages = PagesOfStep(store);
  for (size_t left = transfer.wanted_.size(); left > 0 && pages > 0; --left, --pages) {
    const KvTransfer::Place place = transfer.wanted_[left - 1];
    const size_t at = place.block * store.layout().groups.size() + place.group;
    if (at < known.size() && known[at].is_beyond && !store.FetchPage(known[at], place.group)) return;
  }
}

StatusOr<bool> KvTransfers::Read(KvTransfer& transfer, KvStore& store, ModelRunner& runner) {
  if (!transfer.begun_) BeginReading(transfer, store);
  transfer.begun_ = true;
  TM_RETURN_IF_ERROR(DoMoves(store, runner));
  const std::vector<KvStore::KnownPage> known = KnownPages(transfer, store);
  std::vector<PageImage> images;
  int64_t copied = 0;
  while (!transfer.wanted_.empty() && copied < PagesOfStep(store)) {
    const KvTransfer::Place place = transfer.wanted_.back();
    const size_t at = place.block * store.layout().groups.size() + place.group;
    if (at < known.size() && known[at].is_beyond) break;
    transfer.wanted_.pop_back();
    if (at >= known.size() || !known[at].is_known()) continue;  // evicted meanwhile
    KvPages::Image& image = transfer.pages_.groups[place.group][place.block];
    image = NewImage(store);
    ++copied;
    if (known[at].page == kNoPage) {
      std::memcpy(image.get(), known[at].image, static_cast<size_t>(store.layout().page_bytes()));
    } else {
      images.push_back({.page = known[at].page, .bytes = image.get()});
    }
  }
  if (!images.empty()) TM_RETURN_IF_ERROR(runner.ReadPages(images));
  if (!transfer.wanted_.empty()) {
    FetchNext(transfer, known, store);
    waits_for_disk_ = copied == 0;
    return false;
  }
  transfer.pages_.tokens = HitOf(transfer.pages_, store.layout(), transfer.text_.policy);
  transfer.tokens_found_ = transfer.pages_.tokens;
  return true;
}

StatusOr<bool> KvTransfers::Write(KvTransfer& transfer, KvStore& store, ModelRunner& runner) {
  KvPages& pages = transfer.pages_;
  const PrefixQuery query = QueryOf(transfer.text_);
  const size_t blocks = pages.groups.empty() ? 0 : pages.groups[0].size();
  const auto block_tokens = static_cast<size_t>(store.page_size());
  if (!transfer.begun_) {
    transfer.begun_ = true;
    transfer.above_ = store.NewLease(transfer.text_.policy);
    store.Acquire(transfer.above_, {.tokens = {}, .salt = transfer.text_.salt});
    if (CountImages(pages) > store.available()) transfer.next_block_ = blocks;
  }
  std::vector<PageImage> images;
  std::vector<KvStore::TakenPage> taken;
  std::vector<bool> wanted(pages.groups.size());
  int64_t pages_of_step = PagesOfStep(store);
  while (transfer.next_block_ < blocks && std::ssize(images) < pages_of_step) {
    const size_t block = transfer.next_block_++;
    for (size_t group = 0; group < wanted.size(); ++group)
      wanted[group] = pages.groups[group][block] != nullptr;
    taken.clear();
    const auto ids = std::span(transfer.text_.tokens).subspan(block * block_tokens, block_tokens);
    if (!store.Plant(transfer.above_, ids, wanted, &taken)) transfer.next_block_ = blocks;
    if (store.has_moves()) {  // what makes room may be a page of a block before, which is cached already
      if (!images.empty()) TM_RETURN_IF_ERROR(runner.WritePages(images));
      pages_of_step -= std::ssize(images);
      images.clear();
      TM_RETURN_IF_ERROR(DoMoves(store, runner));
    }
    for (const KvStore::TakenPage& page : taken) {
      images.push_back({.page = page.page, .bytes = pages.groups[page.group][block].get()});
    }
  }
  if (!images.empty()) TM_RETURN_IF_ERROR(runner.WritePages(images));
  if (transfer.next_block_ < blocks) return false;
  store.Release(transfer.above_);
  // As if a sequence had held them: they are the newest now, and their end goes first.
  Lease lease = store.NewLease(transfer.text_.policy);
  lease.prefers_cache = true;
  transfer.tokens_found_ = store.Acquire(lease, query);
  store.Release(lease);
  pages = {};
  return true;
}

}  // namespace tramontane
