// e^x for x <= 0, the weights of sampling. Host and device code; pure.
//
// Included where instructions have been chosen, as simd.h is: each variant of the CPU has its own.
#pragma once

#include <cstdint>

namespace tramontane {
namespace {

// In f64, within a few units in the last place; 0 below kLeastExponent (no subnormals), exactly 1 at 0:
//
//   shifted = x * per_ln_2 + rounder                     its low bits are n, the integer nearest to x / ln 2
//   n       = shifted - rounder
//   r       = (x - n * ln_2_high) - n * ln_2_low         ln 2 in two parts
//   e^x     = 2^n * (term[0] r^13 + ... + term[13])      by Horner's rule
//
// On the CPU products and sums are rounded apart, so that every variant has the same bits.
constexpr double kLeastExponent = -708.0;
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

// Real: double, or a vector of them; Bits: as many int64_t.
template <typename Real, typename Bits>
constexpr Real ExpOfNonPositive(Real x) {
  constexpr ExpSteps kSteps;
  const Real clamped = x < kLeastExponent ? Real{} + kLeastExponent : x;
  const Real shifted = clamped * kSteps.per_ln_2 + kSteps.rounder;
  const Real n = shifted - kSteps.rounder;
  const Real r = (clamped - n * kSteps.ln_2_high) - n * kSteps.ln_2_low;
  Real p = Real{} + kSteps.term[0];
  for (int i = 1; i < ExpSteps::kTerms; ++i) p = p * r + kSteps.term[i];
  const Real power = __builtin_bit_cast(Real, (__builtin_bit_cast(Bits, shifted) + 1023) << 52);
  return x < kLeastExponent ? Real{} : p * power;
}

}  // namespace
}  // namespace tramontane
