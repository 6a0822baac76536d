// The seed of random tests: always the same unless TRAMONTANE_TEST_SEED gives another, so that a change is
// refused for its own faults; "new" draws one. Tests print it with a failure. Callable from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/test_scale.h"

namespace tramontane {

// What TRAMONTANE_TEST_SEED says: the same for as long as the program runs.
inline std::optional<uint32_t> GivenTestSeed() {
  static const std::optional<uint32_t> given = []() -> std::optional<uint32_t> {
    const char* text = std::getenv("TRAMONTANE_TEST_SEED");
    if (text == nullptr) return std::nullopt;
    if (std::strcmp(text, "new") == 0) return std::random_device{}();
    return static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
  }();
  return given;
}

inline uint32_t TestSeed() { return GivenTestSeed().value_or(1); }

// For a test that is instantiated by seed, since one seed draws little: the given seed, or `usual`, of which
// a run that is scaled down has the first.
inline std::vector<uint32_t> TestSeeds(std::span<const uint32_t> usual) {
  if (GivenTestSeed()) return {*GivenTestSeed()};
  const auto all = static_cast<int64_t>(usual.size());
  const auto some = usual.first(static_cast<size_t>(std::min(all, ScaledCount(all))));
  return {some.begin(), some.end()};
}

// Of such a test's name: where the seed is drawn, CTest lists the tests with one and runs them with another.
inline std::string SeedName(uint32_t seed) {
  return GivenTestSeed() ? "GivenSeed" : "Seed" + std::to_string(seed);
}

}  // namespace tramontane
