// How weights stand in device memory. Loading thread; pure but for what it writes.
//
// A source is cut into segments, runs of parts that stand in one form and one order of columns:
//
//   bf16    row-major, of any plain part: one form for the small-batch kernel and for cuBLASLt alike
//   blocks  of one format, with the bits they have in the file, in units of 16 rows: blocks.h
//   fp8     where products of fp8 by fp8 are wanted and a row has one scale: e4m3, row-major, as cuBLASLt
//           and our own kernels read it; scales in f32 follow, one a row
//
// and the rows of a segment in order:
//
//   kStacked:  the parts' rows one after the other.
//   kGateUp:   one segment, where both stand in one form and order, rows in sixteens: 8 of gate, then the
//              8 of up of the same outputs, so that a kernel's tile of 16 outputs holds both factors of 8
//              products.
//              Else a segment of each, which is packed as of a source in kStacked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/moe.h"
#include "kernels/source_rows.h"
#include "kernels/weight.h"

namespace tramontane::cuda {

inline constexpr int64_t kGateUpRun = 8;  // gate rows side by side, then as many of up

inline constexpr PackingLimits kCudaPackingLimits = {
    .backend = "the CUDA backend",
    .in_features_multiple = 8,  // 16-byte rows; our own kernel multiplies any of them
    .gate_rows_multiple = kGateUpRun,
    .max_expert_order = kMaxMoeOrderWidth,
};

struct PackedSegment {
  Format format = DType::kBf16;  // or one in blocks; of fp8 in rows that of its numbers, scales in f32
  LinearLayout layout = LinearLayout::kStacked;
  int64_t in_features = 0;
  int64_t first_row = 0;  // of the whole source's rows
  int64_t rows = 0;
  const int32_t* column_order = nullptr;  // the source's
  bool fp8_rows = false;

  bool in_blocks() const { return !format.plain() && !fp8_rows; }
  // Rows that are packed together: a unit's, a turn of gate and up, or one.
  int64_t rows_at_once() const;
  // Bytes of so many rows at once.
  int64_t bytes_at_once() const;
  int64_t bytes() const;  // without scales that follow
  int64_t scale_bytes() const { return fp8_rows ? rows * int64_t{sizeof(float)} : 0; }
};

enum class Fp8Form { kUnits, kRows };  // of fp8 whose rows have a scale each

// REQUIRES: a source that can be packed; its data is not read.
std::vector<PackedSegment> SegmentsOf(const LinearSource& source, Fp8Form fp8 = Fp8Form::kUnits);

// `count` times rows_at_once() rows of a segment of the source, from begin * rows_at_once() on, into out
// [count, bytes_at_once()], and the scales of fp8 in rows into row_scales [count, rows_at_once()]. f16 and
// f32 are rounded to nearest even; rows beyond the last are zeros. Ranges ascend. False where `rows`, the
// source's, has none.
bool PackSegment(const LinearSource& source, const PackedSegment& segment, int64_t begin, int64_t count,
                 SourceRows& rows, std::byte* out, float* row_scales = nullptr);

}  // namespace tramontane::cuda
