// Sample: a row of logits by one thread, or, in a step of few rows, by all threads. Every variant draws the
// same token. Advance: the tokens drawn.
//
// The vocabulary is cut into neighbouring parts, as many as its size says and whoever runs them: a sum is
// taken part by part, and the parts' sums are added in ascending order, so no number of threads shows.
//
// A row of V logits costs a few passes over it, in order of dearness:
//   weights   exp in f64 for the log-sum-exp, where a logprob is wanted, and for the race where its weights
//             are others; neither for a greedy row whose logprob nobody reads
//   race      a hash for each candidate; a logarithm only for the few whose v / w could still win
//   filters   a histogram of logits finds where top_k or top_p cuts; only the bucket that is cut is sorted
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "kernels/core/check.h"
#include "kernels/cpu/ops.h"

namespace tramontane {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kParts = 8;
constexpr int64_t kLeastSharedVocab = 8192;  // a smaller row is not worth a thread's waking: it is one part

// Tokens [begin, end).
struct Part {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

constexpr int32_t PartsOf(int64_t vocab) { return vocab < kLeastSharedVocab ? 1 : kParts; }

Part PartOf(int64_t index, int64_t vocab) {
  const int64_t parts = PartsOf(vocab);
  const int64_t size = ((vocab + parts - 1) / parts + 15) / 16 * 16;
  return {std::min(index * size, vocab), std::min((index + 1) * size, vocab)};
}

// Who runs the parts of a row.
struct PartRunner {
  ThreadPool* pool = nullptr;  // null: the thread that runs the row
  int64_t vocab = 0;

  int32_t parts() const { return PartsOf(vocab); }

  // body(part index, Part) for every part.
  template <typename Body>
  void ForParts(const Body& body) const {
    auto run = [&](int64_t index, int32_t) { body(index, PartOf(index, vocab)); };
    if (pool != nullptr) return pool->ParallelFor(parts(), run);
    for (int64_t index = 0; index < parts(); ++index) run(index, 0);
  }
};

// One row's scratch.
struct SampleScratch {
  double* weights = nullptr;    // [vocab]
  double* histogram = nullptr;  // [parts, kHistogram]
  float* adjusted = nullptr;    // [vocab]
  int32_t* buckets = nullptr;   // [vocab] the bucket of each token
  int32_t* found = nullptr;     // [vocab] tokens of the bucket that is cut
};

constexpr int32_t kHistogram = kCutBuckets + 8;  // the last is kNoBucket's

constexpr int64_t PaddedVocab(int64_t vocab) { return (vocab + 15) / 16 * 16; }

int64_t ScratchBytesPerThread(int64_t vocab) {
  return PaddedVocab(vocab) * static_cast<int64_t>(sizeof(double) + sizeof(float) + 2 * sizeof(int32_t)) +
         PartsOf(vocab) * kHistogram * static_cast<int64_t>(sizeof(double));
}

SampleScratch ScratchOf(const CpuContext& context, int32_t thread, int64_t vocab) {
  std::byte* memory = context.workspace.data + thread * ScratchBytesPerThread(vocab);
  SampleScratch scratch;
  scratch.weights = reinterpret_cast<double*>(memory);
  scratch.histogram = scratch.weights + PaddedVocab(vocab);
  scratch.adjusted = reinterpret_cast<float*>(scratch.histogram + PartsOf(vocab) * kHistogram);
  scratch.buckets = reinterpret_cast<int32_t*>(scratch.adjusted + PaddedVocab(vocab));
  scratch.found = scratch.buckets + PaddedVocab(vocab);
  return scratch;
}

// What one row works with after its logprobs are settled.
struct Candidates {
  const float* logits = nullptr;  // [vocab] adjusted; -inf: not a candidate
  int64_t vocab = 0;
  float highest = -kInfinity;
  const double* weights = nullptr;  // [vocab] exp((logit - highest) / temperature)
  double weight_sum = 0.0;
  Cut cut;
};

// FindCut's search over the candidates, where measure is what each counts.
template <typename Measure>
class CutSearch {
 public:
  CutSearch(const Candidates& candidates, double limit, const Measure& measure,
            const SamplingKernels& kernels, const SampleScratch& scratch, const PartRunner& runner)
      : candidates_(candidates),
        limit_(limit),
        measure_(measure),
        kernels_(kernels),
        scratch_(scratch),
        runner_(runner) {}

