// Attention on the CPU backend: against the definition, at the edges of pages, windows, blocks and segments;
// what it may read; and that a query's bits depend on its own position and keys alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <sstream>

#include "kernels/backend.h"
#include "tests/reference/attention.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/paged_kv_fixture.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = 12345.0f;

// One call: sequences with the first listed position, the end, and how many of the last tokens are queries.
struct Sequence {
  int64_t kv_base = 0;
  int64_t kv_end = 0;
  int32_t queries = 0;
};

struct Problem {
  PagedKvShape shape;
  int32_t query_heads = 1;
  int32_t window = 0;
  std::vector<Sequence> sequences;
  std::vector<uint64_t> query_seeds;  // [sequences] whose queries; empty: sequence b has seed b
};

std::unique_ptr<PagedKvFixture> MakeKv(const Problem& problem, uint64_t seed) {
  std::vector<PagedSpan> spans;
  std::vector<int32_t> counts;
  for (const Sequence& s : problem.sequences) {
    spans.push_back({s.kv_base, s.kv_end});
    counts.push_back(s.queries);
  }
  auto kv = std::make_unique<PagedKvFixture>(problem.shape, spans);
  kv->FillRandom(seed);
  kv->SetQueries(counts);
  return kv;
}

// The query vector of one token, all heads: depends on (seed, position) only.
std::vector<float> QueryOf(const Problem& problem, uint64_t seed, int64_t position) {
  std::mt19937_64 random(seed * 7919 + static_cast<uint64_t>(position) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> query(static_cast<size_t>(problem.query_heads * problem.shape.head_dim));
  for (float& q : query) q = normal(random);
  return query;
}

float ScaleOf(const Problem& problem) { return 1.0f / std::sqrt(static_cast<float>(problem.shape.head_dim)); }

// Queries for the call, in rows wider than q, the rest of which is NaN.
struct QueryRows {
  int64_t columns = 0;
  int64_t stride = 0;
  std::vector<float> data;

  QueryRows(const Problem& problem, const PagedKvFixture& kv)
      : columns(problem.query_heads * problem.shape.head_dim), stride(columns + 24) {
    for (int32_t b = 0; b < kv.batch(); ++b) {
      const uint64_t seed = problem.query_seeds.empty() ? static_cast<uint64_t>(b)
                                                        : problem.query_seeds[static_cast<size_t>(b)];
      for (int32_t i = 0; i < kv.QueryCount(b); ++i) {
        const std::vector<float> query = QueryOf(problem, seed, kv.QueryBegin(b) + i);
        data.insert(data.end(), query.begin(), query.end());
        data.resize(data.size() + 24, kNan);
      }
    }
  }
};

// [tokens + 1, query_heads * head_dim]; the last row is padding that the op must leave alone.
std::vector<float> RunAttention(Backend& backend, const Problem& problem, const PagedKvFixture& kv,
                                std::vector<float>* query_data = nullptr, const KvLayerView* view = nullptr) {
  QueryRows queries(problem, kv);
  if (query_data != nullptr) queries.data = *query_data;
  const int64_t rows = kv.tokens() + 1;
  std::vector<float> out(static_cast<size_t>(rows * queries.columns), kUntouched);
  AttentionParams params;
  params.query = {queries.data.data(), DType::kF32, rows, queries.columns, queries.stride};
  params.out = MakeTensor(out.data(), DType::kF32, rows, queries.columns);
  params.kv = view == nullptr ? kv.View() : *view;
  params.table = kv.Table();
  params.qo_indptr = kv.qo_indptr();
  params.batch = kv.batch();
  params.query_heads = problem.query_heads;
  params.window = problem.window;
  params.scale = ScaleOf(problem);
  EXPECT_EQ(backend.Attention(params), OpCode::kOk);
  return out;
}

reference::AttentionProblem ReferenceProblem(const Problem& problem, const PagedKvFixture& kv, int32_t b) {
  reference::AttentionProblem reference;
  reference.query_heads = problem.query_heads;
  reference.kv_heads = problem.shape.kv_heads;
  reference.head_dim = problem.shape.head_dim;
  reference.window = problem.window;
  reference.scale = ScaleOf(problem);
  reference.query_begin = kv.QueryBegin(b);
  reference.key_begin = problem.sequences[static_cast<size_t>(b)].kv_base;
  reference.keys = kv.All(KvHalf::kKey, b, reference.key_begin);
  reference.values = kv.All(KvHalf::kValue, b, reference.key_begin);
  for (int32_t i = 0; i < kv.QueryCount(b); ++i) {
    const std::vector<float> query = QueryOf(problem, static_cast<uint64_t>(b), reference.query_begin + i);
    reference.query.insert(reference.query.end(), query.begin(), query.end());
  }
  return reference;
}

double LargestNorm(const std::vector<double>& vectors, int32_t head_dim) {
  double largest = 0;
  for (size_t at = 0; at < vectors.size(); at += static_cast<size_t>(head_dim)) {
    double squares = 0;
    for (int32_t d = 0; d < head_dim; ++d)
      squares += vectors[at + static_cast<size_t>(d)] * vectors[at + static_cast<size_t>(d)];
    largest = std::max(largest, std::sqrt(squares));
  }
  return largest;
}

// Both sides start from the same (rounded) keys and values, so only f32 arithmetic differs. With u = 2^-24, a
// chain of n roundings of terms whose magnitudes sum to m errs by about u sqrt(n) m (they do not conspire). A
// score sums to at most |q||k| scale, so it errs by u sqrt(2 head_dim) |q||k| scale; a weight by that much
// relatively, and by exp's 2u and the subtraction's u |score|; it enters numerator and sum. The weighted sum
// adds u sqrt(keys) max|v|.
double ToleranceOf(const reference::AttentionProblem& p) {
  const double u = 0x1p-24;
  double largest_value = 0;
  for (const double v : p.values) largest_value = std::max(largest_value, std::abs(v));
  const double largest_score = LargestNorm(p.query, p.head_dim) * LargestNorm(p.keys, p.head_dim) * p.scale;
  const double weight_error = u * ((std::sqrt(2.0 * p.head_dim) + 1) * largest_score + 4);
  const double keys = static_cast<double>(p.keys.size()) / (p.kv_heads * p.head_dim);
  return largest_value * (2 * weight_error + u * (std::sqrt(keys) + 4));
}

void ExpectMatchesDefinition(const Problem& problem, const PagedKvFixture& kv,
                             const std::vector<float>& out) {
  const size_t columns =
      static_cast<size_t>(problem.query_heads) * static_cast<size_t>(problem.shape.head_dim);
  size_t row = 0;
  for (int32_t b = 0; b < kv.batch(); ++b) {
    const reference::AttentionProblem reference = ReferenceProblem(problem, kv, b);
    if (reference.query.empty()) continue;
    const std::vector<double> expected = reference::Attention(reference);
    const double tolerance = ToleranceOf(reference);
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double difference = std::abs(out[row * columns + i] - expected[i]);
      worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
    }
    EXPECT_LE(worst, tolerance) << "sequence " << b;
    row += static_cast<size_t>(kv.QueryCount(b));
  }
  for (size_t i = row * columns; i < out.size(); ++i) ASSERT_EQ(out[i], kUntouched) << "padding was written";
}

