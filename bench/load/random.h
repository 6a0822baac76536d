// The load tool's own random numbers: the same on every machine and with every standard library, so that a
// seed names a schedule for good. xoshiro256** seeded by splitmix64; the transforms are written out here.
// One thread each.
#pragma once

#include <cstdint>

namespace tramontane::load {

// What a stream of numbers is for. Each has its own, so that another way of arriving does not change lengths.
enum class RandomUse : uint64_t {
  kArrivals = 1,
  kInputTokens = 2,
  kOutputTokens = 3,
  kClass = 4,
  kPrefix = 5,
  kSpread = 6,
  kIds = 7,
  kBootstrap = 8,
};

class Random {
 public:
  // `key` tells streams of one use apart.
  Random(uint64_t seed, RandomUse use, uint64_t key = 0);

  uint64_t Next();
  double Uniform();                            // within (0, 1), never an end of it
  int64_t Whole(int64_t least, int64_t most);  // both ends may come
  double Exponential();                        // mean 1
  double Normal();                             // mean 0, deviation 1
  double Gamma(double shape);                  // mean `shape`, scale 1; shape > 0

 private:
  uint64_t state_[4];
};

// One round of splitmix64: a bijection that leaves no pattern.
uint64_t Mixed(uint64_t value);

}  // namespace tramontane::load
