// Sequences whose tables begin with the same pages: who is found to share what, and that attention, which
// walks those pages once for a group of them, gives each the bits that it has alone; how often it walks them;
// how long a search is remembered.
#include "kernels/cpu/shared_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/ops.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/paged_kv_fixture.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A batch of one query each, and memory for the search.
class Batch {
 public:
  Batch(const PagedKvShape& shape, const std::vector<PagedSpan>& sequences, int32_t query_heads)
      : kv_(shape, sequences),
        query_heads_(query_heads),
        memory_(static_cast<size_t>(SharedPrefixBytes(kv_.batch()) / 8 + 1)),
        queries_(static_cast<size_t>(kv_.batch() * query_heads * shape.head_dim)) {
    kv_.FillRandom(5);
    kv_.SetQueries(std::vector<int32_t>(sequences.size(), 1));
    std::mt19937_64 random(shape.seed);
    std::normal_distribution<float> normal;
    for (float& q : queries_) q = normal(random);
    out_.resize(queries_.size());
    head_dim_ = shape.head_dim;
  }

  PagedKvFixture& kv() { return kv_; }

  AttentionParams Params(int32_t window) {
    const int64_t columns = int64_t{query_heads_} * head_dim_;
    AttentionParams params;
    params.query = MakeTensor(queries_.data(), DType::kF32, kv_.batch(), columns);
    params.out = MakeTensor(out_.data(), DType::kF32, kv_.batch(), columns);
    params.kv = kv_.View();
    params.table = kv_.Table();
    params.qo_indptr = kv_.qo_indptr();
    params.batch = kv_.batch();
    params.query_heads = query_heads_;
    params.window = window;
    params.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
    return params;
  }

  // Of sequence b alone.
  AttentionParams ParamsOf(int32_t b, int32_t window) {
    AttentionParams params = Params(window);
    params.table.first_entry += b;
    params.table.kv_base += b;
    params.table.kv_end += b;
    params.qo_indptr += b;
    params.batch = 1;
    return params;
  }

  // Sequence b sees `len` sinks and from `left` on.
  void SeeSinks(int32_t b, int32_t len, int32_t left) {
    sink_len_.resize(static_cast<size_t>(kv_.batch()));
    sink_left_.resize(sink_len_.size());
    sink_len_[static_cast<size_t>(b)] = len;
    sink_left_[static_cast<size_t>(b)] = left;
  }
  AttentionParams WithSinks(AttentionParams params) const {
    params.sinks = {.len = sink_len_.data(),
                    .left = sink_left_.data(),
                    .query_position = sink_left_.data(),
                    .query = MakeTensor(const_cast<float*>(queries_.data()), DType::kF32, kv_.batch(),
                                        int64_t{query_heads_} * head_dim_)};
    return params;
  }

  SharedPrefixes Find(const AttentionParams& params, const SharerLimits& limits = {.most = 32}) {
    return FindSharedPrefixes(params, limits, reinterpret_cast<std::byte*>(memory_.data()));
  }
  SharedPrefixes Find(int32_t window, const SharerLimits& limits = {.most = 32}) {
    return Find(Params(window), limits);
  }

  std::vector<float> Attend(Backend& backend, const AttentionParams& params) {
    std::fill(out_.begin(), out_.end(), 0.0f);
    EXPECT_EQ(backend.Attention(params), OpCode::kOk);
    return out_;
  }

 private:
  PagedKvFixture kv_;
  int32_t query_heads_;
  int32_t head_dim_ = 0;
  std::vector<int64_t> memory_;
  std::vector<float> queries_;
  std::vector<float> out_;
  std::vector<int32_t> sink_len_, sink_left_;
};

std::vector<int32_t> SequencesOf(const PrefixSharers& sharers) {
  std::vector<int32_t> sequences(sharers.sequences, sharers.sequences + sharers.count);
  std::sort(sequences.begin(), sequences.end());
  return sequences;
}

constexpr int64_t kSegment = kAttentionSegmentKeys;