class AttentionTest : public CpuVariantTest {
 protected:
  void ExpectMatchesDefinition(const Problem& problem, int32_t threads = 2) {
    const auto kv = MakeKv(problem, 11);
    const BackendPtr backend = MakeBackend(GetParam(), threads, kv->Maxima(problem.query_heads));
    tramontane::ExpectMatchesDefinition(problem, *kv, RunAttention(*backend, problem, *kv));
  }
};
TM_INSTANTIATE_FOR_CPU_VARIANTS(AttentionTest);

TEST_P(AttentionTest, EveryHeadRatioAndDimensionMatchesTheDefinition) {
  struct Heads {
    int32_t query_heads, kv_heads, head_dim;
  };
  for (const Heads& heads :
       {Heads{1, 1, 8}, Heads{8, 4, 8}, Heads{3, 1, 64}, Heads{9, 3, 64}, Heads{8, 2, 128}, Heads{5, 1, 96},
        Heads{8, 1, 32}, Heads{16, 1, 256}, Heads{4, 4, 80}, Heads{2, 1, 12}, Heads{130, 1, 16}}) {
    SCOPED_TRACE(testing::Message() << heads.query_heads << ":" << heads.kv_heads << " x " << heads.head_dim);
    Problem problem;
    problem.query_heads = heads.query_heads;
    problem.shape.kv_heads = heads.kv_heads;
    problem.shape.head_dim = heads.head_dim;
    problem.window = 33;
    problem.sequences = {{0, 1, 1}, {0, 70, 5}, {32, 75, 1}, {0, 40, 40}};
    ExpectMatchesDefinition(problem);
  }
}

