// A random mixture of experts, by its definition and packed into a backend, for the tests of Moe.
// One thread. Borrows the backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/backend.h"
#include "tests/reference/moe.h"

namespace tramontane {

// How the columns of the experts' matrices stand.
enum class MoeColumns : int32_t {
  kInOrder = 0,
  kByInputs = 1,  // an expert's gate and up in one order, its down in another
  kByMatrix = 2,  // each matrix in another
};

struct MoeShape {
  int32_t experts = 8;
  int32_t experts_per_token = 2;
  int32_t hidden = 64;
  int32_t intermediate = 48;
  DType dtype = DType::kBf16;  // of the experts' weights
  MoeColumns columns = MoeColumns::kInOrder;
  bool mixed = false;  // every second matrix of the experts stands in Q8_0
};

class MoeCase {
 public:
  MoeCase(const MoeShape& shape, uint32_t seed);

  const MoeShape& shape() const { return shape_; }
  // Tests may change it before it is packed; every value must be one of the dtype. What stands in blocks is
  // packed as it was made.
  reference::MoeLayer& layer() { return layer_; }
  // A matrix of its experts as a file would hold it, its format, and the input of each of its columns; null:
  // in order.
  std::vector<std::byte> Stored(const reference::Matrix& matrix) const;
  Format FormatOf(const reference::Matrix& matrix) const;
  const int32_t* ColumnOrder(const reference::Matrix& matrix) const;

  // [rows, hidden] values of bf16, none of whose experts is chosen by a hair.
  std::vector<float> RandomRows(int32_t rows, uint32_t seed) const;
  double Lead(const std::vector<float>& x) const;  // smallest of the rows

  // What the largest step of a test asks for.
  StepMaxima Maxima(int32_t tokens) const;

 private:
  void FillWithBlocks(uint32_t seed);
  std::vector<reference::Matrix*> Matrices();
  void DrawOrders(uint32_t seed);

  const MoeShape shape_;
  reference::MoeLayer layer_;
  std::map<const reference::Matrix*, Format> formats_;
  std::map<const reference::Matrix*, std::vector<std::byte>> blocks_;
  std::map<const reference::Matrix*, std::vector<int32_t>> orders_;  // none: in order
};

// A case in a backend that has reserved for it.
class PackedMoe {
 public:
  PackedMoe(const MoeCase& of, const reference::MoeLayer& layer, Backend& backend);
  ~PackedMoe();
  PackedMoe(const PackedMoe&) = delete;
  PackedMoe& operator=(const PackedMoe&) = delete;

  // Rows of x in the backend's activations' dtype; `in_place`: out is x.
  std::vector<float> Run(const std::vector<float>& x, Epilogue epilogue, bool in_place = false);
  // The same over buffers of the caller, [rows, hidden].
  OpCode Queue(const Tensor& x, const Tensor& out, int32_t rows, Epilogue epilogue,
               const int32_t* live_rows = nullptr);
  // Rows of which the last are padding, in place.
  std::vector<float> RunPadded(const std::vector<float>& x, int32_t live_rows);

  Tensor Upload(const std::vector<float>& values);
  std::vector<float> Download(const Tensor& values);

 private:
  WeightHandle Pack(const std::vector<const reference::Matrix*>& parts, LinearLayout layout);
  float* UploadFloats(const std::vector<double>& values);

  const MoeCase& of_;
  const MoeShape shape_;
  Backend& backend_;
  float* norm_ = nullptr;
  float* router_ = nullptr;
  std::vector<WeightHandle> gate_up_, down_;
  std::vector<void*> memory_;
};

}  // namespace tramontane