TEST(SharedPrefixTest, WholeSegmentsInTheSamePagesAreShared) {
  Batch batch({}, {{0, 2000}, {0, 1700}, {0, 1800}, {0, 400}}, 1);
  EXPECT_EQ(batch.Find(0).count, 0);
  batch.kv().ShareUpTo(1600, 2, 0);
  batch.kv().ShareUpTo(400, 3, 0);  // less than a segment
  const SharedPrefixes found = batch.Find(0);
  ASSERT_EQ(found.count, 1);
  EXPECT_THAT(SequencesOf(found.groups[0]), ElementsAre(0, 2));
  EXPECT_EQ(found.groups[0].first_segment, 0);
  EXPECT_EQ(found.groups[0].end_segment, 1600 / kSegment);
}

TEST(SharedPrefixTest, RingsThatWrapShareWhatListsDo) {
  for (const bool rings : {false, true}) {
    const PagedKvShape shape = {.page_size = 16, .rings = rings};
    // 113 pages from number 19 on, in rings of 128: they wrap in the third segment that is seen whole.
    Batch batch(shape, {{304, 2100}, {304, 2110}, {304, 2100}}, 4);
    batch.kv().ShareUpTo(2050, 1, 0);
    batch.kv().ShareUpTo(2000, 2, 0);
    const SharedPrefixes found = batch.Find(1790);
    ASSERT_EQ(found.count, 1) << rings;
    EXPECT_EQ(found.groups[0].first_segment, 1);
    EXPECT_EQ(found.groups[0].end_segment, 3) << "of positions 512 to 1999";
    EXPECT_EQ(found.groups[0].count, 3);
  }
}

TEST(SharedPrefixTest, OneWithLittleInCommonDoesNotCutWhatOthersShare) {
  Batch batch({}, {{0, 5000}, {0, 5000}, {0, 5000}, {0, 600}}, 1);
  batch.kv().ShareUpTo(4500, 1, 0);
  batch.kv().ShareUpTo(4500, 2, 0);
  batch.kv().ShareUpTo(512, 3, 0);
  const SharedPrefixes found = batch.Find(0);
  ASSERT_EQ(found.count, 1);
  EXPECT_THAT(SequencesOf(found.groups[0]), ElementsAre(0, 1, 2));
  EXPECT_EQ(found.groups[0].end_segment, 4500 / kSegment);
}

TEST(SharedPrefixTest, AGroupHasAsManyAsAreAllowed) {
  Batch batch({}, std::vector<PagedSpan>(7, PagedSpan{0, 700}), 1);
  for (int32_t b = 1; b < 7; ++b) batch.kv().ShareUpTo(600, b, 0);
  EXPECT_EQ(batch.Find(0, {.most = 1}).count, 0);
  const auto counts = [&batch](const SharerLimits& limits) {
    const SharedPrefixes found = batch.Find(0, limits);
    std::vector<int32_t> counts;
    for (int32_t i = 0; i < found.count; ++i) counts.push_back(found.groups[i].count);
    return counts;
  };
  EXPECT_THAT(counts({.most = 3}), ElementsAre(3, 3));
  EXPECT_THAT(counts({.most = 32, .many = 7, .few = 2}), ElementsAre(7));
  EXPECT_THAT(counts({.most = 32, .many = 8, .few = 2}), ElementsAre(2, 2, 2));
  EXPECT_THAT(counts({.most = 32, .many = 8, .few = 1}), IsEmpty());
  EXPECT_THAT(counts({.most = 32, .many = 8, .few = 0}), IsEmpty());
}

// Under a window only segments that every row sees whole, and none where the windows begin in others.
TEST(SharedPrefixTest, WindowsShareWhatAllOfThemSee) {
  Batch batch({}, {{400, 2000}, {416, 2010}, {1008, 2600}}, 1);
  batch.kv().ShareUpTo(1990, 1, 0);
  batch.kv().ShareUpTo(1990, 2, 0);
  const SharedPrefixes found = batch.Find(1590);
  ASSERT_EQ(found.count, 1);
  EXPECT_THAT(SequencesOf(found.groups[0]), ElementsAre(0, 1));
  EXPECT_EQ(found.groups[0].first_segment, 1);
  EXPECT_EQ(found.groups[0].end_segment, 1990 / kSegment);
}