TEST_P(AttentionTest, EveryDTypeOrderAndPageSizeMatchesTheDefinition) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      for (const int32_t page_size : {1, 7, 16, 64, 128}) {
        SCOPED_TRACE(testing::Message()
                     << DTypeName(dtype) << " order " << static_cast<int>(order) << " page " << page_size);
        Problem problem;
        problem.query_heads = 4;
        problem.shape = {
            .dtype = dtype, .kv_heads = 2, .head_dim = 24, .page_size = page_size, .order = order};
        problem.window = 100;
        problem.sequences = {{0, 150, 20}, {0, 9, 9}, {0, 150, 1}};
        ExpectMatchesDefinition(problem);
      }
    }
  }
}

TEST_P(AttentionTest, EveryQuantisedTypeAndGroupMatchesTheDefinition) {
  constexpr int32_t kPageSizes[] = {1, 7, 64, 16, 5};  // prime to the orders: none is one order's alone
  size_t next = 0;
  struct Shape {
    DType dtype;
    int32_t head_dim, group_log2;
  };
  for (const Shape& shape :
       {Shape{DType::kInt8, 128, 5}, Shape{DType::kInt8, 64, 3}, Shape{DType::kInt8, 8, 3},
        Shape{DType::kInt8, 24, 3}, Shape{DType::kInt8, 128, 7}, Shape{DType::kInt4, 128, 5},
        Shape{DType::kInt4, 80, 4}, Shape{DType::kInt4, 8, 3}, Shape{DType::kInt4, 256, 6},
        Shape{DType::kInt4, 40, 3}, Shape{DType::kFp8E4M3, 128, 0}, Shape{DType::kFp8E4M3, 24, 0},
        Shape{DType::kFp8E4M3, 6, 0}}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      const int32_t page_size = kPageSizes[next++ % std::size(kPageSizes)];
      SCOPED_TRACE(testing::Message() << DTypeName(shape.dtype) << " x " << shape.head_dim
                                      << " in groups of 2^" << shape.group_log2 << ", order "
                                      << static_cast<int>(order) << ", pages of " << page_size);
      Problem problem;
      problem.query_heads = 6;
      problem.shape = {.dtype = shape.dtype,
                       .kv_heads = 2,
                       .head_dim = shape.head_dim,
                       .page_size = page_size,
                       .order = order,
                       .group_log2 = shape.group_log2};
      problem.window = 100;
      problem.sequences = {{0, 150, 20}, {0, 9, 9}, {0, 150, 1}, {0, 1, 1}};
      ExpectMatchesDefinition(problem);
    }
  }
}

// Each kv head has its own, keys and values apart.
TEST_P(AttentionTest, ScalesOfFp8AreThoseOfTheirHead) {
  Problem problem;
  problem.query_heads = 2;
  problem.shape = {.dtype = DType::kFp8E4M3, .kv_heads = 2, .head_dim = 32};
  problem.sequences = {{0, 40, 1}, {0, 40, 20}};
  const auto kv = MakeKv(problem, 11);
  const BackendPtr backend = MakeBackend(GetParam(), 1, kv->Maxima(problem.query_heads));
  const std::vector<float> plain = RunAttention(*backend, problem, *kv);
  std::vector<float> scales = {1.0f, 1.0f, 0.5f, 4.0f};  // powers of two: nothing rounds anew
  KvLayerView view = kv->View();
  view.scale = KvScaleView::OfFp8(scales.data(), 2);
  const std::vector<float> scaled = RunAttention(*backend, problem, *kv, nullptr, &view);
  for (size_t i = 0; i + 64 < plain.size(); ++i) {
    ASSERT_EQ(scaled[i], plain[i] * (i / 32 % 2 == 0 ? 0.5f : 4.0f)) << i;
  }
  std::vector<float> of_keys = {2.0f, 1.0f, 1.0f, 1.0f};
  view.scale = KvScaleView::OfFp8(of_keys.data(), 2);
  const std::vector<float> sharper = RunAttention(*backend, problem, *kv, nullptr, &view);
  EXPECT_FALSE(std::equal(sharper.begin(), sharper.begin() + 32, plain.begin())) << "the first head";
  EXPECT_TRUE(std::equal(sharper.begin() + 32, sharper.begin() + 64, plain.begin() + 32)) << "the other";
}