  void FillBuckets() {
    runner_.ForParts([&](int64_t index, Part part) {
      int32_t* buckets = scratch_.buckets + part.begin;
      kernels_.find_buckets(candidates_.logits + part.begin, part.size(), static_cast<int32_t>(part.begin),
                            candidates_.highest, candidates_.cut, buckets);
      double* histogram = scratch_.histogram + index * kHistogram;
      std::fill_n(histogram, kHistogram, 0.0);
      for (int64_t t = part.begin; t < part.end; ++t) histogram[*buckets++] += measure_(t);
    });
    for (int32_t index = 1; index < runner_.parts(); ++index) {
      for (int32_t i = 0; i < kCutBuckets; ++i) {
        scratch_.histogram[i] += scratch_.histogram[index * kHistogram + i];
      }
    }
  }
  bool FindBucket() {
    while (bucket_ < kCutBuckets && reached_ + scratch_.histogram[bucket_] < limit_) {
      reached_ += scratch_.histogram[bucket_++];
    }
    return bucket_ < kCutBuckets;
  }
  bool ListBucket() {
    int64_t counts[kParts];  // each part's lie where the part does, and are then moved together
    runner_.ForParts([&](int64_t index, Part part) {
      int32_t* end = scratch_.found + part.begin;
      for (int64_t t = part.begin; t < part.end; ++t) {
        if (scratch_.buckets[t] == bucket_) *end++ = static_cast<int32_t>(t);
      }
      counts[index] = end - (scratch_.found + part.begin);
    });
    end_ = scratch_.found;
    for (int64_t index = 0; index < runner_.parts(); ++index) {
      end_ = std::copy_n(scratch_.found + PartOf(index, candidates_.vocab).begin, counts[index], end_);
    }
    return true;
  }
  Cut FindListed() {
    std::sort(scratch_.found, end_, [&](int32_t a, int32_t b) {
      return KeyOf(candidates_.logits[a], a) < KeyOf(candidates_.logits[b], b);
    });
    const int32_t* last = scratch_.found;
    while (last + 1 < end_ && (reached_ += measure_(*last)) < limit_) ++last;
    return {candidates_.logits[*last], *last};
  }
  void LookCloser() { TM_CHECK(false, "all tokens can be listed"); }
  Cut All() const { return candidates_.cut; }

