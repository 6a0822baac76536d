// What all backends compute a token from in the same way: the order in which tokens are filtered, the first
// histogram of a filter, and the exponential of the weights.
//
// Pure; host and device code. What goes by vectors on the CPU has its own loops there, over the constants of
// this header.
#pragma once

#include <bit>
#include <cstdint>

namespace tramontane {

// ---- order --------------------------------------------------------------------------------------

// Ascending with x; -0 and 0 are equal. No NaN.
constexpr uint32_t OrderOf(float x) {
  const auto bits = std::bit_cast<uint32_t>(x + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
constexpr float OfOrder(uint32_t order) {
  return std::bit_cast<float>((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}

// A token's sort key is smaller the higher its logit, then the lower its id. All keys of a row differ.
constexpr uint64_t KeyOf(float logit, int32_t token) {
  return uint64_t{~OrderOf(logit)} << 32 | static_cast<uint32_t>(token);
}
constexpr float LogitOf(uint64_t key) { return OfOrder(~static_cast<uint32_t>(key >> 32)); }
constexpr int32_t TokenOf(uint64_t key) { return static_cast<int32_t>(static_cast<uint32_t>(key)); }

// ---- the first histogram of a filter ------------------------------------------------------------

// Buckets of logits by their distance from the highest: neither the subtraction nor the product changes an
// order, so a bucket's tokens all sort before the next bucket's. The last has all that are farther.
inline constexpr int32_t kCutBuckets = 2048;
inline constexpr float kBucketsPerNat = 64;  // so that buckets reach 32 nats below the highest logit

constexpr int32_t DistanceBucket(float highest, float logit) {
  const float distance = (highest - logit) * kBucketsPerNat;
  return distance < kCutBuckets - 1 ? static_cast<int32_t>(distance) : kCutBuckets - 1;
}

// ---- e^x for x <= 0 -----------------------------------------------------------------------------

// In f64, within a few units in the last place; 0 below kLeastExponent (no subnormals), exactly 1 at 0:
//
//   shifted = x * per_ln_2 + rounder                     its low bits are n, the integer nearest to x / ln 2
//   n       = shifted - rounder
//   r       = (x - n * ln_2_high) - n * ln_2_low         ln 2 in two parts
//   e^x     = 2^n * (term[0] r^13 + ... + term[13])      by Horner's rule
//
// On the CPU products and sums are rounded apart, so that every variant has the same bits.
inline constexpr double kLeastExponent = -708.0;
struct ExpSteps {
  static constexpr int kTerms = 14;

  double rounder = 0x1.8p52;
  double per_ln_2 = 0x1.71547652b82fep0;
  double ln_2_high = 0x1.62e42fefa3800p-1;
  double ln_2_low = 0x1.ef35793c76730p-45;
  // 1 / 13!, ... 1 / 0!
  double term[kTerms] = {1.0 / 6227020800.0,
                         1.0 / 479001600.0,
                         1.0 / 39916800.0,
                         1.0 / 3628800.0,
                         1.0 / 362880.0,
                         1.0 / 40320.0,
                         1.0 / 5040.0,
                         1.0 / 720.0,
                         1.0 / 120.0,
                         1.0 / 24.0,
                         1.0 / 6.0,
                         0.5,
                         1.0,
                         1.0};
};

}  // namespace tramontane