TEST_P(AttentionTest, EveryLengthAroundPagesBlocksSegmentsAndTheWindowMatchesTheDefinition) {
  Problem problem;
  problem.query_heads = 2;
  problem.shape.head_dim = 16;
  for (const int32_t window : {0, 1, 15, 16, 17, 64, 100}) {
    problem.window = window;
    problem.sequences.clear();
    for (const int64_t length : {1, 15, 16, 17, 63, 64, 65, 99, 100, 101, 511, 512, 513, 1025}) {
      problem.sequences.push_back({0, length, 1});
      problem.sequences.push_back({0, length, static_cast<int32_t>(std::min<int64_t>(length, 66))});
      problem.sequences.push_back({0, 0, 0});
    }
    SCOPED_TRACE(testing::Message() << "window " << window);
    ExpectMatchesDefinition(problem);
  }
}

// What the engine does: pages that left the window are gone from the table.
TEST_P(AttentionTest, TablesThatRolledMatchTheDefinition) {
  Problem problem;
  problem.query_heads = 3;
  problem.shape = {.kv_heads = 1, .head_dim = 32, .page_size = 16};
  problem.window = 64;
  for (const int64_t end : {65, 79, 80, 81, 1000, 20003}) {
    for (const int32_t queries : {1, 2, 17, 40}) {
      const int64_t first_visible = std::max<int64_t>(0, end - queries - 63);
      problem.sequences.push_back({first_visible / 16 * 16, end, queries});
    }
  }
  for (const bool rings : {false, true}) {
    problem.shape.rings = rings;
    ExpectMatchesDefinition(problem);
  }
}

TEST_P(AttentionTest, NothingThatNoQuerySeesIsRead) {
  // f32 keys of 256 dimensions: four slots fill a page of the operating system.
  Problem problem;
  problem.query_heads = 2;
  problem.shape = {.dtype = DType::kF32, .head_dim = 256, .page_size = 16, .whole_os_pages = true};
  problem.window = 20;
  problem.sequences = {{0, 100, 1}, {0, 100, 9}, {64, 108, 1}, {0, 12, 12},
                       {0, 0, 0},   {0, 600, 1}, {0, 1, 1}};
  const auto kv = MakeKv(problem, 3);
  const std::vector<int64_t> first_visible = {80, 72, 88, 0, 0, 580, 0};
  const BackendPtr backend = MakeBackend(GetParam(), 2, kv->Maxima(problem.query_heads));
  const std::vector<float> before = RunAttention(*backend, problem, *kv);
  kv->ForbidAllBut(first_visible);
  ASSERT_GT(kv->forbidden_bytes(), kv->pool_bytes() / 2);
  EXPECT_EQ(RunAttention(*backend, problem, *kv), before);
}

TEST_P(AttentionTest, WindowForgetsExactlyTheTokenBeyondIt) {
  Problem problem;
  problem.shape = {.dtype = DType::kF32, .head_dim = 8, .page_size = 4};
  problem.window = 5;
  problem.sequences = {{0, 12, 1}};
  const auto kv = MakeKv(problem, 5);
  const BackendPtr backend = MakeBackend(GetParam(), 1, kv->Maxima(problem.query_heads));
  const std::vector<float> before = RunAttention(*backend, problem, *kv);
  kv->Set(KvHalf::kValue, 0, 6, 0, 0, 100.0);  // the query at 11 sees 7..11
  EXPECT_EQ(RunAttention(*backend, problem, *kv), before);
  kv->Set(KvHalf::kValue, 0, 7, 0, 0, 100.0);
  EXPECT_NE(RunAttention(*backend, problem, *kv), before);
}

// ---- the same bits, however the work is cut -----------------------------------------------------

constexpr int64_t kInvariantLength = 1100;  // two segments and a bit

