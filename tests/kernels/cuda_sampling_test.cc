// Sampling on the device: the same rows, and the same answers, as on the CPU, which is to say those of
// tests/reference. On the emulator in three orders of threads in every build, on a GPU in bench/gpu_check.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/cuda/sampling.h"
#include "tests/support/cuda_device.h"
#include "tests/support/sampling_rows.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

// A thread order, and how many blocks a row has.
class CudaSamplingTest : public testing::TestWithParam<std::tuple<ThreadOrder, int32_t>> {
 protected:
  void SetUp() override {
    UseThreadOrder(std::get<0>(GetParam()));
    blocks_ = std::get<1>(GetParam());
  }
  // Of several blocks as many rows at a time as they take; what they leave behind serves the next call.
  SampleAnswers Run(const std::vector<SampledRow>& rows) {
    const size_t most = blocks_ > 1 ? size_t{cuda::kMostSplitRows} : rows.size();
    SampleAnswers all;
    for (size_t begin = 0; begin < rows.size(); begin += most) {
      const auto from = rows.begin() + static_cast<ptrdiff_t>(begin);
      const SampleAnswers some =
          RunAtOnce({from, from + static_cast<ptrdiff_t>(std::min(most, rows.size() - begin))});
      all.records.insert(all.records.end(), some.records.begin(), some.records.end());
      all.top.insert(all.top.end(), some.top.begin(), some.top.end());
    }
    return all;
  }
  SampleAnswers RunAtOnce(const std::vector<SampledRow>& rows) {
    const auto launch = [this](SampleCall& call) {
      const DeviceArray logits(call.logits);
      const DeviceArray sampling_rows(call.rows);
      const DeviceArray adjusts(call.adjusts);
      const DeviceArray masks(call.masks);
      const DeviceArray records(call.records);
      const DeviceArray top(call.top);
      const DeviceArray adjusted(
          std::vector<float>(call.rows.size() * static_cast<size_t>(call.vocab), kNan));
      SampleParams params = call.OnHost();
      params.logits.data = logits.data();
      params.rows = sampling_rows.data();
      params.adjusts = adjusts.data();
      params.masks = masks.data();
      params.records = records.data();
      params.top = top.data();
      EXPECT_EQ(cuda::LaunchSample({params, adjusted.data(), blocks_, split_.data()}, nullptr), 0);
      call.logits = logits.Get();
      call.records = records.Get();
      call.top = top.Get();
    };
    return RunSample(std::function<void(SampleCall&)>(launch), rows);
  }
  SampleRecord One(const SampledRow& row) { return Run({row}).records[0]; }
  void ExpectMatchesDefinition(const std::vector<SampledRow>& rows) {
    ExpectAnswersOfTheDefinition(rows, Run(rows), cuda::kMostLogprobError);
  }

  int32_t blocks_ = 1;
  const DeviceArray<std::byte> split_{std::vector<std::byte>(static_cast<size_t>(cuda::SplitSampleBytes()))};
};

INSTANTIATE_TEST_SUITE_P(OneBlock, CudaSamplingTest,
                         testing::Combine(testing::ValuesIn(ThreadOrders()), testing::Values(1)),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });
// Each number in an order of its own: in reverse, and at random.
std::vector<std::tuple<ThreadOrder, int32_t>> SeveralBlocks() {
  const std::vector<ThreadOrder> orders = ThreadOrders();
  return {{orders[orders.size() / 2], 2}, {orders.back(), 5}};
}
INSTANTIATE_TEST_SUITE_P(SeveralBlocks, CudaSamplingTest, testing::ValuesIn(SeveralBlocks()),
                         [](const auto& info) {
                           return "Blocks" + std::to_string(std::get<1>(info.param)) + "Order" +
                                  std::to_string(static_cast<int>(std::get<0>(info.param)));
                         });

TEST_P(CudaSamplingTest, RandomRowsMatchTheDefinition) {
  constexpr uint64_t kSeed = 20240608;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (const size_t vocab : {1, 2, 7, 33, 511, 512, 513, 5003}) {
    SCOPED_TRACE(testing::Message() << "vocabulary " << vocab);
    std::vector<SampledRow> rows;
    for (int64_t i = 0; i < ScaledCount(20, 4); ++i) rows.push_back(RandomRow(vocab, random));
    ExpectMatchesDefinition(rows);
  }
}

