// A block's work on one row of logits: the parts that sampling.cu (one block a row) and sampling_split.cu
// (several) are made of. sampling.cu has the passes, the math and the ideas.
//
// A filter is the last sort key (KeyOf) that stays.
#pragma once

#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/sampling.h"
#include "kernels/sampling_exp.h"
#include "kernels/sampling_math.h"

namespace tramontane::cuda::sampling {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
// Loads of a thread in flight: where a token is little work, and where it is much, so that two blocks'
// numbers fit the registers of an SM.
constexpr int kManyLoads = 16;
constexpr int kFewLoads = 4;
constexpr int kBuckets = kCutBuckets;
constexpr int kThreadBuckets = kBuckets / kThreads;
constexpr int kListed = kBuckets / 2;  // tokens that fit the memory of the histogram
constexpr float kLargest = 3.402823466e+38f;
constexpr double kLeastWeight = 2.2250738585072014e-308;  // a weight that underflowed never wins
constexpr double kForever = __builtin_huge_val();
constexpr int kPowers = 256;  // of 2, from 1 down to 1/2

struct Listed {
  uint64_t key;
  uint64_t measure;
};

// Shared memory of a block.
struct Shared {
  union {
    uint64_t histogram[kBuckets];
    Listed list[kListed];
  };
  uint64_t warp_words[kWarps];  // of Reduce and PrefixSum
  uint64_t before;              // of FindBuckets
  uint64_t cut;                 // of FindInList
  SamplingRow row;
  int32_t bucket;            // of FindBuckets
  int32_t last_bucket;       // of FindBuckets
  int32_t listed;            // of ListTokens; may exceed kListed, then only that many are there
  uint32_t race_bound;       // of RunRace: the order of log2 of a time that was reached
  uint32_t powers[kPowers];  // of WeightEstimates: 2^31 * 2^(-i / kPowers)
};

// ---- order --------------------------------------------------------------------------------------

constexpr uint64_t kFailedKey = 0;                                      // before all keys of numbers
constexpr uint64_t kLastCandidate = (uint64_t{0xff800000u} << 32) - 1;  // before those of logits -inf
constexpr uint64_t kLastKey = ~uint64_t{0};

// ---- a block's work on one row ------------------------------------------------------------------

// Tokens [begin, end) of a row.
struct Logits {
  const float* data;  // [vocab]
  int vocab;
  int begin, end;
};
TM_DEVICE Logits WholeRow(const SampleKernelParams& p, int row) {
  const auto* data = static_cast<const float*>(p.call.logits.data) + row * p.call.logits.row_stride;
  const auto vocab = static_cast<int>(p.call.logits.columns);
  return {data, vocab, 0, vocab};
}

// visit(token, logit) for every token of this thread, in ascending order.
template <int kLoads = kFewLoads, typename Visit>
TM_DEVICE void ForEachToken(const Logits& logits, const Visit& visit) {
  for (int begin = logits.begin + ThreadX(); begin < logits.end; begin += kLoads * kThreads) {
    float loaded[kLoads];
    TM_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      const int token = begin + i * kThreads;
      loaded[i] = token < logits.end ? LoadGlobal(logits.data + token) : 0.0f;
    }
    TM_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      const int token = begin + i * kThreads;
      if (token < logits.end) visit(token, loaded[i]);
    }
  }
}

