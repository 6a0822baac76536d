// The attention kernels against the definition in double precision: on the emulator in every build, on a GPU
// in bench/gpu_check. The host twin of the plan is held to the same lists by every case.
//
// Tolerance: q, k, v are exact in T (the fixture rounds them). P is rounded to T before the second product
// and the output once more: each a relative error of at most u = 2^-9 (bf16) or 2^-12 (f16, 11 bits). With
// weights that sum to one, |error| <= (2u + small f32 terms) * max |v|; 4.5u * max |v| also holds a rounding
// of each split's part. The lse has no rounding to T: 128 products of standard normals err by less than 128 *
// 2^-24 * 128 in f32, times scale * log2(e) <= 1/7 below 2e-4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/hopper_attention.h"
#include "tests/kernels/cuda_attention_case.h"
#include "tests/reference/attention.h"
#include "tests/support/cuda_device.h"

namespace tramontane {

std::ostream& operator<<(std::ostream& out, const AttentionCase& c) { return out << c.name; }

namespace {

constexpr double kLseTolerance = 2e-4;

class CudaAttentionTest : public testing::TestWithParam<std::tuple<AttentionCase, ThreadOrder>> {};

reference::AttentionProblem ProblemOf(const AttentionCase& c, const PagedKvFixture& kv,
                                      const std::vector<uint16_t>& query, int32_t b) {
  const auto width = static_cast<size_t>(c.heads() * c.kv.head_dim);
  const auto first = static_cast<size_t>(kv.qo_indptr()[b]);
  reference::AttentionProblem problem;
  problem.query_heads = c.heads();
  problem.kv_heads = c.kv.kv_heads;
  problem.head_dim = c.kv.head_dim;
  problem.window = c.window;
  problem.scale = 1.0 / std::sqrt(static_cast<double>(c.kv.head_dim));
  problem.query_begin = kv.QueryBegin(b);
  problem.key_begin = c.spans[static_cast<size_t>(b)].kv_base;
  for (size_t i = first * width; i < (first + static_cast<size_t>(kv.QueryCount(b))) * width; ++i) {
    problem.query.push_back(AttentionDouble(c.kv.dtype, query[i]));
  }
  problem.keys = kv.All(KvHalf::kKey, b, problem.key_begin);
  problem.values = kv.All(KvHalf::kValue, b, problem.key_begin);
  return problem;
}

// Where a rounded multiplier could be one off: at the ends of every quotient, and at those of the numbers.
TEST(PageDivisorTest, DividesAsTheLanguageDoes) {
  std::vector<int32_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (int bit = 9; bit < 31; ++bit) {
    for (const int32_t off : {-1, 0, 1}) sizes.push_back((1 << bit) + off);
  }
  sizes.push_back(std::numeric_limits<int32_t>::max());
  for (const int32_t size : sizes) {
    const cuda::PageDivisor divisor(size);
    ASSERT_EQ(divisor.size(), size);
    const int64_t most = std::numeric_limits<int32_t>::max(), quotients = most / size;
    const int64_t step = std::max<int64_t>(1, quotients / 1000);
    for (int64_t quotient = 0; quotient <= quotients + 1; quotient += step) {
      for (const int64_t n : {quotient * size - 1, quotient * size, quotient * size + 1, most - quotient}) {
        if (n < 0 || n > most) continue;
        ASSERT_EQ(divisor.Quotient(static_cast<int32_t>(n)), n / size) << n << " / " << size;
      }
    }
  }
}

// What no row of a sequence sees any more is NaN, on the page that the window's first key is on, too; of
// pages that are shared what no row at all sees.
void PoisonBeforeWindows(const AttentionCase& c, PagedKvFixture* kv) {
  const std::vector<float> poison(static_cast<size_t>(c.kv.head_dim), std::nanf(""));
  int64_t seen_by_all = std::numeric_limits<int64_t>::max();
  for (int32_t b = 0; b < kv->batch(); ++b)
    seen_by_all = std::min(seen_by_all, FirstVisible(kv->QueryBegin(b), c.window));
  for (int32_t b = 0; b < kv->batch(); ++b) {
    const int64_t seen = c.shared.empty() ? FirstVisible(kv->QueryBegin(b), c.window) : seen_by_all;
    for (int64_t at = c.spans[static_cast<size_t>(b)].kv_base; at < seen; ++at) {
      for (int32_t head = 0; head < c.kv.kv_heads; ++head) {
        kv->SetVector(KvHalf::kKey, b, at, head, poison);
        kv->SetVector(KvHalf::kValue, b, at, head, poison);
      }
    }
  }
}

TEST_P(CudaAttentionTest, AgreesWithTheDefinition) {
  const auto& [c, order] = GetParam();
  if (c.hopper && !DeviceIsHopper())
    GTEST_SKIP() << "no device of compute capability 9.0: its kernels did not run";
  UseThreadOrder(order);
  PagedKvFixture kv(c.kv, c.spans);
  FillCase(c, &kv);
  const std::vector<uint16_t> query = RandomQuery(c, kv.tokens());
  std::vector<reference::AttentionProblem> problems;
  for (int32_t b = 0; b < kv.batch(); ++b) problems.push_back(ProblemOf(c, kv, query, b));
  PoisonBeforeWindows(c, &kv);
  const AttentionOutcome outcome = RunAttentionCase(c, kv, query);
  // A case of sharers has some where a tile has room for two.
  const bool shares = std::any_of(outcome.sharers.begin(), outcome.sharers.end(),
                                  [](const cuda::AttentionSharers& own) { return own.count > 1; });
  ASSERT_EQ(shares, !c.shared.empty() && cuda::SharersOfTile(c.group) > 1);

  const auto heads = static_cast<size_t>(c.heads()), width = heads * static_cast<size_t>(c.kv.head_dim);
  const double unit = c.kv.dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
  for (int32_t b = 0; b < kv.batch(); ++b) {
    const auto first = static_cast<size_t>(kv.qo_indptr()[b]);
    const reference::AttentionProblem& problem = problems[static_cast<size_t>(b)];
    double most = 0;
    for (const double v : problem.values) most = std::max(most, std::fabs(v));
    const std::vector<double> expected = reference::Attention(problem);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(AttentionDouble(c.kv.dtype, outcome.out[first * width + i]), expected[i],
                  2.25 * unit * most)
          << "sequence " << b << " element " << i;
    }
    const std::vector<double> lse = reference::AttentionLse(problem);
    for (size_t i = 0; i < lse.size(); ++i) {
      ASSERT_NEAR(outcome.lse[first * heads + i], lse[i], kLseTolerance)
          << "sequence " << b << " head row " << i;
    }
  }
}

// ---- cases --------------------------------------------------------------------------------------

using Cases = std::vector<AttentionCase>;

Cases SingleCases() {
  return {
      {"DecodeOneKey", KvOf(2, 128, 16), {{0, 1}}, {1}},
      {"DecodeSplit", KvOf(1, 128, 16), {{0, 1100}, {0, 40}}, {1, 1}, 4, 0, 16, 16},
      {"DecodeSplitInWindow", KvOf(1, 64, 16), {{1024, 2000}, {0, 40}}, {1, 1}, 4, 700, 16, 16},
      {"DecodeRolledWindow", KvOf(2, 64, 16), {{256, 420}}, {1}, 4, 32},
      {"NoSequenceAtAll", KvOf(1, 64, 16), {{0, 0}}, {0}},
      {"EmptyNeighbours", KvOf(1, 64, 16), {{0, 0}, {0, 20}, {0, 0}, {0, 9}, {0, 0}}, {0, 1, 0, 3, 0}},
      {"IdleNeighbour", KvOf(1, 64, 16), {{0, 20}, {0, 50}, {0, 9}}, {1, 0, 1}},
      {"PrefillWhole", KvOf(2, 64, 16), {{0, 100}}, {100}, 4, 0, 64},
      {"PrefillChunkInWindow", KvOf(1, 128, 16), {{64, 200}, {0, 30}}, {40, 30}, 4, 48, 64},
      {"PrefillChunkAcrossTheRoll", KvOf(1, 64, 16), {{32, 150}, {0, 40}}, {70, 40}, 4, 48, 64},
      {"PrefillChunkLongerThanItsWindow", KvOf(1, 64, 16), {{0, 130}}, {130}, 2, 20, 64},
      {"PrefillWindowOfOne", KvOf(1, 32, 16), {{16, 50}}, {20}, 2, 1, 64},
      {"PrefillRaggedSmallTile", KvOf(2, 32, 16), {{0, 77}, {0, 5}, {0, 33}}, {9, 5, 1}, 5, 20, 16},
      {"PrefillSplit", KvOf(1, 32, 16), {{0, 900}}, {20}, 4, 0, 64, 16},
      {"PrefillSplitInWindow", KvOf(1, 32, 16), {{512, 1400}}, {20}, 4, 600, 64, 16},
      {"PrefillAndDecodeTogether", KvOf(2, 64, 16), {{0, 70}, {0, 33}, {64, 200}}, {30, 1, 1}, 4, 100, 16}};
}

// As the engine keeps tables.
Cases RingCases() {
  Cases cases = SingleCases();
  for (AttentionCase& c : cases) {
    c.name += "InRings";
    c.kv.rings = true;
  }
  return cases;
}

// A decode and a prefill of every ratio of query heads to kv heads.
Cases GroupCases() {
  Cases cases;
  for (int32_t group = 1; group <= 16; ++group) {
    const std::string name = "Group" + std::to_string(group);
    cases.push_back({name + "Decode", KvOf(2, 32, 16), {{0, 37}, {16, 90}}, {1, 1}, group, 50, 16});
    cases.push_back({name + "Prefill", KvOf(1, 32, 16), {{0, 41}, {0, 6}}, {11, 6}, group, 0, 64});
  }
  return cases;
}

Cases TileCases() {
  Cases cases;
  for (const int32_t head_dim : {32, 64, 96, 128}) {
    for (const DType dtype : {DType::kBf16, DType::kF16}) {
      for (const int32_t rows : {16, 64}) {
        const std::string name = "Dim" + std::to_string(head_dim) + (dtype == DType::kBf16 ? "Bf16" : "F16") +
                                 "Rows" + std::to_string(rows);
        cases.push_back({name, KvOf(2, head_dim, 16, dtype), {{0, 70}, {32, 100}}, {5, 1}, 3, 60, rows});
      }
    }
  }
  return cases;
}

Cases PageCases() {
  Cases cases;
  for (const int32_t page : {1, 3, 12, 16, 32, 64, 128}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      const std::string name = "Page" + std::to_string(page) + (order == KvOrder::kHnd ? "Hnd" : "Nhd");
      cases.push_back({name,
                       KvOf(2, 32, page, DType::kBf16, order),
                       {{0, 140}, {128 / page * page, 300}},
                       {1, 20},
                       4,
                       100,
                       16});
    }
  }
  return cases;
}

