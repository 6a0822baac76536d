// The CPU backend's variants, for tests that run on each of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/backends/cpu_backend.h"
#include "tests/support/sanitizers.h"

namespace tramontane {

// Every variant there is, also those this machine lacks: tests of these are skipped in sight.
inline const std::vector<std::string>& AllCpuVariantNames() {
  static const std::vector<std::string> names = {"amx_bf16", "avx512_bf16", "avx512_vnni",
                                                 "avx512",   "avx2",        "portable"};
  return names;
}

inline bool MachineHasVariant(const std::string& variant) {
  const std::vector<std::string> available = CpuVariants();
  return std::find(available.begin(), available.end(), variant) != available.end();
}

// Those that a test of all runs. Threads share their work alike in each: ThreadSanitizer watches the best.
inline std::vector<std::string> TestedCpuVariants() {
  std::vector<std::string> variants = CpuVariants();
  if (kThreadSanitized) variants.resize(1);
  return variants;
}

// A backend of the machine's best variant unless one is named, without scratch.
inline BackendPtr CpuBackendWith(int32_t threads, const std::string& variant = "") {
  StatusOr<BackendPtr> backend = MakeCpuBackend({.threads = threads, .variant = variant});
  TM_CHECK(backend.ok(), "%s", backend.status().ToString().c_str());
  return std::move(backend).value();
}

// A test over one variant by name.
class CpuVariantTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!MachineHasVariant(GetParam())) GTEST_SKIP() << "this machine lacks " << GetParam();
    if (kThreadSanitized && GetParam() != CpuVariants().front()) {
      GTEST_SKIP() << "threads share their work as in " << CpuVariants().front();
    }
  }

  // A backend with scratch for such steps.
  static BackendPtr MakeBackend(const std::string& variant, int32_t threads, const StepMaxima& maxima) {
    BackendPtr backend = CpuBackendWith(threads, variant);
    const OpCode code = backend->Reserve(maxima);
    TM_CHECK(code == OpCode::kOk, "%s", backend->last_error());
    return backend;
  }
};

#define TM_INSTANTIATE_FOR_CPU_VARIANTS(Suite)                                                     \
  INSTANTIATE_TEST_SUITE_P(Variants, Suite, testing::ValuesIn(::tramontane::AllCpuVariantNames()), \
                           [](const auto& info) { return info.param; })

}  // namespace tramontane