TEST_P(CudaSamplingTest, ALargeVocabularyMatchesTheDefinition) {
  constexpr size_t kVocab = 131072;
  std::vector<SampledRow> rows(6);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits = RandomLogits(kVocab, i);
    rows[i].row.seed = 5 + i;
    rows[i].row.top_logprobs = 20;
  }
  rows[1].row.top_p = 0.9f;
  rows[2].row.top_k = 100000;
  rows[2].row.top_p = 0.999f;
  rows[2].row.min_p = 1e-4f;
  rows[3].row.top_k = 3000;
  rows[4].row.top_p = 0.2f;
  rows[5].row.top_k = 2000;
  rows[5].row.top_p = 0.9f;
  ExpectMatchesDefinition(rows);
}

// More equal logits than a list holds: the filter must cut among them by id.
TEST_P(CudaSamplingTest, FiltersCutAmongThousandsOfEqualLogits) {
  constexpr size_t kVocab = 9001;
  std::vector<SampledRow> rows(6);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits.assign(kVocab, 1.5f);
    rows[i].row.seed = i;
  }
  rows[0].row.top_p = 0.25f;
  rows[1].row.top_k = 4000;
  rows[2].row.top_k = 7000;
  rows[2].row.top_p = 0.5f;
  rows[3].row.top_p = 1e-30f;
  rows[4].row.top_k = static_cast<int32_t>(kVocab) - 1;
  rows[5].row.top_k = static_cast<int32_t>(kVocab);
  for (SampledRow& row : rows) row.row.top_logprobs = 20;
  for (size_t t = 0; t < kVocab; ++t) rows[4].logits[t] = t % 2 == 0 ? -0.0f : 0.0f;  // these are equal too
  ExpectMatchesDefinition(rows);
}

// All logits beyond the first 32 nats fall into one bucket of the first histogram.
TEST_P(CudaSamplingTest, FiltersCutFarBelowTheHighestLogit) {
  constexpr size_t kVocab = 6000;
  std::vector<SampledRow> rows(3);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits = RandomLogits(kVocab, i, 3.0f);
    for (size_t t = 1; t < kVocab; ++t) rows[i].logits[t] -= 200.0f;
    rows[i].row.temperature = 60.0f;
    rows[i].row.seed = 70 + i;
  }
  rows[0].row.top_k = 2500;
  rows[1].row.top_p = 0.6f;
  rows[2].row.top_k = 5000;
  rows[2].row.top_p = 0.999f;
  ExpectMatchesDefinition(rows);
}

// top_k cuts among 500 equal logits, and what it leaves of them is known only where they are listed. Until
// then the limit of top_p may lie among 200 tokens or the 100 behind them, of which a draw tells how many
// stay.
TEST_P(CudaSamplingTest, TopPCutsInFrontOfWhereALongTopKDoes) {
  std::vector<SampledRow> rows(32);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits.assign(600, 0.0f);
    rows[i].logits.insert(rows[i].logits.end(), 200, -0.05f);
    for (int t = 0; t < 100; ++t) rows[i].logits.push_back(-0.07f - 0.001f * static_cast<float>(t));
    rows[i].logits.insert(rows[i].logits.end(), 500, -0.31f);
    rows[i].row.top_k = 1200;
    rows[i].row.top_p = 0.76f;
    rows[i].row.seed = 300 + i;
  }
  ExpectMatchesDefinition(rows);
}

// Shares that a sum of weights comes to, or misses by as much as an f32 holds, which is more than the
// estimates of weights are off, and by more.
TEST_P(CudaSamplingTest, TopPCutsBesideTheBorderOfAToken) {
  constexpr uint64_t kSeed = 77;
  std::mt19937_64 random(kSeed);
  for (int64_t i = 0; i < ScaledCount(6, 3); ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " set " << i);
    SampledRow row;
    row.logits = RandomLogits(9, random(), 0.4f);
    row.row.temperature = i % 3 == 0 ? 1.0f : 0.6f;
    std::vector<double> weights;
    for (const float logit : row.logits) weights.push_back(std::exp(logit / double{row.row.temperature}));
    std::sort(weights.begin(), weights.end(), std::greater<>());
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double head = std::accumulate(weights.begin(), weights.begin() + 4 + i % 4, 0.0) / total;
    std::vector<SampledRow> rows;
    for (const double off : {0.0, 1e-7, -1e-7, 1e-6, -1e-6, 1e-5, -1e-5}) {
      row.row.top_p = static_cast<float>(head * (1 + off));
      for (int seed = 0; seed < 8; ++seed) {
        row.row.seed = random();
        rows.push_back(row);
      }
    }
    ExpectMatchesDefinition(rows);
  }
}

