// What a number becomes in a narrower type, by its definition. Any thread; pure.
#pragma once

#include <cstdint>
#include <vector>

namespace tramontane::reference {

// Of a sign, an exponent and so many bits behind the leading one: the nearest number, of two the even one.
// Below `least_exponent` numbers lie as far apart as there; at most `largest` in size.
struct FloatType {
  int mantissa_bits = 0;
  int least_exponent = 0;
  double largest = 0;
};
inline constexpr FloatType kBf16 = {.mantissa_bits = 7, .least_exponent = -126, .largest = 0x1.fep127};
inline constexpr FloatType kF16 = {.mantissa_bits = 10, .least_exponent = -14, .largest = 65504};
inline constexpr FloatType kFp8E4M3 = {.mantissa_bits = 3, .least_exponent = -6, .largest = 448};
double Rounded(double x, const FloatType& type);

// Integers of so many bits with one scale in f16 for all of `x`: codes nearest to x / scale, of two the even
// one, from -(2^(bits - 1) - 1) on. Returns code * scale.
std::vector<double> Quantised(const std::vector<double>& x, int bits);

}  // namespace tramontane::reference