TEST(SharedPrefixTest, ASequenceThatSeesSinksSharesNothingAndLeavesTheOthersTheirs) {
  Batch batch({}, {{0, 2000}, {0, 1700}, {0, 1800}, {0, 1900}}, 1);
  for (int32_t b = 1; b < 4; ++b) batch.kv().ShareUpTo(1600, b, 0);
  batch.SeeSinks(1, 4, 700);
  SharedPrefixes found = batch.Find(batch.WithSinks(batch.Params(0)));
  ASSERT_EQ(found.count, 1);
  EXPECT_THAT(SequencesOf(found.groups[0]), ElementsAre(0, 2, 3));
  batch.SeeSinks(2, 0, 1);  // no sink, and not all that its window shows
  found = batch.Find(batch.WithSinks(batch.Params(0)));
  ASSERT_EQ(found.count, 1);
  EXPECT_THAT(SequencesOf(found.groups[0]), ElementsAre(0, 3));
}

// Memory of its own, and the groups that it finds as lists of sequences.
class Memo {
 public:
  explicit Memo(int64_t batch) : memory_(static_cast<size_t>(SharedPrefixMemo::Bytes(batch) / 8)) {
    memo_.Reset(reinterpret_cast<std::byte*>(memory_.data()), batch);
  }
  std::vector<std::vector<int32_t>> Find(const AttentionParams& params) {
    const SharedPrefixes found = memo_.Find(params, {.most = 32});
    std::vector<std::vector<int32_t>> groups;
    for (int32_t i = 0; i < found.count; ++i) groups.push_back(SequencesOf(found.groups[i]));
    return groups;
  }
  int64_t searches() const { return memo_.searches(); }

 private:
  std::vector<int64_t> memory_;
  SharedPrefixMemo memo_;
};

TEST(SharedPrefixMemoTest, LayersOfATableSearchItOnce) {
  Batch batch({}, {{0, 2000}, {0, 1700}, {0, 1800}}, 1);
  batch.kv().ShareUpTo(1600, 2, 0);
  Memo memo(3);
  for (int layer = 0; layer < 5; ++layer) {
    EXPECT_THAT(memo.Find(batch.Params(0)), ElementsAre(ElementsAre(0, 2)));
    EXPECT_THAT(memo.Find(batch.Params(1790)), ElementsAre(ElementsAre(0, 2))) << "another layer group's";
  }
  EXPECT_EQ(memo.searches(), 2);
}

TEST(SharedPrefixMemoTest, OtherLengthsOrOtherPagesAreSearchedAnew) {
  Batch batch({}, {{0, 2000}, {0, 1700}, {0, 1800}}, 1);
  batch.kv().ShareUpTo(1600, 2, 0);
  Memo memo(3);
  EXPECT_THAT(memo.Find(batch.Params(0)), ElementsAre(ElementsAre(0, 2)));
  const int32_t kv_end[] = {2000, 1700, 1801};  // sequence 2 is a token longer
  AttentionParams longer = batch.Params(0);
  longer.table.kv_end = kv_end;
  EXPECT_THAT(memo.Find(longer), ElementsAre(ElementsAre(0, 2)));
  EXPECT_EQ(memo.searches(), 2);
  batch.kv().ListStrangePage(2, 100);  // the same lengths in the same place
  EXPECT_THAT(memo.Find(batch.Params(0)), IsEmpty());
  EXPECT_EQ(memo.searches(), 3);
}

TEST(SharedPrefixMemoTest, OneThatSeesSinksFromNowOnIsNoSharerOfATableThatIsKnown) {
  Batch batch({}, {{0, 2000}, {0, 1700}, {0, 1800}}, 1);
  batch.kv().ShareUpTo(1600, 1, 0);
  batch.kv().ShareUpTo(1600, 2, 0);
  Memo memo(3);
  EXPECT_THAT(memo.Find(batch.Params(0)), ElementsAre(ElementsAre(0, 1, 2)));
  batch.SeeSinks(1, 4, 700);
  EXPECT_THAT(memo.Find(batch.WithSinks(batch.Params(0))), ElementsAre(ElementsAre(0, 2)));
}

TEST(SharedPrefixMemoTest, TheOldestOfManyTablesIsForgotten) {
  Batch batch({}, {{0, 2000}, {0, 2000}}, 1);
  batch.kv().ShareUpTo(1600, 1, 0);
  Memo memo(2);
  for (int round = 0; round < 2; ++round) {
    for (int32_t window = 1500; window <= 1500 + SharedPrefixMemo::kTables; ++window) {
      EXPECT_THAT(memo.Find(batch.Params(window)), ElementsAre(ElementsAre(0, 1)));
    }
  }
  EXPECT_EQ(memo.searches(), 2 * (SharedPrefixMemo::kTables + 1));
}