TEST_P(CudaSamplingTest, EndsOfTheParametersMatchTheDefinition) {
  const std::vector<float> logits = {2.0f, 1.0f, 2.0f, 0.0f, -kInf, 1.0f, -3e38f};
  std::vector<SampledRow> rows;
  for (const float temperature : {0.0f, std::numeric_limits<float>::denorm_min(), 1e-6f, 1.0f, 100.0f,
                                  std::numeric_limits<float>::max()}) {
    for (const float top_p : {1e-30f, 0.5f, 0.99999994f, 1.0f}) {
      for (const float min_p : {0.0f, 0.3f, 1.0f}) {
        for (const int32_t top_k : {0, 1, 3}) {
          SampledRow row = {logits, {}, {}, {}};
          row.row.temperature = temperature;
          row.row.top_p = top_p;
          row.row.min_p = min_p;
          row.row.top_k = top_k;
          row.row.seed = rows.size();
          if (rows.size() % 3 == 0) row.logits[3] = 3e38f;
          rows.push_back(row);
        }
      }
    }
  }
  ExpectMatchesDefinition(rows);
}

TEST_P(CudaSamplingTest, BiasPenaltiesAndMaskDecideButLogprobsStayRaw) {
  SampledRow base = {{1.0f, 2.0f, 0.0f}, Greedy(), {{1, -100.0f, 0, 0}}, {}};
  base.row.top_logprobs = 2;
  std::vector<SampledRow> rows(8, base);
  rows[1].adjusts = {{2, 100.0f, 0, 0}};
  rows[2].adjusts = {{0, 0.0f, 0, 0}, {1, -kInf, 0, 0}};
  rows[3].adjusts = {{1, 0.0f, 2, 0}};
  rows[3].row.frequency_penalty = 0.6f;
  rows[4].adjusts = {{1, 0.0f, 0, 1}};
  rows[4].row.repetition_penalty = 2.5f;
  rows[5].adjusts = {{0, 0.0f, 1, 1}, {2, 5.0f, 0, 0}};
  rows[5].allowed = {true, false, false};  // a mask wins over any bias
  rows[6].allowed = {false, false, true};
  rows[7].adjusts = {{1, 3e38f, 0, 0}};
  ExpectMatchesDefinition(rows);
  EXPECT_EQ(One(rows[5]).token, 0);
  EXPECT_EQ(One(rows[6]).token, 2);
}

// Divided, the penalised token would come nearer to zero and win.
TEST_P(CudaSamplingTest, APenaltyPushesNegativeLogitsDown) {
  SampledRow row = {{-1.0f, -1.5f}, Greedy(), {{0, 0.0f, 0, 1}}, {}};
  row.row.repetition_penalty = 2.0f;
  ExpectMatchesDefinition({row});
  EXPECT_EQ(One(row).token, 1);
}

TEST_P(CudaSamplingTest, ABrokenRowFailsAloneAndItsNeighboursAreUntouched) {
  std::vector<SampledRow> healthy;
  for (uint64_t i = 0; i < 9; ++i) {
    healthy.push_back({RandomLogits(100, i), {}, {}, {}});
    healthy.back().row.seed = i;
    healthy.back().row.top_logprobs = 5;
  }
  const SampleAnswers clean = Run(healthy);

  std::vector<SampledRow> rows = healthy;
  rows[1].logits[40] = kNan;
  rows[3].logits[99] = kInf;
  std::fill(rows[4].logits.begin(), rows[4].logits.end(), -kInf);
  rows[6].allowed.assign(100, false);
  rows[7].logits[0] = kNan;
  rows[7].row.forced_token = 3;
  rows[8].adjusts = {{5, kInf, 0, 0}};
  const SampleAnswers answers = Run(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool broken = i == 1 || i == 3 || i == 4 || i >= 6;
    EXPECT_EQ(answers.records[i].failed, broken ? 1 : 0) << i;
    if (broken) {
      EXPECT_EQ(answers.records[i].token, -1);
      EXPECT_EQ(answers.records[i].top_count, 0);
    } else {
      EXPECT_EQ(std::memcmp(&answers.records[i], &clean.records[i], sizeof(SampleRecord)), 0);
    }
  }
}

