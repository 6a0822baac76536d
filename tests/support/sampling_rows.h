// Rows for Sample, one at a time in the test's words, and what the definition answers to them: the same rows
// for every backend. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/backend.h"

namespace tramontane {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One row of a call: what is asked, in the kernel's words.
struct SampledRow {
  std::vector<float> logits;
  SamplingRow row;
  std::vector<LogitAdjust> adjusts;
  std::vector<bool> allowed;  // empty: no mask
};

struct SampleAnswers {
  std::vector<SampleRecord> records;
  std::vector<TokenLogprob> top;  // [rows, kMaxTopLogprobs]
};

// One call of the op, as a backend is given it but in host memory.
struct SampleCall {
  std::vector<float> logits;  // [rows, stride]
  int64_t vocab = 0;
  int64_t stride = 0;
  std::vector<SamplingRow> rows;
  std::vector<LogitAdjust> adjusts;
  std::vector<uint32_t> masks;
  std::vector<SampleRecord> records;  // [rows] out
  std::vector<TokenLogprob> top;      // [rows, kMaxTopLogprobs] out

  SampleParams OnHost();
};

// Runs one call over the rows, all of the same vocabulary. Fails the test when the logits were changed.
SampleAnswers RunSample(const std::function<void(SampleCall&)>& sample, const std::vector<SampledRow>& rows);
// The same for a backend whose device memory is the host's.
SampleAnswers RunSample(const std::function<void(const SampleParams&)>& sample,
                        const std::vector<SampledRow>& rows);

// Fails the test where a record is not what the definition in tests/reference says. error: what a logprob may
// be off by before it is rounded to f32.
inline constexpr double kF64LogprobError = 1e-12;
void ExpectSameAnswer(const SampledRow& row, const SampleRecord& record, const TokenLogprob* top,
                      double error = kF64LogprobError);
void ExpectAnswersOfTheDefinition(const std::vector<SampledRow>& rows, const SampleAnswers& answers,
                                  double error = kF64LogprobError);
void ExpectLogprob(float actual, double expected, double error = kF64LogprobError);

std::vector<float> RandomLogits(size_t vocab, uint64_t seed, float spread = 3.0f);
std::vector<float> TiedLogits(size_t vocab, uint64_t seed);  // on a coarse grid, so that many are equal
SamplingRow Greedy();
// Any mixture of what a row can ask for.
SampledRow RandomRow(size_t vocab, std::mt19937_64& random);

}  // namespace tramontane
