// Linear: weights packed into panels, and out = epilogue(prologue(x) W^T) over them.
// Loading thread for packing, engine thread for running; UnpackRow is pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace tramontane {

// Parts of a source.
inline constexpr int32_t kMaxParts = 4;

inline constexpr PackingLimits kCpuPackingLimits = {.backend = "the CPU backend", .max_parts = kMaxParts};

// Output features of one format and one order of columns. They stand in panels of two vectors, the last one
// filled up with zeros.
struct PackedSegment {
  Format format = DType::kBf16;  // as in the file
  LinearLayout layout = LinearLayout::kStacked;
  int64_t first_row = 0;  // of the source
  int64_t rows = 0;
  std::byte* panels = nullptr;  // 64-byte aligned
  // [in_features] behind the panels; null: in order. A source's, while it is packed.
  const int32_t* column_order = nullptr;
};

// What a WeightHandle of the CPU backend points at. Neighbouring parts of one format and one order of columns
// are one segment; a gate and an up that differ in either are two.
struct PackedWeight {
  LinearLayout layout = LinearLayout::kStacked;
  WeightUse use = WeightUse::kLinear;
  int32_t panel_width = 0;
  int64_t out_features = 0;  // rows of the source, in its order
  int64_t in_features = 0;
  std::byte* panels = nullptr;
  int64_t bytes = 0;  // of panels
  std::vector<PackedSegment> segments;
};

// Bytes of the panels. Pure; reads no weights.
int64_t PackedLinearBytes(const LinearSource& source, const CpuKernels& kernels);

// Fills `panels`, PackedLinearBytes of zeros. None where the source's feed has no rows.
std::optional<PackedWeight> PackLinearInto(const LinearSource& source, const CpuKernels& kernels,
                                           ThreadPool& pool, std::byte* panels);

// One row of the source matrix as it was, in f32: what Embed gathers from a table that is also the LM head.
void UnpackRow(const PackedWeight& weight, int64_t row, float* out);  // out [in_features]

// Scratch that the largest Linear of such steps needs. Pure.
int64_t LinearWorkspaceBytes(const StepMaxima& maxima, const CpuKernels& kernels, int32_t threads);

void RunLinear(const LinearParams& params, const CpuContext& context);

// ---- the pieces of RunLinear, for an op that runs several products side by side (moe.cc)

// Bytes of one row of x, packed.
int64_t PackedRowBytes(int64_t in_features, const LinearKernels& kernels);
// Scratch of one thread, a multiple of 64 bytes.
int64_t LinearThreadBytes(const LinearKernels& kernels);

// A call's jobs with everything resolved, one a segment. Its parameters are checked. packed_x: PackedRowBytes
// for every row, which the jobs share.
struct LinearJobs {
  LinearJob of[kMaxParts];
  int32_t count = 0;

  // The end of the jobs from `begin` on that can run side by side: those that read x packed the same way, and
  // none that is in need of another's outputs.
  int32_t EndOfRun(int32_t begin) const;
};
LinearJobs MakeLinearJobs(const LinearParams& params, const CpuContext& context, std::byte* packed_x);

// How a job is cut along tiles and panels. The cut changes no bit of the result.
struct LinearCut {
  int64_t tile_blocks = 0;
  int64_t panel_blocks = 0;

  LinearCut(const LinearJob& job, const LinearKernels& kernels, int32_t threads);
  int64_t Blocks() const { return tile_blocks * panel_blocks; }
  LinearBlock Block(const LinearJob& job, int64_t index) const;
};

}  // namespace tramontane
