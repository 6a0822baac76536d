// Seeds of random tests: a new one each time, printed with a failure, and given back to repeat it.
// TRAMONTANE_TEST_SEED=1234 repeats the run that printed 1234. Callable from any thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace tramontane {

inline uint32_t TestSeed() {
  const char* text = std::getenv("TRAMONTANE_TEST_SEED");
  if (text != nullptr) return static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
  return std::random_device{}();
}

// The same seed each time unless one is named: for tests over a library that is not ours, whose faults are
// looked for on purpose, not met by a change that has nothing to do with them.
inline uint32_t TestSeedOr(uint32_t seed) {
  return std::getenv("TRAMONTANE_TEST_SEED") != nullptr ? TestSeed() : seed;
}

}  // namespace tramontane