// Items of many tiles of keys, of which edges take more than one: at the left of a window, and before rows
// that are as many tokens as a tile has keys. Every key between is seen by all rows.
Cases InnerTileCases() {
  Cases cases;
  for (const int32_t head_dim : {32, 64, 96, 128}) {
    for (const int32_t rows : {16, 64}) {
      for (const auto& [group, window] : {std::pair{1, 0}, {1, 230}, {2, 200}, {4, 0}}) {
        const std::string name = "InnerTilesDim" + std::to_string(head_dim) + "Rows" + std::to_string(rows) +
                                 "Group" + std::to_string(group) + "Window" + std::to_string(window);
        const std::vector<int32_t> queries = rows == 16 ? std::vector<int32_t>{20, 1} : std::vector{100, 5};
        cases.push_back({name,
                         KvOf(1, head_dim, 16),
                         {{window > 0 ? 32 : 0, 371}, {window > 0 ? 64 : 0, 310}},
                         queries,
                         group,
                         window,
                         rows,
                         1});
      }
    }
  }
  return cases;
}

// Lengths around the page and the key tile, and around the window, all in one batch; every query at its edge.
Cases LengthCases() {
  Cases cases;
  for (const int32_t rows : {16, 64}) {
    for (const int32_t window : {0, 1, 16, 17, 31, 32, 33, 64}) {
      const std::string name = "Window" + std::to_string(window) + "Rows" + std::to_string(rows);
      cases.push_back(
          {name,
           KvOf(1, 32, 16),
           {{0, 1}, {0, 15}, {0, 16}, {0, 17}, {0, 31}, {0, 32}, {0, 33}, {0, 63}, {0, 64}, {0, 65}},
           rows == 16 ? std::vector<int32_t>(10, 1) : std::vector<int32_t>{1, 15, 2, 17, 3, 1, 33, 5, 64, 2},
           2,
           window,
           rows});
    }
  }
  return cases;
}

