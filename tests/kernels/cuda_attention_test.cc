// The attention kernels, run on the emulator from their own source, against the definition in double
// precision.
//
// Tolerance: q, k, v are exact in T (the fixture rounds them). P is rounded to T before the second product
// and the output once more: each a relative error of at most u = 2^-9 (bf16) or 2^-12 (f16, 11 bits). With
// weights that sum to one, |error| <= (2u + small f32 terms) * max |v|; 3u * max |v| leaves half of u for the
// f32 sums.
#include "kernels/cuda/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/emulator/emulator.h"
#include "tests/reference/attention.h"
#include "tests/support/paged_kv_fixture.h"

namespace tramontane {
namespace {

struct Case {
  const char* name;
  PagedKvShape kv;
  std::vector<PagedSpan> spans;
  std::vector<int32_t> queries;
  int32_t group = 4;
  int32_t window = 0;
  int32_t tile_rows = 16;
  int32_t target_blocks = 8;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class CudaAttentionTest : public testing::TestWithParam<std::tuple<Case, emulator::LaneOrder>> {};

struct Outcome {
  std::vector<uint16_t> out;  // [tokens, query_heads * head_dim] bits
  emulator::LaunchStats stats;
  cuda::AttentionWork work;
};

double ToDouble(DType dtype, uint16_t bits) {
  return dtype == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
}
uint16_t ToBits(DType dtype, float x) { return dtype == DType::kBf16 ? FloatToBf16(x) : FloatToF16(x); }

Outcome RunCase(const Case& c, const PagedKvFixture& kv, const std::vector<uint16_t>& query) {
  const int32_t width = c.group * c.kv.kv_heads * c.kv.head_dim;
  const PageTableView table = kv.Table();
  const int32_t bound =
      cuda::AttentionItemBound(kv.tokens(), kv.batch(), c.group, c.tile_rows, c.target_blocks);
  std::vector<cuda::AttentionItem> items(static_cast<size_t>(bound)), twin_items(items.size());
  std::vector<cuda::AttentionMerge> merges(items.size()), twin_merges(items.size());
  Outcome outcome;
  outcome.out.assign(static_cast<size_t>(kv.tokens()) * static_cast<size_t>(width), 0x7FFF);  // NaN
  cuda::AttentionPlanParams plan{table.kv_indptr, table.last_page_len, table.kv_base,   kv.qo_indptr(),
                                 kv.batch(),      c.kv.page_size,      c.window,        c.group,
                                 c.tile_rows,     c.kv.kv_heads,       c.target_blocks, bound,
                                 items.data(),    merges.data(),       &outcome.work};
  EXPECT_EQ(cuda::PlanAttention(plan, nullptr), 0);

  // The host twin gives identical lists.
  cuda::AttentionWork twin{};
  plan.items = twin_items.data();
  plan.merges = twin_merges.data();
  plan.work = &twin;
  cuda::PlanAttentionOnHost(plan);
  EXPECT_EQ(std::memcmp(&twin, &outcome.work, sizeof(twin)), 0);
  EXPECT_LE(twin.items, bound);
  EXPECT_EQ(std::memcmp(items.data(), twin_items.data(), sizeof(items[0]) * static_cast<size_t>(twin.items)),
            0);
  EXPECT_EQ(
      std::memcmp(merges.data(), twin_merges.data(), sizeof(merges[0]) * static_cast<size_t>(twin.merges)),
      0);

  const auto slots = static_cast<size_t>(twin.partials) * static_cast<size_t>(c.kv.kv_heads * c.tile_rows);
  const float nan = std::nanf("");
  std::vector<float> partial_out(slots * static_cast<size_t>(c.kv.head_dim), nan), partial_lse(slots, nan);
  const cuda::AttentionRunParams run{query.data(),
                                     outcome.out.data(),
                                     width,
                                     width,
                                     kv.View(),
                                     table.kv_indptr,
                                     table.page_indices,
                                     table.last_page_len,
                                     table.kv_base,
                                     kv.qo_indptr(),
                                     items.data(),
                                     merges.data(),
                                     &outcome.work,
                                     partial_out.data(),
                                     partial_lse.data(),
                                     nullptr,
                                     c.window,
                                     c.group,
                                     c.tile_rows,
                                     bound,
                                     1.0f / std::sqrt(static_cast<float>(c.kv.head_dim))};
  emulator::TotalStats() = {};
  EXPECT_EQ(cuda::RunAttention(run, nullptr), 0);
  outcome.stats = emulator::TotalStats();
  return outcome;
}

std::vector<uint16_t> RandomQuery(const Case& c, int32_t tokens) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> query(static_cast<size_t>(tokens) * static_cast<size_t>(c.group * c.kv.kv_heads) *
                              static_cast<size_t>(c.kv.head_dim));
  for (uint16_t& bits : query) bits = ToBits(c.kv.dtype, normal(random));
  return query;
}

TEST_P(CudaAttentionTest, AgreesWithTheDefinition) {
  const auto& [c, order] = GetParam();
  emulator::CurrentSettings() = {.order = order, .seed = 11};
  PagedKvFixture kv(c.kv, c.spans);
  kv.FillRandom(3);
  kv.SetQueries(c.queries);
  const std::vector<uint16_t> query = RandomQuery(c, kv.tokens());
  const Outcome outcome = RunCase(c, kv, query);

  const int32_t heads = c.group * c.kv.kv_heads;
  const auto width = static_cast<size_t>(heads * c.kv.head_dim);
  const double unit = c.kv.dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
  for (int32_t b = 0; b < kv.batch(); ++b) {
    const auto first = static_cast<size_t>(kv.qo_indptr()[b]);
    reference::AttentionProblem problem;
    problem.query_heads = heads;
    problem.kv_heads = c.kv.kv_heads;
    problem.head_dim = c.kv.head_dim;
    problem.window = c.window;
    problem.scale = 1.0 / std::sqrt(static_cast<double>(c.kv.head_dim));
    problem.query_begin = kv.QueryBegin(b);
    problem.key_begin = c.spans[static_cast<size_t>(b)].kv_base;
    for (size_t i = first * width; i < (first + static_cast<size_t>(kv.QueryCount(b))) * width; ++i) {
      problem.query.push_back(ToDouble(c.kv.dtype, query[i]));
    }
    problem.keys = kv.All(KvHalf::kKey, b, problem.key_begin);
    problem.values = kv.All(KvHalf::kValue, b, problem.key_begin);
    double most = 0;
    for (const double v : problem.values) most = std::max(most, std::fabs(v));
    const std::vector<double> expected = reference::Attention(problem);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(ToDouble(c.kv.dtype, outcome.out[first * width + i]), expected[i], 2.25 * unit * most)
          << "sequence " << b << " element " << i;
    }
  }
}

TEST_P(CudaAttentionTest, LoadsItsMatricesWithoutBankConflicts) {
  const auto& [c, order] = GetParam();
  emulator::CurrentSettings() = {.order = order, .seed = 11};
  PagedKvFixture kv(c.kv, c.spans);
  kv.FillRandom(3);
  kv.SetQueries(c.queries);
  const Outcome outcome = RunCase(c, kv, RandomQuery(c, kv.tokens()));
  EXPECT_GT(outcome.stats.matrix_loads, 0);
  EXPECT_EQ(outcome.stats.bank_conflicts, 0);
}

PagedKvShape Kv(int32_t kv_heads, int32_t head_dim, int32_t page_size, DType dtype = DType::kBf16,
                KvOrder order = KvOrder::kHnd) {
  PagedKvShape shape;
  shape.dtype = dtype;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.page_size = page_size;
  shape.order = order;
  return shape;
}

const Case kCases[] = {
    Case{"DecodeOneKey", Kv(2, 128, 16), {{0, 1}}, {1}},
    Case{"DecodePageEdges",
         Kv(2, 128, 16),
         {{0, 15}, {0, 16}, {0, 17}, {0, 63}, {0, 64}, {0, 65}},
         {1, 1, 1, 1, 1, 1}},
    Case{"DecodeSplit", Kv(1, 128, 16), {{0, 1100}, {0, 40}}, {1, 1}, 4, 0, 16, 16},
    Case{"DecodeWindow", Kv(2, 64, 16), {{0, 31}, {0, 32}, {0, 33}, {256, 420}}, {1, 1, 1, 1}, 4, 32},
    Case{"DecodeGroup1", Kv(2, 32, 16), {{0, 70}}, {1}, 1},
    Case{"DecodeGroup3", Kv(1, 96, 16), {{0, 70}}, {1}, 3},
    Case{"DecodeGroup16", Kv(1, 64, 32), {{0, 200}}, {1}, 16},
    Case{"DecodeHalf", Kv(2, 128, 16, DType::kF16), {{0, 130}}, {1}},
    Case{"DecodeNhd", Kv(2, 64, 16, DType::kBf16, KvOrder::kNhd), {{0, 130}}, {1}},
    Case{"DecodePageOfOne", Kv(1, 32, 1), {{0, 67}}, {1}, 2},
    Case{"DecodePageOf128", Kv(1, 32, 128), {{128, 300}}, {1}, 4, 100},
    Case{"EmptyNeighbour", Kv(1, 64, 16), {{0, 20}, {0, 0}, {0, 9}}, {1, 0, 3}},
    Case{"PrefillWhole", Kv(2, 64, 16), {{0, 100}}, {100}, 4, 0, 64},
    Case{"PrefillChunkInWindow", Kv(1, 128, 16), {{64, 200}, {0, 30}}, {40, 30}, 4, 48, 64},
    Case{"PrefillRaggedSmallTile", Kv(2, 32, 16), {{0, 77}, {0, 5}, {0, 33}}, {9, 5, 1}, 5, 20, 16},
    Case{"PrefillSplit", Kv(1, 32, 16), {{0, 900}}, {20}, 4, 0, 64, 16}};

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttentionTest,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(emulator::LaneOrder::kForward,
                                                          emulator::LaneOrder::kReverse,
                                                          emulator::LaneOrder::kRandom)),
                         [](const auto& info) {
                           const emulator::LaneOrder order = std::get<1>(info.param);
                           return std::string(std::get<0>(info.param).name) +
                                  (order == emulator::LaneOrder::kForward   ? "Forward"
                                   : order == emulator::LaneOrder::kReverse ? "Reverse"
                                                                            : "Random");
                         });

}  // namespace
}  // namespace tramontane
