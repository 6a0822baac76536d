#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

int64_t OutFeatures(const LinearSource& source) {
  int64_t rows = 0;
  for (int32_t i = 0; i < source.part_count; ++i) rows += source.parts[i].rows;
  return rows;
}

// ---- where weights stand in panels
//
//   kStacked: panel p holds output features [p * width, (p + 1) * width).
//   kGateUp:  panel p holds gates [p * width / 2, ..) in its first half and the ups of the same outputs in
//   its
//             second: gate and up of one output meet in registers.

int64_t PanelCount(LinearLayout layout, int64_t out_features, int32_t panel_width) {
  return layout == LinearLayout::kGateUp ? CeilDiv(out_features / 2, panel_width / 2)
                                         : CeilDiv(out_features, panel_width);
}

int64_t PanelBytes(const Format& format, int64_t in_features, int32_t panel_width) {
  return format.Bytes(PaddedInFeatures(in_features) * panel_width);
}

// The row of the source that stands in a lane of a panel, -1 for filling.
int64_t RowOfLane(LinearLayout layout, int64_t out_features, int32_t panel_width, int64_t panel,
                  int64_t lane) {
  if (layout == LinearLayout::kStacked) {
    const int64_t row = panel * panel_width + lane;
    return row < out_features ? row : -1;
  }
  const int64_t half = panel_width / 2;
  const int64_t output = panel * half + lane % half;
  if (output >= out_features / 2) return -1;
  return lane < half ? output : out_features / 2 + output;
}

// Element of (k, lane) in a panel.
int64_t PanelElement(DType dtype, int32_t panel_width, int64_t k, int64_t lane) {
  return dtype == DType::kBf16 ? (k / 2 * panel_width + lane) * 2 + k % 2 : k * panel_width + lane;
}

const std::byte* SourceRow(const LinearSource& source, int64_t row) {
  for (int32_t i = 0; i < source.part_count; ++i) {
    const WeightRows& part = source.parts[i];
    if (row < part.rows) {
      return static_cast<const std::byte*>(part.data) + part.format.Bytes(row * part.row_stride);
    }
    row -= part.rows;
  }
  TM_CHECK(false, "row beyond the parts of a source");
}

template <typename Element>
void FillLane(const std::byte* row, int64_t in_features, DType dtype, int32_t panel_width, int64_t lane,
              std::byte* panel) {
  for (int64_t k = 0; k < in_features; ++k) {
    std::memcpy(panel + PanelElement(dtype, panel_width, k, lane) * int64_t{sizeof(Element)},
                row + k * int64_t{sizeof(Element)}, sizeof(Element));
  }
}

// ---- scratch

//   | packed x, all rows | block scratch of thread 0 | of thread 1 | ...
struct WorkspacePlan {
  int64_t packed_x_bytes;
  int64_t thread_bytes;

  WorkspacePlan(int64_t rows, int64_t in_features, const LinearKernels& kernels)
      : packed_x_bytes(rows * PackedRowBytes(in_features, kernels)),
        thread_bytes(LinearThreadBytes(kernels)) {}

  int64_t Bytes(int32_t threads) const { return packed_x_bytes + threads * thread_bytes; }
  std::byte* ThreadScratch(const CpuWorkspace& workspace, int32_t thread) const {
    return workspace.data + packed_x_bytes + thread * thread_bytes;
  }
};

// ---- running

void CheckLinear(const LinearParams& params, const PackedWeight& weight, const CpuKernels& kernels) {
  const bool swiglu = params.epilogue == Epilogue::kSwiGlu;
  const int64_t columns = swiglu ? weight.out_features / 2 : weight.out_features;
  TM_CHECK(weight.panel_width == kernels.linear.panel_width, "a weight packed in panels of %d",
           weight.panel_width);
  TM_CHECK(params.x.dtype == DType::kF32 && params.out.dtype == DType::kF32,
           "activations are f32 on the CPU");
  TM_CHECK(params.x.columns == weight.in_features, "x has %lld columns, the weight takes %lld",
           static_cast<long long>(params.x.columns), static_cast<long long>(weight.in_features));
  TM_CHECK(params.out.columns == columns, "out has %lld columns, the weight gives %lld",
           static_cast<long long>(params.out.columns), static_cast<long long>(columns));
  TM_CHECK(params.rows <= params.out.rows, "%d rows, out has %lld", params.rows,
           static_cast<long long>(params.out.rows));
  TM_CHECK(params.x_rows != nullptr || params.rows <= params.x.rows, "%d rows, x has %lld", params.rows,
           static_cast<long long>(params.x.rows));
  TM_CHECK(swiglu == (weight.layout == LinearLayout::kGateUp), "SwiGLU and the gate-up layout go together");
  if (params.adapter_index != nullptr) {
    for (int32_t row = 0; row < params.rows; ++row) {
      TM_CHECK(params.adapter_index[row] == -1, "row %d asks for adapter %d; there are none", row,
               params.adapter_index[row]);
    }
  }
}

}  // namespace

