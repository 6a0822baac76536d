// KvTransfer: cached pages of one text copied out of the pool, or put there from elsewhere, while the engine
// runs; KvTransfers: those that wait for their turn. What is put there is found by Acquire like all else.
//
// Nothing is leased meanwhile, and what is available() stays: no request waits for a transfer, and a page
// that is evicted under one, and leaves no image, is missing from what it finds. What lies in a tier is
// copied from the host, and what lies on its disk is read first, a few pages at a time. A step of the engine
// copies at most kBytesAStep, and a page at least.
//
// Threads: a transfer is made and waited for by any; the engine thread does it, and owns it until it is done.
// No mutex (MpscStack), and one load a step where there is none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv_store.h"
#include "engine/model_runner.h"
#include "engine/mpsc_stack.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"

namespace tramontane {

// Pages of one text on the host, by group and block of page_size tokens.
struct KvPages {
  using Image = std::unique_ptr<std::byte[]>;  // [page_bytes], as the pool holds it; null: not there

  int64_t tokens = 0;                      // of the longest hit that these suffice for
  std::vector<std::vector<Image>> groups;  // [groups][blocks]
};

// A text that is cached: what its pages are named by.
struct CachedText {
  std::vector<int32_t> tokens;
  std::string salt;
  ContextPolicy policy = {};  // what its rows see: kNone, kSinks or kShift
};

// What the pages of a sequence are named by, all of whose ids are these. Under kReevaluate that is a text of
// the tokens that are left, without a policy.
CachedText CachedTextOf(std::vector<int32_t> ids, std::string salt, const ContextPolicy& policy);

// Tokens of the longest hit that the pages suffice for.
int64_t HitOf(const KvPages& pages, const KvLayout& layout, const ContextPolicy& policy);

class KvTransfer {
 public:
  // Tokens that are read beyond what is seen, in front of a window and behind sinks, where they are known: so
  // a pool whose pages are larger by less than that finds a whole page there too.
  static constexpr int64_t kMarginTokens = 128;

  // Out of the pool. Of the text as many tokens as may be wanted.
  explicit KvTransfer(CachedText text) : text_(std::move(text)) {}
  // Into the pool: pages of its tokens' blocks. Where all of them together find no room none are put there.
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
  KvPages pages_;
  const bool writes_ = false;

  // ---- engine thread, until done_ ----
  bool begun_ = false;
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

  // Any thread. False: kMost wait already.
  bool Push(std::shared_ptr<KvTransfer> transfer);

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
  static std::vector<KvStore::KnownPage> KnownPages(const KvTransfer& transfer, KvStore& store);
  static void FetchNext(const KvTransfer& transfer, const std::vector<KvStore::KnownPage>& known,
                        KvStore& store);

  std::atomic<int32_t> count_{0};
  MpscStack<std::shared_ptr<KvTransfer>> pushed_;
  std::deque<std::shared_ptr<KvTransfer>> waiting_;  // the oldest first
  bool waits_for_disk_ = false;
};

}  // namespace tramontane
