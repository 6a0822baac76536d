#include "tests/kernels/moe_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/core/check.h"
#include "tests/support/random_blocks.h"

namespace tramontane {
namespace {

using reference::Matrix;

constexpr float kEpsilon = 1e-5f;
// Above what f32 sums err by, below what a rounding of the router's inputs to bf16 does.
constexpr double kLeastLead = 1e-3;

float Rounded(float value, DType dtype) {
  if (dtype == DType::kBf16) return Bf16ToFloat(FloatToBf16(value));
  return dtype == DType::kF16 ? F16ToFloat(FloatToF16(value)) : value;
}

Matrix RandomMatrix(std::mt19937& random, int64_t rows, int64_t columns, double gain, DType dtype) {
  std::normal_distribution<float> normal(0.0f, static_cast<float>(gain / std::sqrt(columns)));
  Matrix matrix(rows, columns);
  for (double& value : matrix.data) value = Rounded(normal(random), dtype);
  return matrix;
}

// A matrix as a file would hold it.
std::vector<std::byte> FileBytes(const Matrix& matrix, DType dtype) {
  std::vector<std::byte> bytes;
  for (const double exact : matrix.data) {
    const auto value = static_cast<float>(exact);
    const uint16_t half = dtype == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value);
    const auto* from = dtype == DType::kF32 ? reinterpret_cast<const std::byte*>(&value)
                                            : reinterpret_cast<const std::byte*>(&half);
    bytes.insert(bytes.end(), from, from + Format(dtype).Bytes(1));
  }
  return bytes;
}

}  // namespace

MoeCase::MoeCase(const MoeShape& shape, uint32_t seed) : shape_(shape) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(1.0f, 0.2f);
  for (int32_t k = 0; k < shape.hidden; ++k) layer_.norm.push_back(normal(random));
  layer_.norm_epsilon = kEpsilon;
  layer_.router = RandomMatrix(random, shape.experts, shape.hidden, 1.5, DType::kF32);
  layer_.experts_per_token = shape.experts_per_token;
  for (int32_t expert = 0; expert < shape.experts; ++expert) {
    layer_.experts.push_back({RandomMatrix(random, shape.intermediate, shape.hidden, 1.0, shape.dtype),
                              RandomMatrix(random, shape.intermediate, shape.hidden, 1.0, shape.dtype),
                              RandomMatrix(random, shape.hidden, shape.intermediate, 1.0, shape.dtype)});
  }
  if (shape.columns != MoeColumns::kInOrder) DrawOrders(random());
  for (Matrix* matrix : Matrices()) {
    formats_.emplace(matrix, shape.mixed && formats_.size() % 2 == 1 ? DType::kQ8_0 : shape.dtype);
  }
  FillWithBlocks(random());
}

std::vector<Matrix*> MoeCase::Matrices() {
  std::vector<Matrix*> matrices;
  for (reference::MoeExpert& expert : layer_.experts)
    matrices.insert(matrices.end(), {&expert.gate, &expert.up, &expert.down});
  return matrices;
}

Format MoeCase::FormatOf(const Matrix& matrix) const {
  const auto found = formats_.find(&matrix);
  return found == formats_.end() ? Format(shape_.dtype) : found->second;
}

void MoeCase::DrawOrders(uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&random](int64_t columns) {
    std::vector<int32_t> order(static_cast<size_t>(columns));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    return order;
  };
  // One of several experts has its columns in order.
  for (size_t i = layer_.experts.size() > 1 ? 1 : 0; i < layer_.experts.size(); ++i) {
    const reference::MoeExpert& expert = layer_.experts[i];
    orders_[&expert.gate] = draw(shape_.hidden);
    orders_[&expert.up] =
        shape_.columns == MoeColumns::kByInputs ? orders_[&expert.gate] : draw(shape_.hidden);
    orders_[&expert.down] = draw(shape_.intermediate);
  }
}

const int32_t* MoeCase::ColumnOrder(const Matrix& matrix) const {
  const auto found = orders_.find(&matrix);
  return found == orders_.end() ? nullptr : found->second.data();
}

