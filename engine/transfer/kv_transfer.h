// KvTransfer: cached pages of one text copied out of the pool, or put there from elsewhere, while the engine
// runs; KvTransfers: those that wait for their turn. What is put there is found by Acquire like all else:
// pages that are whole by their tokens, and all of them by the text's owner, whose idle text they are.
//
// Nothing is leased meanwhile, and what is available() stays: no request waits for a transfer, and a page
// that is evicted under one, and leaves no image, is missing from what it finds. What lies in a tier is
// copied from the host, and what lies on its disk is read first, a few pages at a time. A step of the engine
// copies at most kBytesAStep and kPagesCopied, and a page at least.
//
// Threads: a transfer is made and waited for by any; the engine thread does it, and owns it until it is done.
// No mutex (MpscQueue), and one load a step where there is none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/run/model_runner.h"
#include "engine/threads/mpsc_queue.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"

namespace tramontane {

// Pages of one text on the host, by group and block.
struct KvPages {
  using Image = std::unique_ptr<std::byte[]>;  // [page_bytes], as the pool holds it; null: not there

  int64_t tokens = 0;  // a sequence that begins with the text's first so many goes on from these
  std::vector<std::vector<Image>> groups;  // [groups][blocks] all of whose rows are there
  // [groups][blocks] that have those rows which are seen behind `tokens`, and maybe no others. A page is in
  // one of the two at most.
  std::vector<std::vector<Image>> parts;

  const Image& at(size_t group, size_t block) const {
    return groups[group][block] != nullptr ? groups[group][block] : parts[group][block];
  }
  size_t blocks() const { return groups.empty() ? 0 : groups[0].size(); }
  // Of no page, with room for those of so many tokens.
  void Resize(size_t groups_of_layers, int64_t blocks);
};

// The first position that a group's layers see from position `tokens` on, but for those that the policy keeps
// in sight, which are as many as `sinks`; both 0 where there is nothing between.
struct SeenOfGroup {
  int64_t begin = 0;
  int64_t sinks = 0;

  bool Sees(int64_t block, Paging paging) const {
    return paging.BeginOf(block) < sinks || paging.BeginOf(block + 1) > begin;
  }
};
SeenOfGroup SeenBehind(int64_t tokens, const KvLayout& layout, const ContextPolicy& policy, size_t group);

// A text that is cached: what its pages are named by.
struct CachedText {
  std::vector<int32_t> tokens;
  TextIdentity identity = {};
  // Whose idle text is read, where that has more of it; or is made of what is put there. Null: nobody's.
  std::shared_ptr<const KvOwner> owner = {};
};

// What the pages of a sequence are named by, all of whose ids are these. Under kReevaluate that is a text of
// the tokens that are left, without a policy.
CachedText CachedTextOf(std::vector<int32_t> ids, std::string salt, const ContextPolicy& policy,
                        std::shared_ptr<const KvOwner> owner = nullptr);

// Tokens of the longest hit that the pages suffice for all of whose rows are there.
int64_t HitOf(const KvPages& pages, const KvLayout& layout, const ContextPolicy& policy);
// Lets go of all but what that hit needs no more than.
void KeepWholePages(KvPages* pages, const KvLayout& layout, const ContextPolicy& policy);

class KvTransfer {
 public:
  // Out of the pool. Of the text as many tokens as may be wanted.
  explicit KvTransfer(CachedText text) : text_(std::move(text)) {}
  // Into the pool: pages of its tokens' blocks. Where all of them together find no room none are put there.
  // They go with the transfer, so that the engine thread need not free them.
  KvTransfer(CachedText text, KvPages pages)
      : text_(std::move(text)), pages_(std::move(pages)), writes_(true) {}

  // Returns when the engine is done with it, or has ended.
  void Wait() const { done_.wait(false, std::memory_order_acquire); }
  bool done() const { return done_.load(std::memory_order_acquire); }

  // ---- once it is done ----
  const Status& status() const { return status_; }
  // What was read.
  const KvPages& pages() const { return pages_; }
  KvPages TakePages() { return std::move(pages_); }
  // Tokens that are found now: in pages(), or in the pool.
  int64_t tokens() const { return tokens_found_; }

 private:
  friend class KvTransfers;
  struct Place {
    size_t group = 0;
    size_t block = 0;
  };

  const CachedText text_;
  TextPath path_;  // of its tokens
  KvPages pages_;
  const bool writes_ = false;

  // ---- engine thread, until done_ ----
  bool begun_ = false;
  bool of_idle_ = false;       // the owner's idle text is read, or made
  uint64_t idle_lease_ = 0;    // which is read
  KvStore::HeldBlocks known_;  // to be read, where it is not
  std::vector<Place> wanted_;  // to be read, the next one last
  Lease above_;                // of no page: where the next block is put
  size_t next_block_ = 0;

  Status status_;
  int64_t tokens_found_ = 0;
  std::atomic<bool> done_{false};  // after all of the above
};

class KvTransfers {
 public:
  static constexpr int64_t kBytesAStep = int64_t{4} << 20;
  static constexpr int32_t kMost = 16;  // that wait at once

  KvTransfers() = default;
  ~KvTransfers() { EndAll(Unavailable("the engine is shutting down")); }
  KvTransfers(const KvTransfers&) = delete;
  KvTransfers& operator=(const KvTransfers&) = delete;

  // Any thread, which hashes the text. False: kMost wait already.
  bool Push(std::shared_ptr<KvTransfer> transfer, const KvLayout& layout);

  // ---- engine thread ----
  bool any() const { return !pushed_.empty() || !waiting_.empty(); }
  // The oldest one waits for what others do: it copied nothing when Work was called last.
  bool waits_for_disk() const { return waits_for_disk_; }
  // Copies for the oldest one. An error is a lost device.
  Status Work(KvStore& store, ModelRunner& runner);
  void EndAll(const Status& status);

 private:
  void TakeAll();
  void EndOldest(Status status);

  // Each of these says whether the transfer is done.
  StatusOr<bool> Read(KvTransfer& transfer, KvStore& store, ModelRunner& runner);
  static StatusOr<bool> Write(KvTransfer& transfer, KvStore& store, ModelRunner& runner);
  static void BeginReading(KvTransfer& transfer, KvStore& store);
  static void BeginWriting(KvTransfer& transfer, KvStore& store);
  static bool PlantBlock(KvTransfer& transfer, KvStore& store, size_t block,
                         std::vector<KvStore::TakenPage>* taken);
  static void EndWriting(KvTransfer& transfer, KvStore& store);
  static KvStore::KnownPage PageAt(const KvTransfer& transfer, const KvStore& store, KvTransfer::Place place);
  static void FetchNext(const KvTransfer& transfer, KvStore& store);

  std::atomic<int32_t> count_{0};
  MpscQueue<std::shared_ptr<KvTransfer>> pushed_;
  std::deque<std::shared_ptr<KvTransfer>> waiting_;  // the oldest first
  bool waits_for_disk_ = false;
};

}  // namespace tramontane