// Bit by bit; and whatever was there before a call, the next finds as if nothing had been.
TEST_P(CudaSamplingTest, HowManyBlocksARowHasChangesNothing) {
  constexpr uint64_t kSeed = 9;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  std::vector<SampledRow> rows;
  for (int i = 0; i < 14; ++i) rows.push_back(RandomRow(3000, random));
  rows.resize(16, rows[0]);
  rows[14].logits[7] = kNan;  // fails, and leaves nothing behind
  rows[14].row.top_logprobs = 20;
  rows[15].row.top_p = 0.9999f;  // more are left than a list holds
  rows[15].row.temperature = 50.0f;
  rows[15].adjusts.clear();
  rows[15].allowed.clear();
  const SampleAnswers several = RunAtOnce(rows), again = RunAtOnce(rows);
  blocks_ = 1;
  const SampleAnswers one = RunAtOnce(rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE(testing::Message() << "row " << r);
    EXPECT_EQ(std::memcmp(&several.records[r], &again.records[r], sizeof(SampleRecord)), 0);
    EXPECT_EQ(several.records[r].token, one.records[r].token);
    EXPECT_EQ(several.records[r].rank, one.records[r].rank);
    EXPECT_EQ(std::memcmp(&several.records[r], &one.records[r], sizeof(SampleRecord)), 0);
    ASSERT_EQ(several.records[r].top_count, one.records[r].top_count);
    for (int32_t i = 0; i < one.records[r].top_count; ++i) {
      const size_t at = r * kMaxTopLogprobs + static_cast<size_t>(i);
      EXPECT_EQ(std::memcmp(&several.top[at], &one.top[at], sizeof(TokenLogprob)), 0) << i;
    }
  }
}

// A likely token's logprob is off by a share of itself, not of 1: of the highest weight nothing is estimated.
// `distance` nats below it are the others.
TEST_P(CudaSamplingTest, ALogprobNearZeroKeepsItsDigits) {
  static_assert(cuda::kMostLogprobError < 1e-6);
  constexpr size_t kVocab = 3000;
  constexpr double kLost = kVocab * 0x1p-50;  // what the others lose when they are rounded down
  for (const float distance : {0.3f, 7.7f, 14.4f, 21.1f, 26.2f}) {
    SCOPED_TRACE(testing::Message() << distance << " nats");
    SampledRow row;
    row.logits.assign(kVocab, 3.25f - distance);
    row.logits[17] = 3.25f;
    row.row = Greedy();
    const double others = (kVocab - 1) * std::exp(static_cast<double>(row.logits[0]) - 3.25);
    ExpectLogprob(One(row).logprob, -std::log1p(others), 0x1p-21 * std::min(others, 1.0) + kLost);
  }
}

// Fewer do not make up for the launches, more do not fit the scratch.
TEST(SampleBlocks, FillTheDeviceWhereRowsAreFewAndLong) {
  EXPECT_EQ(cuda::SampleBlocks(1, 131072, 132), 16);
  EXPECT_EQ(cuda::SampleBlocks(16, 131072, 132), 8);
  EXPECT_EQ(cuda::SampleBlocks(32, 131072, 132), 4);
  EXPECT_EQ(cuda::SampleBlocks(33, 131072, 132), 1);
  EXPECT_EQ(cuda::SampleBlocks(1, 32768, 132), 4);
  EXPECT_EQ(cuda::SampleBlocks(1, 32767, 132), 1);
  EXPECT_EQ(cuda::SampleBlocks(2, 131072, 8), 4);
  EXPECT_EQ(cuda::SampleBlocks(3, 131072, 8), 1);
  EXPECT_EQ(cuda::SampleBlocks(0, 131072, 132), 1);
}

TEST_P(CudaSamplingTest, AdvanceHandsTokensOnAndAFailedRowGivesZero) {
  std::vector<SampleRecord> records(200);
  std::vector<int32_t> pairs, token_ids(300, -5), expected = token_ids;
  for (int32_t i = 0; i < 200; ++i) {
    records[static_cast<size_t>(i)].token = i % 7 == 0 ? -1 : 1000 + i;
    pairs.insert(pairs.end(), {i, 299 - i});
    expected[static_cast<size_t>(299 - i)] = i % 7 == 0 ? 0 : 1000 + i;
  }
  const DeviceArray device_records(records);
  const DeviceArray device_pairs(pairs), device_ids(token_ids);
  ASSERT_EQ(
      cuda::LaunchAdvance({device_records.data(), device_pairs.data(), 200, device_ids.data()}, nullptr), 0);
  EXPECT_EQ(device_ids.Get(), expected);
  EXPECT_EQ(cuda::LaunchAdvance({}, nullptr), 0) << "nothing to do";
}

}  // namespace
}  // namespace tramontane