void MoeCase::FillWithBlocks(uint32_t seed) {
  for (Matrix* matrix : Matrices()) {
    const Format format = FormatOf(*matrix);
    if (format.plain()) continue;
    const std::vector<std::byte>& blocks = blocks_[matrix] =
        RandomBlocks(format, 1, static_cast<int64_t>(matrix->data.size()), ++seed);
    const std::vector<float> values = DecodedBlocks(format, blocks);
    const int32_t* order = ColumnOrder(*matrix);
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
      const int64_t k = i % matrix->columns;
      matrix->data[static_cast<size_t>(i - k + (order == nullptr ? k : order[k]))] =
          values[static_cast<size_t>(i)];
    }
  }
}

std::vector<std::byte> MoeCase::Stored(const Matrix& matrix) const {
  if (const auto found = blocks_.find(&matrix); found != blocks_.end()) return found->second;
  const int32_t* order = ColumnOrder(matrix);
  if (order == nullptr) return FileBytes(matrix, shape_.dtype);
  Matrix reordered(matrix.rows, matrix.columns);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t k = 0; k < matrix.columns; ++k) reordered.At(row, k) = matrix.At(row, order[k]);
  }
  return FileBytes(reordered, shape_.dtype);
}

double MoeCase::Lead(const std::vector<float>& x) const {
  Matrix rows(static_cast<int64_t>(x.size()) / shape_.hidden, shape_.hidden);
  std::copy(x.begin(), x.end(), rows.data.begin());
  const Matrix scores =
      reference::MoeScores(layer_, reference::RmsNorm(rows, layer_.norm, layer_.norm_epsilon));
  double least = std::numeric_limits<double>::infinity();
  for (int64_t row = 0; row < scores.rows; ++row) {
    const auto begin = scores.data.begin() + row * scores.columns;
    least = std::min(
        least, reference::ChooseExperts({begin, begin + scores.columns}, shape_.experts_per_token).lead);
  }
  return least;
}

