#include "tests/support/sampling_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tests/reference/sampling.h"

namespace tramontane {
namespace {

reference::SamplingAnswer ReferenceAnswer(const SampledRow& row) {
  reference::SamplingProblem problem;
  problem.logits = row.logits;
  problem.temperature = row.row.temperature;
  problem.top_p = row.row.top_p;
  problem.min_p = row.row.min_p;
  problem.top_k = row.row.top_k;
  problem.repetition_penalty = row.row.repetition_penalty;
  problem.presence_penalty = row.row.presence_penalty;
  problem.frequency_penalty = row.row.frequency_penalty;
  for (const LogitAdjust& a : row.adjusts) {
    problem.adjustments.push_back({a.token, a.bias, a.output_count, a.in_context != 0});
  }
  problem.allowed = row.allowed;
  problem.forced_token = row.row.forced_token;
  problem.top_logprobs = row.row.top_logprobs;
  problem.exponential = [&row](int32_t token) {
    return -std::log1p(-RaceUniform(row.row.seed, row.row.choice, row.row.position, token));
  };
  return reference::Sample(problem);
}

}  // namespace

SampleParams SampleCall::OnHost() {
  return {.logits = {logits.data(), DType::kF32, static_cast<int64_t>(rows.size()), vocab, stride},
          .rows = rows.data(),
          .adjusts = adjusts.data(),
          .masks = masks.data(),
          .records = records.data(),
          .top = top.data()};
}

SampleAnswers RunSample(const std::function<void(const SampleParams&)>& sample,
                        const std::vector<SampledRow>& rows) {
  return RunSample(std::function<void(SampleCall&)>([&](SampleCall& call) { sample(call.OnHost()); }), rows);
}

SampleAnswers RunSample(const std::function<void(SampleCall&)>& sample, const std::vector<SampledRow>& rows) {
  const size_t vocab = rows.front().logits.size();
  const size_t words = (vocab + 31) / 32;
  SampleCall call;
  call.vocab = static_cast<int64_t>(vocab);
  call.stride = call.vocab + 3;
  for (const SampledRow& row : rows) {
    call.logits.insert(call.logits.end(), row.logits.begin(), row.logits.end());
    call.logits.resize(call.logits.size() + 3, kNan);
    SamplingRow sampling = row.row;
    sampling.adjust_begin = static_cast<int32_t>(call.adjusts.size());
    call.adjusts.insert(call.adjusts.end(), row.adjusts.begin(), row.adjusts.end());
    sampling.adjust_end = static_cast<int32_t>(call.adjusts.size());
    if (!row.allowed.empty()) {
      sampling.mask_row = static_cast<int32_t>(call.masks.size() / words);
      call.masks.resize(call.masks.size() + words, 0);
      uint32_t* mask = &call.masks[call.masks.size() - words];
      for (size_t t = 0; t < vocab; ++t) mask[t / 32] |= row.allowed[t] ? 1u << (t % 32) : 0u;
    }
    call.rows.push_back(sampling);
  }
  call.records.resize(rows.size());
  call.top.resize(rows.size() * kMaxTopLogprobs);
  const std::vector<float> before = call.logits;
  sample(call);
  EXPECT_EQ(std::memcmp(call.logits.data(), before.data(), before.size() * sizeof(float)), 0)
      << "logits changed";
  return {std::move(call.records), std::move(call.top)};
}

void ExpectLogprob(float actual, double expected, double error) {
  if (std::isinf(expected)) {
    EXPECT_EQ(actual, static_cast<float>(expected));
  } else {
    EXPECT_NEAR(actual, expected, 0x1p-24 * std::abs(expected) + error);
  }
}

void ExpectSameAnswer(const SampledRow& row, const SampleRecord& record, const TokenLogprob* top,
                      double error) {
  const reference::SamplingAnswer expected = ReferenceAnswer(row);
  ASSERT_EQ(record.failed, expected.failed ? 1 : 0);
  ASSERT_EQ(record.token, expected.token);
  if (expected.failed) return;
  if (row.row.NeedsLogprob()) {
    ExpectLogprob(record.logprob, expected.logprob, error);
    EXPECT_EQ(record.rank, expected.rank);
  } else {
    EXPECT_EQ(record.logprob, 0.0f);
    EXPECT_EQ(record.rank, 0);
  }
  ASSERT_EQ(record.top_count, static_cast<int32_t>(expected.top.size()));
  for (size_t i = 0; i < expected.top.size(); ++i) {
    EXPECT_EQ(top[i].token, expected.top[i].first);
    ExpectLogprob(top[i].logprob, expected.top[i].second, error);
  }
}

void ExpectAnswersOfTheDefinition(const std::vector<SampledRow>& rows, const SampleAnswers& answers,
                                  double error) {
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "row " << i);
    ExpectSameAnswer(rows[i], answers.records[i], &answers.top[i * kMaxTopLogprobs], error);
  }
}