std::string WhyNotPackable(const LinearSource& source) {
  constexpr int64_t kMaxFeatures = int64_t{1} << 30;
  if (source.in_features < 1 || source.in_features > kMaxFeatures) {
    return "in_features is " + std::to_string(source.in_features) + ", supported are 1 to " +
           std::to_string(kMaxFeatures);
  }
  if (source.part_count < 1) return "a linear weight without parts";
  for (int32_t i = 0; i < source.part_count; ++i) {
    const WeightRows& part = source.parts[i];
    const std::string name = "part " + std::to_string(i);
    if (part.format != source.parts[0].format) {
      return name + " is " + FormatName(part.format) + ", part 0 is " + FormatName(source.parts[0].format);
    }
    if (!part.format.plain()) return name + " is " + FormatName(part.format) + ", supported are plain types";
    if (part.rows < 1 || part.rows > kMaxFeatures) {
      return name + " has " + std::to_string(part.rows) + " rows, supported are 1 to " +
             std::to_string(kMaxFeatures);
    }
    if (part.row_stride < source.in_features) {
      return name + " has rows of " + std::to_string(source.in_features) + " elements every " +
             std::to_string(part.row_stride);
    }
  }
  if (source.layout == LinearLayout::kGateUp &&
      (source.part_count != 2 || source.parts[0].rows != source.parts[1].rows)) {
    return "a gate-up weight needs two parts of equal rows";
  }
  return "";
}

int64_t PackedLinearBytes(const LinearSource& source, const CpuKernels& kernels) {
  const int32_t width = kernels.linear.panel_width;
  return PanelCount(source.layout, OutFeatures(source), width) *
         PanelBytes(source.parts[0].format, source.in_features, width);
}

PackedWeight PackLinearInto(const LinearSource& source, const CpuKernels& kernels, ThreadPool& pool,
                            std::byte* panels) {
  const PackedWeight weight = {
      .format = source.parts[0].format,
      .layout = source.layout,
      .panel_width = kernels.linear.panel_width,
      .out_features = OutFeatures(source),
      .in_features = source.in_features,
      .panels = panels,
      .bytes = PackedLinearBytes(source, kernels),
  };
  const int64_t panel_bytes = PanelBytes(weight.format, weight.in_features, weight.panel_width);
  pool.ParallelFor(weight.bytes / panel_bytes, [&](int64_t panel, int32_t) {
    for (int64_t lane = 0; lane < weight.panel_width; ++lane) {
      const int64_t row = RowOfLane(weight.layout, weight.out_features, weight.panel_width, panel, lane);
      if (row < 0) continue;
      const auto fill = weight.format.dtype == DType::kF32 ? FillLane<uint32_t> : FillLane<uint16_t>;
      fill(SourceRow(source, row), weight.in_features, weight.format.dtype, weight.panel_width, lane,
           panels + panel * panel_bytes);
    }
  });
  return weight;
}

void UnpackRow(const PackedWeight& weight, int64_t row, float* out) {
  TM_CHECK(row >= 0 && row < weight.out_features, "row %lld of %lld", static_cast<long long>(row),
           static_cast<long long>(weight.out_features));
  int64_t panel = row / weight.panel_width;
  int64_t lane = row % weight.panel_width;
  if (weight.layout == LinearLayout::kGateUp) {
    const int64_t half = weight.panel_width / 2;
    const int64_t outputs = weight.out_features / 2;
    panel = row % outputs / half;
    lane = row % outputs % half + (row < outputs ? 0 : half);
  }
  const std::byte* from =
      weight.panels + panel * PanelBytes(weight.format, weight.in_features, weight.panel_width);
  for (int64_t k = 0; k < weight.in_features; ++k) {
    const int64_t element = PanelElement(weight.format.dtype, weight.panel_width, k, lane);
    if (weight.format.dtype == DType::kF32) {
      std::memcpy(out + k, from + element * 4, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, from + element * 2, 2);
      out[k] = weight.format.dtype == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
    }
  }
}