std::vector<float> MoeCase::RandomRows(int32_t rows, uint32_t seed) const {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> all;
  while (static_cast<int32_t>(all.size()) < rows * shape_.hidden) {
    std::vector<float> row(static_cast<size_t>(shape_.hidden));
    for (float& value : row) value = Rounded(normal(random), DType::kBf16);
    if (Lead(row) > kLeastLead) all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

StepMaxima MoeCase::Maxima(int32_t tokens) const {
  return {.tokens = tokens,
          .sequences = 1,
          .logit_rows = 1,
          .hidden = shape_.hidden,
          .query_heads = 1,
          .kv_heads = 1,
          .head_dim = 32,
          .vocab = 8,
          .context = 8,
          .experts = shape_.experts,
          .experts_per_token = shape_.experts_per_token,
          .expert_intermediate = shape_.intermediate};
}

PackedMoe::PackedMoe(const MoeCase& of, const reference::MoeLayer& layer, Backend& backend)
    : of_(of), shape_(of.shape()), backend_(backend) {
  norm_ = UploadFloats(layer.norm);
  router_ = UploadFloats(layer.router.data);
  for (const reference::MoeExpert& expert : layer.experts) {
    gate_up_.push_back(Pack({&expert.gate, &expert.up}, LinearLayout::kGateUp));
    down_.push_back(Pack({&expert.down}, LinearLayout::kStacked));
  }
}

PackedMoe::~PackedMoe() {
  for (void* memory : memory_) backend_.Free(memory);
  for (const WeightHandle weight : gate_up_) backend_.FreeWeight(weight);
  for (const WeightHandle weight : down_) backend_.FreeWeight(weight);
}

WeightHandle PackedMoe::Pack(const std::vector<const Matrix*>& matrices, LinearLayout layout) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<WeightRows> parts;
  for (const Matrix* matrix : matrices) {
    bytes.push_back(of_.Stored(*matrix));
    parts.push_back({bytes.back().data(), of_.FormatOf(*matrix), matrix->rows, matrix->columns,
                     of_.ColumnOrder(*matrix)});
  }
  WeightHandle weight;
  const LinearSource source = {.parts = parts.data(),
                               .part_count = static_cast<int32_t>(parts.size()),
                               .in_features = matrices[0]->columns,
                               .layout = layout,
                               .use = WeightUse::kExpert};
  TM_CHECK(backend_.PackLinear(source, &weight) == OpCode::kOk, "%s", backend_.last_error());
  return weight;
}

float* PackedMoe::UploadFloats(const std::vector<double>& values) {
  const std::vector<float> floats(values.begin(), values.end());
  const auto bytes = static_cast<int64_t>(floats.size() * sizeof(float));
  memory_.push_back(backend_.Allocate(bytes));
  TM_CHECK(backend_.Upload(memory_.back(), floats.data(), bytes) == OpCode::kOk, "%s", backend_.last_error());
  TM_CHECK(backend_.WaitFence(backend_.RecordFence()) == OpCode::kOk, "%s", backend_.last_error());
  return static_cast<float*>(memory_.back());
}

Tensor PackedMoe::Upload(const std::vector<float>& values) {
  const DType dtype = backend_.info().activation_dtype;
  Matrix matrix(static_cast<int64_t>(values.size()) / shape_.hidden, shape_.hidden);
  std::copy(values.begin(), values.end(), matrix.data.begin());
  const std::vector<std::byte> bytes = FileBytes(matrix, dtype);
  memory_.push_back(backend_.Allocate(static_cast<int64_t>(bytes.size())));
  TM_CHECK(backend_.Upload(memory_.back(), bytes.data(), static_cast<int64_t>(bytes.size())) == OpCode::kOk,
           "%s", backend_.last_error());
  TM_CHECK(backend_.WaitFence(backend_.RecordFence()) == OpCode::kOk, "%s", backend_.last_error());
  return MakeTensor(memory_.back(), dtype, matrix.rows, matrix.columns);
}

std::vector<float> PackedMoe::Download(const Tensor& values) {
  const auto count = static_cast<size_t>(values.rows * values.columns);
  std::vector<std::byte> bytes(static_cast<size_t>(Format(values.dtype).Bytes(values.rows * values.columns)));
  TM_CHECK(backend_.Download(bytes.data(), values.data, static_cast<int64_t>(bytes.size())) == OpCode::kOk,
           "%s", backend_.last_error());
  TM_CHECK(backend_.WaitFence(backend_.RecordFence()) == OpCode::kOk, "%s", backend_.last_error());
  std::vector<float> floats(count);
  if (values.dtype == DType::kF32) {
    std::memcpy(floats.data(), bytes.data(), bytes.size());
  } else {
    for (size_t i = 0; i < count; ++i) {
      uint16_t half;
      std::memcpy(&half, bytes.data() + 2 * i, sizeof(half));
      floats[i] = Bf16ToFloat(half);
    }
  }
  return floats;
}

OpCode PackedMoe::Queue(const Tensor& x, const Tensor& out, int32_t rows, Epilogue epilogue,
                        const int32_t* live_rows) {
  return backend_.Moe({.x = x,
                       .rows = rows,
                       .live_rows = live_rows,
                       .norm_weight = norm_,
                       .norm_epsilon = kEpsilon,
                       .router = router_,
                       .experts = shape_.experts,
                       .experts_per_token = shape_.experts_per_token,
                       .gate_up = gate_up_.data(),
                       .down = down_.data(),
                       .epilogue = epilogue,
                       .out = out});
}

std::vector<float> PackedMoe::RunPadded(const std::vector<float>& x, int32_t live_rows) {
  const Tensor rows = Upload(x);
  memory_.push_back(backend_.Allocate(sizeof(live_rows)));
  TM_CHECK(backend_.Upload(memory_.back(), &live_rows, sizeof(live_rows)) == OpCode::kOk, "%s",
           backend_.last_error());
  TM_CHECK(backend_.WaitFence(backend_.RecordFence()) == OpCode::kOk, "%s", backend_.last_error());
  TM_CHECK(Queue(rows, rows, static_cast<int32_t>(rows.rows), Epilogue::kAddResidual,
                 static_cast<const int32_t*>(memory_.back())) == OpCode::kOk,
           "%s", backend_.last_error());
  return Download(rows);
}

std::vector<float> PackedMoe::Run(const std::vector<float>& x, Epilogue epilogue, bool in_place) {
  const Tensor rows = Upload(x);
  const Tensor out = in_place ? rows : Upload(x);
  TM_CHECK(Queue(rows, out, static_cast<int32_t>(rows.rows), epilogue) == OpCode::kOk, "%s",
           backend_.last_error());
  return Download(out);
}

}  // namespace tramontane
