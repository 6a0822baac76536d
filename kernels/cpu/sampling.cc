// Sample: one row of logits, one thread. Every variant draws the same token. Advance: the tokens drawn.
//
// A row of V logits costs a few passes over it, in order of dearness:
//   weights   exp in f64 for the log-sum-exp, and again where the row's weights differ from it
//   race      a hash for each candidate; a logarithm only for the few whose v / w could still win
//   filters   a histogram of logits finds where top_k or top_p cuts; only the bucket that is cut is sorted
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/cpu/ops.h"

namespace tramontane {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kCutBuckets = 2048;
constexpr double kBucketsPerNat = 64;  // so that buckets reach 32 nats below the highest logit

// One thread's scratch.
struct SampleScratch {
  double* weights = nullptr;    // [vocab]
  double* histogram = nullptr;  // [kCutBuckets]
  float* adjusted = nullptr;    // [vocab]
  int32_t* bucket = nullptr;    // [vocab] tokens of the bucket that is cut
};

constexpr int64_t PaddedVocab(int64_t vocab) { return (vocab + 15) / 16 * 16; }

int64_t ScratchBytesPerThread(int64_t vocab) {
  return PaddedVocab(vocab) * static_cast<int64_t>(sizeof(double) + sizeof(float) + sizeof(int32_t)) +
         kCutBuckets * static_cast<int64_t>(sizeof(double));
}

SampleScratch ScratchOf(const CpuContext& context, int32_t thread, int64_t vocab) {
  std::byte* memory = context.workspace.data + thread * ScratchBytesPerThread(vocab);
  SampleScratch scratch;
  scratch.weights = reinterpret_cast<double*>(memory);
  scratch.histogram = scratch.weights + PaddedVocab(vocab);
  scratch.adjusted = reinterpret_cast<float*>(scratch.histogram + kCutBuckets);
  scratch.bucket = reinterpret_cast<int32_t*>(scratch.adjusted + PaddedVocab(vocab));
  return scratch;
}

// Where a filter cuts the tokens sorted by logit, highest first, equal ones by id: this token is the last to
// stay.
struct Cut {
  float logit = -kInfinity;
  int32_t token = std::numeric_limits<int32_t>::max();