 private:
  const Candidates& candidates_;
  const double limit_;
  const Measure& measure_;
  const SamplingKernels& kernels_;
  const SampleScratch& scratch_;
  const PartRunner& runner_;
  double reached_ = 0;  // by the buckets before
  int32_t bucket_ = 0;
  int32_t* end_ = nullptr;  // of what is listed
};

void ApplyFilters(const SamplingRow& row, const SamplingKernels& kernels, const SampleScratch& scratch,
                  const PartRunner& runner, Candidates* candidates) {
  if (row.top_k > 0 && row.top_k < candidates->vocab) {
    const auto one = [](int64_t) { return 1.0; };
    candidates->cut = FindCut(CutSearch(*candidates, row.top_k, one, kernels, scratch, runner));
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
      total = std::accumulate(sums, sums + runner.parts(), 0.0);
    }
    const auto weight = [&](int64_t t) { return candidates->weights[t]; };
    candidates->cut = FindCut(CutSearch(*candidates, row.top_p * total, weight, kernels, scratch, runner));
  }
}

// Of equal times the lower token wins: the earlier part.
int32_t RunRace(const SamplingRow& row, const Candidates& candidates, const SamplingKernels& kernels,
                const PartRunner& runner) {
  // min_p: the highest weight is 1. A weight that underflowed to zero never wins.
  const RaceField field = {.state = RaceState(row.seed, row.choice, row.position),
                           .least_weight = std::max<double>(row.min_p, std::numeric_limits<double>::min()),
                           .cut = candidates.cut};
  RaceWinner winners[kParts];
  runner.ForParts([&](int64_t index, Part part) {
    winners[index] = kernels.race(candidates.logits + part.begin, candidates.weights + part.begin,
                                  part.size(), static_cast<int32_t>(part.begin), field);
  });
  RaceWinner best;
  for (int32_t index = 0; index < runner.parts(); ++index) {
    if (winners[index].time < best.time) best = winners[index];
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

// logits[part] where the mask has a bit, else -inf. Most masks allow nearly all tokens or hardly any, so the
// rarer kind is written one by one.
void CopyAllowed(const float* logits, const uint32_t* mask, Part part, float* out) {
  constexpr int64_t kBits = 16;  // a part begins at a multiple of them
  for (int64_t t = part.begin; t < part.end; t += kBits) {
    const int64_t count = std::min(kBits, part.end - t);
    const uint32_t all = (1u << count) - 1;
    const uint32_t allowed = mask[t / 32] >> (t % 32) & all;
    if (2 * std::popcount(allowed) > count) {
      std::copy_n(logits + t, count, out + t);
      for (uint32_t left = all & ~allowed; left != 0; left &= left - 1)
        out[t + std::countr_zero(left)] = -kInfinity;
    } else {
      std::fill_n(out + t, count, -kInfinity);
      for (uint32_t left = allowed; left != 0; left &= left - 1) {
        const int64_t token = t + std::countr_zero(left);
        out[token] = logits[token];
      }
    }
  }
}

// Logits after the row's adjustments and mask, in scratch; the logits themselves where there is neither. No
// adjustment brings back a token that the mask bans: -inf stays -inf.
const float* AdjustedLogits(const SampleParams& params, const SamplingRow& row, const float* logits,
                            int64_t vocab, const SampleScratch& scratch, const PartRunner& runner) {
  if (row.adjust_begin == row.adjust_end && row.mask_row < 0) return logits;
  runner.ForParts([&](int64_t, Part part) {
    if (row.mask_row < 0) {
      std::copy_n(logits + part.begin, part.size(), scratch.adjusted + part.begin);
    } else {
      CopyAllowed(logits, params.masks + row.mask_row * ((vocab + 31) / 32), part, scratch.adjusted);
    }
  });
  for (int32_t i = row.adjust_begin; i < row.adjust_end; ++i) {
    const LogitAdjust& adjust = params.adjusts[i];
    TM_CHECK(adjust.token >= 0 && adjust.token < params.logits.row_stride, "adjusted token %d of %lld",
             adjust.token, static_cast<long long>(params.logits.row_stride));
    if (adjust.token >= vocab) continue;
    scratch.adjusted[adjust.token] = Adjust(row, adjust, scratch.adjusted[adjust.token]);
  }
  return scratch.adjusted;
}

LogitScan Scan(const SamplingKernels& kernels, const float* logits, const PartRunner& runner) {
  LogitScan scans[kParts];
  runner.ForParts(
      [&](int64_t index, Part part) { scans[index] = kernels.scan(logits + part.begin, part.size()); });
  LogitScan all = {.usable = true, .highest = -kInfinity};
  for (int32_t index = 0; index < runner.parts(); ++index) {
    all.usable &= scans[index].usable;
    all.highest = std::max(all.highest, scans[index].highest);
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
  return std::accumulate(sums, sums + runner.parts(), 0.0);
}

int32_t CountHigher(const SamplingKernels& kernels, const float* logits, float than,
                    const PartRunner& runner) {
  int32_t counts[kParts];
  runner.ForParts([&](int64_t index, Part part) {
    counts[index] = kernels.count_higher(logits + part.begin, part.size(), than);
  });
  return std::accumulate(counts, counts + runner.parts(), 0);
}

// The first token with this logit.
int32_t FindLogit(const float* logits, float logit, const PartRunner& runner) {
  int64_t first[kParts];
  runner.ForParts([&](int64_t index, Part part) {
    first[index] = std::find(logits + part.begin, logits + part.end, logit) - logits;
  });
  for (int64_t index = 0; index < runner.parts(); ++index) {
    if (first[index] < PartOf(index, runner.vocab).end) return static_cast<int32_t>(first[index]);
  }
  return -1;
}

// The row's token, -1 when there is no candidate. raw_weight_sum: where scratch has the weights of the logits
// as they are.
int32_t ChooseToken(const SampleParams& params, const SamplingRow& row, const float* logits,
                    std::optional<double> raw_weight_sum, const SamplingKernels& kernels,
                    const SampleScratch& scratch, const PartRunner& runner) {
  Candidates candidates;
  candidates.vocab = params.logits.columns;
  candidates.logits = AdjustedLogits(params, row, logits, candidates.vocab, scratch, runner);
  const LogitScan scan = Scan(kernels, candidates.logits, runner);
  if (!scan.usable || scan.highest == -kInfinity) return -1;
  candidates.highest = scan.highest;
  if (row.temperature == 0.0f) return FindLogit(candidates.logits, scan.highest, runner);
  candidates.weights = scratch.weights;
  const bool weights_are_raw = raw_weight_sum && candidates.logits == logits && row.temperature == 1.0f;
  candidates.weight_sum = weights_are_raw ? *raw_weight_sum
                                          : ExpWeights(kernels, candidates.logits, candidates.highest,
                                                       1.0 / row.temperature, scratch.weights, runner);
  ApplyFilters(row, kernels, scratch, runner, &candidates);
  return RunRace(row, candidates, kernels, runner);
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
  for (int32_t index = 0; index < runner.parts(); ++index) {
    for (int32_t i = 0; i < filled[index]; ++i) all.Offer(of_part[index][i].token, of_part[index][i].logprob);
  }
  for (int32_t i = 0; i < all.filled; ++i) top[i].logprob = static_cast<float>(top[i].logprob - log_total);
  return all.filled;
}

SampleRecord SampleRow(const SampleParams& params, int64_t index, const SamplingKernels& kernels,
                       const SampleScratch& scratch, const PartRunner& runner) {
  const SamplingRow& row = params.rows[index];
  const float* logits = static_cast<const float*>(params.logits.data) + index * params.logits.row_stride;

  SampleRecord record;
  record.failed = 1;
  const LogitScan scan = Scan(kernels, logits, runner);
  if (!scan.usable || scan.highest == -kInfinity) return record;
  double log_total = 0.0;
  std::optional<double> weight_sum;
  if (row.NeedsLogprob()) {
    weight_sum = ExpWeights(kernels, logits, scan.highest, 1.0, scratch.weights, runner);
    log_total = scan.highest + std::log(*weight_sum);
  }

  TM_CHECK(row.forced_token < params.logits.row_stride, "forced token %d of %lld", row.forced_token,
           static_cast<long long>(params.logits.row_stride));
  const int32_t token = row.forced_token >= 0
                            ? row.forced_token
                            : ChooseToken(params, row, logits, weight_sum, kernels, scratch, runner);
  if (token < 0) return record;
  record.failed = 0;
  record.token = token;
  if (!row.NeedsLogprob()) return record;
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
