#include "bench/load/random.h"

#include <cmath>
#include <numbers>

namespace tramontane::load {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

uint64_t RotatedLeft(uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

}  // namespace

uint64_t Mixed(uint64_t value) {
  value += kGolden;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

Random::Random(uint64_t seed, RandomUse use, uint64_t key) {
  uint64_t start = Mixed(Mixed(Mixed(seed) ^ static_cast<uint64_t>(use)) ^ key);
  for (uint64_t& word : state_) {
    word = Mixed(start);
    start += kGolden;
  }
}

uint64_t Random::Next() {
  const uint64_t result = RotatedLeft(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = RotatedLeft(state_[3], 45);
  return result;
}

double Random::Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }

int64_t Random::Whole(int64_t least, int64_t most) {
  // The high half of a 128-bit product; its bias is below 2^-32 for every range that a length can have.
  __extension__ using Wide = unsigned __int128;
  const uint64_t count = static_cast<uint64_t>(most - least) + 1;
  return least + static_cast<int64_t>((static_cast<Wide>(Next()) * count) >> 64);
}

double Random::Exponential() { return -std::log(Uniform()); }

double Random::Normal() {
  const double radius = std::sqrt(-2.0 * std::log(Uniform()));  // Box and Muller
  return radius * std::cos(2.0 * std::numbers::pi * Uniform());
}

double Random::Gamma(double shape) {
  // Marsaglia and Tsang; below 1 by way of shape + 1.
  if (shape < 1.0) {
    const double more = Gamma(shape + 1.0);
    return more * std::pow(Uniform(), 1.0 / shape);
  }
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = Normal(), v = std::pow(1.0 + c * x, 3.0);
    if (v > 0.0 && std::log(Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace tramontane::load