  bool Keeps(float other_logit, int32_t other) const {
    return other_logit > logit || (other_logit == logit && other <= token);
  }
};

// What one row works with after its logprobs are settled.
struct Candidates {
  const float* logits = nullptr;  // [vocab] adjusted; -inf: not a candidate
  int64_t vocab = 0;
  float highest = -kInfinity;
  const double* weights = nullptr;  // [vocab] exp((logit - highest) / temperature)
  double weight_sum = 0.0;
  Cut cut;
};

// The shortest head of the sorted candidates whose measure reaches `limit`, where measure is what each
// candidate counts. All of them if they never reach it.
template <typename Measure>
Cut FindCut(const Candidates& candidates, double limit, const Measure& measure,
            const SampleScratch& scratch) {
  // Buckets by distance from the highest logit: neither the subtraction nor the product changes an order, so
  // a bucket's tokens all sort before the next bucket's.
  auto bucket_of = [&](float logit) {
    const double distance = (static_cast<double>(candidates.highest) - logit) * kBucketsPerNat;
    return distance < kCutBuckets - 1 ? static_cast<int32_t>(distance) : kCutBuckets - 1;
  };
  auto is_candidate = [&](int64_t t) {
    const float logit = candidates.logits[t];
    return logit > -kInfinity && candidates.cut.Keeps(logit, static_cast<int32_t>(t));
  };
  std::fill_n(scratch.histogram, kCutBuckets, 0.0);
  for (int64_t t = 0; t < candidates.vocab; ++t) {
    if (is_candidate(t)) scratch.histogram[bucket_of(candidates.logits[t])] += measure(t);
  }
  double reached = 0;
  int32_t cut_bucket = 0;
  while (cut_bucket < kCutBuckets && reached + scratch.histogram[cut_bucket] < limit) {
    reached += scratch.histogram[cut_bucket++];
  }
  if (cut_bucket == kCutBuckets) return candidates.cut;

  int32_t* end = scratch.bucket;
  for (int64_t t = 0; t < candidates.vocab; ++t) {
    if (is_candidate(t) && bucket_of(candidates.logits[t]) == cut_bucket) *end++ = static_cast<int32_t>(t);
  }
  std::sort(scratch.bucket, end, [&](int32_t a, int32_t b) {
    const float logit_a = candidates.logits[a];
    const float logit_b = candidates.logits[b];
    return logit_a != logit_b ? logit_a > logit_b : a < b;
  });
  const int32_t* last = scratch.bucket;
  while (last + 1 < end && (reached += measure(*last)) < limit) ++last;
  return {candidates.logits[*last], *last};
}

void ApplyFilters(const SamplingRow& row, const SampleScratch& scratch, Candidates* candidates) {
  if (row.top_k > 0 && row.top_k < candidates->vocab) {
    candidates->cut = FindCut(*candidates, row.top_k, [](int64_t) { return 1.0; }, scratch);
  }
  if (row.top_p < 1.0f) {
    double total = candidates->weight_sum;
    if (row.top_k > 0) {
      total = 0;
      for (int64_t t = 0; t < candidates->vocab; ++t) {
        if (candidates->cut.Keeps(candidates->logits[t], static_cast<int32_t>(t)))
          total += candidates->weights[t];
      }
    }
    candidates->cut =
        FindCut(*candidates, row.top_p * total, [&](int64_t t) { return candidates->weights[t]; }, scratch);
  }
}

// The candidate with the least E / w.
int32_t RunRace(const SamplingRow& row, const Candidates& candidates) {
  // min_p: the highest weight is 1. A weight that underflowed to zero never wins.
  const double least_weight = std::max<double>(row.min_p, std::numeric_limits<double>::min());
  int32_t winner = -1;
  double best = std::numeric_limits<double>::infinity();
  for (int32_t t = 0; t < candidates.vocab; ++t) {
    const double weight = candidates.weights[t];
    if (weight < least_weight || !candidates.cut.Keeps(candidates.logits[t], t)) continue;
    const double v = RaceUniform(row.seed, row.choice, row.position, t);
    // E >= v. The factor leaves room for the rounding of both sides.
    if (v * (1 - 0x1p-50) > best * weight) continue;
    const double time = -std::log1p(-v) / weight;
    if (time < best) {
      best = time;
      winner = t;
    }
  }
  return winner;
}

float Adjust(const SamplingRow& row, const LogitAdjust& adjust, float logit) {
  if (adjust.in_context != 0) {
    logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  }
  logit -= row.frequency_penalty * static_cast<float>(adjust.output_count);
  if (adjust.output_count > 0) logit -= row.presence_penalty;
  return logit + adjust.bias;
}

// Logits after the row's adjustments and mask, in scratch; the logits themselves where there is neither.
const float* AdjustedLogits(const SampleParams& params, const SamplingRow& row, const float* logits,
                            int64_t vocab, const SampleScratch& scratch) {
  if (row.adjust_begin == row.adjust_end && row.mask_row < 0) return logits;
  std::copy_n(logits, vocab, scratch.adjusted);
  for (int32_t i = row.adjust_begin; i < row.adjust_end; ++i) {
    const LogitAdjust& adjust = params.adjusts[i];
    TM_CHECK(adjust.token >= 0 && adjust.token < vocab, "adjusted token %d of %lld", adjust.token,
             static_cast<long long>(vocab));
    scratch.adjusted[adjust.token] = Adjust(row, adjust, scratch.adjusted[adjust.token]);
  }
  if (row.mask_row < 0) return scratch.adjusted;
  const uint32_t* mask = params.masks + row.mask_row * ((vocab + 31) / 32);
  for (int64_t t = 0; t < vocab; ++t) {
    if ((mask[t / 32] >> (t % 32) & 1u) == 0) scratch.adjusted[t] = -kInfinity;
  }
  return scratch.adjusted;
}

// The row's token, -1 when there is no candidate.
int32_t ChooseToken(const SampleParams& params, const SamplingRow& row, const float* logits,
                    double raw_weight_sum, const SamplingKernels& kernels, const SampleScratch& scratch) {
  Candidates candidates;
  candidates.vocab = params.logits.columns;
  candidates.logits = AdjustedLogits(params, row, logits, candidates.vocab, scratch);
  const LogitScan scan = kernels.scan(candidates.logits, candidates.vocab);
  if (!scan.usable || scan.highest == -kInfinity) return -1;
  candidates.highest = scan.highest;
  if (row.temperature == 0.0f) {
    return static_cast<int32_t>(
        std::find(candidates.logits, candidates.logits + candidates.vocab, scan.highest) - candidates.logits);
  }
  candidates.weights = scratch.weights;
  const bool weights_are_raw = candidates.logits == logits && row.temperature == 1.0f;
  candidates.weight_sum = weights_are_raw
                              ? raw_weight_sum
                              : kernels.exp_weights(candidates.logits, candidates.vocab, candidates.highest,
                                                    1.0 / row.temperature, scratch.weights);
  ApplyFilters(row, scratch, &candidates);
  return RunRace(row, candidates);
}

// The `count` highest raw logits, equal ones by id. Returns how many there are.
int32_t WriteTop(const float* logits, int64_t vocab, int32_t count, double log_total, TokenLogprob* top) {
  int32_t filled = 0;
  for (int32_t t = 0; t < vocab; ++t) {
    if (filled == count && !(logits[t] > top[filled - 1].logprob))
      continue;  // logprob holds the logit for now
    int32_t at = filled < count ? filled++ : count - 1;
    for (; at > 0 && logits[t] > top[at - 1].logprob; --at) top[at] = top[at - 1];
    top[at] = {t, logits[t]};
  }
  for (int32_t i = 0; i < filled; ++i) top[i].logprob = static_cast<float>(top[i].logprob - log_total);
  return filled;
}

SampleRecord SampleRow(const SampleParams& params, int64_t index, const SamplingKernels& kernels,
                       const SampleScratch& scratch) {
  const SamplingRow& row = params.rows[index];
  const int64_t vocab = params.logits.columns;
  const float* logits = static_cast<const float*>(params.logits.data) + index * params.logits.row_stride;

  SampleRecord record;
  record.failed = 1;
  const LogitScan scan = kernels.scan(logits, vocab);
  if (!scan.usable || scan.highest == -kInfinity) return record;
  const double weight_sum = kernels.exp_weights(logits, vocab, scan.highest, 1.0, scratch.weights);
  const double log_total = scan.highest + std::log(weight_sum);

  TM_CHECK(row.forced_token < vocab, "forced token %d of %lld", row.forced_token,
           static_cast<long long>(vocab));
  const int32_t token = row.forced_token >= 0
                            ? row.forced_token
                            : ChooseToken(params, row, logits, weight_sum, kernels, scratch);
  if (token < 0) return record;
  record.failed = 0;
  record.token = token;
  record.logprob = static_cast<float>(logits[token] - log_total);
  record.rank = 1 + kernels.count_higher(logits, vocab, logits[token]);
  if (row.top_logprobs > 0) {
    const int32_t count = std::min(row.top_logprobs, kMaxTopLogprobs);
    record.top_count = WriteTop(logits, vocab, count, log_total, params.top + index * kMaxTopLogprobs);
  }
  return record;
}

}  // namespace

int64_t SampleWorkspaceBytes(const StepMaxima& maxima, int32_t threads) {
  return threads * ScratchBytesPerThread(maxima.vocab);
}

void RunAdvance(const AdvanceParams& params, const CpuContext&) {
  for (int32_t i = 0; i < params.count; ++i) {
    const int32_t from = params.pairs[2 * i];
    const int32_t to = params.pairs[2 * i + 1];
    params.token_ids[to] = std::max(params.records[from].token, 0);
  }
}

void RunSample(const SampleParams& params, const CpuContext& context) {
  const int64_t vocab = params.logits.columns;
  TM_CHECK(params.logits.dtype == DType::kF32, "logits are %s, not f32", DTypeName(params.logits.dtype));
  TM_CHECK(context.pool.threads() * ScratchBytesPerThread(vocab) <= context.workspace.bytes,
           "sampling over %lld tokens was not reserved for", static_cast<long long>(vocab));
  context.pool.ParallelFor(params.logits.rows, [&](int64_t row, int32_t thread) {
    params.records[row] = SampleRow(params, row, context.kernels.sampling, ScratchOf(context, thread, vocab));
  });
}

}  // namespace tramontane
