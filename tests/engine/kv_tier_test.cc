// Pages beyond the pool: what was evicted comes back from the host and from the disk, and whatever a disk
// does no text is another one.

#include "engine/kv/tier/kv_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/kv/kv_store.h"
#include "engine/request/step_bounds.h"
#include "engine/run/model_runner.h"
#include "engine/transfer/kv_report.h"
#include "engine/transfer/kv_transfer.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_tier.h"

namespace tramontane {
namespace {

// Whether images are under way between pool, host and disk.
bool ImagesMove(const KvTier& tier) {
  std::array<KvTier::Contents, kMaxKvGroups> of_groups;
  tier.Count(of_groups);
  return std::any_of(of_groups.begin(), of_groups.end(),
                     [](const KvTier::Contents& group) { return group.moving_images > 0; });
}

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kBytes = 64;

// ---- images -------------------------------------------------------------------------------------

std::vector<int32_t> Blocks(const std::vector<KvTier::Name>& names) {
  std::vector<int32_t> blocks;
  for (const KvTier::Name& name : names) blocks.push_back(name.block);
  return blocks;
}

// A tier whose moves are done as soon as they are decided.
struct Tier {
  explicit Tier(const TestTier& sizes) : tier(MakeTestTier(sizes, kBytes)) {}

  KvTier::Image Add(int32_t block, KvTier::Goes goes = KvTier::Goes::kInTurn) {
    const KvTier::Image image = tier->Add({.block = block, .group = 0}, goes, &lost);
    if (image != KvTier::kNone) std::fill_n(tier->bytes(image), kBytes, static_cast<std::byte>(block));
    tier->BatchDone(tier->CloseBatch());
    tier->CheckAccounting();
    return image;
  }
  // Until the disk holds so much.
  void WaitForDisk(int64_t bytes) {
    for (tier->Poll(&lost); tier->disk_bytes() < bytes; tier->Poll(&lost)) std::this_thread::yield();
    WaitForPlace();
  }
  void WaitForPlace() {
    for (tier->Poll(&lost); ImagesMove(*tier); tier->Poll(&lost)) std::this_thread::yield();
    tier->CheckAccounting();
  }
  bool Holds(KvTier::Image image, int32_t block) const {
    const std::byte* bytes = tier->bytes(image);
    return std::all_of(bytes, bytes + kBytes,
                       [&](std::byte b) { return b == static_cast<std::byte>(block); });
  }

