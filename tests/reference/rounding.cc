#include "tests/reference/rounding.h"

#include <algorithm>
#include <cmath>

namespace tramontane::reference {

double Rounded(double x, const FloatType& type) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), type.least_exponent);
  const double step = std::ldexp(1.0, exponent - type.mantissa_bits);
  return std::clamp(std::nearbyint(x / step) * step, -type.largest, type.largest);
}

std::vector<double> Quantised(const std::vector<double>& x, int bits) {
  const double most = std::ldexp(1.0, bits - 1) - 1;
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  const double scale = Rounded(std::max(largest / most, 1e-5), kF16);
  std::vector<double> quantised;
  for (const double value : x)
    quantised.push_back(std::clamp(std::nearbyint(value / scale), -most, most) * scale);
  return quantised;
}

}  // namespace tramontane::reference