class AttentionInvarianceTest : public CpuVariantTest {
 protected:
  static Problem BaseProblem(int32_t window) {
    Problem problem;
    problem.query_heads = 6;
    problem.shape = {.kv_heads = 2, .head_dim = 24, .page_size = 16};
    problem.window = window;
    problem.sequences = {{0, kInvariantLength, static_cast<int32_t>(kInvariantLength)}};
    return problem;
  }
  // Rows of the whole prompt in one call, one thread.
  std::vector<float> Whole(int32_t window) {
    const Problem problem = BaseProblem(window);
    const auto kv = MakeKv(problem, 21);
    const BackendPtr backend = MakeBackend(GetParam(), 1, kv->Maxima(problem.query_heads));
    return RunAttention(*backend, problem, *kv);
  }
  // Runs sequence 0 of `problem` and compares its rows with those positions of the whole prompt.
  void ExpectSameBits(const Problem& problem, const std::vector<float>& whole, int32_t threads) {
    const auto kv = MakeKv(problem, 21);
    const BackendPtr backend = MakeBackend(GetParam(), threads, kv->Maxima(problem.query_heads));
    const std::vector<float> out = RunAttention(*backend, problem, *kv);
    const int64_t columns = problem.query_heads * problem.shape.head_dim;
    const int64_t rows = problem.sequences[0].queries;
    EXPECT_EQ(std::memcmp(out.data(), whole.data() + kv->QueryBegin(0) * columns,
                          static_cast<size_t>(rows * columns) * sizeof(float)),
              0)
        << rows << " queries up to " << problem.sequences[0].kv_end << ", " << threads << " threads";
  }
};
TM_INSTANTIATE_FOR_CPU_VARIANTS(AttentionInvarianceTest);

TEST_P(AttentionInvarianceTest, AnyChunkAnyThreadsAnyPagesAnyBatchMatesGiveTheSameBits) {
  constexpr uint64_t kSeed = 99;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (const int32_t window : {0, 70, 600}) {
    SCOPED_TRACE(testing::Message() << "window " << window);
    const std::vector<float> whole = Whole(window);
    std::mt19937_64 random(kSeed);
    for (const int32_t threads : {1, 2, 3, 4}) {
      for (int64_t cut = ScaledCount(11, 3); cut > 0; --cut) {
        const int64_t end = 1 + static_cast<int64_t>(random() % kInvariantLength);
        Problem problem = BaseProblem(window);
        const auto queries =
            static_cast<int32_t>(std::min<int64_t>(end, 1 + static_cast<int64_t>(random() % 300)));
        problem.shape.page_size = static_cast<int32_t>(1 + random() % 40);
        problem.shape.order = random() % 2 == 0 ? KvOrder::kHnd : KvOrder::kNhd;
        problem.shape.seed = random();
        const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, end - queries - window + 1);
        problem.sequences = {{first / problem.shape.page_size * problem.shape.page_size, end, queries}};
        for (uint64_t mates = random() % 3; mates > 0; --mates) {
          problem.sequences.push_back({0, 30 + static_cast<int64_t>(mates), static_cast<int32_t>(mates)});
        }
        ExpectSameBits(problem, whole, threads);
      }
    }
  }
}

// One query over a long context: the split over threads must not show.
TEST_P(AttentionInvarianceTest, DecodeGivesTheBitsOfPrefill) {
  for (const int32_t window : {0, 600}) {
    const std::vector<float> whole = Whole(window);
    for (const int32_t threads : {1, 2, 4}) {
      for (const int64_t end :
           {int64_t{1}, int64_t{64}, int64_t{512}, int64_t{513}, int64_t{1024}, kInvariantLength}) {
        Problem problem = BaseProblem(window);
        problem.sequences = {{0, end, 1}};
        ExpectSameBits(problem, whole, threads);
      }
    }
  }
}

