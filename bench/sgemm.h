// The BLAS that cpu_bench compares with: OpenBLAS where the build found one (sgemm_openblas.cc), else none
// (sgemm_absent.cc). One thread calls.
#pragma once

#include <cstdint>

namespace tramontane {

struct SgemmShape {
  int32_t m = 0;  // rows of x
  int32_t n = 0;  // rows of w
  int32_t k = 0;
};

const char* SgemmName();  // "OpenBLAS 0.3.21 (SkylakeX)"; "" when there is none
void SgemmSetThreads(int32_t threads);
// out [m, n] = x [m, k] w^T [n, k], f32
void Sgemm(const SgemmShape& shape, const float* x, const float* w, float* out);

}  // namespace tramontane
