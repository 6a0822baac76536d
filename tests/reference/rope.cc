#include "tests/reference/rope.h"

#include <cmath>
#include <complex>
#include <cstddef>

namespace tramontane::reference {

std::vector<double> InverseFrequencies(double theta, int32_t head_dim) {
  std::vector<double> frequencies;
  for (int32_t i = 0; i < head_dim / 2; ++i) frequencies.push_back(std::pow(theta, -2.0 * i / head_dim));
  return frequencies;
}

std::vector<double> Rotate(const std::vector<double>& head, int64_t position,
                           const std::vector<double>& inverse_frequency, RotaryPairs pairs) {
  std::vector<double> rotated(head.size());
  const size_t half = head.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const size_t first = pairs == RotaryPairs::kHalfSplit ? i : 2 * i;
    const size_t second = pairs == RotaryPairs::kHalfSplit ? i + half : 2 * i + 1;
    const std::complex<double> turned = std::complex<double>(head[first], head[second]) *
                                        std::polar(1.0, static_cast<double>(position) * inverse_frequency[i]);
    rotated[first] = turned.real();
    rotated[second] = turned.imag();
  }
  return rotated;
}

}  // namespace tramontane::reference