  const std::unique_ptr<KvTier> tier;
  std::vector<KvTier::Name> lost;
};

TEST(KvTierTest, TheImageUsedLongestAgoGoes) {
  Tier test({.host_pages = 3});
  const KvTier::Image first = test.Add(1);
  test.Add(2);
  test.Add(3);
  test.tier->Touch(first);
  test.Add(4);
  EXPECT_THAT(Blocks(test.lost), ElementsAre(2));
  EXPECT_TRUE(test.Holds(first, 1));
  EXPECT_EQ(test.tier->host_bytes(), 3 * kBytes);
}

TEST(KvTierTest, WhatGoesLastMakesRoomForItsLikeAlone) {
  Tier test({.host_pages = 2});
  const KvTier::Image first = test.Add(1, KvTier::Goes::kLast);
  test.Add(2, KvTier::Goes::kLast);
  EXPECT_EQ(test.Add(3), KvTier::kNone);
  EXPECT_NE(test.Add(4, KvTier::Goes::kLast), KvTier::kNone);
  EXPECT_THAT(Blocks(test.lost), ElementsAre(1));
  (void)first;
}

// Its place is read or written by a copy that may not have run yet.
TEST(KvTierTest, APlaceInACopyIsNobodyElses) {
  Tier test({.host_pages = 1});
  const KvTier::Image image = test.tier->Add({.block = 1, .group = 0}, KvTier::Goes::kInTurn, &test.lost);
  EXPECT_EQ(test.tier->place(image), KvTier::Place::kComing);
  EXPECT_EQ(test.Add(2), KvTier::kNone);  // which ends the batch
  EXPECT_EQ(test.tier->place(image), KvTier::Place::kHere);
  test.tier->Use(image);
  EXPECT_EQ(test.tier->Add({.block = 3, .group = 0}, KvTier::Goes::kInTurn, &test.lost), KvTier::kNone);
  test.tier->Remove(image);
  EXPECT_EQ(test.tier->host_bytes(), kBytes) << "not before the copy is done";
  test.tier->CheckAccounting();
  test.tier->BatchDone(test.tier->CloseBatch());
  EXPECT_EQ(test.tier->host_bytes(), 0);
}

TEST(KvTierTest, WhatLeavesTheHostIsReadFromTheDisk) {
  const TempFolder folder;
  Tier test({.host_pages = 2, .disk_pages = 3, .folder = folder.path()});
  std::vector<KvTier::Image> images;
  for (int32_t block = 1; block <= 3; ++block) {
    images.push_back(test.Add(block));
    test.WaitForDisk(block * kBytes);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the file has no name";
  EXPECT_EQ(test.tier->place(images[0]), KvTier::Place::kOnDisk);
  ASSERT_TRUE(test.tier->Read(images[0], &test.lost));
  EXPECT_EQ(test.tier->place(images[0]), KvTier::Place::kComing);
  while (!test.tier->Poll(&test.lost)) std::this_thread::yield();
  EXPECT_EQ(test.tier->place(images[0]), KvTier::Place::kHere);
  EXPECT_TRUE(test.Holds(images[0], 1));
  EXPECT_TRUE(test.lost.empty());
  // The disk is full, too: what was used longest ago there is 2, which the host has no more either.
  test.Add(4);
  test.WaitForPlace();
  EXPECT_THAT(Blocks(test.lost), ElementsAre(2));
}

class DamagedDisk : public testing::TestWithParam<bool> {};  // cut, or else one bit is another
INSTANTIATE_TEST_SUITE_P(Ways, DamagedDisk, testing::Bool());

TEST_P(DamagedDisk, IsTurnedOffWithOneWarning) {
  const TempFolder folder;
  KvDisk* disk = nullptr;
  std::vector<std::string> warnings;
  Tier test({.host_pages = 2,
             .disk_pages = 4,
             .folder = folder.path(),
             .warn = [&](const std::string& warning) { warnings.push_back(warning); },
             .disk = &disk});
  std::vector<KvTier::Image> images;
  for (int32_t block = 1; block <= 4; ++block) {
    images.push_back(test.Add(block));
    test.WaitForDisk(block * kBytes);
  }
  if (GetParam()) {
    ASSERT_EQ(ftruncate(disk->descriptor(), kBytes / 2), 0);
  } else {
    const char other = 17;
    ASSERT_EQ(pwrite(disk->descriptor(), &other, 1, kBytes - 1), 1);
  }
  ASSERT_TRUE(test.tier->Read(images[0], &test.lost));
  while (!test.tier->Poll(&test.lost)) std::this_thread::yield();
  EXPECT_THAT(warnings, ElementsAre(HasSubstr(GetParam() ? "its file was cut" : "its file was damaged")));
  // 3 had gone from the host for the one that was read.
  EXPECT_THAT(Blocks(test.lost), testing::UnorderedElementsAre(1, 2, 3)) << "all that were there alone";
  EXPECT_EQ(test.tier->disk_bytes(), 0);
  test.tier->CheckAccounting();
  test.Add(5);
  test.Add(6);
  EXPECT_EQ(test.lost.back().block, 4) << "the host is what there is";
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(KvTierTest, AFullDiskIsTurnedOffAndTheHostGoesOn) {
  const TempFolder folder;
  if (mount("none", folder.path().c_str(), "tmpfs", 0, "size=4k") != 0) {
    GTEST_SKIP() << "a file system of one page needs the right to mount it";
  }
  std::vector<std::string> warnings;
  {
    const std::unique_ptr<KvTier> tier =
        MakeTestTier({.host_pages = 4,
                      .disk_pages = 16,
                      .folder = folder.path(),
                      .warn = [&](const std::string& warning) { warnings.push_back(warning); }},
                     /*page_bytes=*/4096);
    std::vector<KvTier::Name> lost;
    for (int32_t block = 0; warnings.empty(); ++block) {
      tier->Add({.block = block, .group = 0}, KvTier::Goes::kInTurn, &lost);
      tier->BatchDone(tier->CloseBatch());
      tier->Poll(&lost);
      tier->CheckAccounting();
    }
  }
  umount(folder.path().c_str());
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("its file cannot be written: No space left on device")));
}

TEST(KvDiskTest, AFolderThatIsNoneIsRefused) {
  const TempFolder folder;
  folder.Write("file", "");
  for (const std::string& path : {folder.PathOf("none"), folder.PathOf("file")}) {
    const auto disk = KvDisk::Open(path, kBytes, 1, 1);
    ASSERT_FALSE(disk.ok());
    EXPECT_EQ(disk.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(disk.status().ToString(), HasSubstr("disk_kv is \"" + path + "\", which is no folder"));
  }
}

// ---- behind the prefix cache ----------------------------------------------------------------------

std::unique_ptr<StreamReader> Ask(SteppedEngine& test, const Request& request) {
  auto reader = test.Submit(request);
  EXPECT_TRUE(reader->refused().ok()) << reader->refused();
  test.RunToEnd({reader.get()});
  return reader;
}

int64_t CachedTokens(const StreamReader& reader) { return reader.choice().end().usage.cached_tokens; }

// The same of an engine's tier.
bool ImagesMove(SteppedEngine& test) {
  const std::shared_ptr<KvQuestion> question = *test.engine().AskKv();
  while (question->answer() == nullptr) test.Step();
  const auto& groups = question->answer()->groups;
  return std::any_of(groups.begin(), groups.end(),
                     [](const auto& group) { return group.beyond.moving_images > 0; });
}

// Others come and go until the pool was filled many times over, and the disk has what it takes.
void AskOthers(SteppedEngine& test, uint32_t count) {
  for (uint32_t other = 1; other <= count; ++other) {
    Ask(test, MakeRequest("other" + std::to_string(other), 30, 5, other));
    while (ImagesMove(test)) std::this_thread::yield();
  }
}

class BehindTheCache : public testing::TestWithParam<std::vector<int32_t>> {};  // windows
INSTANTIATE_TEST_SUITE_P(Windows, BehindTheCache,
                         testing::Values(std::vector<int32_t>{0}, std::vector<int32_t>{16, 0},
                                         std::vector<int32_t>{6}),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(BehindTheCache, WhatWasEvictedComesBack) {
  const TempFolder folder;
  const Request request = MakeRequest("r", 21, 6);
  SteppedEngine alone(SmallLimits(64), GetParam());
  const std::vector<int32_t> ids = Ask(alone, request)->choice().ids;
  struct Case {
    const char* name;
    TestTier tier;
    int64_t found;
  };
  for (const Case& at : {Case{"no tier", {}, 0}, Case{"host", {.host_pages = 2000}, 20},
                         Case{"disk", {.host_pages = 40, .disk_pages = 2000, .folder = folder.path()}, 20},
                         Case{"too little", {.host_pages = 1}, 0}}) {
    SCOPED_TRACE(at.name);
    SteppedEngine test(SmallLimits(48), GetParam(), nullptr, at.tier);
    Ask(test, request);
    AskOthers(test, 40);
    const auto again = Ask(test, request);
    EXPECT_EQ(CachedTokens(*again), at.found);
    EXPECT_EQ(again->choice().ids, ids);
    const EngineLoad load = test.engine().Load();
    EXPECT_LE(load.host_kv_bytes, at.tier.host_pages * 4 * int64_t{sizeof(int64_t)});
    EXPECT_TRUE(load.host_kv_bytes > 0 || at.found == 0);
    EXPECT_EQ(load.disk_kv_bytes > 0, at.tier.disk_pages > 0);
    EXPECT_EQ(load.free_pages + load.cached_pages, load.total_pages);
  }
}

TEST_P(BehindTheCache, WhatAFaultyRequestComputedIsNotFoundThereEither) {
  SteppedEngine test(SmallLimits(48), GetParam(), nullptr, {.host_pages = 2000});
  const Request request = MakeRequest("poisoned", 40, 4);
  Ask(test, request);
  AskOthers(test, 40);
  test.runner().not_finite = [](const std::string&, int32_t, int64_t) { return true; };
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 36);
  test.runner().not_finite = nullptr;
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 0);
}

// ---- copies or computing --------------------------------------------------------------------------

// A store over a tier whose copies take a time that is known, and texts of four blocks in a pool of eight
// pages a group.
class PricedStore {
 public:
  static constexpr int32_t kPage = 4, kBlocks = 4;

