// Sample on the CPU backend: against the definition, at the ends of every parameter, as a distribution, and
// that a row's answer depends on that row alone.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "kernels/backend.h"
#include "kernels/cpu/ops.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/sampling_rows.h"
#include "tests/support/test_scale.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

// The row's name in this file's stories.
using Row = SampledRow;
using Answers = SampleAnswers;

Answers RunSample(Backend& backend, const std::vector<Row>& rows) {
  return RunSample([&](const SampleParams& params) { EXPECT_EQ(backend.Sample(params), OpCode::kOk); }, rows);
}

class SampleTest : public CpuVariantTest {
 protected:
  static constexpr int32_t kMaxVocab = 131072;

  void SetUp() override {
    CpuVariantTest::SetUp();
    if (!IsSkipped()) backend_ = MakeBackend(GetParam(), 2, {.logit_rows = 64, .vocab = kMaxVocab});
  }
  SampleRecord One(const Row& row) { return RunSample(*backend_, {row}).records[0]; }
  void ExpectMatchesDefinition(const std::vector<Row>& rows) {
    ExpectAnswersOfTheDefinition(rows, RunSample(*backend_, rows));
  }
  BackendPtr backend_;
};
TM_INSTANTIATE_FOR_CPU_VARIANTS(SampleTest);

TEST_P(SampleTest, RandomRowsMatchTheDefinition) {
  constexpr uint64_t kSeed = 20240607;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (const size_t vocab : {1, 2, 7, 8, 33, 500, 32000}) {
    SCOPED_TRACE(testing::Message() << "vocabulary " << vocab);
    const int64_t calls = ScaledCount(vocab > 1000 ? 1 : 20);
    for (int64_t call = 0; call < calls; ++call) {
      std::vector<Row> rows;
      for (int i = 0; i < 24; ++i) rows.push_back(RandomRow(vocab, random));
      ExpectMatchesDefinition(rows);
    }
  }
}

TEST_P(SampleTest, AVocabularyOf131072MatchesTheDefinition) {
  std::vector<Row> rows(6);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits = RandomLogits(kMaxVocab, i);
    rows[i].row.seed = 5 + i;
    rows[i].row.top_logprobs = 20;
  }
  rows[1].row.top_p = 0.9f;
  rows[2].row.top_k = 50;
  rows[3].row.temperature = 100.0f;
  rows[3].row.top_p = 0.5f;
  std::fill(rows[4].logits.begin(), rows[4].logits.end(), 1.5f);  // all equal
  rows[4].row.top_p = 0.25f;
  rows[5].row.top_k = 100000;
  rows[5].row.top_p = 0.999f;
  rows[5].row.min_p = 1e-4f;
  ExpectMatchesDefinition(rows);
}

// ---- ends of the parameters ---------------------------------------------------------------------

TEST_P(SampleTest, GreedyTakesTheLowestIdOfTheHighestLogit) {
  EXPECT_EQ(One({{1.0f, 3.0f, 3.0f, -kInf}, Greedy(), {}, {}}).token, 1);
  EXPECT_EQ(One({{-0.0f, 0.0f}, Greedy(), {}, {}}).token, 0);
  EXPECT_EQ(One({{-kInf, -kInf, -5.0f}, Greedy(), {}, {}}).token, 2);
}

// Runs the race for many positions and counts who wins.
std::vector<int64_t> Winners(Backend& backend, const std::vector<float>& logits, SamplingRow sampling,
                             int64_t draws) {
  std::vector<int64_t> wins(logits.size(), 0);
  constexpr int64_t kRowsPerCall = 64;
  for (int64_t draw = 0; draw < draws; draw += kRowsPerCall) {
    std::vector<Row> rows;
    for (int64_t i = 0; i < kRowsPerCall; ++i) {
      sampling.position = draw + i;
      rows.push_back({logits, sampling, {}, {}});
    }
    for (const SampleRecord& record : RunSample(backend, rows).records)
      ++wins[static_cast<size_t>(record.token)];
  }
  return wins;
}

std::vector<size_t> TokensThatWon(const std::vector<int64_t>& wins) {
  std::vector<size_t> tokens;
  for (size_t t = 0; t < wins.size(); ++t) {
    if (wins[t] > 0) tokens.push_back(t);
  }
  return tokens;
}