std::vector<float> RandomLogits(size_t vocab, uint64_t seed, float spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<float> TiedLogits(size_t vocab, uint64_t seed) {
  std::vector<float> logits = RandomLogits(vocab, seed);
  for (float& logit : logits) logit = std::round(logit);
  return logits;
}

SamplingRow Greedy() {
  SamplingRow row;
  row.temperature = 0.0f;
  return row;
}

SampledRow RandomRow(size_t vocab, std::mt19937_64& random) {
  auto one_of = [&](std::initializer_list<float> choices) {
    return *(choices.begin() + random() % choices.size());
  };
  SampledRow row;
  row.logits = random() % 2 == 0 ? RandomLogits(vocab, random(), one_of({0.1f, 3.0f, 30.0f}))
                                 : TiedLogits(vocab, random());
  row.row.temperature = one_of({0.0f, 1e-6f, 0.3f, 1.0f, 1.0f, 1.7f, 100.0f});
  row.row.top_k = static_cast<int32_t>(one_of({0, 0, 1, 2, 5, 40, 1000, 200000}));
  row.row.top_p = one_of({1.0f, 1.0f, 0.95f, 0.5f, 0.1f, 1e-6f, 0.99999994f});
  row.row.min_p = one_of({0.0f, 0.0f, 0.05f, 0.5f, 1.0f});
  row.row.repetition_penalty = one_of({1.0f, 1.3f, 0.7f});
  row.row.presence_penalty = one_of({0.0f, 1.5f, -2.0f});
  row.row.frequency_penalty = one_of({0.0f, 0.25f, -1.0f});
  row.row.seed = random();
  row.row.choice = static_cast<int32_t>(random() % 3);
  row.row.position = static_cast<int64_t>(random() % 100000);
  row.row.top_logprobs = static_cast<int32_t>(random() % (kMaxTopLogprobs + 1));
  if (random() % 4 == 0) row.row.forced_token = static_cast<int32_t>(random() % vocab);
  if (random() % 2 == 0) {
    for (size_t t = random() % 7; t < vocab; t += 1 + random() % (1 + vocab / 8)) {
      row.adjusts.push_back({static_cast<int32_t>(t), one_of({0.0f, 0.5f, 100.0f, -100.0f, -kInf}),
                             static_cast<int32_t>(random() % 4), static_cast<int32_t>(random() % 2)});
    }
  }
  if (random() % 3 == 0) {
    row.allowed.resize(vocab);
    for (size_t t = 0; t < vocab; ++t) row.allowed[t] = random() % 3 == 0;
  }
  for (size_t t = 0; t < vocab; ++t) {
    if (random() % 50 == 0) row.logits[t] = -kInf;
  }
  if (random() % 3 == 0) row.row.wants_logprob = 0;
  if (random() % 3 == 0) row.row.top_logprobs = 0;
  return row;
}

}  // namespace tramontane
