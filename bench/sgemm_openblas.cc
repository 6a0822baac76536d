#include <cblas.h>

#include <string>

#include "bench/sgemm.h"

namespace tramontane {

const char* SgemmName() {
  static const std::string name = std::string(openblas_get_config()) + " (" + openblas_get_corename() + ")";
  return name.c_str();
}

void SgemmSetThreads(int32_t threads) { openblas_set_num_threads(threads); }

void Sgemm(const SgemmShape& shape, const float* x, const float* w, float* out) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, shape.m, shape.n, shape.k, 1.0f, x, shape.k, w,
              shape.k, 0.0f, out, shape.n);
}

}  // namespace tramontane