TEST_P(SampleTest, FiltersLeaveWhatTheySay) {
  const std::vector<float> logits = {2.0f, 1.0f, 2.0f, 0.0f, -kInf, 1.0f};
  struct Case {
    const char* what;
    float top_p, min_p;
    int32_t top_k;
    std::vector<size_t> left;
  };
  // Probabilities: 0.34 each for tokens 0 and 2, 0.13 each for 1 and 5, 0.05 for 3.
  const std::vector<Case> cases = {
      {"nothing set", 1.0f, 0.0f, 0, {0, 1, 2, 3, 5}},
      {"top_k beyond the vocabulary", 1.0f, 0.0f, 1000, {0, 1, 2, 3, 5}},
      {"top_k 3 takes the lower id of two equal logits", 1.0f, 0.0f, 3, {0, 1, 2}},
      {"top_k 1", 1.0f, 0.0f, 1, {0}},
      {"a tiny top_p keeps one", 1e-30f, 0.0f, 0, {0}},
      {"top_p keeps the token that crosses", 0.5f, 0.0f, 0, {0, 2}},
      {"top_p counts over what top_k left", 0.9f, 0.0f, 3, {0, 1, 2}},
      {"min_p 1 keeps all that equal the highest", 1.0f, 1.0f, 0, {0, 2}},
      {"min_p against the highest, not against one", 1.0f, 0.3f, 0, {0, 1, 2, 5}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    SamplingRow row;
    row.top_p = c.top_p;
    row.min_p = c.min_p;
    row.top_k = c.top_k;
    row.seed = 17;
    // The least likely token that is left has probability 0.05: 640 draws miss it with probability e^-32.
    EXPECT_EQ(TokensThatWon(Winners(*backend_, logits, row, 640)), c.left);
  }
}

TEST_P(SampleTest, EqualCandidatesAreAllDrawnAndTopPKeepsTheLowestIds) {
  SamplingRow row;
  EXPECT_EQ(TokensThatWon(Winners(*backend_, {5, 5, 5, 5}, row, 640)), (std::vector<size_t>{0, 1, 2, 3}));
  row.top_p = 0.5f;
  EXPECT_EQ(TokensThatWon(Winners(*backend_, {5, 5, 5, 5}, row, 640)), (std::vector<size_t>{0, 1}));
}

TEST_P(SampleTest, ExtremeTemperaturesDoNotOverflow) {
  SamplingRow row;
  row.temperature = 1e-6f;
  EXPECT_EQ(TokensThatWon(Winners(*backend_, {-3e38f, 3e38f, 0.0f}, row, 128)), (std::vector<size_t>{1}));
  row.temperature = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(TokensThatWon(Winners(*backend_, {1.0f, 1.0000001f, 0.0f}, row, 128)), (std::vector<size_t>{1}));
  row.temperature = 100.0f;  // nearly uniform
  EXPECT_EQ(TokensThatWon(Winners(*backend_, {0.0f, 1.0f, 2.0f}, row, 640)), (std::vector<size_t>{0, 1, 2}));
  row.temperature = std::numeric_limits<float>::max();
  EXPECT_EQ(TokensThatWon(Winners(*backend_, {-3e38f, 0.0f, 3e38f}, row, 640)),
            (std::vector<size_t>{0, 1, 2}));
}

TEST_P(SampleTest, BiasesPenaltiesAndMaskDecideButLogprobsStayRaw) {
  Row row = {{1.0f, 2.0f, 0.0f}, Greedy(), {{1, -100.0f, 0, 0}}, {}};
  SampleRecord record = One(row);
  EXPECT_EQ(record.token, 0);
  EXPECT_EQ(record.rank, 2);
  ExpectLogprob(record.logprob, 1.0 - std::log(std::exp(1.0) + std::exp(2.0) + 1.0));

  row.adjusts = {{2, 100.0f, 0, 0}};
  EXPECT_EQ(One(row).token, 2);
  row.adjusts = {{0, 0.0f, 0, 0}, {1, -kInf, 0, 0}};
  EXPECT_EQ(One(row).token, 0);
  row.adjusts = {{1, 0.0f, 2, 0}};
  row.row.frequency_penalty = 0.6f;  // 2 - 2 * 0.6 < 1
  EXPECT_EQ(One(row).token, 0);
  row.row.frequency_penalty = 0.0f;
  row.row.presence_penalty = 1.1f;
  EXPECT_EQ(One(row).token, 0);
  row.adjusts = {{1, 0.0f, 0, 1}};  // in the prompt only: the presence penalty does not count it
  EXPECT_EQ(One(row).token, 1);
  row.row.repetition_penalty = 2.5f;
  EXPECT_EQ(One(row).token, 0);
  row.adjusts.clear();
  row.allowed = {false, false, true};
  EXPECT_EQ(One(row).token, 2);
}

TEST_P(SampleTest, APenaltyPushesNegativeLogitsDown) {
  Row row = {{-1.0f, -1.5f}, Greedy(), {{0, 0.0f, 0, 1}}, {}};
  row.row.repetition_penalty = 2.0f;
  EXPECT_EQ(One(row).token, 1);
}

TEST_P(SampleTest, ForcedTokenIsReportedWhateverTheRowWouldChoose) {
  Row row = {{1.0f, 5.0f, -kInf, 5.0f}, {}, {}, {false, true, false, false}};
  row.row.forced_token = 0;
  row.row.top_logprobs = 2;
  const Answers answers = RunSample(*backend_, {row});
  EXPECT_EQ(answers.records[0].token, 0);
  EXPECT_EQ(answers.records[0].rank, 3);
  EXPECT_EQ(answers.records[0].top_count, 2);
  EXPECT_EQ(answers.top[0].token, 1);
  EXPECT_EQ(answers.top[1].token, 3);
  row.row.forced_token = 2;
  const SampleRecord record = One(row);
  EXPECT_EQ(record.failed, 0);
  EXPECT_EQ(record.logprob, -kInf);
  EXPECT_EQ(record.rank, 4);
}

// Rows of padding: behind the columns, where the logits are no numbers.
TEST_P(SampleTest, WhatLiesBehindTheColumnsMayBeForcedAndIsAdjustedInVain) {
  Row row{{1.0f, 3.0f, 2.0f}, Greedy(), {}, {}};
  row.adjusts = {{.token = 4, .bias = 100.0f, .output_count = 2, .in_context = 1}};
  row.row.repetition_penalty = 2.0f;
  EXPECT_EQ(One(row).token, 1);
  row.row.forced_token = 5;
  row.row.top_logprobs = 20;
  const Answers answers = RunSample(*backend_, {row});
  EXPECT_EQ(answers.records[0].token, 5);
  EXPECT_EQ(answers.records[0].top_count, 3);
}

TEST_P(SampleTest, TopLogprobsStopAtTheVocabulary) {
  Row row = {{0.5f, 0.5f, 1.0f}, Greedy(), {}, {}};
  row.row.top_logprobs = kMaxTopLogprobs;
  const Answers answers = RunSample(*backend_, {row});
  ASSERT_EQ(answers.records[0].top_count, 3);
  EXPECT_EQ(answers.top[0].token, 2);
  EXPECT_EQ(answers.top[1].token, 0);
  EXPECT_EQ(answers.top[2].token, 1);
}

TEST_P(SampleTest, ABrokenRowFailsAloneAndItsNeighboursAreUntouched) {
  std::vector<Row> healthy;
  for (uint64_t i = 0; i < 9; ++i) {
    Row row = {RandomLogits(100, i), {}, {}, {}};
    row.row.seed = i;
    row.row.top_logprobs = 5;
    healthy.push_back(row);
  }
  const Answers clean = RunSample(*backend_, healthy);

  std::vector<Row> rows = healthy;
  rows[1].logits[40] = kNan;
  rows[3].logits[99] = kInf;
  std::fill(rows[4].logits.begin(), rows[4].logits.end(), -kInf);
  rows[6].allowed.assign(100, false);
  rows[7].logits[0] = kNan;
  rows[7].row.forced_token = 3;
  const Answers answers = RunSample(*backend_, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool broken = i == 1 || i == 3 || i == 4 || i == 6 || i == 7;
    EXPECT_EQ(answers.records[i].failed, broken ? 1 : 0) << i;
    if (broken) {
      EXPECT_EQ(answers.records[i].token, -1);
      EXPECT_EQ(answers.records[i].top_count, 0);
    } else {
      EXPECT_EQ(std::memcmp(&answers.records[i], &clean.records[i], sizeof(SampleRecord)), 0);
    }
  }
}

TEST(AdvanceTest, TokensGoWhereThePairsSayAndAFailedRowGivesZero) {
  const std::vector<SampleRecord> records = {{.token = 7}, {.token = -1, .failed = 1}, {.token = 9}};
  const std::vector<int32_t> pairs = {2, 0, 1, 3, 0, 1};
  std::vector<int32_t> token_ids = {50, 51, 52, 53};
  const BackendPtr backend = CpuBackendWith(1);
  EXPECT_EQ(backend->Advance({records.data(), pairs.data(), 3, token_ids.data()}), OpCode::kOk);
  EXPECT_EQ(token_ids, (std::vector<int32_t>{9, 7, 52, 0}));
}

// ---- the race -----------------------------------------------------------------------------------

TEST_P(SampleTest, WinnersFollowTheSoftmax) {
  // Chi-square over 8 tokens with every expected count above 5: 7 degrees of freedom, whose 99.9 % quantile
  // is 24.32.
  constexpr uint64_t kSeed = 4242;
  constexpr double kCritical = 24.32;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -2.0f, 1.5f, 0.0f};
  const int64_t draws = 64 * ScaledCount(300, 30);
  for (const float temperature : {1.0f, 0.6f, 2.0f}) {
    SCOPED_TRACE(testing::Message() << "temperature " << temperature);
    SamplingRow row;
    row.seed = kSeed;
    row.temperature = temperature;
    const std::vector<int64_t> wins = Winners(*backend_, logits, row, draws);
    double total = 0;
    for (const float logit : logits) total += std::exp(double{logit} / temperature);
    double chi_square = 0;
    for (size_t t = 0; t < logits.size(); ++t) {
      const double expected = static_cast<double>(draws) * std::exp(double{logits[t]} / temperature) / total;
      const double difference = static_cast<double>(wins[t]) - expected;
      chi_square += difference * difference / expected;
    }
    EXPECT_LT(chi_square, kCritical);
  }
}

