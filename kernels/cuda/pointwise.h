// The small kernels of a step: their parameters and launches. Host side; any CUDA stream.
// Every launch returns 0 or the runtime's error.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tramontane::cuda {

// out[t] = table[token_ids[t]]; bf16 [tokens, width]. width a multiple of 8, or whole units. Column k of the
// table is column_order[k] of out.
struct EmbedKernelParams {
  const int32_t* token_ids;
  const void* table;  // [vocab, width], row-major bf16 or units (blocks.h)
  void* out;          // [tokens, width] bf16, rows out_stride apart
  int64_t out_stride;
  int32_t tokens;
  int32_t width;
  Format table_format = DType::kBf16;
  const int32_t* column_order = nullptr;  // [width]; null: in order
};

// y[r] = bf16(x[rows[r]] * rsqrt(mean square + epsilon) * weight); the sum and the product in f32. Column k
// of y is of input column_order[k].
struct RmsNormKernelParams {
  const void* x;          // [.., width] bf16, rows x_stride apart
  const int32_t* x_rows;  // [rows], or null for 0..rows-1
  const float* weight;    // [width]
  void* y;                // [rows, width] bf16
  int64_t x_stride;
  int32_t rows;
  int32_t width;  // a multiple of 8
  float epsilon;
  const int32_t* column_order = nullptr;  // [width]; null: in order
};

// Rows in fp8, with or without a norm before, whose result is rounded to bf16 as in RmsNormKernel:
//
//   scales[r] = largest magnitude of the row / 448
//   y[r][k] = FloatToFp8E4M3(row[k] * (448 / largest magnitude))    in f32, as kernels/core/dtype.h has it
//
// A row below kLeastQuantised is zeros, its scale too. Where a NaN or an infinity is in a row, y or the scale
// has a NaN, so that no product of them is a number.
struct QuantiseRowsParams {
  const void* x;             // [.., width] bf16, rows x_stride apart
  const int32_t* x_rows;     // [rows], or null for 0..rows-1
  const float* norm_weight;  // [width], or null for no norm
  void* y;                   // [rows, width] e4m3
  float* scales;             // [rows]
  int64_t x_stride;
  int32_t rows;
  int32_t width;  // a multiple of 8
  float epsilon;
};
inline constexpr float kLeastQuantised = 1e-30f;  // 448 over it is finite, and it over 448 no subnormal

// y[r][k] = x[rows[r]][column_order[k]].
struct GatherColumnsParams {
  const void* x;                // [.., width] bf16, rows x_stride apart
  const int32_t* x_rows;        // [rows], or null for 0..rows-1
  const int32_t* column_order;  // [width]
  void* y;                      // [rows, width] bf16
  int64_t x_stride;
  int32_t rows;
  int32_t width;  // a multiple of 8
};

// h = bf16(silu(gate) * up) from a product with interleaved rows: every 16 columns are 8 of gate, then the 8
// of up. Or they stand apart: all of gate, then all of up.
struct SwiGluKernelParams {
  const void* gate_up;  // [rows, 2 * width] bf16
  void* h;              // [rows, width] bf16, rows h_stride apart
  int64_t h_stride;
  int32_t rows;
  int32_t width;  // a multiple of 8
  bool apart = false;
};

int LaunchEmbed(const EmbedKernelParams& params, void* stream);
int LaunchRmsNorm(const RmsNormKernelParams& params, void* stream);
int LaunchQuantiseRows(const QuantiseRowsParams& params, void* stream);
int LaunchGatherColumns(const GatherColumnsParams& params, void* stream);
int LaunchSwiGlu(const SwiGluKernelParams& params, void* stream);
int LaunchRopeTable(const RopeTableParams& params, void* stream);
int LaunchRopeAppend(const RopeAppendParams& params, void* stream);           // bf16 qkv; pages bf16 or f16
int LaunchRopeAppendQuantised(const RopeAppendParams& params, void* stream);  // pages int8, int4 or fp8
// sink_query alone, from queries that LaunchRopeAppend has not turned yet; both bf16.
int LaunchRopeSinkQuery(const RopeAppendParams& params, void* stream);
int LaunchGatherKv(const GatherKvParams& params, void* stream);
int LaunchScatter(const ScatterParams& params, void* stream);
int LaunchCopyPages(const CopyPagesParams& params, void* stream);

}  // namespace tramontane::cuda
