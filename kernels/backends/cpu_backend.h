// The CPU backend's one public face: its maker. A product, and the semantics that other backends are held to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/status.h"

namespace tramontane {

// How rows of x meet weights that stand in blocks of small integers (kernels/README.md). Weights of plain
// types know no such choice.
enum class LinearMode : int32_t {
  kExact = 0,  // weights are decoded to f32
  // Rows are rounded to 8 bits, a block at a time, and products are whole numbers; but for those that give
  // logits, which are as in kExact.
  kInt8 = 1,
};
inline constexpr LinearMode kDefaultLinearMode = LinearMode::kInt8;

struct CpuBackendOptions {
  int32_t threads = 0;  // compute threads, the caller's included; 0: one per core this process may use
  std::string variant;  // "" picks the best this machine has; else one of CpuVariants()
  LinearMode linear = kDefaultLinearMode;
};

// Names of the variants this machine can run, best first; among amx_bf16, avx512_bf16, avx512_vnni, avx512,
// avx2, portable.
std::vector<std::string> CpuVariants();

// Whether a variant rounds the inputs of bf16 weights to bf16.
inline bool RoundsInputs(std::string_view variant) {
  return variant == "amx_bf16" || variant == "avx512_bf16";
}

// An unknown or unavailable variant is an InvalidArgument that lists what there is.
StatusOr<BackendPtr> MakeCpuBackend(const CpuBackendOptions& options);

}  // namespace tramontane
