// Sample: a row of logits by one thread, or, in a step of few rows, by all threads. Every variant draws the
// same token. Advance: the tokens drawn.
//
// The vocabulary is cut into kParts neighbouring parts, whoever runs them: a sum is taken part by part, and
// the parts' sums are added in ascending order, so no number of threads shows.
//
// A row of V logits costs a few passes over it, in order of dearness:
//   weights   exp in f64 for the log-sum-exp, and again where the row's weights differ from it
//   race      a hash for each candidate; a logarithm only for the few whose v / w could still win
//   filters   a histogram of logits finds where top_k or top_p cuts; only the bucket that is cut is sorted
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/cpu/ops.h"

namespace tramontane {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kCutBuckets = 2048;
constexpr double kBucketsPerNat = 64;  // so that buckets reach 32 nats below the highest logit

constexpr int32_t kParts = 8;
constexpr int64_t kLeastSharedVocab = 8192;  // a smaller row is not worth a thread's waking

// Tokens [begin, end).
struct Part {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

Part PartOf(int64_t index, int64_t vocab) {
  const int64_t size = ((vocab + kParts - 1) / kParts + 15) / 16 * 16;
  return {std::min(index * size, vocab), std::min((index + 1) * size, vocab)};
}

// Who runs the parts of a row.
struct PartRunner {
  ThreadPool* pool = nullptr;  // null: the thread that runs the row
  int64_t vocab = 0;

