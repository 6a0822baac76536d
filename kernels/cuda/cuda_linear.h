// CudaLinear: the linear layers of a step, a segment of the weight at a time: 1 to 16 rows by our own kernel,
// more by a large product between small kernels, or of a weight in blocks by tiles, and where rows are many
// by a large product of each slice that is decoded. Engine thread.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/packed_weight.h"

namespace tramontane::cuda {

class CudaLinear {
 public:
  explicit CudaLinear(CudaContext& context) : context_(context) {}  // borrowed

  OpCode Run(const LinearParams& params);

 private:
  OpCode GateUpApart(const LinearParams& params, const PackedWeight& weight);
  OpCode LinearOfSegments(const LinearParams& params, const PackedWeight& weight);
  OpCode PrepareRows(const LinearParams& params, const int32_t* column_order);
  OpCode QuantiseRows(const LinearParams& params);
  OpCode LinearOf(const LinearParams& params, const Segment& weight);
  OpCode TileLinear(const LinearParams& params, const Segment& weight);
  OpCode LargeLinear(const LinearParams& params, const Segment& weight);
  Tensor GateUpRows(const LinearParams& params) const;
  OpCode SwiGluOf(const Tensor& gate_up, const LinearParams& params, bool apart);

  bool DecodesSlices(const LinearParams& params, const Segment& weight) const;
  OpCode DecodedLinear(const LinearParams& params, const Segment& weight);
  OpCode MultiplySlice(const LinearParams& params, const Segment& slice);

  int Fp8PlanFor(const LinearParams& params, const Segment& weight) const;
  OpCode Fp8Linear(const LinearParams& params, const Segment& weight, int plan, bool* served);

  OpCode Multiply(const LinearParams& params, const Segment& weight, const Tensor& out);
  OpCode MultiplyInSlices(const LinearParams& params, const Segment& weight, const Tensor& out);

  CudaContext& context_;
};

}  // namespace tramontane::cuda