// Sequences that list the pages of the first one up to `end`, all of one query.
AttentionCase SharingCase(const std::string& name, const PagedKvShape& kv, std::vector<PagedSpan> spans,
                          int64_t end, int32_t group, int32_t window = 0) {
  AttentionCase c = {name, kv, std::move(spans), {}, group, window};
  c.queries.assign(c.spans.size(), 1);
  c.target_blocks = 16;
  c.least_tiles_saved = 1;
  for (int32_t b = 1; b < static_cast<int32_t>(c.spans.size()); ++b) c.shared.push_back({b, 0, end});
  return c;
}

// Decode rows that read keys of theirs together. Their number is not that of a tile, nor what they share of
// pages, nor where a window begins.
Cases SharingCases() {
  const std::vector<PagedSpan> five = {{0, 700}, {0, 900}, {0, 701}, {0, 1000}, {0, 666}};
  Cases cases = {
      SharingCase("SharedPrefix", KvOf(2, 64, 16), five, 650, 4),
      SharingCase("SharedByTwo", KvOf(1, 128, 16), {{0, 400}, {0, 330}}, 330, 8),
      SharingCase("SharedUpToTheirLastTokens", KvOf(1, 64, 1), {{0, 385}, {0, 386}, {0, 400}}, 384, 4),
      SharingCase("SharedInAWindow", KvOf(1, 64, 16), five, 650, 4, 400),
      SharingCase("SharedBehindRolledPages", KvOf(1, 64, 16), {{192, 700}, {256, 760}, {304, 800}}, 690, 4,
                  490),
      SharingCase("SharedLessThanAWindowSees", KvOf(1, 64, 16), {{0, 700}, {0, 300}, {0, 290}}, 290, 4, 280),
      SharingCase("SharedByMoreThanATile", KvOf(1, 32, 16), std::vector<PagedSpan>(19, {0, 300}), 290, 1)};
  for (const int32_t group : {2, 3, 5, 6, 7, 8, 9, 16}) {
    cases.push_back(
        SharingCase("SharedInGroupsOf" + std::to_string(group), KvOf(2, 64, 32), five, 500, group));
  }
  for (const int32_t page : {3, 8, 64, 128}) {
    cases.push_back(
        SharingCase("SharedInPagesOf" + std::to_string(page), KvOf(1, 64, page), five, 640, 4, 600));
  }
  // Two groups, one beside them, and one without a query between.
  AttentionCase& ragged = cases.emplace_back(
      SharingCase("SharedByGroups", KvOf(1, 64, 16),
                  {{0, 500}, {0, 520}, {0, 540}, {0, 90}, {0, 800}, {0, 500}, {0, 810}, {0, 830}}, 0, 2));
  ragged.queries[5] = 0;
  ragged.shared = {{1, 0, 512}, {2, 0, 256}, {6, 4, 800}, {7, 4, 700}};
  for (AttentionCase c : {cases[0], cases[3], cases[4], cases[5], ragged}) {
    c.name += "InRings";
    c.kv.rings = true;
    cases.push_back(c);
  }
  return cases;
}

