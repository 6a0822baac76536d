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

}  // namespace tramontane