  // body(part index, Part) for every part.
  template <typename Body>
  void ForParts(const Body& body) const {
    auto run = [&](int64_t index, int32_t) { body(index, PartOf(index, vocab)); };
    if (pool != nullptr) return pool->ParallelFor(kParts, run);
    for (int64_t index = 0; index < kParts; ++index) run(index, 0);
  }
};

// One row's scratch.
struct SampleScratch {
  double* weights = nullptr;    // [vocab]
  double* histogram = nullptr;  // [kParts, kCutBuckets]
  float* adjusted = nullptr;    // [vocab]
  int32_t* bucket = nullptr;    // [vocab] tokens of the bucket that is cut
};

constexpr int64_t PaddedVocab(int64_t vocab) { return (vocab + 15) / 16 * 16; }

int64_t ScratchBytesPerThread(int64_t vocab) {
  return PaddedVocab(vocab) * static_cast<int64_t>(sizeof(double) + sizeof(float) + sizeof(int32_t)) +
         kParts * kCutBuckets * static_cast<int64_t>(sizeof(double));
}

SampleScratch ScratchOf(const CpuContext& context, int32_t thread, int64_t vocab) {
  std::byte* memory = context.workspace.data + thread * ScratchBytesPerThread(vocab);
  SampleScratch scratch;
  scratch.weights = reinterpret_cast<double*>(memory);
  scratch.histogram = scratch.weights + PaddedVocab(vocab);
  scratch.adjusted = reinterpret_cast<float*>(scratch.histogram + kParts * kCutBuckets);
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
Cut FindCut(const Candidates& candidates, double limit, const Measure& measure, const SampleScratch& scratch,
            const PartRunner& runner) {
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
  runner.ForParts([&](int64_t index, Part part) {
    double* histogram = scratch.histogram + index * kCutBuckets;
    std::fill_n(histogram, kCutBuckets, 0.0);
    for (int64_t t = part.begin; t < part.end; ++t) {
      if (is_candidate(t)) histogram[bucket_of(candidates.logits[t])] += measure(t);
    }
  });
  for (int32_t index = 1; index < kParts; ++index) {
    for (int32_t i = 0; i < kCutBuckets; ++i) {
      scratch.histogram[i] += scratch.histogram[index * kCutBuckets + i];
    }
  }
  double reached = 0;
  int32_t cut_bucket = 0;
  while (cut_bucket < kCutBuckets && reached + scratch.histogram[cut_bucket] < limit) {
    reached += scratch.histogram[cut_bucket++];
  }
  if (cut_bucket == kCutBuckets) return candidates.cut;

  int64_t found[kParts];  // each part's lie where the part does, and are then moved together
  runner.ForParts([&](int64_t index, Part part) {
    int32_t* end = scratch.bucket + part.begin;
    for (int64_t t = part.begin; t < part.end; ++t) {
      if (is_candidate(t) && bucket_of(candidates.logits[t]) == cut_bucket) *end++ = static_cast<int32_t>(t);
    }
    found[index] = end - (scratch.bucket + part.begin);
  });
  int32_t* end = scratch.bucket;
  for (int64_t index = 0; index < kParts; ++index) {
    end = std::copy_n(scratch.bucket + PartOf(index, candidates.vocab).begin, found[index], end);
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

void ApplyFilters(const SamplingRow& row, const SampleScratch& scratch, const PartRunner& runner,
                  Candidates* candidates) {
  if (row.top_k > 0 && row.top_k < candidates->vocab) {
    candidates->cut = FindCut(*candidates, row.top_k, [](int64_t) { return 1.0; }, scratch, runner);
  }
  if (row.top_p < 1.0f) {
    double total = candidates->weight_sum;
    if (row.top_k > 0) {
      double sums[kParts];
      runner.ForParts([&](int64_t index, Part part) {
        double sum = 0;
        for (int64_t t = part.begin; t < part.end; ++t) {
          if (candidates->cut.Keeps(candidates->logits[t], static_cast<int32_t>(t))) {
            sum += candidates->weights[t];
          }
        }
        sums[index] = sum;
      });
      total = std::accumulate(sums, sums + kParts, 0.0);
    }
    candidates->cut = FindCut(
        *candidates, row.top_p * total, [&](int64_t t) { return candidates->weights[t]; }, scratch, runner);
  }
}

struct RaceWinner {
  int32_t token = -1;
  double time = std::numeric_limits<double>::infinity();
};

// The candidate of one part with the least E / w.
RaceWinner RunRacePart(const SamplingRow& row, const Candidates& candidates, Part part) {
  // min_p: the highest weight is 1. A weight that underflowed to zero never wins.
  const double least_weight = std::max<double>(row.min_p, std::numeric_limits<double>::min());
  RaceWinner winner;
  for (auto t = static_cast<int32_t>(part.begin); t < part.end; ++t) {
    const double weight = candidates.weights[t];
    if (weight < least_weight || !candidates.cut.Keeps(candidates.logits[t], t)) continue;
    const double v = RaceUniform(row.seed, row.choice, row.position, t);
    // E >= v. The factor leaves room for the rounding of both sides.
    if (v * (1 - 0x1p-50) > winner.time * weight) continue;
    const double time = -std::log1p(-v) / weight;
    if (time < winner.time) winner = {t, time};
  }
  return winner;
}

// Of equal times the lower token wins: the earlier part.
int32_t RunRace(const SamplingRow& row, const Candidates& candidates, const PartRunner& runner) {
  RaceWinner winners[kParts];
  runner.ForParts([&](int64_t index, Part part) { winners[index] = RunRacePart(row, candidates, part); });
  RaceWinner best;
  for (const RaceWinner& winner : winners) {
    if (winner.time < best.time) best = winner;
  }
  return best.token;
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
                            int64_t vocab, const SampleScratch& scratch, const PartRunner& runner) {
  if (row.adjust_begin == row.adjust_end && row.mask_row < 0) return logits;
  runner.ForParts([&](int64_t, Part part) {
    std::copy_n(logits + part.begin, part.size(), scratch.adjusted + part.begin);
  });
  for (int32_t i = row.adjust_begin; i < row.adjust_end; ++i) {
    const LogitAdjust& adjust = params.adjusts[i];
    TM_CHECK(adjust.token >= 0 && adjust.token < vocab, "adjusted token %d of %lld", adjust.token,
             static_cast<long long>(vocab));
    scratch.adjusted[adjust.token] = Adjust(row, adjust, scratch.adjusted[adjust.token]);
  }
  if (row.mask_row < 0) return scratch.adjusted;
  const uint32_t* mask = params.masks + row.mask_row * ((vocab + 31) / 32);
  runner.ForParts([&](int64_t, Part part) {
    for (int64_t t = part.begin; t < part.end; ++t) {
      if ((mask[t / 32] >> (t % 32) & 1u) == 0) scratch.adjusted[t] = -kInfinity;
    }
  });
  return scratch.adjusted;
}

LogitScan Scan(const SamplingKernels& kernels, const float* logits, const PartRunner& runner) {
  LogitScan scans[kParts];
  runner.ForParts(
      [&](int64_t index, Part part) { scans[index] = kernels.scan(logits + part.begin, part.size()); });
  LogitScan all = {.usable = true, .highest = -kInfinity};
  for (const LogitScan& scan : scans) {
    all.usable &= scan.usable;
    all.highest = std::max(all.highest, scan.highest);
  }
  return all;
}

double ExpWeights(const SamplingKernels& kernels, const float* logits, float highest,
                  double inverse_temperature, double* weights, const PartRunner& runner) {
  double sums[kParts];
  runner.ForParts([&](int64_t index, Part part) {
    sums[index] = kernels.exp_weights(logits + part.begin, part.size(), highest, inverse_temperature,
                                      weights + part.begin);
  });
  return std::accumulate(sums, sums + kParts, 0.0);
}

int32_t CountHigher(const SamplingKernels& kernels, const float* logits, float than,
                    const PartRunner& runner) {
  int32_t counts[kParts];
  runner.ForParts([&](int64_t index, Part part) {
    counts[index] = kernels.count_higher(logits + part.begin, part.size(), than);
  });
  return std::accumulate(counts, counts + kParts, 0);
}

// The first token with this logit.
int32_t FindLogit(const float* logits, float logit, const PartRunner& runner) {
  int64_t first[kParts];
  runner.ForParts([&](int64_t index, Part part) {
    first[index] = std::find(logits + part.begin, logits + part.end, logit) - logits;
  });
  for (int64_t index = 0; index < kParts; ++index) {
    if (first[index] < PartOf(index, runner.vocab).end) return static_cast<int32_t>(first[index]);
  }
  return -1;
}

// The row's token, -1 when there is no candidate.
int32_t ChooseToken(const SampleParams& params, const SamplingRow& row, const float* logits,
                    double raw_weight_sum, const SamplingKernels& kernels, const SampleScratch& scratch,
                    const PartRunner& runner) {
  Candidates candidates;
  candidates.vocab = params.logits.columns;
  candidates.logits = AdjustedLogits(params, row, logits, candidates.vocab, scratch, runner);
  const LogitScan scan = Scan(kernels, candidates.logits, runner);
  if (!scan.usable || scan.highest == -kInfinity) return -1;
  candidates.highest = scan.highest;
  if (row.temperature == 0.0f) return FindLogit(candidates.logits, scan.highest, runner);
  candidates.weights = scratch.weights;
  const bool weights_are_raw = candidates.logits == logits && row.temperature == 1.0f;
  candidates.weight_sum = weights_are_raw ? raw_weight_sum
                                          : ExpWeights(kernels, candidates.logits, candidates.highest,
                                                       1.0 / row.temperature, scratch.weights, runner);
  ApplyFilters(row, scratch, runner, &candidates);
  return RunRace(row, candidates, runner);
}

// Tokens in descending logit, equal ones in ascending id: a list of at most `count`, offered in ascending id.
struct TopTokens {
  int32_t count = 0;
  int32_t filled = 0;
  TokenLogprob* top = nullptr;  // [count] logprob holds the logit

  void Offer(int32_t token, float logit) {
    if (filled == count && !(logit > top[filled - 1].logprob)) return;
    int32_t at = filled < count ? filled++ : count - 1;
    for (; at > 0 && logit > top[at - 1].logprob; --at) top[at] = top[at - 1];
    top[at] = {token, logit};
  }
};

// The `count` highest raw logits, equal ones by id. Returns how many there are.
int32_t WriteTop(const float* logits, int32_t count, double log_total, TokenLogprob* top,
                 const PartRunner& runner) {
  TokenLogprob of_part[kParts][kMaxTopLogprobs];
  int32_t filled[kParts];
  runner.ForParts([&](int64_t index, Part part) {
    TopTokens tokens = {.count = count, .top = of_part[index]};
    for (int64_t t = part.begin; t < part.end; ++t) tokens.Offer(static_cast<int32_t>(t), logits[t]);
    filled[index] = tokens.filled;
  });
  TopTokens all = {.count = count, .top = top};
  for (int32_t index = 0; index < kParts; ++index) {
    for (int32_t i = 0; i < filled[index]; ++i) all.Offer(of_part[index][i].token, of_part[index][i].logprob);
  }
  for (int32_t i = 0; i < all.filled; ++i) top[i].logprob = static_cast<float>(top[i].logprob - log_total);
  return all.filled;
}

SampleRecord SampleRow(const SampleParams& params, int64_t index, const SamplingKernels& kernels,
                       const SampleScratch& scratch, const PartRunner& runner) {
  const SamplingRow& row = params.rows[index];
  const int64_t vocab = params.logits.columns;
  const float* logits = static_cast<const float*>(params.logits.data) + index * params.logits.row_stride;

  SampleRecord record;
  record.failed = 1;
  const LogitScan scan = Scan(kernels, logits, runner);
  if (!scan.usable || scan.highest == -kInfinity) return record;
  const double weight_sum = ExpWeights(kernels, logits, scan.highest, 1.0, scratch.weights, runner);
  const double log_total = scan.highest + std::log(weight_sum);

  TM_CHECK(row.forced_token < vocab, "forced token %d of %lld", row.forced_token,
           static_cast<long long>(vocab));
  const int32_t token = row.forced_token >= 0
                            ? row.forced_token
                            : ChooseToken(params, row, logits, weight_sum, kernels, scratch, runner);
  if (token < 0) return record;
  record.failed = 0;
  record.token = token;
  record.logprob = static_cast<float>(logits[token] - log_total);
  record.rank = 1;
  if (logits[token] < scan.highest) record.rank += CountHigher(kernels, logits, logits[token], runner);
  if (row.top_logprobs > 0) {
    const int32_t count = std::min(row.top_logprobs, kMaxTopLogprobs);
    record.top_count = WriteTop(logits, count, log_total, params.top + index * kMaxTopLogprobs, runner);
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
  const SamplingKernels& kernels = context.kernels.sampling;
  ThreadPool& pool = context.pool;
  if (params.logits.rows < pool.threads() && vocab >= kLeastSharedVocab) {
    for (int64_t row = 0; row < params.logits.rows; ++row) {
      params.records[row] =
          SampleRow(params, row, kernels, ScratchOf(context, 0, vocab), {.pool = &pool, .vocab = vocab});
    }
    return;
  }
  pool.ParallelFor(params.logits.rows, [&](int64_t row, int32_t thread) {
    params.records[row] =
        SampleRow(params, row, kernels, ScratchOf(context, thread, vocab), {.vocab = vocab});
  });
}

}  // namespace tramontane