// Up to 8 rows a tile read keys and values as they lie in their pages; more rows share copies.
TEST_P(AttentionInvarianceTest, OneToTenRowsGiveTheBitsOfManyRowTiles) {
  constexpr int64_t kLength = 560;  // every group leaves tiles of more than 8 rows
  struct Shape {
    DType dtype;
    int32_t head_dim, page_size;
    KvOrder order;
  };
  for (const Shape& shape : {Shape{DType::kBf16, 128, 16, KvOrder::kHnd},
                             {DType::kBf16, 80, 64, KvOrder::kNhd},
                             {DType::kBf16, 12, 7, KvOrder::kHnd},
                             {DType::kF16, 64, 16, KvOrder::kHnd},
                             {DType::kF16, 24, 5, KvOrder::kNhd},
                             {DType::kF32, 64, 64, KvOrder::kHnd},
                             {DType::kF32, 20, 16, KvOrder::kHnd},
                             {DType::kInt8, 64, 16, KvOrder::kHnd},
                             {DType::kInt8, 24, 5, KvOrder::kNhd},
                             {DType::kInt4, 128, 16, KvOrder::kHnd},
                             {DType::kInt4, 8, 7, KvOrder::kNhd},
                             {DType::kFp8E4M3, 64, 16, KvOrder::kHnd},
                             {DType::kFp8E4M3, 20, 7, KvOrder::kNhd}}) {
    const bool all_groups = TestScalePercent() == 100;
    for (const int32_t group :
         all_groups ? std::vector<int32_t>{1, 2, 3, 4, 5, 7, 8} : std::vector<int32_t>{3, 4}) {
      Problem problem;
      problem.query_heads = 2 * group;
      problem.shape = {.dtype = shape.dtype,
                       .kv_heads = 2,
                       .head_dim = shape.head_dim,
                       .page_size = shape.page_size,
                       .order = shape.order};
      problem.window = group % 2 == 0 ? 0 : 100;
      SCOPED_TRACE(testing::Message() << DTypeName(shape.dtype) << " x " << shape.head_dim << ", pages of "
                                      << shape.page_size << ", group " << group);
      problem.sequences = {{0, kLength, static_cast<int32_t>(kLength)}};
      const auto all = MakeKv(problem, 21);
      const BackendPtr backend = MakeBackend(GetParam(), 1, all->Maxima(problem.query_heads));
      const std::vector<float> whole = RunAttention(*backend, problem, *all);
      for (int32_t queries = 1; queries * group <= 10; ++queries) {
        for (const int64_t end : {int64_t{queries}, int64_t{17}, int64_t{65}, int64_t{514}, kLength}) {
          problem.sequences = {{0, end, queries}};
          ExpectSameBits(problem, whole, 1 + queries % 2);
        }
      }
    }
  }
}

// ---- numbers at the edge ------------------------------------------------------------------------

TEST_P(AttentionTest, HugeScoresPickTheHighestKeyWithoutOverflow) {
  Problem problem;
  problem.shape = {.dtype = DType::kF32, .head_dim = 8};
  problem.sequences = {{0, 40, 1}};
  const auto kv = MakeKv(problem, 5);
  for (int64_t position = 0; position < 40; ++position) {
    for (int32_t d = 0; d < 8; ++d) kv->Set(KvHalf::kKey, 0, position, 0, d, position == 17 ? 1e15 : -1e15);
  }
  std::vector<float> query(8 + 24, 1e15f);
  const BackendPtr backend = MakeBackend(GetParam(), 1, kv->Maxima(problem.query_heads));
  const std::vector<float> out = RunAttention(*backend, problem, *kv, &query);
  for (int32_t d = 0; d < 8; ++d)
    EXPECT_EQ(out[static_cast<size_t>(d)], kv->Get(KvHalf::kValue, 0, 17, 0, d));
}

TEST_P(AttentionTest, NanStaysInItsOwnSequence) {
  Problem problem;
  problem.query_heads = 2;
  problem.shape = {.kv_heads = 1, .head_dim = 16};
  problem.sequences = {{0, 40, 2}, {0, 20, 1}, {0, 33, 3}};
  const auto kv = MakeKv(problem, 5);
  const BackendPtr backend = MakeBackend(GetParam(), 2, kv->Maxima(problem.query_heads));
  const std::vector<float> clean = RunAttention(*backend, problem, *kv);
  kv->Set(KvHalf::kKey, 1, 7, 0, 3, std::numeric_limits<double>::quiet_NaN());
  const std::vector<float> out = RunAttention(*backend, problem, *kv);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t token = i / 32;
    if (token == 2) {
      EXPECT_TRUE(std::isnan(out[i]));
    } else {
      EXPECT_EQ(out[i], clean[i]);
    }
  }
}

