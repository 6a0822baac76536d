#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/core/block_types.h"
#include "kernels/core/check.h"
#include "kernels/cpu/block_panels.h"
#include "kernels/source_rows.h"

namespace tramontane {
namespace {

constexpr int64_t kAlignment = 64;
// Inputs of a panel, so that they are in the first cache for all lanes.
constexpr int64_t kFilledAtOnce = 256;
// Of a source that is fed, about so much is in memory at once.
constexpr int64_t kPackedAtOnceBytes = int64_t{8} << 20;
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
//   kGateUp:  panel p holds gates [p * width / 2, ..) in its first half and the ups of the same outputs
//             in its second: gate and up of one output meet in registers.

int64_t PanelCount(LinearLayout layout, int64_t out_features, int32_t panel_width) {
  return layout == LinearLayout::kGateUp ? CeilDiv(out_features / 2, panel_width / 2)
                                         : CeilDiv(out_features, panel_width);
}

int64_t PanelBytes(const Format& format, int64_t in_features, int32_t panel_width) {
  if (!format.plain()) return format.PackedBytes(in_features, panel_width);
  return format.Bytes(PaddedInFeatures(in_features) * panel_width);
}

// Of the panels of a segment.
int64_t PanelsBytes(const PackedSegment& segment, int64_t in_features, int32_t panel_width) {
  return RoundUp(PanelCount(segment.layout, segment.rows, panel_width) *
                     PanelBytes(segment.format, in_features, panel_width),
                 kAlignment);
}

int64_t SegmentBytes(const PackedSegment& segment, int64_t in_features, int32_t panel_width) {
  const int64_t order_bytes =
      segment.column_order == nullptr ? 0 : RoundUp(in_features * int64_t{sizeof(int32_t)}, kAlignment);
  return PanelsBytes(segment, in_features, panel_width) + order_bytes;
}

// Without panels.
std::vector<PackedSegment> SegmentsOf(const LinearSource& source) {
  std::vector<PackedSegment> segments;
  int64_t row = 0;
  for (int32_t i = 0; i < source.part_count; ++i) {
    const WeightRows& part = source.parts[i];
    if (i > 0 && part.format == segments.back().format &&
        SameColumnOrder(part, source.parts[i - 1], source.in_features)) {
      segments.back().rows += part.rows;
      segments.back().layout = source.layout;
    } else {
      segments.push_back(
          {.format = part.format, .first_row = row, .rows = part.rows, .column_order = part.column_order});
    }
    row += part.rows;
  }
  return segments;
}

// The row of the source that stands in a lane of a panel, -1 for filling.
int64_t RowOfLane(LinearLayout layout, int64_t out_features, int32_t panel_width, int64_t panel,
                  int64_t lane) {
  if (layout == LinearLayout::kStacked) {
    const int64_t row = panel * panel_width + lane;
    return row < out_features ? row : -1;
  }
  const int64_t half = panel_width / 2;
  if (panel * half + lane % half >= out_features / 2) return -1;
  return GateUpRow(panel * panel_width + lane, half, out_features);
}

// Element of (k, lane) in a panel.
int64_t PanelElement(DType dtype, int32_t panel_width, int64_t k, int64_t lane) {
  return dtype == DType::kBf16 ? (k / 2 * panel_width + lane) * 2 + k % 2 : k * panel_width + lane;
}

// Elements [begin, end) of a row into its lane; begin is even.
template <typename Element>
void FillLane(const std::byte* row, int64_t begin, int64_t end, DType dtype, int32_t panel_width,
              int64_t lane, std::byte* panel) {
  constexpr auto kBytes = int64_t{sizeof(Element)};
  int64_t k = begin;
  if (dtype == DType::kBf16) {  // two neighbours stand side by side
    for (; k + 1 < end; k += 2) {
      std::memcpy(panel + PanelElement(dtype, panel_width, k, lane) * kBytes, row + k * kBytes, 2 * kBytes);
    }
  }
  for (; k < end; ++k) {
    std::memcpy(panel + PanelElement(dtype, panel_width, k, lane) * kBytes, row + k * kBytes, kBytes);
  }
}

// Inputs [begin, end) of a panel, whole blocks, from the rows of its outputs.
void FillPanel(const PackedSegment& segment, const PackedWeight& weight, const SourceRows& rows,
               int64_t panel, int64_t begin, int64_t end, std::byte* to) {
  const Format& format = segment.format;
  const int32_t width = weight.panel_width;
  const auto fill = format.dtype == DType::kF32 ? FillLane<uint32_t> : FillLane<uint16_t>;
  for (int64_t lane = 0; lane < width; ++lane) {
    const int64_t row = RowOfLane(segment.layout, segment.rows, width, panel, lane);
    if (row < 0) continue;
    const std::byte* from = rows.Row(segment.first_row + row);
    if (format.plain()) {
      fill(from, begin, end, format.dtype, width, lane, to);
      continue;
    }
    for (int64_t k = begin; k < end; k += format.block_size()) {
      PutBlock(format, from + format.Bytes(k), width, lane, to + format.PackedBytes(k, width));
    }
  }
}

// False where there are no rows.
bool FillSegment(const PackedSegment& segment, const PackedWeight& weight, SourceRows& rows,
                 ThreadPool& pool) {
  const int32_t width = weight.panel_width;
  const bool gate_up = segment.layout == LinearLayout::kGateUp;
  const int64_t outputs = gate_up ? segment.rows / 2 : segment.rows;
  const int64_t panel_outputs = gate_up ? width / 2 : width;
  const int64_t panel_bytes = PanelBytes(segment.format, weight.in_features, width);
  const int64_t panel_count = PanelCount(segment.layout, segment.rows, width);
  const int64_t panels_at_once = std::max<int64_t>(1, kPackedAtOnceBytes / panel_bytes);
  for (int64_t first = 0; first < panel_count; first += panels_at_once) {
    const int64_t count = std::min(panels_at_once, panel_count - first);
    if (!rows.Take(segment.first_row + first * panel_outputs,
                   segment.first_row + std::min((first + count) * panel_outputs, outputs))) {
      return false;
    }
    pool.ParallelFor(count, [&](int64_t index, int32_t) {
      const int64_t panel = first + index;
      for (int64_t begin = 0; begin < weight.in_features; begin += kFilledAtOnce) {
        FillPanel(segment, weight, rows, panel, begin, std::min(begin + kFilledAtOnce, weight.in_features),
                  segment.panels + panel * panel_bytes);
      }
    });
  }
  return true;
}

// Columns of a segment's row, from the k-th as they stand, to the inputs that they are of.
void PutColumns(const PackedSegment& segment, const float* values, int64_t k, int64_t count, float* out) {
  if (segment.column_order == nullptr) {
    std::copy_n(values, count, out + k);
    return;
  }
  for (int64_t i = 0; i < count; ++i) out[segment.column_order[k + i]] = values[i];
}

// The blocks of one lane, put together again and decoded.
void UnpackBlocks(const PackedSegment& segment, const std::byte* panel, const PackedWeight& weight,
                  int64_t lane, float* out) {
  const Format& format = segment.format;
  std::byte block[264];
  float values[256];
  TM_CHECK(format.block_bytes <= static_cast<int32_t>(sizeof(block)), "a block of %d bytes",
           format.block_bytes);
  for (int64_t k = 0; k < weight.in_features; k += format.block_size()) {
    TakeBlock(format, panel + format.PackedBytes(k, weight.panel_width), weight.panel_width, lane, block);
    DecodeBlocks(format, block, format.block_size(), values);
    PutColumns(segment, values, k, std::min(format.block_size(), weight.in_features - k), out);
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

int64_t PackedLinearBytes(const LinearSource& source, const CpuKernels& kernels) {
  int64_t bytes = 0;
  for (const PackedSegment& segment : SegmentsOf(source)) {
    bytes += SegmentBytes(segment, source.in_features, kernels.linear.panel_width);
  }
  return bytes;
}

std::optional<PackedWeight> PackLinearInto(const LinearSource& source, const CpuKernels& kernels,
                                           ThreadPool& pool, std::byte* panels) {
  PackedWeight weight = {
      .layout = source.layout,
      .use = source.use,
      .panel_width = kernels.linear.panel_width,
      .out_features = OutFeatures(source),
      .in_features = source.in_features,
      .panels = panels,
      .bytes = PackedLinearBytes(source, kernels),
      .segments = SegmentsOf(source),
  };
  // A gate and an up that differ in format or order are packed one after the other.
  LinearSource in_segments = source;
  if (weight.segments[0].layout == LinearLayout::kStacked) in_segments.layout = LinearLayout::kStacked;
  SourceRows rows(in_segments);
  for (PackedSegment& segment : weight.segments) {
    segment.panels = panels;
    panels += SegmentBytes(segment, weight.in_features, weight.panel_width);
    if (!FillSegment(segment, weight, rows, pool)) return std::nullopt;
    if (segment.column_order == nullptr) continue;
    auto* const order = reinterpret_cast<int32_t*>(
        segment.panels + PanelsBytes(segment, weight.in_features, weight.panel_width));
    std::copy_n(std::exchange(segment.column_order, order), weight.in_features, order);
  }
  return weight;
}

void UnpackRow(const PackedWeight& weight, int64_t row, float* out) {
  TM_CHECK(row >= 0 && row < weight.out_features, "row %lld of %lld", static_cast<long long>(row),
           static_cast<long long>(weight.out_features));
  const PackedSegment& segment =
      *std::find_if(weight.segments.begin(), weight.segments.end(),
                    [row](const PackedSegment& s) { return row < s.first_row + s.rows; });
  row -= segment.first_row;
  int64_t panel = row / weight.panel_width;
  int64_t lane = row % weight.panel_width;
  if (segment.layout == LinearLayout::kGateUp) {
    const int64_t half = weight.panel_width / 2;
    const int64_t outputs = segment.rows / 2;
    panel = row % outputs / half;
    lane = row % outputs % half + (row < outputs ? 0 : half);
  }
  const Format& format = segment.format;
  const std::byte* from = segment.panels + panel * PanelBytes(format, weight.in_features, weight.panel_width);
  if (!format.plain()) return UnpackBlocks(segment, from, weight, lane, out);
  for (int64_t k = 0; k < weight.in_features; ++k) {
    const int64_t element = PanelElement(format.dtype, weight.panel_width, k, lane);
    float value = 0.0f;
    if (format.dtype == DType::kF32) {
      std::memcpy(&value, from + element * 4, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, from + element * 2, 2);
      value = format.dtype == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
    }
    PutColumns(segment, &value, k, 1, out);
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
  // In pairs where there are enough: kernels that take two panels at once leave none over.
  const int64_t together = job.panel_count >= 2 * panel_blocks ? 2 : 1;
  const int64_t units = CeilDiv(job.panel_count, together);
  return {.tile_begin = tiles * job.tiles / tile_blocks,
          .tile_end = (tiles + 1) * job.tiles / tile_blocks,
          .panel_begin = panels * units / panel_blocks * together,
          .panel_end = std::min((panels + 1) * units / panel_blocks * together, job.panel_count)};
}

namespace {

PanelFinish FinishOf(const PackedWeight& weight, const PackedSegment& segment, Epilogue epilogue) {
  if (epilogue == Epilogue::kAddResidual) return PanelFinish::kAddResidual;
  if (weight.layout == LinearLayout::kStacked) return PanelFinish::kStore;
  if (segment.layout == LinearLayout::kGateUp) return PanelFinish::kSwiGlu;
  return segment.first_row == 0 ? PanelFinish::kSilu : PanelFinish::kTimes;
}

// Whether rows of x that are packed for one job serve the other.
bool SharePackedX(const LinearJob& a, const LinearJob& b) {
  if (a.mode != b.mode || a.column_order != b.column_order) return false;
  const Format &first = a.weight_format, &second = b.weight_format;
  if (first.dtype == second.dtype) return true;
  if (first.plain() || second.plain()) return false;
  return a.mode == LinearMode::kExact || RoundedBlock(first) == RoundedBlock(second);
}

// Jobs [begin, end) that run side by side, over x as it is packed.
void MultiplySideBySide(const LinearJobs& jobs, int32_t begin, int32_t end, const WorkspacePlan& plan,
                        const CpuContext& context) {
  const LinearKernels& kernels = context.kernels.linear;
  const int32_t threads = context.pool.threads();
  if (end - begin == 1) {
    const LinearJob& job = jobs.of[begin];
    const LinearCut cut(job, kernels, threads);
    context.pool.ParallelFor(cut.Blocks(), [&](int64_t block, int32_t thread) {
      kernels.multiply(job, cut.Block(job, block), plan.ThreadScratch(context.workspace, thread));
    });
    return;
  }
  int64_t blocks = 0;
  for (int32_t i = begin; i < end; ++i) blocks += LinearCut(jobs.of[i], kernels, threads).Blocks();
  context.pool.ParallelFor(blocks, [&](int64_t block, int32_t thread) {
    int32_t i = begin;
    LinearCut cut(jobs.of[i], kernels, threads);
    while (block >= cut.Blocks()) {
      block -= cut.Blocks();
      cut = LinearCut(jobs.of[++i], kernels, threads);
    }
    kernels.multiply(jobs.of[i], cut.Block(jobs.of[i], block), plan.ThreadScratch(context.workspace, thread));
  });
}

}  // namespace

int32_t LinearJobs::EndOfRun(int32_t begin) const {
  int32_t end = begin + 1;
  while (end < count && of[end].finish != PanelFinish::kTimes && SharePackedX(of[begin], of[end])) ++end;
  return end;
}

LinearJobs MakeLinearJobs(const LinearParams& params, const CpuContext& context, std::byte* packed_x) {
  const auto& weight = *static_cast<const PackedWeight*>(params.weight.impl);
  CheckLinear(params, weight, context.kernels);
  LinearJobs jobs;
  // What is rounded in front of logits goes into them as it is (docs/models.md has what it costs).
  const bool to_logits = weight.use == WeightUse::kTable || weight.use == WeightUse::kHead;
  for (const PackedSegment& segment : weight.segments) {
    const PanelFinish finish = FinishOf(weight, segment, params.epilogue);
    const bool stacked = weight.layout == LinearLayout::kStacked;
    jobs.of[jobs.count++] = {
        .x = static_cast<const float*>(params.x.data),
        .x_stride = params.x.row_stride,
        .x_rows = params.x_rows,
        .rows = params.rows,
        .in_features = weight.in_features,
        .norm_weight = params.prologue == Prologue::kRmsNorm ? params.norm_weight : nullptr,
        .norm_epsilon = params.norm_epsilon,
        .column_order = segment.column_order,
        .weight_format = segment.format,
        .mode = !to_logits && HasWholeNumbers(segment.format) ? context.linear : LinearMode::kExact,
        .panels = segment.panels,
        .panel_bytes = PanelBytes(segment.format, weight.in_features, weight.panel_width),
        .panel_count = PanelCount(segment.layout, segment.rows, weight.panel_width),
        .finish = finish,
        .out = static_cast<float*>(params.out.data) + (stacked ? segment.first_row : 0),
        .out_stride = params.out.row_stride,
        .out_columns = stacked ? segment.rows : params.out.columns,
        .tiles = CeilDiv(params.rows, context.kernels.linear.tile_rows),
        .packed_x = packed_x,
    };
  }
  return jobs;
}

void RunLinear(const LinearParams& params, const CpuContext& context) {
  const LinearKernels& kernels = context.kernels.linear;
  const LinearJobs jobs = MakeLinearJobs(params, context, context.workspace.data);
  if (params.rows == 0) return;
  const LinearJob& any = jobs.of[0];
  const WorkspacePlan plan(any.rows, any.in_features, kernels);
  TM_CHECK(plan.Bytes(context.pool.threads()) <= context.workspace.bytes,
           "Linear of %d rows of %lld needs %lld bytes of workspace, reserved are %lld", params.rows,
           static_cast<long long>(any.in_features),
           static_cast<long long>(plan.Bytes(context.pool.threads())),
           static_cast<long long>(context.workspace.bytes));

  for (int32_t begin = 0, end = 0; begin < jobs.count; begin = end) {
    end = jobs.EndOfRun(begin);
    const LinearJob& job = jobs.of[begin];
    if (begin == 0 || !SharePackedX(jobs.of[begin - 1], job)) {
      context.pool.ParallelFor(job.tiles, [&](int64_t tile, int32_t) { kernels.pack_tile(job, tile); });
    }
    MultiplySideBySide(jobs, begin, end, plan, context);
  }
}

}  // namespace tramontane