  PricedStore(const std::vector<int32_t>& windows, const TestTier& tier)
      : layout_(LayoutOf(windows)),
        tier_(MakeTestTier(tier, layout_.page_bytes())),
        store_(layout_, 8 * std::ssize(layout_.groups), PrefixCache::kOn, ChainedHash, tier_.get()) {}

  KvStore& store() { return store_; }
  KvTier& tier() { return *tier_; }

  static std::vector<int32_t> Text(int32_t id) { return std::vector<int32_t>(kPage * kBlocks + 1, id); }

  // A request computes the text, or finds it, and goes. Tokens found.
  int64_t Pass(int32_t id) {
    const std::vector<int32_t> text = Text(id);
    Lease lease = store_.NewLease();
    const int64_t found = store_.Acquire(lease, {.tokens = text});
    std::vector<PageCopy> copies;
    store_.Extend(lease, found, std::ssize(text), &copies);
    store_.Seal(lease, text, std::ssize(text));
    store_.Release(lease);
    store_.MovesDone(store_.TakeMoves().batch);
    store_.CheckAccounting();
    return found;
  }
  // So many others pass: more than the pool holds.
  void Crowd(int32_t first, int32_t count) {
    for (int32_t id = first; id < first + count; ++id) Pass(id);
  }
  // The disk has written all that it may.
  void WaitForWrites(int64_t pages) {
    while (tier_->disk_bytes() < pages * layout_.page_bytes()) {
      store_.PollTier();
      std::this_thread::yield();
    }
  }