TEST_P(SampleTest, SeedChoiceAndPositionEachChangeTheDraw) {
  const std::vector<float> logits(1000, 0.0f);
  SamplingRow row;
  row.seed = 1;
  row.choice = 2;
  row.position = 3;
  const int32_t token = One({logits, row, {}, {}}).token;
  EXPECT_EQ(One({logits, row, {}, {}}).token, token);
  for (int change = 0; change < 3; ++change) {
    SamplingRow other = row;
    if (change == 0) ++other.seed;
    if (change == 1) ++other.choice;
    if (change == 2) ++other.position;
    EXPECT_NE(One({logits, other, {}, {}}).token, token) << change;  // equal by chance once in 1,000
  }
}

TEST(RaceTest, BitsNeverChange) {
  // A seed that a user wrote down must draw the same tokens in a year.
  EXPECT_EQ(RaceBits(0, 0, 0, 0), 0x2aea2ec8299df491u);
  EXPECT_EQ(RaceBits(1, 2, 3, 4), 0x137baad33c3bcaf9u);
  EXPECT_EQ(RaceBits(~0ull, -1, -1, 131071), 0x4d2a9e74e35fc093u);
  EXPECT_GT(RaceUniform(1, 2, 3, 4), 0.0);
  EXPECT_LT(RaceUniform(1, 2, 3, 4), 1.0);
}

