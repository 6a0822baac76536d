// Numbers as pages store them.
#include <vector>

#include "kernels/core/dtype.h"
#include "tests/kv_vectors/kinds.h"

namespace tramontane::kv_vectors {

Status RunFp8E4M3(CaseRun& run) {
  const VectorTensor x = run.reader().In("x", {-1});
  TM_RETURN_IF_ERROR(run.reader().status());
  std::vector<double> codes, decoded;
  for (const double value : x.values) {
    const uint8_t code = FloatToFp8E4M3(static_cast<float>(value));
    codes.push_back(code);
    decoded.push_back(Fp8E4M3ToFloat(code));
  }
  TM_RETURN_IF_ERROR(run.Expect("code", codes));
  return run.Expect("decoded", decoded);
}

}  // namespace tramontane::kv_vectors