int64_t LinearWorkspaceBytes(const StepMaxima& maxima, const CpuKernels& kernels, int32_t threads) {
  return WorkspacePlan(std::max(maxima.tokens, maxima.logit_rows), maxima.hidden, kernels.linear)
      .Bytes(threads);
}

int64_t PackedRowBytes(int64_t in_features, const LinearKernels& kernels) {
  return RoundUp(in_features, kernels.block_k) * int64_t{sizeof(float)};
}

int64_t LinearThreadBytes(const LinearKernels& kernels) { return RoundUp(kernels.scratch_bytes, kAlignment); }

LinearCut::LinearCut(const LinearJob& job, const LinearKernels& kernels, int32_t threads) {
  constexpr int64_t kBlocksPerThread = 6;       // so that a thread that is held up holds up little
  constexpr int64_t kLeastStreamBytes = 65536;  // of weights in a block of one tile
  if (job.tiles == 1) {
    tile_blocks = 1;
    const int64_t by_bytes = job.panel_count * job.panel_bytes / kLeastStreamBytes;
    panel_blocks = std::clamp(by_bytes, int64_t{threads}, threads * kBlocksPerThread);
  } else {
    tile_blocks = CeilDiv(job.tiles, kernels.block_tiles);
    panel_blocks = std::max(CeilDiv(job.panel_count, kernels.block_panels),
                            CeilDiv(threads * kBlocksPerThread, tile_blocks));
  }
  panel_blocks = std::min(panel_blocks, job.panel_count);
}

LinearBlock LinearCut::Block(const LinearJob& job, int64_t index) const {
  const int64_t tiles = index % tile_blocks;  // neighbours share panels
  const int64_t panels = index / tile_blocks;
  return {.tile_begin = tiles * job.tiles / tile_blocks,
          .tile_end = (tiles + 1) * job.tiles / tile_blocks,
          .panel_begin = panels * job.panel_count / panel_blocks,
          .panel_end = (panels + 1) * job.panel_count / panel_blocks};
}

LinearJob MakeLinearJob(const LinearParams& params, const CpuKernels& kernels, std::byte* packed_x) {
  const auto& weight = *static_cast<const PackedWeight*>(params.weight.impl);
  CheckLinear(params, weight, kernels);
  return {
      .x = static_cast<const float*>(params.x.data),
      .x_stride = params.x.row_stride,
      .x_rows = params.x_rows,
      .rows = params.rows,
      .in_features = weight.in_features,
      .norm_weight = params.prologue == Prologue::kRmsNorm ? params.norm_weight : nullptr,
      .norm_epsilon = params.norm_epsilon,
      .weight_dtype = weight.format.dtype,
      .panels = weight.panels,
      .panel_bytes = PanelBytes(weight.format, weight.in_features, weight.panel_width),
      .panel_count = PanelCount(weight.layout, weight.out_features, weight.panel_width),
      .epilogue = params.epilogue,
      .out = static_cast<float*>(params.out.data),
      .out_stride = params.out.row_stride,
      .out_columns = params.out.columns,
      .tiles = CeilDiv(params.rows, kernels.linear.tile_rows),
      .packed_x = packed_x,
  };
}

void RunLinear(const LinearParams& params, const CpuContext& context) {
  const LinearKernels& kernels = context.kernels.linear;
  const LinearJob job = MakeLinearJob(params, context.kernels, context.workspace.data);
  if (params.rows == 0) return;
  const WorkspacePlan plan(job.rows, job.in_features, kernels);
  TM_CHECK(plan.Bytes(context.pool.threads()) <= context.workspace.bytes,
           "Linear of %d rows of %lld needs %lld bytes of workspace, reserved are %lld", params.rows,
           static_cast<long long>(job.in_features),
           static_cast<long long>(plan.Bytes(context.pool.threads())),
           static_cast<long long>(context.workspace.bytes));

  context.pool.ParallelFor(job.tiles, [&](int64_t tile, int32_t) { kernels.pack_tile(job, tile); });
  const LinearCut cut(job, kernels, context.pool.threads());
  context.pool.ParallelFor(cut.Blocks(), [&](int64_t block, int32_t thread) {
    kernels.multiply(job, cut.Block(job, block), plan.ThreadScratch(context.workspace, thread));
  });
}

}  // namespace tramontane
