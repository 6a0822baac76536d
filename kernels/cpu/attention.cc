// Attention's plan: which thread does which part. The arithmetic is in attention_impl.h.
//
// The rows of a (sequence, kv head) are cut into tiles; a tile walks its keys segment by segment and merges
// each segment's softmax into its total, in ascending order. Usually a tile is one thread's work. A decode
// step with fewer tiles than threads could use gives out the segments instead, keeps each one's state, and
// merges them afterwards: the same states in the same order, so the same bits.
//
// Sequences of one query each that have segments in the same pages (shared_prefix.h) are one item for each kv
// head: their rows walk those segments together and the rest alone, each merging into a total of its own in
// the usual order, so these are the same bits too.
#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/shared_prefix.h"

namespace tramontane {
namespace {

// Segments whose states are kept when a step is split; a step that would need more is not split.
constexpr int64_t kMaxPartialStates = 4096;

constexpr int64_t AlignFloats(int64_t floats) { return (floats + 15) / 16 * 16; }
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t FloatsPerThread(int64_t rows, int32_t head_dim) {
  return AlignFloats(int64_t{head_dim} * kAttentionBlockKeys) +
         (kAttentionBlockKeys + kAttentionDecodedKeys) * PaddedHeadDim(head_dim) +
         rows * kAttentionBlockKeys + 2 * AttentionState::Floats(rows, head_dim);
}

// Of the workspace before the memory of threads: indices.
int64_t IndexFloats(int64_t batch, int32_t threads) {
  const int64_t numbers = batch + 2 + kAttentionTilesPerThread * threads;
  return AlignFloats(2 * numbers);
}

int64_t MaxPartialStates(int32_t threads, int64_t context) {
  if (threads == 1) return 0;
  const int64_t segments = CeilDiv(context, kAttentionSegmentKeys) + 1;
  return std::min(kMaxPartialStates, kAttentionTilesPerThread * threads * segments);
}

// Segments [begin, end) that some row of the tile sees.
struct SegmentRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
};

SegmentRange SegmentsOf(const AttentionTile& tile) {
  if (tile.key_begin >= tile.key_end) return {};
  return {tile.key_begin / kAttentionSegmentKeys, (tile.key_end - 1) / kAttentionSegmentKeys + 1};
}

// Of the state of a tile that of its rows from `row` on.
AttentionState FromRow(const AttentionState& state, int64_t row, int32_t value_dim) {
  return {state.highest + row, state.sum + row, state.weighted + row * PaddedHeadDim(value_dim)};
}

// The same rows over their sinks.
AttentionTile SinksOf(AttentionTile tile) {
  tile.over_sinks = true;
  tile.FindKeys();
  return tile;
}

// One call of the op over the reserved workspace.
class AttentionCall {
 public:
  AttentionCall(const AttentionParams& params, const CpuContext& context);
  void Run();

 private:
  struct ThreadMemory {
    AttentionScratch scratch;
    AttentionState segment;
    AttentionState total;
  };

  int64_t QueryCount(int32_t b) const { return params_.qo_indptr[b + 1] - params_.qo_indptr[b]; }
  int64_t TilesPerHead(int32_t b) const { return CeilDiv(QueryCount(b) * group_, kAttentionTileRows); }
  void FindSharers();
  AttentionTile TileOf(int64_t item) const;
  ThreadMemory MemoryOf(int32_t thread) const;
  AttentionState PartialState(int64_t part) const;
  void ClearTotal(const AttentionState& total, int32_t rows) const;

  bool PlanSplit();
  bool has_sinks() const { return params_.sinks.len != nullptr; }
  void RunSinks(const AttentionTile& tile, const ThreadMemory& memory) const;
  void RunSegments(const AttentionTile& tile, SegmentRange segments, const AttentionNext& last_next,
                   const ThreadMemory& memory, const AttentionState& total) const;
  void RunTiles(int64_t begin, int64_t end, int32_t thread) const;
  void RunSharers(const PrefixSharers& sharers, int32_t kv_head, const ThreadMemory& memory) const;
  void RunPart(int64_t part, int32_t thread) const;
  void MergeParts(int64_t item, int32_t thread) const;

  const AttentionParams& params_;
  const CpuContext& context_;
  const AttentionKernels& kernels_;
  const int32_t head_dim_;
  const int32_t value_dim_;  // at most head_dim_
  const int32_t group_;
  int64_t item_rows_ = 0;  // the most of a tile of one sequence in this call
  int64_t max_rows_ = 0;   // the most of any tile
  int64_t items_ = 0;      // tiles, without those of sharers
  SharedPrefixes shared_;
  int64_t parts_ = 0;  // segments of all tiles, when the step is split