 private:
  static KvLayout LayoutOf(const std::vector<int32_t>& windows) {
    KvFormat format;
    format.kv_heads = 1;
    format.head_dim = 8;
    format.page_size = kPage;
    return MakeKvLayout(windows, format);
  }

  const KvLayout layout_;
  const std::unique_ptr<KvTier> tier_;
  KvStore store_;
};

// A page of one group is four tokens, copied out and in again; of two groups four tokens fill two pages.
TEST(CopyOrCompute, PagesAreKeptWhereTheirCopiesTakeNoLongerThanTheirTokens) {
  struct Case {
    std::vector<int32_t> windows;
    double copy_ns, token_ns;
    bool keeps;
  };
  for (const Case& at : std::vector<Case>{{{0}, 1000, 500, true},
                                          {{0}, 1001, 500, false},
                                          {{0}, 1000, 499, false},
                                          {{0, 16}, 1000, 1000, true},
                                          {{0, 16}, 1000, 999, false},
                                          {{0}, 1e9, 0, true}}) {  // nothing was computed yet
    SCOPED_TRACE(testing::Message() << at.windows.size() << " groups, " << at.copy_ns << " ns a copy, "
                                    << at.token_ns << " ns a token");
    PricedStore test(at.windows, {.host_pages = 100, .copy_ns = at.copy_ns});
    test.store().SetTokenNs(at.token_ns);
    test.Pass(1);
    test.Crowd(100, 6);
    EXPECT_EQ(test.tier().host_bytes() > 0, at.keeps);
    EXPECT_EQ(test.Pass(1), at.keeps ? PricedStore::kPage * PricedStore::kBlocks : 0);
  }
}

// As steps teach it, and back.
TEST(CopyOrCompute, FollowsTheTimeOfAToken) {
  PricedStore test({0}, {.host_pages = 100, .copy_ns = 1000});
  int32_t id = 0;
  for (const auto& [token_ns, keeps] : {std::pair{700.0, true}, {300.0, false}, {700.0, true}}) {
    test.store().SetTokenNs(token_ns);
    const int32_t text = id++;
    test.Pass(text);
    test.Crowd(1000 + 100 * id, 6);
    EXPECT_EQ(test.Pass(text) > 0, keeps) << token_ns;
  }
}

// From the disk a page is read, and then copied in: what reading takes is known once something was read.
TEST(CopyOrCompute, WhatLiesOnTheDiskIsReadWhereThatIsFaster) {
  const TempFolder folder;
  PricedStore test({0}, {.host_pages = 8, .disk_pages = 400, .folder = folder.path(), .copy_ns = 0});
  const std::vector<int32_t> text = PricedStore::Text(1);
  const auto fetch = [&] {
    Lease lease = test.store().NewLease();
    test.store().Expect(lease, {.tokens = text}, KvStore::Beyond::kFetch);
    const bool was_coming = lease.expected.is_coming;
    const int64_t walked = test.store().walked_blocks();
    test.store().Expect(lease, {.tokens = text}, KvStore::Beyond::kLook);
    EXPECT_EQ(lease.expected.is_coming, was_coming);
    EXPECT_EQ(test.store().walked_blocks() > walked, !was_coming) << "of what comes one page is looked at";
    while (test.store().tier_reads()) {
      test.store().PollTier();
      std::this_thread::yield();
    }
    test.store().Expect(lease, {.tokens = text}, KvStore::Beyond::kLook);
    EXPECT_FALSE(lease.expected.is_coming);
    if (was_coming) {
      EXPECT_EQ(lease.expected.tokens, PricedStore::kPage * PricedStore::kBlocks);
    }
    return was_coming;
  };
  test.Pass(1);
  int64_t written = 0;
  const auto crowd = [&](int32_t first) {
    for (int32_t id = first; id < first + 8; ++id) {
      test.Crowd(id, 1);
      written = std::min<int64_t>(written + 1, 2);
      test.WaitForWrites(written);
      for (test.store().PollTier(); ImagesMove(test.tier()); test.store().PollTier())
        std::this_thread::yield();
    }
  };
  crowd(100);
  EXPECT_TRUE(fetch()) << "how long reading takes is not known";
  EXPECT_GT(test.tier().read_ns(), 0);
  crowd(200);
  test.store().SetTokenNs(test.tier().read_ns() / PricedStore::kPage / 2);
  EXPECT_FALSE(fetch()) << "computing takes half as long";
  test.store().SetTokenNs(test.tier().read_ns() / PricedStore::kPage * 2);
  EXPECT_TRUE(fetch()) << "and twice as long";
}

// ---- a disk that does not answer ------------------------------------------------------------------

// By the clock of the engine, which the test moves.
TEST(AStuckDisk, IsWaitedForTenSecondsAndThenTurnedOff) {
  constexpr int64_t kSecond = 1'000'000'000;
  const TempFolder folder;
  const Request request = MakeRequest("r", 21, 6);
  SteppedEngine alone(SmallLimits(64));
  const std::vector<int32_t> ids = Ask(alone, request)->choice().ids;

  std::vector<std::string> warnings;
  KvDisk* disk = nullptr;
  StuckDisk stuck;
  SteppedEngine test(SmallLimits(48), {0}, nullptr,
                     {.host_pages = 8,
                      .disk_pages = 2000,
                      .folder = folder.path(),
                      .warn = [&](const std::string& warning) { warnings.push_back(warning); },
                      .disk = &disk});
  disk->set_wake(stuck.wake());  // nothing was asked of it yet
  Ask(test, request);
  AskOthers(test, 40);
  stuck.Stick();
  const auto again = test.Submit(request);
  while (!stuck.is_stuck()) {
    test.Step();
    std::this_thread::yield();
  }
  for (int i = 0; i < 3; ++i) test.Step();  // takes what it did before
  test.clock().Advance(9 * kSecond);
  for (int i = 0; i < 3; ++i) test.Step();
  again->Poll();
  EXPECT_TRUE(again->choice().ids.empty());
  EXPECT_FALSE(again->done());
  EXPECT_TRUE(warnings.empty());

  test.clock().Advance(kSecond);
  test.Step();
  EXPECT_THAT(warnings, ElementsAre("disk_kv is not used any more: it has read nothing for 10 s"));
  test.RunToEnd({again.get()});
  EXPECT_EQ(again->choice().ids, ids);
  stuck.Release();
  Ask(test, MakeRequest("after", 30, 5, 77));
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

// Others pass the one that waits.
TEST(AStuckDisk, HoldsUpNobodyElse) {
  const TempFolder folder;
  KvDisk* disk = nullptr;
  StuckDisk stuck;
  SteppedEngine test(SmallLimits(48), {0}, nullptr,
                     {.host_pages = 8, .disk_pages = 2000, .folder = folder.path(), .disk = &disk});
  disk->set_wake(stuck.wake());
  const Request request = MakeRequest("r", 21, 6);
  const std::vector<int32_t> ids = Ask(test, request)->choice().ids;
  AskOthers(test, 40);
  stuck.Stick();
  const auto waits = test.Submit(request);
  while (!stuck.is_stuck()) {
    test.Step();
    std::this_thread::yield();
  }
  const auto passes = test.Submit(MakeRequest("passes", 30, 5, 99));
  while (!passes->done()) {  // else for ever
    test.Step();
    passes->Poll();
    std::this_thread::yield();
  }
  test.Step();  // which lets go of it
  EXPECT_EQ(test.engine().Load().running + test.engine().Load().waiting, 1) << "the one that waits";
  waits->Poll();
  EXPECT_TRUE(waits->choice().ids.empty());
  stuck.Release();
  test.RunToEnd({waits.get(), passes.get()});
  EXPECT_EQ(waits->choice().ids, ids);
}

// A pool that is memory, and nothing else.
class MemoryRunner final : public ModelRunner {
 public:
  MemoryRunner(int64_t pages, int64_t page_bytes)
      : page_bytes_(static_cast<size_t>(page_bytes)), pool_(static_cast<size_t>(pages) * page_bytes_) {}
  std::byte* Page(PageId page) { return pool_.data() + static_cast<size_t>(page) * page_bytes_; }

  StatusOr<StepTicket> Forward(const StepPlan&) override { return Internal("it computes nothing"); }
  Status Sample(StepTicket, const SampleInputs&) override { return Internal("it computes nothing"); }
  StatusOr<StepResult> Collect(StepTicket) override { return Internal("it computes nothing"); }
  Status MovePages(std::span<const PageMove> moves) override {
    for (const PageMove& move : moves) {
      const bool goes_out = move.way == PageMove::Way::kOut;
      std::memcpy(goes_out ? move.image : Page(move.page), goes_out ? Page(move.page) : move.image,
                  page_bytes_);
    }
    return {};
  }
  Status ReadPages(std::span<const PageImage> images) override {
    for (const PageImage& image : images) std::memcpy(image.bytes, Page(image.page), page_bytes_);
    images_ += std::ssize(images);
    return {};
  }
  Status WritePages(std::span<const PageImage> images) override {
    for (const PageImage& image : images) std::memcpy(Page(image.page), image.bytes, page_bytes_);
    images_ += std::ssize(images);
    return {};
  }
  int64_t images() const { return images_; }  // read and written so far

 private:
  int64_t images_ = 0;
  const size_t page_bytes_;
  std::vector<std::byte> pool_;
};

// A long text goes out and comes back a part at a time, of a window's pages those alone that it shows; to
// find it first, and last, takes steps of their own.
TEST(Transfers, AStepCopiesAPartOfALongText) {
  constexpr int32_t kPage = 4, kBlocks = 3 * kPagesCopied.most + 10, kPool = 2 * kBlocks + 10;
  KvFormat format;
  format.kv_heads = 1;
  format.head_dim = 8;
  format.page_size = kPage;
  const KvLayout layout = MakeKvLayout({0, 24}, format);
  KvStore store(layout, kPool, PrefixCache::kOn);
  MemoryRunner runner(kPool, layout.page_bytes());
  std::vector<int32_t> tokens(kPage * kBlocks);
  std::iota(tokens.begin(), tokens.end(), 1);
  Lease lease = store.NewLease();
  store.Acquire(lease, {.tokens = tokens});
  std::vector<PageCopy> copies;
  store.Extend(lease, 0, std::ssize(tokens), &copies);
  store.Seal(lease, tokens, std::ssize(tokens));
  store.Release(lease);
  KvTransfers transfers;
  const auto copied_by_step = [&](const std::shared_ptr<KvTransfer>& transfer, KvStore& of) {
    std::vector<int64_t> copied;
    EXPECT_TRUE(transfers.Push(transfer, layout));
    while (transfers.any()) {
      const int64_t before = runner.images();
      EXPECT_TRUE(transfers.Work(of, runner).ok());
      copied.push_back(runner.images() - before);
    }
    return copied;
  };
  tokens.push_back(1);
  const CachedText text = {.tokens = tokens};
  const auto out = std::make_shared<KvTransfer>(text);
  constexpr int64_t kPart = kPagesCopied.most;
  EXPECT_THAT(copied_by_step(out, store), ElementsAre(0, kPart, kPart, kPart, 10 + 6));
  ASSERT_EQ(out->tokens(), kPage * kBlocks);
  KvStore other(layout, kPool, PrefixCache::kOn);
  const auto back = std::make_shared<KvTransfer>(text, out->TakePages());
  EXPECT_THAT(copied_by_step(back, other), ElementsAre(kPart, kPart, kPart, 10 + 6, 0));
  EXPECT_EQ(back->tokens(), kPage * kBlocks);
}

// Half of the pool is a session's, so that a text that is put there makes room with its own first pages.
TEST(BehindTransfers, APageThatGoesAtOnceLeavesItsOwnImage) {
  constexpr int32_t kPage = 4, kBlocks = 6;
  KvFormat format;
  format.kv_heads = 1;
  format.head_dim = 8;
  format.page_size = kPage;
  const KvLayout layout = MakeKvLayout({0}, format);
  const std::unique_ptr<KvTier> tier = MakeTestTier({.host_pages = 40}, layout.page_bytes());
  KvStore store(layout, 8, PrefixCache::kOn, ChainedHash, tier.get());
  MemoryRunner runner(8, layout.page_bytes());
  std::vector<int32_t> tokens(kPage * 4, 1);
  Lease session = store.NewLease();
  session.prefers_cache = true;
  store.Acquire(session, {.tokens = tokens});
  std::vector<PageCopy> copies;
  store.Extend(session, 0, std::ssize(tokens), &copies);
  store.Seal(session, tokens, std::ssize(tokens));
  store.Release(session);

  std::vector<int32_t> text(kPage * kBlocks + 1, 2);
  KvPages pages;
  pages.tokens = kPage * kBlocks;
  pages.Resize(1, kBlocks);
  for (int32_t block = 0; block < kBlocks; ++block) {
    KvPages::Image& image = pages.groups[0][static_cast<size_t>(block)];
    image = std::make_unique<std::byte[]>(static_cast<size_t>(layout.page_bytes()));
    std::memset(image.get(), block + 1, static_cast<size_t>(layout.page_bytes()));
  }
  KvTransfers transfers;
  ASSERT_TRUE(
      transfers.Push(std::make_shared<KvTransfer>(CachedText{.tokens = text}, std::move(pages)), layout));
  while (transfers.any()) ASSERT_TRUE(transfers.Work(store, runner).ok());
  EXPECT_GT(tier->host_bytes(), 0);

  Lease lease = store.NewLease();
  EXPECT_EQ(store.Acquire(lease, {.tokens = text}), kPage * kBlocks);
  ASSERT_TRUE(runner.MovePages(store.TakeMoves().list).ok());
  for (int32_t block = 0; block < kBlocks; ++block) {
    const std::byte* page = runner.Page(lease.tables[0].pages[static_cast<size_t>(block)]);
    EXPECT_EQ(page[0], static_cast<std::byte>(block + 1)) << "block " << block;
  }
  store.Release(lease);
  store.CheckAccounting();
}

// ---- texts without an end -------------------------------------------------------------------------

struct Crowd {
  int64_t prompt_tokens = 0;  // computed, those computed again among them
  int64_t preemptions = 0;
  std::vector<std::vector<int32_t>> ids;
};

Crowd RunCrowd(const std::vector<int32_t>& windows, int64_t pool_pages, const TestTier& tier) {
  EngineLimits limits = SmallLimits(pool_pages);
  SteppedEngine test(limits, windows, nullptr, tier);
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  for (uint32_t salt = 0; salt < 6; ++salt) {
    Request request = MakeRequest("r" + std::to_string(salt), 9, 400, salt);
    request.context_policy =
        ContextPolicy{.type = salt % 2 == 0 ? ContextPolicyType::kSinks : ContextPolicyType::kShift,
                      .n_ctx = 24,
                      .n_keep = 4};
    readers.push_back(test.Submit(request));
    EXPECT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all.push_back(readers.back().get());
  }
  test.RunToEnd(all);
  Crowd crowd;
  for (const auto& reader : readers) crowd.ids.push_back(reader->choice().ids);
  crowd.prompt_tokens = test.engine().Load().prompt_tokens;
  crowd.preemptions = test.engine().Load().preemptions;
  EXPECT_EQ(test.engine().Load().held_pages, 0);
  EXPECT_EQ(test.engine().Load().cached_pages + test.engine().Load().free_pages, pool_pages);
  return crowd;
}

// Their pages are taken by older ones, so that without a tier they begin with their first token again; and
// each text has 400.
TEST(TextsWithoutEnd, GoOnWhereTheyWereAfterPreemption) {
  for (const std::vector<int32_t>& windows : {std::vector<int32_t>{0}, std::vector<int32_t>{16, 0}}) {
    SCOPED_TRACE(std::to_string(windows.size()) + " groups");
    const TempFolder folder;
    const Crowd calm = RunCrowd(windows, 300, {});
    EXPECT_EQ(calm.preemptions, 0);
    const Crowd none = RunCrowd(windows, 24, {});
    const Crowd host = RunCrowd(windows, 24, {.host_pages = 200});
    const Crowd disk = RunCrowd(windows, 24, {.host_pages = 20, .disk_pages = 200, .folder = folder.path()});
    for (const Crowd* crowd : {&none, &host, &disk}) EXPECT_EQ(crowd->ids, calm.ids);
    ASSERT_GT(none.preemptions, 0);
    ASSERT_GT(host.preemptions, 0);
    // One token to go on with; where nothing was out of sight yet what it computed is found by whole pages.
    EXPECT_LE(host.prompt_tokens, calm.prompt_tokens + 4 * host.preemptions);
    EXPECT_GT(none.prompt_tokens, calm.prompt_tokens + 4 * none.preemptions);
    EXPECT_LE(disk.prompt_tokens, none.prompt_tokens);
  }
}

}  // namespace
}  // namespace tramontane
