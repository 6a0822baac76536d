// The seed of random tests: always the same unless TRAMONTANE_TEST_SEED gives another, so that a change is
// refused for its own faults; "new" draws one. Tests print it with a failure. Callable from any thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>

namespace tramontane {

inline uint32_t TestSeed() {
  const char* text = std::getenv("TRAMONTANE_TEST_SEED");
  if (text == nullptr) return 1;
  if (std::strcmp(text, "new") == 0) return std::random_device{}();
  return static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
}

}  // namespace tramontane