// Parents, lengths and what is shared at random: the bits of each sequence are those it has alone.
class AttentionOfSharersTest : public CpuVariantTest {};
TM_INSTANTIATE_FOR_CPU_VARIANTS(AttentionOfSharersTest);

TEST_P(AttentionOfSharersTest, EachHasTheBitsItHasAlone) {
  constexpr uint64_t kSeed = 17;
  std::mt19937_64 random(kSeed);
  const auto draw = [&random](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kInt8, DType::kInt4, DType::kFp8E4M3};
  constexpr int32_t kHeadDims[] = {24, 64};
  constexpr int32_t kPageSizes[] = {7, 16, 64};
  constexpr int32_t kWindows[] = {0, 600, 1300};
  int64_t shared = 0;
  for (int round = ScaledCount(24, 8); round > 0; --round) {
    PagedKvShape shape = {.dtype = kTypes[draw(0, 4)],
                          .kv_heads = 2,
                          .head_dim = kHeadDims[draw(0, 1)],
                          .page_size = kPageSizes[draw(0, 2)],
                          .order = draw(0, 1) == 0 ? KvOrder::kHnd : KvOrder::kNhd,
                          .seed = random(),
                          .rings = draw(0, 1) == 0};
    const auto window = kWindows[draw(0, 2)];
    const auto query_heads = static_cast<int32_t>(2 * draw(1, 5));
    std::vector<PagedSpan> spans;
    const int64_t usual = draw(900, 1800);
    for (int64_t b = draw(2, 24); b > 0; --b) {
      const int64_t end = draw(0, 3) == 0 ? draw(1, 1800) : draw(usual, usual + 30);
      const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, end - window);
      spans.push_back({first / shape.page_size * shape.page_size, end});
    }
    Batch batch(shape, spans, query_heads);
    for (int32_t b = 1; b < batch.kv().batch(); ++b) {
      if (draw(0, 4) > 0) batch.kv().ShareUpTo(draw(1, 1800), b, static_cast<int32_t>(draw(0, b - 1)));
    }
    const auto threads = static_cast<int32_t>(draw(1, 2));
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ScaledCount(24, 8) - round
                                    << " rounds before, window " << window << ", " << threads << " threads");
    // As many as the op allows, of tiles of two kv heads.
    const SharerLimits limits = SharersAllowed(2 * std::ssize(spans), query_heads / 2, threads);
    shared += batch.Find(window, limits).count;
    const BackendPtr backend = MakeBackend(GetParam(), threads, batch.kv().Maxima(query_heads));
    const std::vector<float> together = batch.Attend(*backend, batch.Params(window));
    ASSERT_EQ(batch.Attend(*backend, batch.Params(window)), together) << "the next layer";
    const size_t columns = static_cast<size_t>(query_heads) * static_cast<size_t>(shape.head_dim);
    for (int32_t b = 0; b < batch.kv().batch(); ++b) {
      const std::vector<float> alone = batch.Attend(*backend, batch.ParamsOf(b, window));
      const size_t row = static_cast<size_t>(b) * columns;
      ASSERT_EQ(std::memcmp(&together[row], &alone[row], columns * sizeof(float)), 0) << "sequence " << b;
    }
  }
  EXPECT_GE(shared, ScaledCount(24, 8) / 4) << "batches that share nothing";
}