Cases AllCases() {
  Cases all = SingleCases();
  AttentionCase& crowd = all.emplace_back();
  crowd = {"MoreSequencesThanThreadsOfThePlan", KvOf(1, 32, 16), {}, std::vector<int32_t>(300, 1), 1};
  for (int32_t b = 0; b < 300; ++b) crowd.spans.push_back({0, 1 + b % 20});
  for (const Cases& more : {RingCases(), GroupCases(), TileCases(), PageCases(), InnerTileCases(),
                            LengthCases(), SharingCases()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// Prefill in the tiles whose warps take 32 rows, in heads that they serve; and what only they can get wrong:
// rows that end in each of a warp's fragments, and parts of more than one tile.
Cases WideCases() {
  Cases cases;
  for (AttentionCase c : AllCases()) {
    const bool has_a_twin = c.name.starts_with("Dim") && c.kv.head_dim != 64;
    if (c.tile_rows != cuda::kLargeTileRows || has_a_twin) continue;
    c.name = "Wide" + c.name;
    c.kv.head_dim = 64;
    c.tile_rows = cuda::kWideTileRows;
    cases.push_back(c);
  }
  for (const int32_t group : {1, 3, 4, 7}) {
    for (const int32_t window : {0, 50}) {
      const std::string name = "WideTailsOfGroup" + std::to_string(group);
      cases.push_back({name + (window > 0 ? "InAWindow" : ""),
                       KvOf(1, 64, 16),
                       {{0, 140}, {0, 61}, {window > 0 ? 32 : 0, 100}},
                       {139, 47, 9},
                       group,
                       window,
                       cuda::kWideTileRows});
    }
  }
  cases.push_back({"WideManySplits",
                   KvOf(1, 64, 16),
                   {{0, 1300}, {0, 1000}, {0, 20}},
                   {75, 33, 1},
                   4,
                   0,
                   cuda::kWideTileRows,
                   12});
  return cases;
}

// The same through the kernels of sm_90a, in heads and pages that they serve.
void AddHopperCase(AttentionCase c, int32_t tile_rows, Cases* cases) {
  const bool decode = tile_rows == cuda::kHopperDecodeRows;
  c.name = (decode ? "HopperDecode" : "HopperPrefill") + c.name;
  c.hopper = true;
  c.kv.head_dim = c.kv.head_dim <= 64 ? 64 : 128;
  c.tile_rows = tile_rows;
  const int32_t most_tokens = decode ? cuda::kKeyTile : cuda::kHopperKeyTile;
  const bool served = c.kv.dtype == DType::kBf16 && c.kv.page_size >= 8 && most_tokens % c.kv.page_size == 0;
  if (served && !c.name.ends_with("MoreSequencesThanThreadsOfThePlan")) cases->push_back(c);
}

// And what only they can get wrong: a page of each size, many tiles of keys, parts of which the last one
// joins.
Cases HopperCases() {
  Cases cases;
  for (const AttentionCase& c : AllCases()) {
    if (!c.name.ends_with("Rows16") && c.shared.empty()) AddHopperCase(c, cuda::kHopperPrefillRows, &cases);
    if (c.tile_rows == cuda::kHopperDecodeRows) AddHopperCase(c, cuda::kHopperDecodeRows, &cases);
  }
  for (const int32_t page : {8, 16, 32, 64, 128}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      for (const int32_t head_dim : {64, 128}) {
        if ((order == KvOrder::kHnd) != (head_dim == 128) && page != 16) continue;
        AttentionCase c = {"Boxes" + std::to_string(page) + (order == KvOrder::kHnd ? "Hnd" : "Nhd") +
                               "Head" + std::to_string(head_dim),
                           KvOf(2, head_dim, page, DType::kBf16, order),
                           {{128, 440}, {0, 129}},
                           {21, 33},
                           4,
                           200};
        AddHopperCase(c, cuda::kHopperPrefillRows, &cases);
        c.queries = {1, 3};
        AddHopperCase(c, cuda::kHopperDecodeRows, &cases);
      }
    }
  }
  AddHopperCase({"ManyTiles", KvOf(1, 64, 16), {{0, 900}}, {60}, 3}, cuda::kHopperPrefillRows, &cases);
  AddHopperCase({"ManyTiles", KvOf(1, 128, 16), {{0, 900}}, {1}, 3}, cuda::kHopperDecodeRows, &cases);
  for (const int32_t head_dim : {64, 128}) {
    AddHopperCase({"ManyItemsHead" + std::to_string(head_dim),
                   KvOf(2, head_dim, 16),
                   {{0, 150}, {0, 40}, {0, 270}},
                   {150, 40, 270},
                   4},
                  cuda::kHopperPrefillRows, &cases);
  }
  const AttentionCase splits = {
      "ManySplits", KvOf(1, 128, 16), {{0, 1300}, {0, 1000}, {0, 20}}, {33, 1, 1}, 4, 0, 0, 12};
  AddHopperCase(splits, cuda::kHopperPrefillRows, &cases);
  AddHopperCase(splits, cuda::kHopperDecodeRows, &cases);
  return cases;
}

// Two of the three, for their time: a block has 384 threads.
std::vector<ThreadOrder> HopperOrders() {
  std::vector<ThreadOrder> orders = ThreadOrders();
  std::erase(orders, ThreadOrder::kReverse);
  return orders;
}

std::string NameOfCase(const testing::TestParamInfo<std::tuple<AttentionCase, ThreadOrder>>& info) {
  const ThreadOrder order = std::get<1>(info.param);
  return std::get<0>(info.param).name + (order == ThreadOrder::kForward   ? "Forward"
                                         : order == ThreadOrder::kReverse ? "Reverse"
                                                                          : "Random");
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttentionTest,
                         testing::Combine(testing::ValuesIn(AllCases()), testing::ValuesIn(ThreadOrders())),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Wide, CudaAttentionTest,
                         testing::Combine(testing::ValuesIn(WideCases()), testing::ValuesIn(ThreadOrders())),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Hopper, CudaAttentionTest,
                         testing::Combine(testing::ValuesIn(HopperCases()),
                                          testing::ValuesIn(HopperOrders())),
                         NameOfCase);

// Rows that see the same tiles of keys, split at the same places, come out of the large and of the wide tile
// with the same bits. (Where a tile of keys goes by that only other rows of theirs see, a device may scale
// the sums before it by a factor one rounding off 1.)
TEST(CudaAttentionWideTest, NoBitOfARowDependsOnTheTile) {
  UseThreadOrder(ThreadOrder::kForward);
  for (const int32_t group : {1, 3, 4, 7}) {
    // All queries of a sequence stand in one tile of keys, and so do the left edges of their windows.
    for (const AttentionCase& tiled :
         Cases{{"Whole", KvOf(2, 64, 16), {{0, 320}, {0, 50}}, {61, 40}, group, 0, 0, 1},
               {"InAWindow", KvOf(2, 64, 16), {{48, 320}, {0, 50}}, {61, 40}, group, 194, 0, 1},
               {"InF16", KvOf(1, 64, 16, DType::kF16), {{0, 320}}, {61}, group, 0, 0, 1},
               {"Split", KvOf(1, 64, 16), {{0, 768}}, {50}, group, 0, 0, 1000},
               {"SplitInAWindow", KvOf(1, 64, 16), {{128, 1024}}, {50}, group, 836, 0, 1000}}) {
      SCOPED_TRACE(tiled.name + " in groups of " + std::to_string(group));
      PagedKvFixture kv(tiled.kv, tiled.spans);
      FillCase(tiled, &kv);
      const std::vector<uint16_t> query = RandomQuery(tiled, kv.tokens());
      AttentionCase c = tiled;
      c.tile_rows = cuda::kLargeTileRows;
      const AttentionOutcome large = RunAttentionCase(c, kv, query);
      c.tile_rows = cuda::kWideTileRows;
      const AttentionOutcome wide = RunAttentionCase(c, kv, query);
      EXPECT_EQ(wide.work.merges > 0, tiled.target_blocks > 1);
      EXPECT_EQ(wide.work.split_tiles == cuda::kMinSplitTiles, tiled.target_blocks > 1);
      EXPECT_EQ(large.work.split_tiles == cuda::kMinSplitTiles, tiled.target_blocks > 1);
      EXPECT_EQ(wide.out, large.out);
      EXPECT_EQ(wide.lse, large.lse);
    }
  }
}

// The float of a row's output, rounded to the case's type.
uint16_t Rounded(DType dtype, float value) {
  return dtype == DType::kF16 ? FloatToF16(value) : FloatToBf16(value);
}

// Joins the parts that the device wrote of the rows of one merge here, one after the other in the order of
// the keys, and compares. ex2 of a device is an approximation, that of the emulator the same as here.
void ExpectJoinedInOrder(const AttentionCase& c, const PagedKvFixture& kv, const AttentionOutcome& outcome,
                         const cuda::AttentionMerge& merge) {
  const bool emulated = BoxesCopied().has_value();
  const int32_t first_token = kv.qo_indptr()[merge.sequence], dim = c.kv.head_dim;
  const int32_t rows = std::min(c.tile_rows, kv.QueryCount(merge.sequence) * c.group - merge.row_begin);
  for (int32_t kv_head = 0; kv_head < c.kv.kv_heads; ++kv_head) {
    for (int32_t row = 0; row < rows; ++row) {
      const auto slot = [&](int32_t split) {
        return static_cast<size_t>(((merge.partial_begin + split) * c.kv.kv_heads + kv_head) * c.tile_rows +
                                   row);
      };
      float most = -INFINITY, sum = 0.0f;
      for (int32_t s = 0; s < merge.splits; ++s) most = std::max(most, outcome.partial_lse[slot(s)]);
      const float base = most == -INFINITY ? 0.0f : most;
      std::vector<float> joined(static_cast<size_t>(dim));
      for (int32_t s = 0; s < merge.splits; ++s) {
        const float weight = std::exp2(outcome.partial_lse[slot(s)] - base);
        sum += weight;
        for (size_t d = 0; d < joined.size(); ++d)
          joined[d] += weight * outcome.partial_out[slot(s) * joined.size() + d];
      }
      const int32_t r = merge.row_begin + row;
      const auto place =
          static_cast<size_t>((first_token + r / c.group) * c.heads() + kv_head * c.group + r % c.group);
      const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
      const float lse = sum > 0.0f ? base + std::log2(sum) : -INFINITY;
      if (emulated) {
        ASSERT_EQ(outcome.lse[place], lse) << "row " << r;
      } else {
        ASSERT_NEAR(outcome.lse[place], lse, 1e-5) << "row " << r;
      }
      for (size_t d = 0; d < joined.size(); ++d) {
        const uint16_t bits = outcome.out[place * joined.size() + d],
                       expected = Rounded(c.kv.dtype, joined[d] * inverse);
        if (emulated) {
          ASSERT_EQ(bits, expected) << "row " << r << " element " << d;
        } else {
          ASSERT_NEAR(AttentionDouble(c.kv.dtype, bits), AttentionDouble(c.kv.dtype, expected), 0x1p-6)
              << "row " << r << " element " << d;
        }
      }
    }
  }
}

TEST(CudaAttentionPartsTest, AreJoinedInTheOrderOfTheirKeysWhoeverIsLast) {
  const std::vector<PagedSpan> spans = {{0, 1300}, {0, 1000}, {0, 20}};
  Cases cases = {{"Decode", KvOf(2, 128, 16), spans, {1, 1, 1}, 4, 0, 16, 24},
                 {"DecodeOfManySplits", KvOf(1, 32, 16), {{0, 9000}}, {1}, 3, 0, 16, 64},
                 {"Prefill", KvOf(2, 96, 16, DType::kF16), spans, {33, 1, 1}, 4, 0, 64, 24},
                 {"ByRow", KvOf(2, 64, 16, DType::kInt8), spans, {5, 1, 1}, 3, 0, 16, 24},
                 SharingCase("Sharers", KvOf(2, 64, 16), {{0, 700}, {0, 900}, {0, 701}, {0, 1000}}, 650, 4)};
  AddHopperCase(cases[0], cuda::kHopperDecodeRows, &cases);
  AddHopperCase(cases[4], cuda::kHopperDecodeRows, &cases);
  AddHopperCase({"Prefill", KvOf(2, 64, 16), spans, {33, 1, 1}, 4, 0, 0, 24}, cuda::kHopperPrefillRows,
                &cases);
  for (const AttentionCase& c : cases) {
    if (c.hopper && !DeviceIsHopper()) continue;
    PagedKvFixture kv(c.kv, c.spans);
    FillCase(c, &kv);
    const std::vector<uint16_t> query = RandomQuery(c, kv.tokens());
    for (const ThreadOrder order : ThreadOrders()) {
      SCOPED_TRACE(c.name + " in order " + std::to_string(static_cast<int>(order)));
      UseThreadOrder(order);
      const AttentionOutcome outcome = RunAttentionCase(c, kv, query);
      ASSERT_FALSE(outcome.merges.empty());
      for (const cuda::AttentionMerge& merge : outcome.merges)
        ASSERT_NO_FATAL_FAILURE(ExpectJoinedInOrder(c, kv, outcome, merge));
    }
  }
}

// What begins last ends soon: by classes of an eighth of the longest, no item is longer than one before it.
TEST(CudaAttentionPlanTest, TheLongestItemsComeFirstAndSplitsOfATileAreEven) {
  const AttentionCase cases[] = {
      {"Prompts", KvOf(2, 32, 16), {{0, 700}, {0, 90}, {0, 400}}, {700, 90, 10}, 4, 0, 64, 8},
      {"PromptsOfFarLessThanASplit",
       KvOf(1, 32, 16),
       {{0, 700}, {0, 500}, {0, 700}},
       {700, 500, 700},
       4,
       0,
       64},
      {"TilesWithLittleMoreThanASplit", KvOf(1, 32, 16), {{0, 700}, {0, 1200}}, {60, 20}, 4, 0, 64, 13},
      {"Decode", KvOf(1, 32, 16), {{0, 1100}, {0, 40}, {0, 2000}, {0, 777}}, {1, 1, 1, 1}, 4, 0, 16, 9}};
  for (const AttentionCase& c : cases) {
    PagedKvFixture kv(c.kv, c.spans);
    kv.FillRandom(3);
    kv.SetQueries(c.queries);
    const AttentionOutcome outcome = RunAttentionCase(c, kv, RandomQuery(c, kv.tokens()));
    std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> splits;  // key tiles, by tile of rows
    int32_t most = 0;
    for (const cuda::AttentionItem& item : outcome.items) {
      const int32_t tiles = (item.key_end - item.key_begin + cuda::kKeyTile - 1) / cuda::kKeyTile;
      splits[{item.sequence, item.row_begin}].push_back(tiles);
      most = std::max(most, tiles);
    }
    int32_t shortest = most;
    for (const cuda::AttentionItem& item : outcome.items) {
      const std::vector<int32_t>& all = splits[{item.sequence, item.row_begin}];
      const int32_t longest = *std::max_element(all.begin(), all.end());
      EXPECT_LE(longest, shortest + (most + 1) / 8 + 1) << c.name;
      shortest = std::min(shortest, longest);
    }
    for (const auto& [rows, tiles] : splits) {
      const int32_t all = std::accumulate(tiles.begin(), tiles.end(), 0);
      const auto count = static_cast<int32_t>(tiles.size());
      const int32_t split = outcome.work.split_tiles, whole = split + cuda::SplitCost(c.tile_rows);
      EXPECT_EQ(count, all <= whole ? 1 : (all + split - 1) / split) << c.name;
      for (const int32_t own : tiles) EXPECT_LE(own, (all + count - 1) / count) << c.name;
    }
  }
}

// Batches in which a thread has tiles of many sequences, many threads have tiles of one, and some have none.
struct PlannedBatch {
  const char* name;
  std::vector<int32_t> queries, keys;  // of each sequence
};

std::vector<PlannedBatch> PlannedBatches() {
  std::vector<PlannedBatch> batches = {
      {"OnePromptOf32k", {32768}, {32768}},
      {"APart", {2048}, {30000}},
      {"ATileMoreThanThreads", {16 * 257 / 4}, {5000}},
      {"EmptyOnesBetween", {0, 600, 0, 0, 2500, 0}, {5, 700, 9, 9, 3000, 5}},
      {"AllEmpty", {0, 0, 0}, {3, 4, 5}},
      {"NoSequence", {}, {}},
  };
  PlannedBatch& mixture = batches.emplace_back(PlannedBatch{"APromptAmongDecodes", {}, {}});
  for (int32_t b = 0; b < 200; ++b) {
    mixture.queries.push_back(b == 100 ? 5000 : 1);
    mixture.keys.push_back(b == 100 ? 9000 : 1 + 37 * b);
  }
  PlannedBatch& crowd = batches.emplace_back(PlannedBatch{"MoreSequencesThanThreads", {}, {}});
  for (int32_t b = 0; b < 600; ++b) {
    crowd.queries.push_back(b * b % 97);
    crowd.keys.push_back(crowd.queries.back() + b % 300);
  }
  return batches;
}

struct PlanLists {
  cuda::AttentionWork work{};
  std::vector<cuda::AttentionItem> items;
  std::vector<cuda::AttentionMerge> merges;
};

// A plan's lists by the kernel and by its host twin.
std::pair<PlanLists, PlanLists> PlanByBoth(cuda::AttentionPlanParams plan, const PlannedBatch& batch,
                                           bool has_left) {
  std::vector<int32_t> kv_base, qo_indptr = {0}, left;
  for (size_t b = 0; b < batch.queries.size(); ++b) {
    kv_base.push_back(batch.keys[b] / 3);
    qo_indptr.push_back(qo_indptr.back() + batch.queries[b]);
    for (int32_t i = batch.keys[b] - batch.queries[b]; i < batch.keys[b]; ++i) left.push_back(i / 2);
  }
  plan.batch = static_cast<int32_t>(batch.queries.size());
  plan.max_items = cuda::AttentionItemBound(qo_indptr.back(), plan.batch, plan.group, plan.tile_rows,
                                            plan.kv_heads, plan.target_blocks);
  PlanLists lists[2];
  for (PlanLists& own : lists) {
    own.items.resize(static_cast<size_t>(plan.max_items));
    own.merges.resize(static_cast<size_t>(plan.max_items));
  }
  const DeviceArray<int32_t> device_base(kv_base), device_end(batch.keys), device_indptr(qo_indptr),
      device_left(left);
  const DeviceArray<cuda::AttentionItem> items(lists[0].items);
  const DeviceArray<cuda::AttentionMerge> merges(lists[0].merges);
  const DeviceArray<cuda::AttentionWork> work{std::vector<cuda::AttentionWork>(1)};
  plan.kv_base = device_base.data();
  plan.kv_end = device_end.data();
  plan.qo_indptr = device_indptr.data();
  plan.left = has_left ? device_left.data() : nullptr;
  plan.items = items.data();
  plan.merges = merges.data();
  plan.work = work.data();
  EXPECT_EQ(cuda::PlanAttention(plan, nullptr), 0);
  lists[0] = {work.Get().front(), items.Get(), merges.Get()};

  plan.kv_base = kv_base.data();
  plan.kv_end = batch.keys.data();
  plan.qo_indptr = qo_indptr.data();
  plan.left = has_left ? left.data() : nullptr;
  plan.items = lists[1].items.data();
  plan.merges = lists[1].merges.data();
  plan.work = &lists[1].work;
  cuda::PlanAttentionOnHost(plan);
  return {lists[0], lists[1]};
}

TEST(CudaAttentionPlanTest, HoweverTilesAreDealtTheListsAreThoseOfOneThread) {
  struct View {
    const char* name;
    int32_t window, tile_rows;
    bool has_left, by_mask;
  };
  const View views[] = {{"all", 0, 64, false, false},
                        {"window", 4096, 16, false, false},
                        {"left", 0, 16, true, false},
                        {"mask", 0, 16, false, true}};
  for (const ThreadOrder order : ThreadOrders()) {
    UseThreadOrder(order);
    for (const PlannedBatch& batch : PlannedBatches()) {
      for (const View& view : views) {
        SCOPED_TRACE(std::string(batch.name) + ", " + view.name);
        cuda::AttentionPlanParams plan{};
        plan.window = view.window;
        plan.group = 4;
        plan.tile_rows = view.tile_rows;
        plan.kv_heads = 8;
        plan.target_blocks = 264;
        plan.by_mask = view.by_mask;
        const auto [device, host] = PlanByBoth(plan, batch, view.has_left);
        EXPECT_EQ(std::memcmp(&device.work, &host.work, sizeof(host.work)), 0);
        EXPECT_EQ(std::memcmp(device.items.data(), host.items.data(),
                              sizeof(cuda::AttentionItem) * host.items.size()),
                  0);
        EXPECT_EQ(std::memcmp(device.merges.data(), host.merges.data(),
                              sizeof(cuda::AttentionMerge) * host.merges.size()),
                  0);
      }
    }
  }
}

// Where the host knows that nothing is split, nobody looks for sharers; where it does not, there is at most a
// merge for each pair of parts.
TEST(CudaAttentionPlanTest, AWindowTooShortForSplitsHasNothingToMerge) {
  for (const int32_t tile_rows : {16, 64, 128}) {
    for (int32_t group = 1; group <= 16; ++group) {
      for (int32_t window = 1; window <= 300; ++window) {
        if (cuda::AttentionMergeBound(1, 1000, cuda::AttentionKeyBound(window, group, tile_rows)) > 0)
          continue;
        // Every tile of rows of a sequence, wherever it ends: its key tiles are too few for two splits.
        for (int32_t first_position = 512; first_position < 512 + cuda::kKeyTile; ++first_position) {
          const int32_t last_position = first_position + (tile_rows - 1 + group - 1) / group;
          const int32_t begin = (first_position - window + 1) / cuda::kKeyTile * cuda::kKeyTile;
          ASSERT_LE((last_position + 1 - begin + cuda::kKeyTile - 1) / cuda::kKeyTile, cuda::kMinSplitTiles)
              << window << " keys, groups of " << group << ", tiles of " << tile_rows;
        }
      }
    }
  }
  EXPECT_EQ(cuda::AttentionMergeBound(8, 264, cuda::AttentionKeyBound(100, 4, 64)), 0);
  EXPECT_EQ(cuda::AttentionMergeBound(8, 264, cuda::AttentionKeyBound(4096, 4, 64)), 33);
  EXPECT_EQ(cuda::AttentionMergeBound(8, 264, cuda::AttentionKeyBound(0, 4, 16)), 33);
}

// Whom the case's sequences share with.
std::vector<cuda::AttentionSharers> SharersOf(const AttentionCase& c) {
  PagedKvFixture kv(c.kv, c.spans);
  FillCase(c, &kv);
  return RunAttentionCase(c, kv, RandomQuery(c, kv.tokens())).sharers;
}

void ExpectSharers(const std::vector<cuda::AttentionSharers>& sharers, int32_t first, int32_t count,
                   int32_t begin, int32_t end) {
  for (int32_t b = first; b < first + std::max(count, 1); ++b) {
    const cuda::AttentionSharers& own = sharers[static_cast<size_t>(b)];
    EXPECT_EQ(own.first, first) << b;
    EXPECT_EQ(own.count, count) << b;
    EXPECT_EQ(own.begin, begin) << b;
    EXPECT_EQ(own.end, end) << b;
  }
}

TEST(CudaAttentionSharersTest, ShareTheWholeTilesOfKeysThatAllSeeInTheSamePages) {
  const std::vector<PagedSpan> spans = {{0, 700}, {0, 900}, {0, 670}};
  ExpectSharers(SharersOf(SharingCase("", KvOf(1, 32, 16), spans, 650, 4)), 0, 3, 0, 640);
  // The longest one's window begins at position 900 - 400.
  ExpectSharers(SharersOf(SharingCase("", KvOf(1, 32, 16), spans, 650, 4, 400)), 0, 3, 512, 640);
  // A page alone differs.
  AttentionCase c = SharingCase("", KvOf(1, 32, 16), spans, 650, 4);
  PagedKvFixture kv(c.kv, c.spans);
  FillCase(c, &kv);
  kv.ListStrangePage(2, 200);
  const AttentionOutcome outcome = RunAttentionCase(c, kv, RandomQuery(c, kv.tokens()));
  ExpectSharers(outcome.sharers, 0, 2, 0, 640);
  ExpectSharers(outcome.sharers, 2, 0, 0, 0);
}

TEST(CudaAttentionSharersTest, StandSideBySideAndGainByIt) {
  AttentionCase c =
      SharingCase("", KvOf(1, 32, 16), {{0, 300}, {0, 800}, {0, 800}, {0, 800}, {0, 800}}, 256, 4);
  c.shared = {{1, 0, 256}, {2, 1, 800}, {3, 1, 800}, {4, 1, 128}};
  // The first would cut the others short, and so would the last.
  std::vector<cuda::AttentionSharers> sharers = SharersOf(c);
  ExpectSharers(sharers, 0, 0, 0, 0);
  ExpectSharers(sharers, 1, 3, 0, 768);
  ExpectSharers(sharers, 4, 0, 0, 0);
  // Two of three walks over 12 tiles.
  c.least_tiles_saved = 24;
  ExpectSharers(SharersOf(c), 1, 3, 0, 768);
  c.least_tiles_saved = 25;
  ExpectSharers(SharersOf(c), 1, 0, 0, 0);
}

TEST(CudaAttentionSharersTest, OfALargeBatchTheFirstAreLookedAt) {
  AttentionCase c =
      SharingCase("", KvOf(1, 32, 16),
                  std::vector<PagedSpan>(static_cast<size_t>(cuda::kMostSharers) + 2, {0, 70}), 64, 1);
  const std::vector<cuda::AttentionSharers> sharers = SharersOf(c);
  ExpectSharers(sharers, 0, cuda::kMostSharers, 0, 64);
  ExpectSharers(sharers, cuda::kMostSharers, 0, 0, 0);
  ExpectSharers(sharers, cuda::kMostSharers + 1, 0, 0, 0);
}

// Their kernel takes keys at the same rounding whoever asks for them, so only weights and parts differ.
TEST(CudaAttentionSharersTest, OverQuantisedPagesSeeWhatEachOfThemSeesAlone) {
  for (const DType dtype : {DType::kInt8, DType::kFp8E4M3}) {
    AttentionCase c = SharingCase("", KvOf(1, 64, 16, dtype), {{0, 500}, {0, 520}, {0, 485}}, 480, 4, 450);
    PagedKvFixture kv(c.kv, c.spans);
    FillCase(c, &kv);
    const std::vector<uint16_t> query = RandomQuery(c, kv.tokens());
    const AttentionOutcome together = RunAttentionCase(c, kv, query);
    ExpectSharers(together.sharers, 0, 3, 128, 448);
    c.least_tiles_saved = 0;
    const AttentionOutcome alone = RunAttentionCase(c, kv, query);
    ASSERT_EQ(together.out.size(), alone.out.size());
    for (size_t i = 0; i < alone.out.size(); ++i) {
      ASSERT_NEAR(Bf16ToFloat(together.out[i]), Bf16ToFloat(alone.out[i]), 2.25 * 0x1p-8 * 5) << i;
    }
    for (size_t i = 0; i < alone.lse.size(); ++i) ASSERT_NEAR(together.lse[i], alone.lse[i], kLseTolerance);
  }
}

TEST(CudaAttentionSharersTest, SaveMoreThanALaunchTakes) {
  EXPECT_EQ(cuda::LeastTilesSaved(8, 4 * 128), 32);
  EXPECT_EQ(cuda::LeastTilesSaved(8, 4 * 128 - 4), 33);
}

TEST(CudaAttentionShapesTest, OtherHeadsAreRefused) {
  for (const int32_t head_dim : {8, 16, 48, 80, 112, 160, 192, 256}) {
    EXPECT_FALSE(cuda::AttentionSupported(DType::kBf16, head_dim, 4)) << head_dim;
  }
  for (const int32_t group : {0, 17, 32})
    EXPECT_FALSE(cuda::AttentionSupported(DType::kBf16, 128, group)) << group;
  EXPECT_FALSE(cuda::AttentionSupported(DType::kF32, 128, 4));
  for (const AttentionCase& c : AllCases()) {
    EXPECT_TRUE(cuda::AttentionSupported(c.kv.dtype, c.kv.head_dim, c.group)) << c.name;
  }
}

}  // namespace
}  // namespace tramontane