// A scale that is no number makes its group none; nobody else's row is touched.
TEST_P(AttentionTest, ANanInAQuantisedRowStaysInItsOwnSequence) {
  for (const DType dtype : {DType::kInt8, DType::kInt4, DType::kFp8E4M3}) {
    SCOPED_TRACE(DTypeName(dtype));
    Problem problem;
    problem.query_heads = 2;
    problem.shape = {.dtype = dtype, .kv_heads = 1, .head_dim = 16};
    problem.sequences = {{0, 40, 2}, {0, 20, 1}, {0, 33, 30}};
    const auto kv = MakeKv(problem, 5);
    const BackendPtr backend = MakeBackend(GetParam(), 2, kv->Maxima(problem.query_heads));
    const std::vector<float> clean = RunAttention(*backend, problem, *kv);
    std::vector<float> key(16, 1.0f);
    key[3] = kNan;
    kv->SetVector(KvHalf::kKey, 1, 7, 0, key);
    const std::vector<float> out = RunAttention(*backend, problem, *kv);
    for (size_t i = 0; i < out.size(); ++i) {
      if (i / 32 == 2) {
        EXPECT_TRUE(std::isnan(out[i]));
      } else {
        EXPECT_EQ(out[i], clean[i]);
      }
    }
  }
}

// ---- golden masks -------------------------------------------------------------------------------

// One forward of a batch with window 3. Columns are keys by position, `|` between sequences (for decode steps
// in the order of a ring of 3 slots, where `-` is an empty one); 1: may attend.
struct MaskRow {
  int32_t sequence;
  int64_t position;
  const char* mask;
};
struct MaskStep {
  const char* keys;
  std::vector<MaskRow> rows;
};