TEST_P(AttentionOfSharersTest, HasItsBitsBesideOneThatSeesSinks) {
  constexpr int32_t kHeads = 4, kSinks = 3;
  const PagedKvShape shape = {.dtype = DType::kBf16, .kv_heads = 2, .head_dim = 64, .page_size = 16};
  Batch batch(shape, std::vector<PagedSpan>(12, {0, 1500}), kHeads);
  for (int32_t b = 1; b < 12; ++b) batch.kv().ShareUpTo(1200, b, 0);
  batch.SeeSinks(kSinks, 4, 700);
  const BackendPtr backend = MakeBackend(GetParam(), 1, batch.kv().Maxima(kHeads));
  const std::vector<float> together = batch.Attend(*backend, batch.WithSinks(batch.Params(0)));
  const size_t columns = size_t{kHeads} * static_cast<size_t>(shape.head_dim);
  for (int32_t b = 0; b < 12; ++b) {
    const AttentionParams params = batch.ParamsOf(b, 0);
    const std::vector<float> alone = batch.Attend(*backend, b == kSinks ? batch.WithSinks(params) : params);
    const std::vector<float> otherwise =
        batch.Attend(*backend, b == kSinks ? params : batch.WithSinks(params));
    const auto begin = static_cast<std::ptrdiff_t>(static_cast<size_t>(b) * columns);
    const auto same_row = [&](const std::vector<float>& others) {
      const auto first = together.begin() + begin;
      return std::equal(first, first + static_cast<std::ptrdiff_t>(columns), others.begin() + begin);
    };
    EXPECT_TRUE(same_row(alone)) << "sequence " << b;
    EXPECT_EQ(same_row(otherwise), b != kSinks);
  }
}

std::atomic<int64_t> first_segments{0};  // that were walked

void CountingAttendSegment(const AttentionTile& tile, int64_t segment, const AttentionNext& next,
                           const AttentionScratch& scratch, const AttentionState& state) {
  if (segment == 0) ++first_segments;
  kPortableKernels.attention.attend_segment(tile, segment, next, scratch, state);
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

// How often attention reads the keys of one kv head that all sequences of a decode step begin with.
int64_t WalksOfPrefix(int32_t kv_heads, int32_t group, int32_t sequences, int32_t threads) {
  const PagedKvShape shape = {.kv_heads = kv_heads, .head_dim = 2};
  Batch batch(shape, std::vector<PagedSpan>(static_cast<size_t>(sequences), PagedSpan{0, kSegment + 32}),
              kv_heads * group);
  for (int32_t b = 1; b < sequences; ++b) batch.kv().ShareUpTo(kSegment, b, 0);
  const CpuKernels& portable = kPortableKernels;
  AttentionKernels counting = portable.attention;
  counting.attend_segment = CountingAttendSegment;
  const CpuKernels kernels = {portable.name, portable.linear, counting, portable.moe, portable.sampling};
  ThreadPool pool(threads);
  const int64_t bytes = AttentionWorkspaceBytes(batch.kv().Maxima(kv_heads * group), threads);
  std::vector<CacheLine> workspace(static_cast<size_t>(bytes / 64 + 1));
  std::vector<int64_t> memory(static_cast<size_t>(SharedPrefixMemo::Bytes(sequences) / 8));
  SharedPrefixMemo memo;
  memo.Reset(reinterpret_cast<std::byte*>(memory.data()), sequences);
  const CpuContext context = {.kernels = kernels,
                              .pool = pool,
                              .workspace = {workspace.data()->bytes, bytes},
                              .shared_prefixes = memo};
  first_segments = 0;
  RunAttention(batch.Params(0), context);
  EXPECT_EQ(first_segments % kv_heads, 0);
  return first_segments / kv_heads;
}

// The tables of kernels/cpu/README.md.
TEST(WalksOfSharedPrefixTest, AreAsFewAsThreadsAndRowsAllow) {
  const auto walks_of_32_over_8 = [](int32_t sequences) {
    std::vector<int64_t> walks;
    for (const int32_t threads : {1, 2, 4, 8, 16}) walks.push_back(WalksOfPrefix(8, 4, sequences, threads));
    return walks;
  };
  EXPECT_THAT(walks_of_32_over_8(2), ElementsAre(1, 1, 2, 2, 2));
  EXPECT_THAT(walks_of_32_over_8(4), ElementsAre(2, 2, 2, 4, 4));
  EXPECT_THAT(walks_of_32_over_8(8), ElementsAre(1, 1, 4, 4, 8));
  EXPECT_THAT(walks_of_32_over_8(16), ElementsAre(1, 1, 2, 8, 8));
  EXPECT_THAT(walks_of_32_over_8(32), ElementsAre(1, 1, 2, 4, 16));
  EXPECT_EQ(WalksOfPrefix(3, 3, 32, 1), 5);
  EXPECT_EQ(WalksOfPrefix(2, 4, 32, 1), 2);
  EXPECT_EQ(WalksOfPrefix(8, 8, 32, 1), 2);
}

}  // namespace
}  // namespace tramontane