// ---- one answer, wherever the row stands --------------------------------------------------------

TEST_P(SampleTest, ARowsAnswerDoesNotDependOnThreadsOrNeighbours) {
  constexpr uint64_t kSeed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  std::vector<Row> rows;
  for (int i = 0; i < 40; ++i) rows.push_back(RandomRow(3000, random));
  const Answers together = RunSample(*backend_, rows);
  for (const int32_t threads : {1, 3, 4}) {
    const BackendPtr other = MakeBackend(GetParam(), threads, {.vocab = 3000});
    std::vector<size_t> order(rows.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Row> shuffled;
    for (const size_t i : order) shuffled.push_back(rows[i]);
    const Answers answers = RunSample(*other, shuffled);
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(std::memcmp(&answers.records[i], &together.records[order[i]], sizeof(SampleRecord)), 0);
    }
  }
}

// A row alone is shared by all threads; in a crowd it has one.
TEST_P(SampleTest, ARowThatAllThreadsShareHasTheAnswerOfOneThread) {
  constexpr uint64_t kSeed = 79;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  std::vector<Row> rows;
  for (int64_t i = ScaledCount(24, 8); i > 0; --i) rows.push_back(RandomRow(20011, random));
  rows[0].row.temperature = 0.0f;
  rows[1].row.top_k = 40;
  rows[1].row.top_p = 0.9f;
  rows[2].row.top_logprobs = kMaxTopLogprobs;
  const BackendPtr one_thread = MakeBackend(GetParam(), 1, {.vocab = 20011});
  const Answers together = RunSample(*one_thread, rows);
  ExpectAnswersOfTheDefinition(rows, together);
  for (const int32_t threads : {2, 3, 9}) {
    const BackendPtr shared = MakeBackend(GetParam(), threads, {.vocab = 20011});
    for (size_t i = 0; i < rows.size(); ++i) {
      const Answers alone = RunSample(*shared, {rows[i]});
      EXPECT_EQ(std::memcmp(&alone.records[0], &together.records[i], sizeof(SampleRecord)), 0) << "row " << i;
      for (int32_t t = 0; t < alone.records[0].top_count; ++t) {
        const TokenLogprob& expected = together.top[i * kMaxTopLogprobs + static_cast<size_t>(t)];
        EXPECT_EQ(std::memcmp(&alone.top[static_cast<size_t>(t)], &expected, sizeof expected), 0)
            << "row " << i;
      }
    }
  }
}