  // The workspace.
  int64_t* item_begin_ = nullptr;  // [batch + 1] first tile of each sequence
  int64_t* part_begin_ = nullptr;  // [kAttentionTilesPerThread * threads + 1] first part of each tile
  float* thread_memory_ = nullptr;
  float* partial_states_ = nullptr;
  int64_t max_parts_ = 0;
};

AttentionCall::AttentionCall(const AttentionParams& params, const CpuContext& context)
    : params_(params),
      context_(context),
      kernels_(context.kernels.attention),
      head_dim_(params.kv.format.head_dim),
      value_dim_(params.kv.format.ValueDim()),
      group_(params.query_heads / params.kv.format.kv_heads) {
  const int32_t threads = context.pool.threads();
  item_begin_ = reinterpret_cast<int64_t*>(context.workspace.data);
  part_begin_ = item_begin_ + params.batch + 1;
  int64_t longest = 0;
  for (int32_t b = 0; b < params.batch; ++b) {
    item_begin_[b] = TilesPerHead(b) * params.kv.format.kv_heads;
    items_ += item_begin_[b];
    longest = std::max(longest, QueryCount(b));
    if (QueryCount(b) == 0) continue;
    const AttentionTile first = {.params = &params, .sequence = b, .row_begin = 0, .row_end = group_};
    TM_CHECK(first.Seen(0).begin >= params.table.kv_base[b],
             "sequence %d: a visible key is before kv_base %d", b, params.table.kv_base[b]);
  }
  item_rows_ = max_rows_ = std::min<int64_t>(longest * group_, kAttentionTileRows);
  FindSharers();
  items_ = 0;
  for (int32_t b = 0; b <= params.batch; ++b) items_ += std::exchange(item_begin_[b], items_);

  thread_memory_ = reinterpret_cast<float*>(context.workspace.data) + IndexFloats(params.batch, threads);
  partial_states_ = thread_memory_ + threads * FloatsPerThread(max_rows_, head_dim_);
  const int64_t left =
      reinterpret_cast<float*>(context.workspace.data + context.workspace.bytes) - partial_states_;
  TM_CHECK(left >= 0, "attention of %d sequences with %lld rows in a tile was not reserved for", params.batch,
           static_cast<long long>(max_rows_));
  max_parts_ = item_rows_ == 0 ? 0 : left / AttentionState::Floats(item_rows_, head_dim_);
}

// Takes the sequences that share segments out of item_begin_, which holds how many items each has. As many
// items are left as keep all threads busy.
void AttentionCall::FindSharers() {
  item_begin_[params_.batch] = 0;
  const SharerLimits limits = SharersAllowed(items_, group_, context_.pool.threads());
  shared_ = context_.shared_prefixes.Find(params_, limits);
  for (int32_t i = 0; i < shared_.count; ++i) {
    const PrefixSharers& sharers = shared_.groups[i];
    max_rows_ = std::max<int64_t>(max_rows_, int64_t{sharers.count} * group_);
    for (int32_t s = 0; s < sharers.count; ++s) item_begin_[sharers.sequences[s]] = 0;
  }
}

void AttentionCall::Run() {
  ThreadPool& pool = context_.pool;
  const int32_t kv_heads = params_.kv.format.kv_heads;
  const int64_t of_sharers = int64_t{shared_.count} * kv_heads;
  const auto run_sharers = [&](int64_t item, int32_t thread) {
    RunSharers(shared_.groups[item / kv_heads], static_cast<int32_t>(item % kv_heads), MemoryOf(thread));
  };
  if (PlanSplit()) {
    pool.ParallelFor(of_sharers, run_sharers);
    pool.ParallelFor(parts_, [this](int64_t part, int32_t thread) { RunPart(part, thread); });
    pool.ParallelFor(items_, [this](int64_t item, int32_t thread) { MergeParts(item, thread); });
  } else {
    // Neighbours of few rows run on one thread in turn, which asks the memory ahead from one to the next.
    const int64_t together = item_rows_ > kAttentionFewRows
                                 ? 1
                                 : std::max<int64_t>(1, items_ / (kAttentionTilesPerThread * pool.threads()));
    pool.ParallelFor(of_sharers + CeilDiv(items_, together), [&](int64_t index, int32_t thread) {
      if (index < of_sharers) return run_sharers(index, thread);
      const int64_t begin = (index - of_sharers) * together;
      RunTiles(begin, std::min(begin + together, items_), thread);
    });
  }
}

// Whether to give out segments: in a small step of one query a sequence that has more segments than tiles.
bool AttentionCall::PlanSplit() {
  const int32_t threads = context_.pool.threads();
  if (threads == 1 || items_ >= kAttentionTilesPerThread * threads || item_rows_ > group_) return false;
  parts_ = 0;
  for (int64_t item = 0; item < items_; ++item) {
    const AttentionTile tile = TileOf(item);
    part_begin_[item] = parts_;
    if (has_sinks()) parts_ += SegmentsOf(SinksOf(tile)).count();
    parts_ += SegmentsOf(tile).count();
  }
  part_begin_[items_] = parts_;
  return parts_ > items_ && parts_ <= max_parts_;
}

// Merges segments of a tile into its total. `last_next` is what the thread reads after the last.
void AttentionCall::RunSegments(const AttentionTile& tile, SegmentRange segments,
                                const AttentionNext& last_next, const ThreadMemory& memory,
                                const AttentionState& total) const {
  for (int64_t segment = segments.begin; segment < segments.end; ++segment) {
    const AttentionNext next = segment + 1 < segments.end ? AttentionNext{&tile, segment + 1} : last_next;
    kernels_.attend_segment(tile, segment, next, memory.scratch, memory.segment);
    kernels_.merge(total, memory.segment, tile.rows(), value_dim_);
  }
}

void AttentionCall::RunTiles(int64_t begin, int64_t end, int32_t thread) const {
  const ThreadMemory memory = MemoryOf(thread);
  AttentionTile tile = TileOf(begin);
  for (int64_t item = begin; item < end; ++item) {
    const AttentionTile next_tile = item + 1 < end ? TileOf(item + 1) : AttentionTile{};
    ClearTotal(memory.total, tile.rows());
    if (has_sinks()) RunSinks(tile, memory);
    AttentionNext next;
    if (item + 1 < end) next = {&next_tile, SegmentsOf(next_tile).begin};
    RunSegments(tile, SegmentsOf(tile), next, memory, memory.total);
    kernels_.finish(tile, memory.total);
    tile = next_tile;
  }
}

// The sinks' segments come before the others.
void AttentionCall::RunSinks(const AttentionTile& tile, const ThreadMemory& memory) const {
  const AttentionTile sinks = SinksOf(tile);
  RunSegments(sinks, SegmentsOf(sinks), {}, memory, memory.total);
}

void AttentionCall::RunSharers(const PrefixSharers& sharers, int32_t kv_head,
                               const ThreadMemory& memory) const {
  const SegmentRange shared_segments = {sharers.first_segment, sharers.end_segment};
  const AttentionTile shared = {.params = &params_,
                                .sequence = sharers.sequences[0],
                                .sequences = sharers.sequences,
                                .kv_head = kv_head,
                                .row_begin = 0,
                                .row_end = int64_t{sharers.count} * group_,
                                .key_begin = shared_segments.begin * kAttentionSegmentKeys,
                                .key_end = shared_segments.end * kAttentionSegmentKeys};
  const auto own_tile = [&](int32_t s) {
    AttentionTile tile = {.params = &params_,
                          .sequence = sharers.sequences[s],
                          .kv_head = kv_head,
                          .row_begin = 0,
                          .row_end = group_};
    tile.FindKeys();
    return tile;
  };
  ClearTotal(memory.total, shared.rows());
  for (int32_t s = 0; s < sharers.count; ++s) {
    const AttentionTile tile = own_tile(s);
    RunSegments(tile, {SegmentsOf(tile).begin, shared_segments.begin}, {}, memory,
                FromRow(memory.total, int64_t{s} * group_, value_dim_));
  }
  RunSegments(shared, shared_segments, {}, memory, memory.total);
  for (int32_t s = 0; s < sharers.count; ++s) {
    const AttentionTile tile = own_tile(s);
    const AttentionState total = FromRow(memory.total, int64_t{s} * group_, value_dim_);
    RunSegments(tile, {shared_segments.end, SegmentsOf(tile).end}, {}, memory, total);
    kernels_.finish(tile, total);
  }
}

void AttentionCall::RunPart(int64_t part, int32_t thread) const {
  const int64_t item = std::upper_bound(part_begin_, part_begin_ + items_, part) - part_begin_ - 1;
  AttentionTile tile = TileOf(item);
  int64_t segment = part - part_begin_[item];
  if (has_sinks()) {
    const AttentionTile sinks = SinksOf(tile);
    const SegmentRange sink_segments = SegmentsOf(sinks);
    if (segment < sink_segments.count()) {
      tile = sinks;
    } else {
      segment -= sink_segments.count();
    }
  }
  segment += SegmentsOf(tile).begin;
  kernels_.attend_segment(tile, segment, {}, MemoryOf(thread).scratch, PartialState(part));
}

void AttentionCall::MergeParts(int64_t item, int32_t thread) const {
  const AttentionTile tile = TileOf(item);
  const AttentionState total = MemoryOf(thread).total;
  ClearTotal(total, tile.rows());
  for (int64_t part = part_begin_[item]; part < part_begin_[item + 1]; ++part) {
    kernels_.merge(total, PartialState(part), tile.rows(), value_dim_);
  }
  kernels_.finish(tile, total);
}

// Items of a sequence run from its last tile to its first: the one with most keys begins first.
AttentionTile AttentionCall::TileOf(int64_t item) const {
  const int64_t* begin = item_begin_;
  const auto b = static_cast<int32_t>(std::upper_bound(begin, begin + params_.batch, item) - begin - 1);
  const int64_t kv_heads = params_.kv.format.kv_heads;
  const int64_t local = item - item_begin_[b];
  const int64_t tile = TilesPerHead(b) - 1 - local / kv_heads;
  const int64_t row_begin = tile * kAttentionTileRows;
  AttentionTile rows = {.params = &params_,
                        .sequence = b,
                        .kv_head = static_cast<int32_t>(local % kv_heads),
                        .row_begin = row_begin,
                        .row_end = std::min(row_begin + kAttentionTileRows, QueryCount(b) * group_)};
  rows.FindKeys();
  return rows;
}

AttentionCall::ThreadMemory AttentionCall::MemoryOf(int32_t thread) const {
  float* memory = thread_memory_ + thread * FloatsPerThread(max_rows_, head_dim_);
  ThreadMemory parts;
  parts.scratch.keys = memory;
  memory += AlignFloats(int64_t{head_dim_} * kAttentionBlockKeys);
  parts.scratch.values = memory;
  memory += kAttentionBlockKeys * PaddedHeadDim(head_dim_);
  parts.scratch.decoded = memory;
  memory += kAttentionDecodedKeys * PaddedHeadDim(head_dim_);
  parts.scratch.scores = memory;
  memory += max_rows_ * kAttentionBlockKeys;
  parts.segment = AttentionState::At(memory, max_rows_);
  memory += AttentionState::Floats(max_rows_, head_dim_);
  parts.total = AttentionState::At(memory, max_rows_);
  return parts;
}

AttentionState AttentionCall::PartialState(int64_t part) const {
  return AttentionState::At(partial_states_ + part * AttentionState::Floats(item_rows_, head_dim_),
                            item_rows_);
}

void AttentionCall::ClearTotal(const AttentionState& total, int32_t rows) const {
  std::fill_n(total.highest, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(total.sum, rows, 0.0f);
  std::fill_n(total.weighted, rows * PaddedHeadDim(head_dim_), 0.0f);
}

}  // namespace

int64_t AttentionWorkspaceBytes(const StepMaxima& maxima, int32_t threads) {
  if (maxima.kv_heads == 0) return 0;
  const int64_t group = maxima.query_heads / maxima.kv_heads;
  const int64_t rows = std::min<int64_t>(maxima.tokens * group, kAttentionTileRows);
  const int64_t partial_rows = std::min<int64_t>(group, kAttentionTileRows);
  const int64_t floats =
      IndexFloats(maxima.sequences, threads) + threads * FloatsPerThread(rows, maxima.head_dim) +
      MaxPartialStates(threads, maxima.context) * AttentionState::Floats(partial_rows, maxima.head_dim);
  return floats * static_cast<int64_t>(sizeof(float));
}

void RunAttention(const AttentionParams& params, const CpuContext& context) {
  TM_CHECK(params.query.dtype == DType::kF32 && params.out.dtype == DType::kF32, "attention speaks f32");
  TM_CHECK(params.kv.format.kv_heads > 0 && params.query_heads % params.kv.format.kv_heads == 0,
           "%d query heads over %d kv heads", params.query_heads, params.kv.format.kv_heads);
  CheckKvView(params.kv);
  TM_CHECK(params.kv.format.head_dim % 2 == 0, "head_dim %d is odd", params.kv.format.head_dim);
  TM_CHECK(params.kv.format.ValueDim() <= params.kv.format.head_dim, "values of %d lanes in rows of %d",
           params.kv.format.ValueDim(), params.kv.format.head_dim);
  if (params.batch > 0) AttentionCall(params, context).Run();
}

}  // namespace tramontane