std::vector<std::vector<std::string>> Sections(const std::string& text) {
  std::vector<std::vector<std::string>> sections;
  std::istringstream by_sequence(text);
  for (std::string section; std::getline(by_sequence, section, '|');) {
    std::istringstream words(section);
    sections.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  return sections;
}

class AttentionMaskTest : public CpuVariantTest {
 protected:
  // Keys are zero, so every visible key has the same weight; the value at position p is the unit vector p, so
  // the output shows which keys were seen.
  void ExpectMasks(int32_t sequences, const std::vector<MaskStep>& steps) {
    for (const int32_t page_size : {1, 2, 3, 16}) {
      for (size_t step = 0; step < steps.size(); ++step) {
        SCOPED_TRACE(testing::Message() << "page size " << page_size << ", step " << step);
        ExpectMask(sequences, steps[step], page_size);
      }
    }
  }

  void ExpectMask(int32_t sequences, const MaskStep& step, int32_t page_size) {
    constexpr int32_t kWindow = 3;
    Problem problem;
    problem.shape = {.head_dim = 8, .page_size = page_size};
    problem.window = kWindow;
    problem.sequences.resize(static_cast<size_t>(sequences));
    for (const MaskRow& row : step.rows) {
      Sequence& sequence = problem.sequences[static_cast<size_t>(row.sequence)];
      if (sequence.queries++ == 0) {
        sequence.kv_base = std::max<int64_t>(0, row.position - kWindow + 1) / page_size * page_size;
      }
      sequence.kv_end = row.position + 1;
    }
    const auto kv = MakeKv(problem, 1);
    for (int32_t b = 0; b < sequences; ++b) {
      const Sequence& sequence = problem.sequences[static_cast<size_t>(b)];
      for (int64_t position = sequence.kv_base; position < sequence.kv_end; ++position) {
        for (int32_t d = 0; d < 8; ++d) {
          kv->Set(KvHalf::kKey, b, position, 0, d, 0.0);
          kv->Set(KvHalf::kValue, b, position, 0, d, position == d ? 1.0 : 0.0);
        }
      }
    }
    const BackendPtr backend = MakeBackend(GetParam(), 2, kv->Maxima(problem.query_heads));
    const std::vector<float> out = RunAttention(*backend, problem, *kv);
    for (size_t r = 0; r < step.rows.size(); ++r) ExpectSeen(step, step.rows[r], &out[r * 8]);
  }

  static void ExpectSeen(const MaskStep& step, const MaskRow& row, const float* out) {
    const auto keys = Sections(step.keys);
    const auto mask = Sections(row.mask);
    ASSERT_EQ(keys.size(), mask.size());
    std::vector<float> expected(8, 0.0f);
    for (size_t b = 0; b < mask.size(); ++b) {
      ASSERT_EQ(keys[b].size(), mask[b].size());
      for (size_t column = 0; column < mask[b].size(); ++column) {
        if (mask[b][column] != "1") continue;
        ASSERT_EQ(static_cast<int32_t>(b), row.sequence);
        expected[static_cast<size_t>(std::stoi(keys[b][column]))] = 1.0f;
      }
    }
    const float seen = static_cast<float>(std::count(expected.begin(), expected.end(), 1.0f));
    for (float& e : expected) e /= seen;
    for (size_t d = 0; d < 8; ++d) {
      EXPECT_EQ(out[d], expected[d]) << "sequence " << row.sequence << " query " << row.position << " key "
                                     << d;
    }
  }
};
TM_INSTANTIATE_FOR_CPU_VARIANTS(AttentionMaskTest);

TEST_P(AttentionMaskTest, LengthsFourOneThreeInChunksOfTwoThenDecode) {
  ExpectMasks(3, {{"0 1|0|0 1",
                   {{0, 0, "1 0|0|0 0"},
                    {0, 1, "1 1|0|0 0"},
                    {1, 0, "0 0|1|0 0"},
                    {2, 0, "0 0|0|1 0"},
                    {2, 1, "0 0|0|1 1"}}},
                  {"0 1 2 3|0|0 1 2",
                   {{0, 2, "1 1 1 0|0|0 0 0"},  //
                    {0, 3, "0 1 1 1|0|0 0 0"},
                    {2, 2, "0 0 0 0|0|1 1 1"}}},
                  {"3 4 2|0 1 -|3 1 2",
                   {{0, 4, "1 1 1|0 0 0|0 0 0"},  //
                    {1, 1, "0 0 0|1 1 0|0 0 0"},
                    {2, 3, "0 0 0|0 0 0|1 1 1"}}},
                  {"3 4 5|0 1 2|3 4 2",
                   {{0, 5, "1 1 1|0 0 0|0 0 0"},  //
                    {1, 2, "0 0 0|1 1 1|0 0 0"},
                    {2, 4, "0 0 0|0 0 0|1 1 1"}}}});
}

TEST_P(AttentionMaskTest, LengthsFourThreeInChunksOfTwoThenDecode) {
  ExpectMasks(2,
              {{"0 1|0 1", {{0, 0, "1 0|0 0"}, {0, 1, "1 1|0 0"}, {1, 0, "0 0|1 0"}, {1, 1, "0 0|1 1"}}},
               {"0 1 2 3|0 1 2", {{0, 2, "1 1 1 0|0 0 0"}, {0, 3, "0 1 1 1|0 0 0"}, {1, 2, "0 0 0 0|1 1 1"}}},
               {"3 4 2|3 1 2", {{0, 4, "1 1 1|0 0 0"}, {1, 3, "0 0 0|1 1 1"}}},
               {"3 4 5|3 4 2", {{0, 5, "1 1 1|0 0 0"}, {1, 4, "0 0 0|1 1 1"}}},
               {"6 4 5|3 4 5", {{0, 6, "1 1 1|0 0 0"}, {1, 5, "0 0 0|1 1 1"}}}});
}

TEST_P(AttentionMaskTest, PromptLongerThanTheWindowInOneChunk) {
  ExpectMasks(2, {{"0 1 2 3 4|0 1",
                   {{0, 0, "1 0 0 0 0|0 0"},
                    {0, 1, "1 1 0 0 0|0 0"},
                    {0, 2, "1 1 1 0 0|0 0"},
                    {0, 3, "0 1 1 1 0|0 0"},
                    {0, 4, "0 0 1 1 1|0 0"},
                    {1, 0, "0 0 0 0 0|1 0"},
                    {1, 1, "0 0 0 0 0|1 1"}}},
                  {"3 4 5|0 1 2", {{0, 5, "1 1 1|0 0 0"}, {1, 2, "0 0 0|1 1 1"}}}});
}

}  // namespace
}  // namespace tramontane
