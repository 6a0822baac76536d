#include "tests/kernels/cuda_linear_case.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/cuda/linear_small.h"
#include "tests/reference/linear.h"

namespace tramontane {
namespace {

constexpr double kUnit = 0x1p-8;  // twice the relative error of one rounding to bf16

reference::Matrix Exact(const std::vector<uint16_t>& bits, int64_t columns) {
  reference::Matrix matrix(static_cast<int64_t>(bits.size()) / columns, columns);
  for (size_t i = 0; i < bits.size(); ++i) matrix.data[i] = Bf16ToFloat(bits[i]);
  return matrix;
}

}  // namespace

std::vector<uint16_t> RandomBf16(int64_t count, uint64_t seed, float scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  for (uint16_t& b : bits) b = FloatToBf16(normal(random));
  return bits;
}

void ExpectLinearAgrees(CudaTestDevice& device, const CudaLinearCase& c, WeightHandle weight,
                        const std::vector<float>& weight_values) {
  const bool swiglu = c.epilogue == Epilogue::kSwiGlu, norm = c.prologue == Prologue::kRmsNorm,
             wide = c.out_dtype == DType::kF32;
  const int64_t width = swiglu ? c.part_rows : 2 * c.part_rows, x_rows = c.rows + 4;
  const std::vector<uint16_t> x = RandomBf16(x_rows * c.in, 2), residual = RandomBf16(c.rows * width, 3);
  std::vector<int32_t> gathered;
  for (int32_t r = 0; r < c.rows; ++r)
    gathered.push_back(norm ? (r * 3 + 1) % static_cast<int32_t>(x_rows) : r);
  std::vector<float> norm_weight;
  for (int64_t k = 0; k < c.in; ++k) norm_weight.push_back(1.0f + 0.25f * static_cast<float>(k % 3));
  uint16_t* out = device.Upload(residual);
  float* logits = device.Upload(std::vector<float>(residual.size(), std::nanf("")));
  LinearParams params;
  params.x = MakeTensor(device.Upload(x), DType::kBf16, x_rows, c.in);
  params.x_rows = norm ? device.Upload(gathered) : nullptr;
  params.rows = c.rows;
  params.prologue = c.prologue;
  params.norm_weight = device.Upload(norm_weight);
  params.norm_epsilon = 1e-5f;
  params.weight = weight;
  params.epilogue = c.epilogue;
  params.out = MakeTensor(wide ? static_cast<void*>(logits) : out, c.out_dtype, c.rows, width);
  ASSERT_EQ(device.backend->Linear(params), OpCode::kOk) << device.backend->last_error();
  const std::vector<uint16_t> got_bits = device.Read(out, residual.size());
  const std::vector<float> got_logits = device.Read(logits, residual.size());

  const reference::Matrix exact_x = Exact(x, c.in);
  const reference::Matrix all =
      norm ? reference::RmsNorm(exact_x, {norm_weight.begin(), norm_weight.end()}, 1e-5f) : exact_x;
  reference::Matrix input(c.rows, c.in);
  for (int32_t r = 0; r < c.rows; ++r) {
    for (int64_t k = 0; k < c.in; ++k) input.At(r, k) = all.At(gathered[static_cast<size_t>(r)], k);
  }
  reference::Matrix w(static_cast<int64_t>(weight_values.size()) / c.in, c.in);
  std::copy(weight_values.begin(), weight_values.end(), w.data.begin());
  const reference::Matrix product = reference::MultiplyTransposed(input, w);
  const reference::Matrix magnitude = reference::Magnitude(input, w);
  // As CudaSmallLinearTest derives it: the normalised input's rounding and f32 sums scale with the
  // magnitudes, the output's rounding with the value; SwiGLU rounds gate and up before, each passed on with
  // slope 1.1 or |the other|.
  const double input_unit = (norm ? 1.25 * kUnit : 0.0) + static_cast<double>(c.in) * 0x1p-24;
  const bool rounded_before = c.rows > cuda::kSmallLinearRows && device.rounds_before_adding;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t n = 0; n < width; ++n) {
      const auto at = static_cast<size_t>(r * width + n);
      double want = product.At(r, n), allowed = input_unit * magnitude.At(r, n);
      if (swiglu) {
        const double gate = product.At(r, n), up = product.At(r, c.part_rows + n);
        const double gate_error = input_unit * magnitude.At(r, n) + kUnit * std::fabs(gate);
        const double up_error = input_unit * magnitude.At(r, c.part_rows + n) + kUnit * std::fabs(up);
        want = reference::Silu(gate) * up;
        allowed = 1.1 * gate_error * (std::fabs(up) + up_error) + std::fabs(reference::Silu(gate)) * up_error;
      } else if (c.epilogue == Epilogue::kAddResidual) {
        want += Bf16ToFloat(residual[at]);
        if (rounded_before) allowed += kUnit * std::fabs(product.At(r, n));
      }
      if (!wide) allowed += kUnit * (std::fabs(want) + allowed);
      ASSERT_NEAR(wide ? got_logits[at] : Bf16ToFloat(got_bits[at]), want, allowed)
          << c.rows << " rows of " << c.in << ": row " << r << " output " << n;
    }
  }
}

}  // namespace tramontane