// combine() over the words of all threads, for every thread, in one fixed order.
template <typename Combine>
TM_DEVICE uint64_t Reduce(Shared* s, uint64_t word, const Combine& combine) {
  TM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) word = combine(word, ShuffleXor(word, mask));
  SyncThreads();  // the words of the time before are read
  if (LaneId() == 0) s->warp_words[ThreadX() / 32] = word;
  SyncThreads();
  word = s->warp_words[0];
  TM_UNROLL
  for (int w = 1; w < kWarps; ++w) word = combine(word, s->warp_words[w]);
  return word;
}
TM_DEVICE uint64_t BlockMin(Shared* s, uint64_t word) {
  return Reduce(s, word, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
}
TM_DEVICE uint64_t BlockMax(Shared* s, uint64_t word) {
  return Reduce(s, word, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}
TM_DEVICE uint64_t BlockSum(Shared* s, uint64_t word) {
  return Reduce(s, word, [](uint64_t a, uint64_t b) { return a + b; });
}

// The sum of the words of lower threads; *total: of all.
TM_DEVICE uint64_t PrefixSum(Shared* s, uint64_t word, uint64_t* total) {
  uint64_t sum = word;
  TM_UNROLL
  for (int delta = 1; delta < 32; delta *= 2) {
    const uint64_t below = ShuffleUp(sum, delta);
    if (LaneId() >= delta) sum += below;
  }
  SyncThreads();
  if (LaneId() == 31) s->warp_words[ThreadX() / 32] = sum;
  SyncThreads();
  uint64_t before = sum - word;
  *total = 0;
  TM_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    if (w < ThreadX() / 32) before += s->warp_words[w];
    *total += s->warp_words[w];
  }
  return before;
}

// The key of the highest logit; kFailedKey where a logit is NaN or +inf, kLastKey where all are -inf.
TM_DEVICE uint64_t FirstKey(Shared* s, const Logits& logits) {
  float highest = kMinusInfinity;
  int first = -1;  // of a thread's equal ones the first it sees is the lowest
  bool is_usable = true;
  ForEachToken<kManyLoads>(logits, [&](int token, float logit) {
    is_usable &= logit <= kLargest;
    if (logit > highest) {
      highest = logit;
      first = token;
    }
  });
  return BlockMin(s, !is_usable ? kFailedKey : first < 0 ? kLastKey : KeyOf(highest, first));
}
TM_DEVICE bool IsCandidate(uint64_t key) { return key != kFailedKey && key <= kLastCandidate; }

// exp((logit - highest) / temperature).
struct Weights {
  // Of temperatures for which there are estimates: what is close enough to weigh something is far from what
  // f32 cannot hold.
  static constexpr double kLeastSlope = 0x1p-30, kMostSlope = 0x1p30;

  double highest;
  double inverse_temperature;
  float nats_to_log2;  // less than log2(e) / temperature, by enough for the roundings in LeastBits

  TM_DEVICE Weights(float highest_logit, double inverse)
      : highest(highest_logit), inverse_temperature(inverse) {
    const double less = slope() * (1.0 - 0x1p-20);
    nats_to_log2 = less < static_cast<double>(kLargest) ? static_cast<float>(less) : kLargest;
  }
  TM_DEVICE double slope() const { return 1.4426950408889634 * inverse_temperature; }
  TM_DEVICE bool has_estimates() const {
    return inverse_temperature > kLeastSlope && inverse_temperature < kMostSlope;
  }
  TM_DEVICE double Of(float logit) const {
    const double exponent = (static_cast<double>(logit) - highest) * inverse_temperature;
    if (exponent < kLeastExponent) return 0.0;
    CountExponential();
    return ExpOfNonPositive<double, int64_t>(exponent);
  }
  // A weight is at most 2^-LeastBits.
  TM_DEVICE float LeastBits(float logit) const {
    const float distance = static_cast<float>(highest) - logit;
    return (distance < kLargest ? distance : kLargest) * nats_to_log2;
  }
  // 2^bits times the weight, to the next integer: exact, as all of filters' sums are.
  TM_DEVICE uint64_t Fixed(float logit, int bits) const {
    if (LeastBits(logit) > static_cast<float>(bits + 1)) return 0;  // it would be rounded to it
    return static_cast<uint64_t>(Of(logit) * static_cast<double>(uint64_t{1} << bits) + 0.5);
  }
};

// The same without f64 for each token: a power of 2 out of a table, times 1 + grown in f32.
//
// What an estimate is off by, as a share of it: 2^-31 by the power, 2^-32 where the factor is rounded, less
// than that by e = -r * ln 2 (below 2^-9.5, in two roundings), 2^-33.5 by r and 2^-34 by the rest, together
// less than 2^-29. And 1, where it is rounded down.
struct WeightEstimates {
  static constexpr double kError = 0x1p-28;  // no estimate is off by more than this share of it and 2

  const uint32_t* powers;
  int bits;  // 2^bits stands for 1
  float highest;
  float slope_high, slope_low;  // log2(e) / temperature

  // By all threads of a block. REQUIRES: has_estimates().
  TM_DEVICE WeightEstimates(Shared* s, const Weights& weights, int bits_of_one)
      : powers(s->powers), bits(bits_of_one), highest(static_cast<float>(weights.highest)) {
    slope_high = static_cast<float>(weights.slope());
    slope_low = static_cast<float>(weights.slope() - static_cast<double>(slope_high));
    if (ThreadX() < kPowers) {
      const double power = ExpOfNonPositive<double, int64_t>(ThreadX() * (-0.6931471805599453 / kPowers));
      s->powers[ThreadX()] = static_cast<uint32_t>(power * 0x1p31 + 0.5);
    }
    SyncThreads();
  }
  TM_DEVICE uint64_t operator()(float logit) const {
    // Adding these leaves the nearest multiple of 1 / kPowers, and the nearest integer.
    constexpr float kNearRounder = 0x1.8p15f, kRounder = 0x1.8p23f;
    static_assert(kPowers == 1 << (23 - 15));
    const float distance = highest - logit;
    const float exponent = MultiplyUnfused(distance, slope_high);
    if (!(exponent <= static_cast<float>(bits + 1))) return 0;
    // highest - logit is distance + rest, exactly, and the weight's exponent -(near / kPowers + r).
    const float subtracted = distance - highest;
    const float rest = (highest - (distance - subtracted)) - (logit + subtracted);
    const float shifted = exponent + kNearRounder;
    float lost = MultiplyAdd(distance, slope_high, -exponent);
    lost = MultiplyAdd(distance, slope_low, lost);
    lost = MultiplyAdd(rest, slope_high, lost);
    const float r = (exponent - (shifted - kNearRounder)) + lost;
    const uint32_t near = BitsOf(shifted) - BitsOf(kNearRounder);
    // 2^-r is 1 + grown, and 2^31 stands for 1.
    const float e = r * -0.693147181f;
    const float grown = MultiplyAdd(e * e, MultiplyAdd(e, 1.0f / 6, 0.5f), e);
    const uint32_t factor = (1u << 31) + BitsOf(MultiplyAdd(grown, 0x1p31f, kRounder)) - BitsOf(kRounder);
    return uint64_t{powers[near % kPowers]} * factor >> (62u - bits + near / kPowers);
  }
};

// ---- filters ------------------------------------------------------------------------------------

// Lists the tokens that wanted(logit, key) says, in no order, with what each measures. Returns how many there
// are; where that is more than kListed the list is of no use.
template <typename Wanted, typename Measure>
TM_DEVICE int ListTokens(Shared* s, const Logits& logits, const Wanted& wanted, const Measure& measure) {
  SyncThreads();  // histogram and list are read
  if (ThreadX() == 0) s->listed = 0;
  SyncThreads();
  ForEachToken(logits, [&](int token, float logit) {
    const uint64_t key = KeyOf(logit, token);
    if (!wanted(logit, key)) return;
    const int at = AtomicAddShared(&s->listed, 1);
    if (at < kListed) s->list[at] = {key, measure(logit)};
  });
  SyncThreads();
  return s->listed;
}

// Where a sum of measures reaches a limit. Both may be known within bounds only.
struct Bounds {
  double least, most;     // of the limit
  double relative = 0.0;  // a sum of x is off by at most relative * x + absolute
  double absolute = 0.0;

  TM_DEVICE double Error(double sum) const { return sum * relative + absolute; }
  // Whether a sum may have come to the limit, and whether it has for certain.
  TM_DEVICE bool MayBeReached(uint64_t sum) const {
    const auto most_sum = static_cast<double>(sum) + Error(static_cast<double>(sum));
    return most_sum >= least;
  }
  TM_DEVICE bool IsReached(uint64_t sum) const {
    const auto least_sum = static_cast<double>(sum) - Error(static_cast<double>(sum));
    return least_sum >= most;
  }
  // From now on all that is added to this sum is exact.
  TM_DEVICE void Reached(uint64_t sum) {
    absolute = Error(static_cast<double>(sum));
    relative = 0.0;
  }
};

// The measures of the tokens that wanted(key) says, by bucket.
template <typename Wanted, typename BucketOf, typename Measure>
TM_DEVICE void FillHistogram(Shared* s, const Logits& logits, const Wanted& wanted, const BucketOf& bucket_of,
                             const Measure& measure) {
  SyncThreads();  // the list is read
  for (int i = ThreadX(); i < kBuckets; i += kThreads) s->histogram[i] = 0;
  SyncThreads();
  ForEachToken(logits, [&](int token, float logit) {
    const uint64_t key = KeyOf(logit, token);
    if (!wanted(key)) return;
    // Far below the highest all tokens fall into one bucket, and most weigh nothing.
    const uint64_t weight = measure(logit);
    if (weight != 0) AtomicAddShared(&s->histogram[bucket_of(logit, key)], weight);
  });
  SyncThreads();
}

// Adds up histogram buckets on top of `reached` until they come to bounds_of(their total): s->bucket is the
// first where they may, s->last_bucket the last (kBuckets: never, or it is not certain); s->before is the sum
// in front of the former. Returns the bounds.
template <typename BoundsOf>
TM_DEVICE Bounds FindBuckets(Shared* s, uint64_t reached, const BoundsOf& bounds_of) {
  if (ThreadX() == 0) s->bucket = s->last_bucket = kBuckets;
  const uint64_t* own = s->histogram + ThreadX() * kThreadBuckets;
  uint64_t sum = 0;
  TM_UNROLL
  for (int i = 0; i < kThreadBuckets; ++i) sum += own[i];
  uint64_t total;
  uint64_t before = reached + PrefixSum(s, sum, &total);
  const Bounds bounds = bounds_of(total);
  TM_UNROLL
  for (int i = 0; i < kThreadBuckets; ++i) {
    const uint64_t after = before + own[i];
    if (!bounds.MayBeReached(before) && bounds.MayBeReached(after)) {
      s->bucket = ThreadX() * kThreadBuckets + i;
      s->before = before;
    }
    if (!bounds.IsReached(before) && bounds.IsReached(after)) {
      s->last_bucket = ThreadX() * kThreadBuckets + i;
    }
    before = after;
  }
  SyncThreads();
  return bounds;
}

// The listed token at which the measures, added up in the order of the keys on top of `reached`, come to the
// limit; kFailedKey where it is not certain.
TM_DEVICE uint64_t FindInList(Shared* s, int count, uint64_t reached, const Bounds& bounds) {
  if (ThreadX() == 0) s->cut = kFailedKey;
  SyncThreads();
  for (int i = ThreadX(); i < count; i += kThreads) {
    const Listed own = s->list[i];
    uint64_t before = reached;
    for (int j = 0; j < count; ++j) before += s->list[j].key < own.key ? s->list[j].measure : 0;
    if (!bounds.MayBeReached(before) && bounds.IsReached(before + own.measure)) s->cut = own.key;
  }
  SyncThreads();
  return s->cut;
}

// FindCut's search over the tokens up to key `last`, of which those in [first, end] are looked at: at first
// all of them, in buckets by distance; then those of the bucket that is cut, in equal parts of what they
// span, until they fit the list. The limit is limit_of(measure of them all).
template <typename Measure, typename LimitOf>
struct CutSearch {
  Shared* s;
  const Logits& logits;
  float highest;
  uint64_t last;
  const Measure& measure;
  const LimitOf& limit_of;
  uint64_t first = 0, end = last;
  uint64_t reached = 0;  // by what is before them
  int shift = -1;        // by distance
  int bucket = 0, count = 0;
  double limit = 0;

  TM_DEVICE int BucketOf(float logit, uint64_t key) const {
    return shift < 0 ? DistanceBucket(highest, logit) : static_cast<int>((key - first) >> shift);
  }
  TM_DEVICE bool Wants(uint64_t key) const { return key >= first && key <= end; }
  TM_DEVICE bool InBucket(float logit, uint64_t key) const {
    return Wants(key) && BucketOf(logit, key) == bucket;
  }

  TM_DEVICE void FillBuckets() {
    FillHistogram(
        s, logits, [&](uint64_t key) { return Wants(key); },
        [&](float logit, uint64_t key) { return BucketOf(logit, key); }, measure);
  }
  TM_DEVICE bool FindBucket() {
    FindBuckets(s, reached, [&](uint64_t total) {
      if (shift < 0) limit = limit_of(total);
      return Bounds{limit, limit};
    });
    bucket = s->bucket;
    if (bucket == kBuckets) return false;
    reached = s->before;
    return true;
  }
  TM_DEVICE bool ListBucket() {
    count = ListTokens(s, logits, [&](float logit, uint64_t key) { return InBucket(logit, key); }, measure);
    return count <= kListed;
  }
  TM_DEVICE uint64_t FindListed() { return FindInList(s, count, reached, {limit, limit}); }
  TM_DEVICE void LookCloser() {
    uint64_t least = kLastKey, most = 0;
    ForEachToken(logits, [&](int token, float logit) {
      const uint64_t key = KeyOf(logit, token);
      if (!InBucket(logit, key)) return;
      least = key < least ? key : least;
      most = key > most ? key : most;
    });
    first = BlockMin(s, least);
    end = BlockMax(s, most);
    shift = 0;
    while ((end - first) >> shift >= kBuckets) ++shift;
  }
  TM_DEVICE uint64_t All() const { return last; }
};
template <typename Measure, typename LimitOf>
TM_DEVICE uint64_t CutOf(Shared* s, const Logits& logits, float highest, uint64_t last,
                         const Measure& measure, const LimitOf& limit_of) {
  return FindCut(CutSearch<Measure, LimitOf>{s, logits, highest, last, measure, limit_of});
}

// Bounds of the limit that a share of weights is, of whose estimates the sum is between these.
TM_DEVICE Bounds BoundsOfShare(double share, uint64_t least_total, uint64_t most_total, int vocab) {
  Bounds sums = {0.0, 0.0, WeightEstimates::kError, 2.0 * vocab};
  const auto least = static_cast<double>(least_total), most = static_cast<double>(most_total);
  sums.least = share * (least - sums.Error(least));
  sums.most = share * (most + sums.Error(most));
  return sums;
}
TM_DEVICE Bounds BoundsOfShare(double share, uint64_t total, int vocab) {
  return BoundsOfShare(share, total, total, vocab);
}

// The same of weights whose sum reaches a share of the whole, where their estimates leave no doubt of it, and
// kFailedKey where they do. Tokens of one bucket alone are weighed in f64.
template <typename Measure>
TM_DEVICE uint64_t FindCutByEstimates(Shared* s, const Logits& logits, float highest, uint64_t last,
                                      double share, const WeightEstimates& estimate, const Measure& measure) {
  const auto bucket_of = [highest](float logit, uint64_t) { return DistanceBucket(highest, logit); };
  const auto wanted = [last](uint64_t key) { return key <= last; };
  FillHistogram(s, logits, wanted, bucket_of, estimate);
  Bounds bounds =
      FindBuckets(s, 0, [&](uint64_t total) { return BoundsOfShare(share, total, logits.vocab); });
  const int bucket = s->bucket, last_bucket = s->last_bucket;
  if (bucket == kBuckets || last_bucket == kBuckets) return kFailedKey;
  const uint64_t reached = s->before;
  const auto in_buckets = [&](float logit, uint64_t key) {
    const int own = bucket_of(logit, key);
    return wanted(key) && own >= bucket && own <= last_bucket;
  };
  const int count = ListTokens(s, logits, in_buckets, measure);
  if (count > kListed) return kFailedKey;
  bounds.Reached(reached);
  return FindInList(s, count, reached, bounds);
}

// ---- the token ----------------------------------------------------------------------------------

// Rounded after each step.
TM_DEVICE float Adjust(const SamplingRow& row, const LogitAdjust& adjust, float logit) {
  if (adjust.in_context != 0) {
    logit = logit > 0.0f ? logit / row.repetition_penalty : MultiplyUnfused(logit, row.repetition_penalty);
  }
  logit -= MultiplyUnfused(row.frequency_penalty, static_cast<float>(adjust.output_count));
  if (adjust.output_count > 0) logit -= row.presence_penalty;
  return logit + adjust.bias;
}

TM_DEVICE bool IsAdjusted(const SamplingRow& row) {
  return row.adjust_begin != row.adjust_end || row.mask_row >= 0;
}

// Where a row's logits stand after its adjustments and mask: in scratch, or where there is neither where they
// were.
TM_DEVICE Logits AdjustedPlace(const SampleKernelParams& p, int row, const SamplingRow& asked,
                               Logits logits) {
  if (IsAdjusted(asked)) logits.data = p.adjusted + int64_t{row} * logits.vocab;
  return logits;
}

// Adjusts and masks the tokens of `raw`.
TM_DEVICE Logits AdjustedLogits(const SampleKernelParams& p, int row_number, const SamplingRow& row,
                                const Logits& raw) {
  const Logits adjusted = AdjustedPlace(p, row_number, row, raw);
  if (adjusted.data == raw.data) return raw;
  float* out = p.adjusted + int64_t{row_number} * raw.vocab;
  const uint32_t* mask =
      row.mask_row < 0 ? nullptr : p.call.masks + int64_t{row.mask_row} * ((raw.vocab + 31) / 32);
  const auto allowed = [mask](int token) {
    return mask == nullptr || (LoadGlobal(mask + token / 32) >> (token % 32) & 1u) != 0;
  };
  ForEachToken<kManyLoads>(raw, [&](int token, float logit) {
    StoreGlobal(out + token, allowed(token) ? logit : kMinusInfinity);
  });
  SyncThreads();
  for (int i = row.adjust_begin + ThreadX(); i < row.adjust_end; i += kThreads) {
    const LogitAdjust adjust = LoadGlobal(p.call.adjusts + i);
    if (adjust.token < raw.begin || adjust.token >= raw.end || !allowed(adjust.token)) continue;
    StoreGlobal(out + adjust.token, Adjust(row, adjust, LoadGlobal(raw.data + adjust.token)));
  }
  SyncThreads();
  return adjusted;
}

TM_DEVICE bool HasTopK(const SamplingRow& row, int vocab) { return row.top_k > 0 && row.top_k < vocab; }
TM_DEVICE bool HasTopP(const SamplingRow& row) { return row.top_p < 1.0f; }

// Of fixed-point weights, so that no sum of them passes 2^62.
TM_DEVICE int WeightBits(int vocab) {
  int bits = 62;
  while (vocab >> (62 - bits) != 0) --bits;
  return bits;
}

// The last key that top_k and top_p leave.
TM_DEVICE uint64_t ApplyFilters(Shared* s, const Logits& logits, float highest, const Weights& weights) {
  const SamplingRow& row = s->row;
  uint64_t last = kLastCandidate;
  if (HasTopK(row, logits.vocab)) {
    const double count = row.top_k;
    last = CutOf(
        s, logits, highest, last, [](float) { return uint64_t{1}; }, [count](uint64_t) { return count; });
  }
  if (HasTopP(row)) {
    const int bits = WeightBits(logits.vocab);
    const double share = row.top_p;
    const auto weight = [&](float logit) { return weights.Fixed(logit, bits); };
    uint64_t cut = kFailedKey;
    if (weights.has_estimates()) {
      cut = FindCutByEstimates(s, logits, highest, last, share, WeightEstimates(s, weights, bits), weight);
    }
    last = cut != kFailedKey ? cut : CutOf(s, logits, highest, last, weight, [share](uint64_t total) {
      return share * static_cast<double>(total);
    });
  }
  return last;
}

// Who came first: times are positive, so their bits ascend with them. At one time the lower token.
struct RaceResult {
  uint64_t time_bits;
  uint64_t winner;

  TM_DEVICE bool Before(const RaceResult& other) const {
    return time_bits < other.time_bits || (time_bits == other.time_bits && winner < other.winner);
  }
  TM_DEVICE int32_t token() const {
    return time_bits == BitsOf(kForever) ? -1 : static_cast<int32_t>(winner);
  }
};

// The race: the candidate with the least E / w wins.
//
// Before any double-precision work a token is compared with the best time reached so far by anyone, in f32
// and log2: v / w <= E / w, and v / w is taken too low by more than all roundings here (2^-24 of each factor,
// 2^-20 in Log2). Which tokens are passed over so depends on the order of threads; the winner does not.
struct Race {
  static constexpr float kSlack = 0x1p-8f;

  const Weights& weights;
  double least_weight;
  uint64_t seed;
  int64_t position;
  int32_t choice;
  RaceResult best = {BitsOf(kForever), kLastKey};  // of this thread

  TM_DEVICE Race(Shared* s, const Weights& of)
      : weights(of),
        least_weight(s->row.min_p > kLeastWeight ? s->row.min_p : kLeastWeight),
        seed(s->row.seed),
        position(s->row.position),
        choice(s->row.choice) {
    if (ThreadX() == 0) s->race_bound = OrderOf(-kMinusInfinity);
    SyncThreads();
  }
  TM_DEVICE void Enter(Shared* s, int token, float logit) {
    const uint64_t bits = RaceBits(seed, choice, position, token);
    const float least_log =
        Log2(static_cast<float>(bits >> 40)) - 24.0f + weights.LeastBits(logit) - kSlack;  // of E / w
    if (least_log > OfOrder(ReadSharedNow(&s->race_bound))) return;
    const double weight = weights.Of(logit);
    if (weight < least_weight) return;
    const double time = -Log1p(-UniformOfBits(bits)) / weight;
    const RaceResult result = {BitsOf(time), static_cast<uint64_t>(token)};
    if (!result.Before(best)) return;
    best = result;
    AtomicMinShared(&s->race_bound, OrderOf(Log2(static_cast<float>(time)) + kSlack));
  }
};

TM_DEVICE RaceResult FirstOf(Shared* s, RaceResult own) {
  const uint64_t first = BlockMin(s, own.time_bits);
  return {first, BlockMin(s, own.time_bits == first ? own.winner : kLastKey)};
}

// Of the tokens of `logits` up to key `last`.
TM_DEVICE RaceResult RunRace(Shared* s, const Logits& logits, const Weights& weights, uint64_t last) {
  Race race(s, weights);
  ForEachToken(logits, [&](int token, float logit) {
    if (KeyOf(logit, token) <= last) race.Enter(s, token, logit);
  });
  return FirstOf(s, race.best);
}

// Of a row at a temperature, by one block.
TM_DEVICE int32_t FilterAndRace(Shared* s, const Logits& logits, float highest, const Weights& weights) {
  const uint64_t last = ApplyFilters(s, logits, highest, weights);
  return RunRace(s, logits, weights, last).token();
}

TM_DEVICE int32_t ChooseToken(Shared* s, const SampleKernelParams& p, const Logits& raw, uint64_t first_raw) {
  const Logits logits = AdjustedLogits(p, BlockX(), s->row, raw);
  const uint64_t first = logits.data == raw.data ? first_raw : FirstKey(s, logits);
  if (!IsCandidate(first)) return -1;
  if (s->row.temperature == 0.0f) return TokenOf(first);
  const float highest = LogitOf(first);
  const Weights weights(highest, 1.0 / static_cast<double>(s->row.temperature));
  return FilterAndRace(s, logits, highest, weights);
}

// ---- what is reported ---------------------------------------------------------------------------

// The sum of e^(logit - highest), 2^WeightBits standing for 1: exact for what the estimates are, so it is the
// same for any order of threads and any number of blocks. The highest logit's own are exactly 1, so a logprob
// near 0 is off by a share of itself.
TM_DEVICE uint64_t SumOfWeights(Shared* s, const Logits& raw, float highest) {
  const Weights weights(highest, 1.0);
  const WeightEstimates estimate(s, weights, WeightBits(raw.vocab));
  uint64_t sum = 0;
  ForEachToken(raw, [&](int, float logit) { sum += estimate(logit); });
  return BlockSum(s, sum);
}

// log of the sum of e^logit, from SumOfWeights over the whole row.
TM_DEVICE double LogTotal(uint64_t sum, float highest, int vocab) {
  const auto one = static_cast<double>(uint64_t{1} << WeightBits(vocab));
  return highest + Log(static_cast<double>(sum) / one);
}

TM_DEVICE uint64_t CountHigher(Shared* s, const Logits& raw, float logit) {
  uint64_t higher = 0;
  ForEachToken<kManyLoads>(raw, [&](int, float other) { higher += other > logit ? 1 : 0; });
  return BlockSum(s, higher);
}

TM_DEVICE int TopAsked(const SamplingRow& row) {
  return row.top_logprobs < kMaxTopLogprobs ? row.top_logprobs : kMaxTopLogprobs;
}

// Writes the `count` first of the `listed` tokens. Returns how many there are.
TM_DEVICE int WriteListed(Shared* s, int listed, int count, double log_total, TokenLogprob* top) {
  for (int i = ThreadX(); i < listed; i += kThreads) {
    const uint64_t key = s->list[i].key;
    int place = 0;
    for (int j = 0; j < listed; ++j) place += s->list[j].key < key ? 1 : 0;
    if (place < count)
      StoreGlobal(top + place, TokenLogprob{TokenOf(key), static_cast<float>(LogitOf(key) - log_total)});
  }
  return Min(listed, count);
}

// The `count` highest raw logits, equal ones by id. Returns how many there are.
TM_DEVICE int WriteTop(Shared* s, const Logits& raw, float highest, int count, double log_total,
                       TokenLogprob* top) {
  const auto one = [](float) { return uint64_t{1}; };
  uint64_t last = kLastKey;
  if (count < raw.vocab) {
    last = CutOf(s, raw, highest, last, one, [count](uint64_t) { return static_cast<double>(count); });
  }
  const int listed = ListTokens(s, raw, [last](float, uint64_t key) { return key <= last; }, one);
  return WriteListed(s, listed, count, log_total, top);
}

}  // namespace tramontane::cuda::sampling