// The threads that have scanned a part of some row.
class Scanners {
 public:
  void Note() {
    std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
  }
  int64_t count() {
    std::lock_guard lock(mutex_);
    return std::ssize(threads_);
  }

 private:
  std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

Scanners& TheScanners() {
  static Scanners scanners;
  return scanners;
}

// A thread that has a part of the row holds it until another has one, too.
LogitScan ScanInCompany(const float* logits, int64_t vocab) {
  TheScanners().Note();
  WaitFor([] { return TheScanners().count() >= 2 || testing::Test::HasFailure(); });
  return kPortableKernels.sampling.scan(logits, vocab);
}

struct alignas(64) ScratchLine {
  std::byte bytes[64];
};

TEST(SharedRowTest, NoThreadScansAllPartsOfARowThatIsAlone) {
  const CpuKernels& portable = kPortableKernels;
  SamplingKernels in_company = portable.sampling;
  in_company.scan = ScanInCompany;
  const CpuKernels kernels = {portable.name, portable.linear, portable.attention, portable.moe, in_company};
  ThreadPool pool(2);
  const int64_t bytes = SampleWorkspaceBytes({.vocab = 20011}, pool.threads());
  std::vector<ScratchLine> workspace(static_cast<size_t>(bytes / 64 + 1));
  SharedPrefixMemo memo;
  const CpuContext context = {.kernels = kernels,
                              .pool = pool,
                              .workspace = {workspace.data()->bytes, bytes},
                              .shared_prefixes = memo};
  Row row;
  row.logits = RandomLogits(20011, 80);
  row.row = Greedy();
  tramontane::RunSample([&](const SampleParams& params) { tramontane::RunSample(params, context); }, {row});
  EXPECT_EQ(TheScanners().count(), 2);
}

TEST(SampleVariantsTest, EveryVariantGivesTheSameRecords) {
  std::mt19937_64 random(78);
  std::vector<Row> rows;
  for (int i = 0; i < 40; ++i) rows.push_back(RandomRow(2000, random));
  std::optional<Answers> first;
  for (const std::string& variant : CpuVariants()) {
    const BackendPtr backend = CpuBackendWith(1, variant);
    ASSERT_EQ(backend->Reserve({.vocab = 2000}), OpCode::kOk);
    const Answers answers = RunSample(*backend, rows);
    if (!first) first = answers;
    EXPECT_EQ(std::memcmp(answers.records.data(), first->records.data(), rows.size() * sizeof(SampleRecord)),
              0);
  }
}

}  // namespace
}  // namespace tramontane
