// Sampling kernels of one variant. Included by each variant_<name>.cc, like simd.h.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/sampling_exp.h"

namespace tramontane {
namespace {

// Doubles in a register, and as many floats.
constexpr int kDoubles = kWidth / 2;
using Vd = double __attribute__((vector_size(8 * kDoubles)));
using Vl = int64_t __attribute__((vector_size(8 * kDoubles)));
using HalfVf = float __attribute__((vector_size(4 * kDoubles)));

// Sums in f64 run in eight chains, by token id modulo 8.
constexpr int kSumChains = 8;

// Eight tokens: one link of every chain.
inline void ExpOfEight(const float* logits, double highest, double inverse_temperature, double* weights,
                       Vd (&chains)[kSumChains / kDoubles]) {
  for (int i = 0; i < kSumChains / kDoubles; ++i) {
    HalfVf singles;
    __builtin_memcpy(&singles, logits + i * kDoubles, sizeof singles);
    const Vd exponent = (__builtin_convertvector(singles, Vd) - highest) * inverse_temperature;
    const Vd weight = ExpOfNonPositive<Vd, Vl>(exponent);
    __builtin_memcpy(weights + i * kDoubles, &weight, sizeof weight);
    chains[i] += weight;
  }
}

double ExpWeights(const float* logits, int64_t vocab, float highest, double inverse_temperature,
                  double* weights) {
  Vd chains[kSumChains / kDoubles] = {};
  int64_t t = 0;
  for (; t + kSumChains <= vocab; t += kSumChains) {
    ExpOfEight(logits + t, highest, inverse_temperature, weights + t, chains);
  }
  if (t < vocab) {
    float last[kSumChains];
    double last_weights[kSumChains];
    for (int i = 0; i < kSumChains; ++i) last[i] = t + i < vocab ? logits[t + i] : -__builtin_inff();
    ExpOfEight(last, highest, inverse_temperature, last_weights, chains);
    for (int i = 0; t + i < vocab; ++i) weights[t + i] = last_weights[i];
  }
  double sums[kSumChains];
  __builtin_memcpy(sums, chains, sizeof sums);
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

LogitScan ScanLogits(const float* logits, int64_t vocab) {
  constexpr float kInfinity = __builtin_inff();
  Vf highest = Splat(-kInfinity);
  Vi below_infinity = SplatInt(-1);  // all ones while true
  int64_t t = 0;
  for (; t + kWidth <= vocab; t += kWidth) {
    const Vf logit = Load(logits + t);
    below_infinity &= logit < Splat(kInfinity);
    highest = Max(logit, highest);
  }
  LogitScan scan;
  for (int i = 0; i < kWidth; ++i) scan.usable &= below_infinity[i] != 0;
  scan.highest = MaxLanes(highest);
  for (; t < vocab; ++t) {
    scan.usable &= logits[t] < kInfinity;
    scan.highest = logits[t] > scan.highest ? logits[t] : scan.highest;
  }
  return scan;
}

int32_t CountHigher(const float* logits, int64_t vocab, float than) {
  Vi counts = {};
  int64_t t = 0;
  for (; t + kWidth <= vocab; t += kWidth) counts -= Load(logits + t) > Splat(than);  // true is -1
  int32_t count = 0;
  for (int i = 0; i < kWidth; ++i) count += counts[i];
  for (; t < vocab; ++t) count += logits[t] > than ? 1 : 0;
  return count;
}

void FindBuckets(const float* logits, int64_t vocab, int32_t first, float highest, const Cut& cut,
                 int32_t* buckets) {
  constexpr float kInfinity = __builtin_inff();
  Vi token = {};
  for (int i = 0; i < kWidth; ++i) token[i] = first + i;
  int64_t t = 0;
  for (; t + kWidth <= vocab; t += kWidth, token += kWidth) {
    const Vf logit = Load(logits + t);
    const Vf distance = Min((Splat(highest) - logit) * kBucketsPerNat, Splat(kCutBuckets - 1));
    const Vi kept = ((logit > Splat(cut.logit)) | ((logit == Splat(cut.logit)) & (token <= cut.token))) &
                    (logit > Splat(-kInfinity));
    const Vi bucket = (__builtin_convertvector(distance, Vi) & kept) | (~kept & kNoBucket);
    __builtin_memcpy(buckets + t, &bucket, sizeof bucket);
  }
  for (; t < vocab; ++t) {
    const bool kept = cut.Keeps(logits[t], first + static_cast<int32_t>(t)) && logits[t] > -kInfinity;
    buckets[t] = kept ? DistanceBucket(highest, logits[t]) : kNoBucket;
  }
}

using Vul = uint64_t __attribute__((vector_size(8 * kDoubles)));

inline bool AnyLane(Vl mask) {
#if TM_SIMD_WIDTH == 16
  return _mm512_movepi64_mask(reinterpret_cast<__m512i>(mask)) != 0;
#elif TM_SIMD_WIDTH == 8
  return _mm256_movemask_pd(reinterpret_cast<__m256d>(mask)) != 0;
#else
  return (mask[0] | mask[1]) != 0;
#endif
}

// RaceUniform of neighbouring tokens.
inline Vd RaceUniforms(uint64_t state, Vul token) {
  Vul z = state ^ (token * kRaceToken + 1);
  z = (z ^ (z >> 30)) * kRaceMix1;
  z = (z ^ (z >> 27)) * kRaceMix2;
  z = z ^ (z >> 31);
  // The upper 52 bits as a double's mantissa: exact, and no instruction set lacks it.
  const Vd integer = reinterpret_cast<Vd>((z >> 12) | 0x4330000000000000ull) - 0x1p52;
  return (integer + 0.5) * 0x1p-52;
}

// E >= v. The factor leaves room for the rounding of both sides.
constexpr double kRaceSlack = 1 - 0x1p-50;

inline void Contend(double v, double weight, int32_t token, RaceWinner* winner) {
  if (v * kRaceSlack > winner->time * weight) return;
  const double time = -std::log1p(-v) / weight;
  if (time < winner->time) *winner = {token, time};
}

RaceWinner Race(const float* logits, const double* weights, int64_t vocab, int32_t first,
                const RaceField& field) {
  RaceWinner winner;
  Vul token = {};
  for (int i = 0; i < kDoubles; ++i) token[i] = static_cast<uint64_t>(first) + static_cast<uint64_t>(i);
  int64_t t = 0;
  for (; t + kDoubles <= vocab; t += kDoubles, token += kDoubles) {
    Vd weight;
    HalfVf singles;
    __builtin_memcpy(&weight, weights + t, sizeof weight);
    __builtin_memcpy(&singles, logits + t, sizeof singles);
    const Vd logit = __builtin_convertvector(singles, Vd);
    Vl runs = (weight >= field.least_weight) & (logit >= static_cast<double>(field.cut.logit));
    if (!AnyLane(runs)) continue;
    const Vd v = RaceUniforms(field.state, token);
    runs &= v * kRaceSlack <= winner.time * weight;
    if (!AnyLane(runs)) continue;
    for (int i = 0; i < kDoubles; ++i) {
      const auto id = static_cast<int32_t>(token[i]);
      if (runs[i] != 0 && field.cut.Keeps(singles[i], id)) Contend(v[i], weight[i], id, &winner);
    }
  }
  for (; t < vocab; ++t) {
    const int32_t id = first + static_cast<int32_t>(t);
    if (weights[t] < field.least_weight || !field.cut.Keeps(logits[t], id)) continue;
    Contend(RaceUniforms(field.state, Vul{} + static_cast<uint64_t>(id))[0], weights[t], id, &winner);
  }
  return winner;
}

constexpr SamplingKernels kSamplingKernels = {ScanLogits, ExpWeights, CountHigher, FindBuckets, Race};

}  // namespace
}  // namespace tramontane
