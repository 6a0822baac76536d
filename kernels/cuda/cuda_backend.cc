#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/kv_quantize.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/decode_weight.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_tile.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/product_plans.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/weight_packing.h"

namespace tramontane::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kStagingBytes = int64_t{16} << 20;  // of host memory through which weights pass
constexpr int32_t kSmallTileRows = 16;                // of the smallest tile there is
static_assert(kSmallTileRows == kByRowTileRows);
constexpr size_t kMostPoolMaps = 8;  // more pools than that: the oldest map is made again
// More (table, window) pairs than that in a step, or half as many where it has plain sequences and others:
// the oldest plan is made again.
constexpr size_t kPlanSlots = 8;

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// What a weight's products may be asked to do with their result.
std::vector<MatmulOut> OutsOf(const LinearSource& source, bool fp8_rows) {
  if (source.use == WeightUse::kExpert) return {};  // other kernels multiply by them
  if (source.use == WeightUse::kTable || source.use == WeightUse::kHead) return {MatmulOut::kF32};
  if (source.layout == LinearLayout::kGateUp) return {MatmulOut::kBf16};
  if (fp8_rows) return {MatmulOut::kBf16, MatmulOut::kBf16Add};  // what gives f32 is decoded
  return {MatmulOut::kBf16, MatmulOut::kBf16Add, MatmulOut::kF32};
}

// What a product does with its result.
MatmulOut KindOf(Epilogue epilogue, DType out) {
  if (out == DType::kF32) return MatmulOut::kF32;
  return epilogue == Epilogue::kAddResidual ? MatmulOut::kBf16Add : MatmulOut::kBf16;
}

// Whether TRAMONTANE_CUDA_SYNC=1 stands in the environment: every op is waited for, so that a fault is told
// with the name of the op that it is of, and no step is recorded.
bool WaitsForEveryOp() {
  const char* asked = std::getenv("TRAMONTANE_CUDA_SYNC");
  return asked != nullptr && asked[0] == '1';
}

// Rows of a weight in one form: weight_packing.h.
struct Segment {
  Format format = DType::kBf16;  // or one in blocks
  int64_t first_out = 0;
  int64_t out_features = 0;  // gate and up together
  std::byte* data = nullptr;
  const ProductPlans::Table* plans = nullptr;  // of bf16, and of fp8 in rows
  const int32_t* column_order = nullptr;       // [in_features], device; null: in order
  const float* row_scales = nullptr;           // [out_features], device, of fp8 in rows alone
  // Of all that is not bf16: how it is decoded, and products of bf16 of each slice and of the last. Null: it
  // has none.
  WeightSlices slices = {};
  const ProductPlans::Table* slice_plans = nullptr;
  const ProductPlans::Table* last_slice_plans = nullptr;
};

// What a WeightHandle of this backend points at.
struct PackedWeight {
  LinearLayout layout = LinearLayout::kStacked;
  int64_t out_features = 0;
  int64_t in_features = 0;
  void* data = nullptr;  // of all segments
  std::vector<Segment> segments;

  // The only one, where parts of several forms make no sense.
  const Segment* alone() const { return segments.size() == 1 ? segments.data() : nullptr; }
};

// ---- scratch

// Where each buffer lies in the workspace. T: tokens of the largest step, L: its rows of logits.
struct WorkspaceMap {
  int64_t decoded = 0;  // [decoded_bytes]: a slice of a weight in bf16; where any is quantised
  int64_t decoded_bytes = 0;
  int64_t normalised = 0;   // [max(T, L), hidden] bf16: rows of x as a product takes them
  int64_t quantised = 0;    // [T, hidden] e4m3: the same of products of fp8; where there are any
  int64_t x_scales = 0;     // [T] f32, of these
  int64_t gate_up = 0;      // [T, 2 * hidden] bf16: no model's intermediate size exceeds maxima.hidden
  int64_t moe_chosen = 0;   // [T, experts per token] i32
  int64_t moe_shares = 0;   // [T, experts per token] f32
  int64_t moe_inner = 0;    // [T, experts per token, expert_intermediate] bf16
  int64_t moe_outer = 0;    // [T, experts per token, hidden] f32
  int64_t moe_order = 0;    // [T, experts per token] i32
  int64_t moe_tiles = 0;    // [MoeTileBound] MoeTile
  int64_t adjusted = 0;     // [L, vocab] f32
  int64_t partial_out = 0;  // [partials, kv_heads, tile rows, head_dim] f32
  int64_t partial_lse = 0;  // [partials, kv_heads, tile rows] f32
  int64_t split = 0;        // [SplitSampleBytes] zeros between calls; where a row may have several blocks
  int64_t parts_done = 0;   // [AttentionCountBound] i32, zeros between calls
  int64_t plans = 0;        // [kPlanSlots] plan_bytes each: items, merges, work, sharers, shares
  int64_t plan_merges = 0;  // within a plan
  int64_t plan_work = 0;
  int64_t plan_sharers = 0;
  int64_t plan_shares = 0;
  int64_t plan_bytes = 0;
  int32_t plan_items = 0;  // capacity of a plan
  int64_t bytes = 0;
};

// Whether a tile of a decode holds the rows of several sequences.
constexpr bool CanShare(int32_t group) { return SharersOfTile(group) >= 2; }

// What options say of products, or what stands for it where they say nothing.
struct ProductForms {
  bool fp8 = false;  // of fp8 by fp8, on a device that has them
  int32_t least_decoded_rows = 0;
  int64_t tiled_outputs = 0;  // of a weight with so many one tile of rows is not decoded for
  int64_t decoded_slice_bytes = 0;

  ProductForms(const CudaBackendOptions& options, const DeviceProperties& device)
      : fp8(options.fp8_products != 0 && device.fp8_products),
        least_decoded_rows(
            std::max(options.least_decoded_rows > 0 ? options.least_decoded_rows : kLeastDecodedRows,
                     kSmallLinearRows + 1)),
        tiled_outputs(options.least_decoded_rows > 0 ? INT64_MAX : kTiledOutputs),
        decoded_slice_bytes(options.decoded_slice_bytes > 0 ? options.decoded_slice_bytes
                                                            : kDecodedSliceBytes) {}
};

WorkspaceMap MapWorkspace(const StepMaxima& maxima, const DeviceProperties& device,
                          const ProductForms& products) {
  WorkspaceMap map;
  const auto take = [](int64_t bytes, int64_t* total) {
    return std::exchange(*total, *total + RoundUp(bytes, kAlignment));
  };
  const int64_t rows = std::max(maxima.tokens, maxima.logit_rows);
  int64_t state_rows = 0;
  // Of a decode whose sequences share keys, in tiles of as many rows.
  const int32_t group = maxima.query_heads / maxima.kv_heads;
  const auto shared_rows = [&](int32_t target_blocks) {
    if (!CanShare(group)) return int64_t{0};
    return int64_t{SharingPartialBound(maxima.kv_heads, target_blocks, group, maxima.sequences)} *
           maxima.kv_heads * kSmallTileRows;
  };
  int64_t counts = 0;
  const auto count_parts = [&](int32_t target_blocks, int64_t of_a_tile = 1) {
    counts =
        std::max(counts, of_a_tile * AttentionCountBound(maxima.kv_heads, target_blocks, maxima.sequences));
  };
  state_rows = shared_rows(MostTargetBlocks(device, kSmallTileRows));
  for (const int32_t tile_rows : {kSmallTileRows, kLargeTileRows, kWideTileRows}) {
    if (tile_rows == kWideTileRows && !HasWideTile(maxima.head_dim)) continue;
    const int32_t partials = AttentionPartialBound(maxima.kv_heads, MostTargetBlocks(device, tile_rows));
    state_rows = std::max(state_rows, int64_t{partials} * maxima.kv_heads * tile_rows);
    count_parts(MostTargetBlocks(device, tile_rows));
  }
  if (device.hopper) {
    const int32_t prefill_blocks = HopperTargetBlocks(device, kHopperPrefillRows);
    const int32_t partials = AttentionPartialBound(maxima.kv_heads, prefill_blocks);
    state_rows = std::max(state_rows, int64_t{partials} * maxima.kv_heads * kHopperPrefillRows);
    count_parts(prefill_blocks, 2);
    const int32_t decode_blocks = HopperTargetBlocks(device, kHopperDecodeRows);
    state_rows = std::max(state_rows, shared_rows(decode_blocks));
    count_parts(decode_blocks);
  }
  map.parts_done = take(counts * int64_t{sizeof(int32_t)}, &map.bytes);
  if (SampleBlocks(1, maxima.vocab, device.multiprocessors) > 1) {
    map.split = take(SplitSampleBytes(), &map.bytes);
  }
  if (rows >= products.least_decoded_rows) {
    map.decoded_bytes =
        DecodedScratchBytes(maxima.quantised_numbers, maxima.hidden, products.decoded_slice_bytes);
    map.decoded = take(map.decoded_bytes, &map.bytes);
  }
  map.normalised = take(rows * maxima.hidden * 2, &map.bytes);
  if (products.fp8) {
    map.quantised = take(int64_t{maxima.tokens} * maxima.hidden, &map.bytes);
    map.x_scales = take(maxima.tokens * int64_t{sizeof(float)}, &map.bytes);
  }
  map.gate_up = take(int64_t{maxima.tokens} * maxima.hidden * 2 * 2, &map.bytes);
  if (maxima.experts > 0) {
    const int64_t pairs = int64_t{maxima.tokens} * maxima.experts_per_token;
    map.moe_chosen = take(pairs * int64_t{sizeof(int32_t)}, &map.bytes);
    map.moe_shares = take(pairs * int64_t{sizeof(float)}, &map.bytes);
    map.moe_inner = take(pairs * maxima.expert_intermediate * 2, &map.bytes);
    map.moe_outer = take(pairs * maxima.hidden * int64_t{sizeof(float)}, &map.bytes);
    map.moe_order = take(pairs * int64_t{sizeof(int32_t)}, &map.bytes);
    const int64_t tiles = MoeTileBound(static_cast<int32_t>(pairs), maxima.experts);
    map.moe_tiles = take(tiles * int64_t{sizeof(MoeTile)}, &map.bytes);
  }
  map.adjusted = take(SampleScratchBytes(maxima.logit_rows, maxima.vocab), &map.bytes);
  map.partial_out = take(state_rows * maxima.head_dim * int64_t{sizeof(float)}, &map.bytes);
  map.partial_lse = take(state_rows * int64_t{sizeof(float)}, &map.bytes);
  map.plan_items = AttentionItemBound(maxima.tokens, maxima.sequences, group, kSmallTileRows, maxima.kv_heads,
                                      MostTargetBlocks(device, kSmallTileRows));
  if (CanShare(group)) map.plan_items = SharingItemBound(map.plan_items, maxima.sequences, 1);
  take(map.plan_items * int64_t{sizeof(AttentionItem)}, &map.plan_bytes);
  map.plan_merges = take(map.plan_items * int64_t{sizeof(AttentionMerge)}, &map.plan_bytes);
  map.plan_work = take(sizeof(AttentionWork), &map.plan_bytes);
  map.plan_sharers = take(maxima.sequences * int64_t{sizeof(AttentionSharers)}, &map.plan_bytes);
  map.plan_shares = take(maxima.sequences * int64_t{sizeof(AttentionShare)}, &map.plan_bytes);
  map.plans = take(int64_t{kPlanSlots} * map.plan_bytes, &map.bytes);
  return map;
}

// A work list that attention calls of one step share, and what it was made for.
struct AttentionPlan {
  const int32_t* page_indices = nullptr;
  const int32_t* first_entry = nullptr;
  const int32_t* kv_end = nullptr;
  const int32_t* qo_indptr = nullptr;
  const int32_t* left = nullptr;
  bool by_mask = false;
  int32_t window = 0;
  int32_t batch = 0;
  int32_t tokens = 0;
  AttentionKernels kernels = AttentionKernels::kMmaSync;
  int32_t tile_rows = 0;
  int32_t max_items = 0;
  AttentionItem* items = nullptr;
  AttentionMerge* merges = nullptr;
  AttentionWork* work = nullptr;
  AttentionShare* shares = nullptr;  // null: nobody shares

  bool Serves(const AttentionParams& p, AttentionKernels by) const {
    return kernels == by && kv_end == p.table.kv_end && qo_indptr == p.qo_indptr && window == p.window &&
           batch == p.batch && tokens == p.query.rows && left == p.sinks.left &&
           by_mask == (p.mask.bits != nullptr) &&
           (shares == nullptr ||
            (page_indices == p.table.page_indices && first_entry == p.table.first_entry));
  }
};

// The tensor map of a pool of pages, and what it was made for.
struct PoolMap {
  const std::byte* pool = nullptr;
  int64_t page_bytes = 0;
  KvFormat format;
  TensorMap map;

  bool Describes(const KvLayerView& kv) const {
    return pool == kv.pool && page_bytes == kv.page_bytes && format.kv_heads == kv.format.kv_heads &&
           format.head_dim == kv.format.head_dim && format.page_size == kv.format.page_size &&
           format.order == kv.format.order;
  }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<Runtime> runtime, const CudaBackendOptions& options)
      : runtime_(std::move(runtime)), options_(options), forms_(options, runtime_->properties()) {
    info_.name = "cuda";
    info_.variant = runtime_->properties().name.c_str();
    info_.activation_dtype = DType::kBf16;
    info_.memory_bytes = runtime_->properties().memory_bytes;
    info_.asynchronous = 1;
    info_.records_steps = waits_for_every_op_ ? 0 : 1;  // a recorded step would be one op
  }

  const BackendInfo& info() const noexcept override { return info_; }
  const char* last_error() const noexcept override { return last_error_.c_str(); }
  const char* remarks() const noexcept override;

  // ---- memory
  void* Allocate(int64_t bytes) noexcept override { return runtime_->Allocate(std::max<int64_t>(bytes, 1)); }
  void Free(void* memory) noexcept override { runtime_->Free(memory); }
  void* AllocateHost(int64_t bytes) noexcept override {
    return runtime_->AllocateHost(std::max<int64_t>(bytes, 1));
  }
  void FreeHost(void* memory) noexcept override { runtime_->FreeHost(memory); }
  OpCode Upload(void* device, const void* host, int64_t bytes) noexcept override;
  OpCode Download(void* host, const void* device, int64_t bytes) noexcept override;
  uint64_t RecordFence() noexcept override;
  OpCode WaitFence(uint64_t fence) noexcept override;
  OpCode MovePages(const MovePagesParams& params) noexcept override;
  OpCode AwaitMoves() noexcept override;

  // ---- before the first step
  int64_t PackedBytes(const LinearSource& source) const noexcept override;
  OpCode PackLinear(const LinearSource& source, WeightHandle* out) noexcept override;
  void FreeWeight(WeightHandle weight) noexcept override;
  int64_t WorkspaceBytes(const StepMaxima& maxima) const noexcept override;
  OpCode Reserve(const StepMaxima& maxima) noexcept override;
  OpCode UseTuning(const char* text) noexcept override;
  OpCode Tune() noexcept override;
  const char* Tuning() noexcept override {
    tuning_ = products_.Tuning();
    return tuning_.c_str();
  }

  // ---- a step
  OpCode Embed(const EmbedParams& params) noexcept override;
  OpCode RopeTable(const RopeTableParams& params) noexcept override;
  OpCode Linear(const LinearParams& params) noexcept override;
  OpCode Moe(const MoeParams& params) noexcept override;
  OpCode RopeAppend(const RopeAppendParams& params) noexcept override;
  OpCode Attention(const AttentionParams& params) noexcept override;
  OpCode Sample(const SampleParams& params) noexcept override;
  OpCode Advance(const AdvanceParams& params) noexcept override;
  OpCode Scatter(const ScatterParams& params) noexcept override;
  OpCode CopyPages(const CopyPagesParams& params) noexcept override;
  OpCode GatherKv(const GatherKvParams& params) noexcept override;

  // ---- recorded steps
  OpCode BeginRecording() noexcept override;
  OpCode EndRecording(RecordingHandle* out) noexcept override;
  OpCode Replay(RecordingHandle recording) noexcept override;
  void FreeRecording(RecordingHandle recording) noexcept override { runtime_->FreeRecording(recording.impl); }

  void Destroy() noexcept override { delete this; }

 private:
  ~CudaBackend();

  static int EventOf(uint64_t fence) { return static_cast<int>(fence % Runtime::kEvents); }
  void CheckFence(uint64_t fence) const;
  OpCode Fail(OpCode code, std::string reason);
  // What a launch or another call of the runtime said.
  OpCode Queued(int error, const char* what);
  OpCode CopySegment(const LinearSource& source, const PackedSegment& segment, SourceRows& rows,
                     std::byte* data);
  void PlanSlices(const LinearSource& source, Segment& segment);
  float* XScales() const { return reinterpret_cast<float*>(workspace_ + map_.x_scales); }
  bool fp8_products() const { return forms_.fp8; }
  std::vector<PackedSegment> SegmentsFor(const LinearSource& source) const {
    return SegmentsOf(source, fp8_products() ? Fp8Form::kRows : Fp8Form::kUnits);
  }
  void CountFp8(const std::vector<PackedSegment>& segments);
  std::string Fp8Remarks() const;
  OpCode PrepareRows(const LinearParams& params, const int32_t* column_order);
  OpCode QuantiseRows(const LinearParams& params);
  OpCode GateUpApart(const LinearParams& params, const PackedWeight& weight);
  OpCode LinearOfSegments(const LinearParams& params, const PackedWeight& weight);
  OpCode LinearOf(const LinearParams& params, const Segment& weight);
  OpCode TileLinear(const LinearParams& params, const Segment& weight);
  OpCode LargeLinear(const LinearParams& params, const Segment& weight);
  int Fp8PlanFor(const LinearParams& params, const Segment& weight) const;
  OpCode Fp8Linear(const LinearParams& params, const Segment& weight, int plan, bool* served);
  Tensor GateUpRows(const LinearParams& params) const;
  OpCode SwiGluOf(const Tensor& gate_up, const LinearParams& params, bool apart);
  bool DecodesSlices(const LinearParams& params, const Segment& weight) const;
  OpCode DecodedLinear(const LinearParams& params, const Segment& weight);
  OpCode MultiplySlice(const LinearParams& params, const Segment& slice);
  OpCode Multiply(const LinearParams& params, const Segment& weight, const Tensor& out);
  OpCode MultiplyInSlices(const LinearParams& params, const Segment& weight, const Tensor& out);
  MoeGemmParams ExpertProducts(const MoeParams& params, int32_t intermediate) const;
  OpCode Route(const MoeParams& params, const MoeGemmParams& gemm);
  OpCode ReorderForExperts(const WeightHandle* weights, size_t index, void* reordered, MoeGemmParams* gemm);
  OpCode MultiplyExperts(const WeightHandle* weights, size_t index, void* reordered, MoeGemmParams gemm,
                         const char* what);
  OpCode CheckPages(const KvLayerView& kv);
  OpCode Attend(const AttentionParams& params);
  OpCode PlanFor(const AttentionParams& params, const AttentionPlan** plan);
  OpCode MapOfPool(const KvLayerView& kv, TensorMap* map);

  const std::unique_ptr<Runtime> runtime_;
  const CudaBackendOptions options_;
  const ProductForms forms_;
  BackendInfo info_;
  std::string last_error_;
  std::string tuning_;  // as Tuning said last
  const bool waits_for_every_op_ = WaitsForEveryOp();
  bool recording_ = false;
  int64_t recordings_ = 0;           // made so far
  int64_t recorded_launches_ = 0;    // of all of them
  int64_t free_before_ = 0;          // bytes of device memory, before the one that is made
  int64_t recordings_bytes_ = 0;     // that all of them took
  mutable std::string all_remarks_;  // as remarks said last
  bool has_moves_ = false;           // that nothing awaits yet
  uint64_t last_fence_ = 0;
  int fence_error_ = 0;  // of RecordFence, told by the next WaitFence

  std::unordered_set<PackedWeight*> weights_;  // live handles
  ProductPlans products_{*runtime_};
  int64_t fp8_weights_ = 0;      // packed so far
  int64_t fp8_row_weights_ = 0;  // of these, in rows alone
  void* staging_ = nullptr;      // host [kStagingBytes]; while weights are loaded

  StepMaxima maxima_;
  WorkspaceMap map_;
  std::byte* workspace_ = nullptr;

  // Of the step that is being queued: an upload, a recording or the rotary table begins another.
  std::vector<AttentionPlan> plans_;  // plan i lies in slot i % kPlanSlots
  std::vector<PoolMap> pool_maps_;    // at most kMostPoolMaps, oldest first
};

CudaBackend::~CudaBackend() {
  while (!weights_.empty()) FreeWeight({*weights_.begin()});
  runtime_->FreeHost(staging_);
  runtime_->Free(workspace_);
}

OpCode CudaBackend::Fail(OpCode code, std::string reason) {
  last_error_ = std::move(reason);
  return code;
}

const char* CudaBackend::remarks() const noexcept {
  all_remarks_ = Fp8Remarks() + products_.remarks();
  if (recordings_ > 0) {
    all_remarks_ += std::to_string(recordings_) + " recordings of " + std::to_string(recorded_launches_) +
                    " launches take " + std::to_string(recordings_bytes_) + " bytes of device memory\n";
  }
  return all_remarks_.c_str();
}

// What became of products of fp8, where they were asked for.
std::string CudaBackend::Fp8Remarks() const {
  if (options_.fp8_products == 0) return "";
  if (!fp8_products()) {
    return "no products of fp8 by fp8: " + runtime_->properties().why_no_fp8_products +
           "; weights in fp8 are decoded\n";
  }
  std::string text = std::to_string(fp8_row_weights_) + " of " + std::to_string(fp8_weights_) +
                     " weights in fp8 are multiplied with rows in fp8";
  if (fp8_row_weights_ < fp8_weights_) {
    text += "; the others give logits, are experts' or have several scales a row, and are decoded";
  }
  return text + "\n";
}

void CudaBackend::CountFp8(const std::vector<PackedSegment>& segments) {
  bool any = false, in_rows = true;
  for (const PackedSegment& segment : segments) {
    if (segment.format.dtype != DType::kFp8E4M3) continue;
    any = true;
    in_rows &= segment.fp8_rows;
  }
  fp8_weights_ += any ? 1 : 0;
  fp8_row_weights_ += any && in_rows ? 1 : 0;
}

OpCode CudaBackend::Queued(int error, const char* what) {
  const char* where = "";
  if (error == 0 && waits_for_every_op_ && !recording_) {
    error = runtime_->Synchronize();
    where = " (found by waiting for it)";
  }
  if (error == 0) return OpCode::kOk;
  return Fail(OpCode::kDeviceFault, std::string(what) + where + ": " + runtime_->ErrorText(error));
}

// ---- memory -------------------------------------------------------------------------------------

OpCode CudaBackend::Upload(void* device, const void* host, int64_t bytes) noexcept {
  plans_.clear();  // page tables may have changed
  if (bytes == 0) return OpCode::kOk;
  return Queued(runtime_->CopyToDevice(device, host, bytes, WhichStream::kSteps), "an upload");
}

OpCode CudaBackend::Download(void* host, const void* device, int64_t bytes) noexcept {
  if (bytes == 0) return OpCode::kOk;
  return Queued(runtime_->CopyToHost(host, device, bytes, WhichStream::kSteps), "a download");
}

void CudaBackend::CheckFence(uint64_t fence) const {
  TM_CHECK(fence <= last_fence_, "fence %llu of %llu", static_cast<unsigned long long>(fence),
           static_cast<unsigned long long>(last_fence_));
}

uint64_t CudaBackend::RecordFence() noexcept {
  ++last_fence_;
  const int error = runtime_->RecordEvent(EventOf(last_fence_));
  if (error != 0) fence_error_ = error;
  return last_fence_;
}

// An event is recorded anew for every kEvents-th fence; waiting for the later one is waiting for both.
OpCode CudaBackend::WaitFence(uint64_t fence) noexcept {
  CheckFence(fence);
  if (const int error = std::exchange(fence_error_, 0)) return Queued(error, "a fence");
  if (fence == 0) return OpCode::kOk;
  return Queued(runtime_->WaitEvent(EventOf(fence)), "the device");
}

OpCode CudaBackend::MovePages(const MovePagesParams& p) noexcept {
  CheckFence(p.after);
  if (p.count == 0) return OpCode::kOk;
  has_moves_ = true;
  int error = p.after == 0 ? 0 : runtime_->HoldMoves(EventOf(p.after));
  for (int32_t i = 0; i < p.count && error == 0; ++i) {
    const PageMove& move = p.moves[i];
    std::byte* const page = p.pool + move.page * p.page_bytes;
    error = move.way == PageMove::Way::kOut
                ? runtime_->CopyToHost(move.image, page, p.page_bytes, WhichStream::kMoves)
                : runtime_->CopyToDevice(page, move.image, p.page_bytes, WhichStream::kMoves);
  }
  return Queued(error, "moving pages");
}

OpCode CudaBackend::AwaitMoves() noexcept {
  if (!std::exchange(has_moves_, false)) return OpCode::kOk;
  return Queued(runtime_->AwaitMoves(), "waiting for moved pages");
}

// ---- weights ------------------------------------------------------------------------------------

int64_t ColumnOrderBytes(const PackedSegment& segment) {
  if (segment.column_order == nullptr) return 0;
  return RoundUp(segment.in_features * int64_t{sizeof(int32_t)}, kAlignment);
}

int64_t CudaBackend::PackedBytes(const LinearSource& source) const noexcept {
  if (!WhyNotPackable(source, kCudaPackingLimits).empty()) return 0;
  int64_t bytes = 0;
  for (const PackedSegment& segment : SegmentsFor(source)) {
    bytes += RoundUp(segment.bytes(), kAlignment) + RoundUp(segment.scale_bytes(), kAlignment) +
             ColumnOrderBytes(segment);
  }
  return bytes;
}

OpCode CudaBackend::PackLinear(const LinearSource& source, WeightHandle* out) noexcept {
  if (std::string reason = WhyNotPackable(source, kCudaPackingLimits); !reason.empty()) {
    return Fail(OpCode::kUnsupported, std::move(reason));
  }
  const int64_t bytes = PackedBytes(source);
  auto* data = static_cast<std::byte*>(runtime_->Allocate(bytes));
  if (data == nullptr) {
    return Fail(OpCode::kOutOfMemory, "no device memory for a weight of " + std::to_string(bytes) + " bytes");
  }
  auto weight = std::make_unique<PackedWeight>(source.layout, 0, source.in_features, data);
  const std::vector<PackedSegment> segments = SegmentsFor(source);
  LinearSource in_segments = source;
  in_segments.layout = segments[0].layout;  // of a gate and an up that stand apart kStacked
  SourceRows rows(in_segments);
  std::byte* at = data;
  for (const PackedSegment& segment : segments) {
    OpCode code = CopySegment(in_segments, segment, rows, at);
    std::byte* const scales = at + RoundUp(segment.bytes(), kAlignment);
    const float* const row_scales = segment.fp8_rows ? reinterpret_cast<const float*>(scales) : nullptr;
    const ProductPlans::Table* plans = nullptr;
    if (!segment.in_blocks()) {
      plans = products_.Add(source.in_features, segment.rows, OutsOf(in_segments, segment.fp8_rows), at,
                            row_scales);
    }
    std::byte* const order = scales + RoundUp(segment.scale_bytes(), kAlignment);
    if (code == OpCode::kOk && segment.column_order != nullptr) {
      code = Upload(order, segment.column_order, segment.in_features * int64_t{sizeof(int32_t)});
      if (code == OpCode::kOk) code = WaitFence(RecordFence());
    }
    if (code != OpCode::kOk) {
      runtime_->Free(data);
      return code;
    }
    weight->segments.push_back(
        {segment.format, segment.first_row, segment.rows, at, plans,
         segment.column_order == nullptr ? nullptr : reinterpret_cast<const int32_t*>(order), row_scales});
    if (segment.format != DType::kBf16) PlanSlices(in_segments, weight->segments.back());
    weight->out_features += segment.rows;
    at = order + ColumnOrderBytes(segment);
  }
  CountFp8(segments);
  weights_.insert(weight.get());
  out->impl = weight.release();
  return OpCode::kOk;
}

// Products of what is decoded of a segment.
void CudaBackend::PlanSlices(const LinearSource& source, Segment& segment) {
  const std::vector<MatmulOut> outs = OutsOf(source, /*fp8_rows=*/false);
  segment.slices = SlicesOf(segment.out_features, source.in_features, forms_.decoded_slice_bytes);
  if (outs.empty() || segment.slices.count == 0) return;
  const auto plans_of = [&](int64_t rows) {
    return products_.AddDecoded(source.in_features, rows, outs, forms_.least_decoded_rows);
  };
  segment.slice_plans = plans_of(segment.slices.rows);
  segment.last_slice_plans = plans_of(segment.slices.last_rows);
}

// As many rows at a time as the staging memory holds.
OpCode CudaBackend::CopySegment(const LinearSource& source, const PackedSegment& segment, SourceRows& rows,
                                std::byte* data) {
  if (source.feed != nullptr && segment.format == DType::kBf16 &&
      source.feed->FillOnDevice(data, segment.bytes() / int64_t{sizeof(uint16_t)})) {
    return OpCode::kOk;
  }
  if (staging_ == nullptr) staging_ = runtime_->AllocateHost(kStagingBytes);
  const int64_t bytes = segment.bytes_at_once(), most = kStagingBytes / bytes;
  if (staging_ == nullptr || most == 0) {
    return Fail(OpCode::kOutOfMemory, "no host memory for rows of " + std::to_string(bytes) + " bytes");
  }
  const int64_t all = segment.bytes() / bytes;
  std::vector<float> scales(static_cast<size_t>(segment.fp8_rows ? segment.rows : 0));
  for (int64_t begin = 0; begin < all; begin += most) {
    const int64_t count = std::min(most, all - begin);
    float* const of_rows = segment.fp8_rows ? scales.data() + begin * segment.rows_at_once() : nullptr;
    if (!PackSegment(source, segment, begin, count, rows, static_cast<std::byte*>(staging_), of_rows))
      return Fail(OpCode::kUnsupported, "its rows cannot be had");
    OpCode code = Upload(data + begin * bytes, staging_, count * bytes);
    if (code == OpCode::kOk) code = WaitFence(RecordFence());
    if (code != OpCode::kOk) return code;
  }
  if (!segment.fp8_rows) return OpCode::kOk;
  const OpCode code =
      Upload(data + RoundUp(segment.bytes(), kAlignment), scales.data(), segment.scale_bytes());
  return code == OpCode::kOk ? WaitFence(RecordFence()) : code;
}

void CudaBackend::FreeWeight(WeightHandle handle) noexcept {
  auto* weight = static_cast<PackedWeight*>(handle.impl);
  TM_CHECK(weights_.erase(weight) == 1, "a weight handle that is not live");
  for (const Segment& segment : weight->segments) {
    if (segment.plans == nullptr) continue;
    products_.Remove(weight->in_features, segment.out_features, segment.data, segment.row_scales);
  }
  runtime_->Free(weight->data);
  delete weight;
}

// Why heads have no kernel.
std::string NoHeads(int32_t head_dim, int32_t group) {
  return "attention with heads of " + std::to_string(head_dim) + " and " + std::to_string(group) +
         " query heads a kv head; the CUDA backend has 32, 64, 96 and 128, and 1 to 16";
}

// Why rows of latent pages have no kernel.
std::string NoLatentRows(int32_t head_dim, int32_t value_dim) {
  return "latent rows of " + std::to_string(head_dim) + " lanes with values of " + std::to_string(value_dim) +
         "; the CUDA backend takes multiples of 8 up to " + std::to_string(kMostLatentDim) + " and " +
         std::to_string(kMostLatentValueDim);
}

// ---- workspace ----------------------------------------------------------------------------------

int64_t CudaBackend::WorkspaceBytes(const StepMaxima& maxima) const noexcept {
  return MapWorkspace(maxima, runtime_->properties(), forms_).bytes;
}

OpCode CudaBackend::Reserve(const StepMaxima& maxima) noexcept {
  const int32_t group = maxima.query_heads / maxima.kv_heads;
  // A single kv head may be the row of latent pages, which pages say when they come.
  const bool latent = maxima.kv_heads == 1 && LatentAttentionSupported(maxima.head_dim, kLeastLatentDim);
  if (!latent && !AttentionSupported(DType::kBf16, maxima.head_dim, group)) {
    return Fail(OpCode::kUnsupported, NoHeads(maxima.head_dim, group));
  }
  if (maxima.experts > 0 && maxima.hidden > kMaxMoeHidden) {
    return Fail(OpCode::kUnsupported, "experts over rows of " + std::to_string(maxima.hidden) +
                                          "; the CUDA backend takes up to " + std::to_string(kMaxMoeHidden));
  }
  runtime_->FreeHost(std::exchange(staging_, nullptr));
  runtime_->Free(std::exchange(workspace_, nullptr));
  maxima_ = maxima;
  map_ = MapWorkspace(maxima, runtime_->properties(), forms_);
  workspace_ = static_cast<std::byte*>(runtime_->Allocate(map_.bytes));
  if (workspace_ == nullptr) {
    return Fail(OpCode::kOutOfMemory,
                "no device memory for a workspace of " + std::to_string(map_.bytes) + " bytes");
  }
  products_.Reserve(std::max(maxima.tokens, maxima.logit_rows));
  return OpCode::kOk;
}

OpCode CudaBackend::UseTuning(const char* text) noexcept {
  TM_CHECK(weights_.empty(), "weights are planned for already");
  if (products_.UseTuning(text)) return OpCode::kOk;
  return Fail(OpCode::kUnsupported, "a line is no choice of a kernel");
}

// Products are timed over the workspace, which no step uses yet.
OpCode CudaBackend::Tune() noexcept {
  TM_CHECK(workspace_ != nullptr && !recording_, "kernels are chosen between Reserve and the first step");
  const ProductPlans::Scratch scratch = {.x = workspace_ + map_.normalised,
                                         .x_bytes = map_.gate_up - map_.normalised,
                                         .out = workspace_ + map_.gate_up,
                                         .out_bytes = map_.bytes - map_.gate_up,
                                         .x_scales = XScales(),
                                         .decoded = workspace_ + map_.decoded,
                                         .decoded_bytes = map_.decoded_bytes};
  return Queued(products_.Tune(scratch), "a product that was timed");
}

// ---- a step -------------------------------------------------------------------------------------

// Kernels read and write rows in pieces of 16 bytes.
bool IsOfPieces(int64_t bytes) { return bytes % 16 == 0; }
bool BeginsAtAPiece(const Tensor& rows) {
  return IsOfPieces(static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.data)));
}
void CheckPieces(const Tensor& rows, const char* name) {
  TM_CHECK(BeginsAtAPiece(rows) && (rows.rows <= 1 || IsOfPieces(Format(rows.dtype).Bytes(rows.row_stride))),
           "%s at %p has rows %lld elements apart, which are no pieces of 16 bytes", name, rows.data,
           static_cast<long long>(rows.row_stride));
}

OpCode CudaBackend::Embed(const EmbedParams& p) noexcept {
  const auto& table = *static_cast<const PackedWeight*>(p.table.impl);
  TM_CHECK(p.out.dtype == DType::kBf16 && p.out.columns == table.in_features,
           "out [.., %lld] %s of a table of %lld", static_cast<long long>(p.out.columns),
           DTypeName(p.out.dtype), static_cast<long long>(table.in_features));
  TM_CHECK(table.alone() != nullptr, "a table of parts in several forms");
  CheckPieces(p.out, "out");
  if (p.tokens == 0) return OpCode::kOk;
  const EmbedKernelParams kernel = {.token_ids = p.token_ids,
                                    .table = table.alone()->data,
                                    .out = p.out.data,
                                    .out_stride = p.out.row_stride,
                                    .tokens = p.tokens,
                                    .width = static_cast<int32_t>(table.in_features),
                                    .table_format = table.alone()->format,
                                    .column_order = table.alone()->column_order};
  return Queued(LaunchEmbed(kernel, runtime_->stream()), "the embedding");
}

OpCode CudaBackend::RopeTable(const RopeTableParams& p) noexcept {
  plans_.clear();
  if (p.tokens == 0) return OpCode::kOk;
  return Queued(LaunchRopeTable(p, runtime_->stream()), "the rotary table");
}

// What pages may hold.
OpCode CudaBackend::CheckPages(const KvLayerView& kv) {
  const Format& element = kv.format.element;
  if (kv.format.latent()) {
    if (element != DType::kBf16) {
      return Fail(OpCode::kUnsupported,
                  "latent pages of " + FormatName(element) + "; the CUDA backend has those of bf16");
    }
    if (!LatentAttentionSupported(kv.format.head_dim, kv.format.latent_value_dim)) {
      return Fail(OpCode::kUnsupported, NoLatentRows(kv.format.head_dim, kv.format.latent_value_dim));
    }
    return OpCode::kOk;
  }
  if (element == DType::kBf16) return OpCode::kOk;
  const bool fits = element == Format::BareFp8() ||
                    (element.in_groups() && IsKvElement(element) && element.block_log2 >= kMinKvGroupLog2);
  if (!fits || kv.format.head_dim % 16 != 0 || kv.format.head_dim % element.block_size() != 0) {
    return Fail(OpCode::kUnsupported,
                "pages of " + FormatName(element) + " with heads of " + std::to_string(kv.format.head_dim) +
                    "; the CUDA backend has bf16, fp8, and int8 and int4 in groups of 8 "
                    "to 128 that divide heads of a multiple of 16");
  }
  TM_CHECK(element.companion_bytes == 0 || kv.scale.scales != nullptr, "pages of %s without scales",
           FormatName(element).c_str());
  TM_CHECK(kv.page_bytes % 2 == 0 && kv.layer_offset % 2 == 0 && kv.value_offset % 2 == 0 &&
               kv.head_bytes % 2 == 0 && kv.token_bytes % 2 == 0,
           "pages whose rows are no pieces of 2 bytes");
  return OpCode::kOk;
}

OpCode CudaBackend::RopeAppend(const RopeAppendParams& p) noexcept {
  TM_CHECK(p.qkv.dtype == DType::kBf16, "qkv is %s", DTypeName(p.qkv.dtype));
  if (const OpCode code = CheckPages(p.kv); code != OpCode::kOk) return code;
  if (p.qkv.rows == 0) return OpCode::kOk;
  if (p.kv.format.element != DType::kBf16) CheckPieces(p.qkv, "qkv");
  if (p.sink_cos_sin != nullptr) {  // before the rows' queries are turned where they lie
    TM_CHECK(p.sink_query.dtype == DType::kBf16, "queries for sinks are %s", DTypeName(p.sink_query.dtype));
    if (const OpCode code = Queued(LaunchRopeSinkQuery(p, runtime_->stream()), "queries for sinks");
        code != OpCode::kOk)
      return code;
  }
  const int error = p.kv.format.element == DType::kBf16 ? LaunchRopeAppend(p, runtime_->stream())
                                                        : LaunchRopeAppendQuantised(p, runtime_->stream());
  return Queued(error, "the rotary embedding");
}

OpCode CudaBackend::Scatter(const ScatterParams& p) noexcept {
  if (p.count == 0) return OpCode::kOk;
  return Queued(LaunchScatter(p, runtime_->stream()), "changing what stays from step to step");
}

OpCode CudaBackend::CopyPages(const CopyPagesParams& p) noexcept {
  if (p.count == 0) return OpCode::kOk;
  return Queued(LaunchCopyPages(p, runtime_->stream()), "copying pages");
}

OpCode CudaBackend::GatherKv(const GatherKvParams& p) noexcept {
  const KvFormat& format = p.kv.format;
  const int64_t heads = int64_t{format.kv_heads} * p.repeat;
  TM_CHECK(IsKvElement(format.element) && Format(p.key.dtype).plain() && Format(p.value.dtype).plain(),
           "gathering %s as %s", FormatName(format.element).c_str(), DTypeName(p.key.dtype));
  TM_CHECK(p.key.columns == heads * format.head_dim && p.value.columns == heads * format.ValueDim(),
           "rows of %lld and %lld numbers for %lld heads", static_cast<long long>(p.key.columns),
           static_cast<long long>(p.value.columns), static_cast<long long>(heads));
  if (p.batch == 0) return OpCode::kOk;
  return Queued(LaunchGatherKv(p, runtime_->stream()), "gathering keys and values");
}

OpCode CudaBackend::Sample(const SampleParams& p) noexcept {
  TM_CHECK(p.logits.dtype == DType::kF32, "logits are %s", DTypeName(p.logits.dtype));
  TM_CHECK(p.logits.rows <= maxima_.logit_rows && p.logits.columns <= maxima_.vocab,
           "logits [%lld, %lld], beyond what was reserved", static_cast<long long>(p.logits.rows),
           static_cast<long long>(p.logits.columns));
  if (p.logits.rows == 0) return OpCode::kOk;
  const SampleKernelParams kernel = {
      .call = p,
      .adjusted = reinterpret_cast<float*>(workspace_ + map_.adjusted),
      .blocks = SampleBlocks(p.logits.rows, p.logits.columns, runtime_->properties().multiprocessors),
      .split = workspace_ + map_.split};
  return Queued(LaunchSample(kernel, runtime_->stream()), "sampling");
}

OpCode CudaBackend::Advance(const AdvanceParams& p) noexcept {
  if (p.count == 0) return OpCode::kOk;
  return Queued(LaunchAdvance(p, runtime_->stream()), "handing tokens to the next step");
}

// ---- recorded steps: the work lists that a recording reads are made inside it

OpCode CudaBackend::BeginRecording() noexcept {
  plans_.clear();
  free_before_ = runtime_->FreeBytes();
  const OpCode code = Queued(runtime_->BeginRecording(), "recording a step");
  recording_ = code == OpCode::kOk;
  return code;
}

OpCode CudaBackend::EndRecording(RecordingHandle* out) noexcept {
  plans_.clear();
  recording_ = false;
  int64_t launches = 0;
  const OpCode code = Queued(runtime_->EndRecording(&out->impl, &launches), "recording a step");
  if (code != OpCode::kOk) return code;
  ++recordings_;
  recorded_launches_ += launches;
  recordings_bytes_ += free_before_ - runtime_->FreeBytes();
  return code;
}

OpCode CudaBackend::Replay(RecordingHandle recording) noexcept {
  plans_.clear();
  return Queued(runtime_->Replay(recording.impl), "a recorded step");
}

// ---- linear layers, a segment of the weight at a time: 1 to 16 rows by our own kernel, more by a large
// product between small kernels, or of a weight in blocks by tiles, and where rows are many by a large
// product of each slice that is decoded

void CheckLinear(const LinearParams& p, const PackedWeight& weight) {
  const bool swiglu = p.epilogue == Epilogue::kSwiGlu;
  const int64_t columns = swiglu ? weight.out_features / 2 : weight.out_features;
  TM_CHECK(p.x.dtype == DType::kBf16 && p.x.columns == weight.in_features,
           "x [.., %lld] %s, the weight takes %lld", static_cast<long long>(p.x.columns),
           DTypeName(p.x.dtype), static_cast<long long>(weight.in_features));
  TM_CHECK(p.out.columns == columns && p.rows <= p.out.rows, "out [%lld, %lld] for %d rows of %lld",
           static_cast<long long>(p.out.rows), static_cast<long long>(p.out.columns), p.rows,
           static_cast<long long>(columns));
  TM_CHECK(p.out.dtype == DType::kBf16 || (p.out.dtype == DType::kF32 && p.epilogue == Epilogue::kNone),
           "%s out with an epilogue", DTypeName(p.out.dtype));
  TM_CHECK(swiglu == (weight.layout == LinearLayout::kGateUp), "SwiGLU and the gate-up layout go together");
  TM_CHECK(p.adapter_index == nullptr, "there are no adapters");
  CheckPieces(p.x, "x");
  if (swiglu) CheckPieces(p.out, "out");
  // Of other outputs, which may be of any width, what cuBLASLt is promised; few rows do without.
  TM_CHECK(BeginsAtAPiece(p.out), "out at %p, which is no multiple of 16 bytes", p.out.data);
}

// Whether every form that the weight stands in takes the norm with it.
bool FusesNorm(const PackedWeight& weight, int32_t rows) {
  return std::all_of(weight.segments.begin(), weight.segments.end(), [&](const Segment& segment) {
    SmallLinearParams small{};
    small.rows = rows;
    small.in_features = static_cast<int32_t>(weight.in_features);
    small.prologue = Prologue::kRmsNorm;
    small.weight_format = segment.format;
    return segment.column_order == nullptr &&
           rows <= (segment.format == DType::kBf16 ? kFusedNormRows : kFusedNormRowsOverBlocks) &&
           SmallLinearSupported(small);
  });
}

OpCode CudaBackend::Linear(const LinearParams& p) noexcept {
  const auto& weight = *static_cast<const PackedWeight*>(p.weight.impl);
  CheckLinear(p, weight);
  if (p.rows == 0) return OpCode::kOk;
  const bool apart = p.epilogue == Epilogue::kSwiGlu && weight.alone() == nullptr;
  return apart ? GateUpApart(p, weight) : LinearOfSegments(p, weight);
}

// Where gates and ups of these rows lie until SwiGLU.
Tensor CudaBackend::GateUpRows(const LinearParams& p) const {
  TM_CHECK(p.rows <= maxima_.tokens && p.out.columns <= maxima_.hidden,
           "%d rows of SwiGLU, beyond what was reserved", p.rows);
  return MakeTensor(workspace_ + map_.gate_up, DType::kBf16, p.rows, 2 * p.out.columns);
}

OpCode CudaBackend::SwiGluOf(const Tensor& gate_up, const LinearParams& p, bool apart) {
  const SwiGluKernelParams swiglu = {.gate_up = gate_up.data,
                                     .h = p.out.data,
                                     .h_stride = p.out.row_stride,
                                     .rows = p.rows,
                                     .width = static_cast<int32_t>(p.out.columns),
                                     .apart = apart};
  return Queued(LaunchSwiGlu(swiglu, runtime_->stream()), "SwiGLU");
}

// A product for gate and one for up, rounded to bf16 as ever, then SwiGLU.
OpCode CudaBackend::GateUpApart(const LinearParams& p, const PackedWeight& weight) {
  LinearParams product = p;
  product.epilogue = Epilogue::kNone;
  product.out = GateUpRows(p);
  if (const OpCode code = LinearOfSegments(product, weight); code != OpCode::kOk) return code;
  return SwiGluOf(product.out, p, /*apart=*/true);
}

OpCode CudaBackend::LinearOfSegments(const LinearParams& p, const PackedWeight& weight) {
  const bool norm_apart = p.prologue == Prologue::kRmsNorm && !FusesNorm(weight, p.rows);
  LinearParams prepared = p;
  prepared.x = MakeTensor(workspace_ + map_.normalised, DType::kBf16, p.rows, weight.in_features);
  prepared.x_rows = nullptr;
  prepared.prologue = Prologue::kNone;
  const Segment* prepared_for = nullptr;
  bool quantised = false;
  for (const Segment& segment : weight.segments) {
    if (const int plan = Fp8PlanFor(p, segment); plan != ProductPlans::kNotPlanned) {
      OpCode code = quantised ? OpCode::kOk : QuantiseRows(p);
      quantised = true;
      bool served = false;
      if (code == OpCode::kOk) code = Fp8Linear(p, segment, plan, &served);
      if (code != OpCode::kOk) return code;
      if (served) continue;
    }
    const bool as_they_are = segment.column_order == nullptr && !norm_apart;
    if (!as_they_are && (prepared_for == nullptr || prepared_for->column_order != segment.column_order)) {
      if (const OpCode code = PrepareRows(p, segment.column_order); code != OpCode::kOk) return code;
      prepared_for = &segment;
    }
    if (const OpCode code = LinearOf(as_they_are ? p : prepared, segment); code != OpCode::kOk) return code;
  }
  return OpCode::kOk;
}

// Rows of x by a kernel of their own: normalised, in the order of a weight's columns, or both.
OpCode CudaBackend::PrepareRows(const LinearParams& p, const int32_t* column_order) {
  TM_CHECK(p.rows <= std::max(maxima_.tokens, maxima_.logit_rows) && p.x.columns <= maxima_.hidden,
           "%d rows of %lld to normalise or to reorder, beyond what was reserved", p.rows,
           static_cast<long long>(p.x.columns));
  if (p.prologue == Prologue::kNone) {
    const GatherColumnsParams gather = {.x = p.x.data,
                                        .x_rows = p.x_rows,
                                        .column_order = column_order,
                                        .y = workspace_ + map_.normalised,
                                        .x_stride = p.x.row_stride,
                                        .rows = p.rows,
                                        .width = static_cast<int32_t>(p.x.columns)};
    return Queued(LaunchGatherColumns(gather, runtime_->stream()), "columns in another order");
  }
  const RmsNormKernelParams norm = {.x = p.x.data,
                                    .x_rows = p.x_rows,
                                    .weight = p.norm_weight,
                                    .y = workspace_ + map_.normalised,
                                    .x_stride = p.x.row_stride,
                                    .rows = p.rows,
                                    .width = static_cast<int32_t>(p.x.columns),
                                    .epsilon = p.norm_epsilon,
                                    .column_order = column_order};
  return Queued(LaunchRmsNorm(norm, runtime_->stream()), "a norm");
}

// The same in fp8.
OpCode CudaBackend::QuantiseRows(const LinearParams& p) {
  TM_CHECK(p.rows <= maxima_.tokens && p.x.columns <= maxima_.hidden,
           "%d rows of %lld in fp8, beyond what was reserved", p.rows, static_cast<long long>(p.x.columns));
  const QuantiseRowsParams rows = {.x = p.x.data,
                                   .x_rows = p.x_rows,
                                   .norm_weight = p.prologue == Prologue::kRmsNorm ? p.norm_weight : nullptr,
                                   .y = workspace_ + map_.quantised,
                                   .scales = XScales(),
                                   .x_stride = p.x.row_stride,
                                   .rows = p.rows,
                                   .width = static_cast<int32_t>(p.x.columns),
                                   .epsilon = p.norm_epsilon};
  return Queued(LaunchQuantiseRows(rows, runtime_->stream()), "rows in fp8");
}

// The call for the columns of the output that a segment makes.
LinearParams PartOf(const LinearParams& p, const Segment& weight) {
  LinearParams part = p;
  part.out.data = static_cast<std::byte*>(p.out.data) + Format(p.out.dtype).Bytes(weight.first_out);
  part.out.columns = p.epilogue == Epilogue::kSwiGlu ? weight.out_features / 2 : weight.out_features;
  return part;
}

OpCode CudaBackend::LinearOf(const LinearParams& p, const Segment& weight) {
  const LinearParams part = PartOf(p, weight);
  const SmallLinearParams small = {.x = p.x.data,
                                   .x_rows = p.x_rows,
                                   .norm_weight = p.norm_weight,
                                   .weight = weight.data,
                                   .out = part.out.data,
                                   .x_stride = p.x.row_stride,
                                   .out_stride = p.out.row_stride,
                                   .rows = p.rows,
                                   .in_features = static_cast<int32_t>(p.x.columns),
                                   .out_features = static_cast<int32_t>(weight.out_features),
                                   .epsilon = p.norm_epsilon,
                                   .prologue = p.prologue,
                                   .epilogue = p.epilogue,
                                   .out_dtype = p.out.dtype,
                                   .weight_format = weight.format,
                                   .row_scales = weight.row_scales};
  if (SmallLinearSupported(small))
    return Queued(LaunchSmallLinear(small, runtime_->stream()), "a linear layer");
  TM_CHECK(p.x_rows == nullptr, "rows are gathered by the norm");
  if (weight.format == DType::kBf16) return LargeLinear(part, weight);
  return DecodesSlices(part, weight) ? DecodedLinear(part, weight) : TileLinear(part, weight);
}

OpCode CudaBackend::TileLinear(const LinearParams& p, const Segment& weight) {
  TileLinearParams tiles{};
  tiles.weights[0] = weight.data;
  tiles.x = p.x.data;
  tiles.out = p.out.data;
  tiles.x_stride = p.x.row_stride;
  tiles.out_stride = p.out.row_stride;
  tiles.rows = p.rows;
  tiles.places_of_a_row = 1;
  tiles.in_features = static_cast<int32_t>(p.x.columns);
  tiles.out_features = static_cast<int32_t>(weight.out_features);
  tiles.epilogue = p.epilogue;
  tiles.out_dtype = p.out.dtype;
  tiles.weight_format = weight.format;
  tiles.row_scales = weight.row_scales;
  return Queued(LaunchTileLinear(tiles, runtime_->stream()), "a linear layer in tiles");
}

OpCode CudaBackend::LargeLinear(const LinearParams& p, const Segment& weight) {
  if (p.epilogue != Epilogue::kSwiGlu) return Multiply(p, weight, p.out);
  const Tensor gate_up = GateUpRows(p);
  if (const OpCode code = Multiply(p, weight, gate_up); code != OpCode::kOk) return code;
  return SwiGluOf(gate_up, p, /*apart=*/false);
}

// ---- weights that are decoded a slice at a time

bool CudaBackend::DecodesSlices(const LinearParams& p, const Segment& weight) const {
  if (p.rows < forms_.least_decoded_rows || weight.slice_plans == nullptr) return false;
  if (p.rows <= kTileLinearRows && weight.out_features >= forms_.tiled_outputs) return false;
  if (DecodedBytes(weight.slices.rows, p.x.columns) > map_.decoded_bytes) return false;
  if (p.epilogue != Epilogue::kSwiGlu && !BeginsAtAPiece(p.out)) return false;
  const int plan = ProductPlans::PlanOf(*weight.slice_plans, KindOf(p.epilogue, p.out.dtype), p.rows);
  return plan != ProductPlans::kNotPlanned;
}

// Rows [begin, begin + count) of a segment that is not bf16, begin being a multiple of 16.
Segment RowsOf(const Segment& weight, int64_t begin, int64_t count, int64_t in_features) {
  Segment rows = weight;
  rows.first_out = begin;
  rows.out_features = count;
  if (weight.row_scales != nullptr) {
    rows.row_scales += begin;
    rows.data += begin * in_features;
  } else {
    rows.data += UnitsBytes(weight.format, begin, in_features);
  }
  return rows;
}

OpCode CudaBackend::DecodedLinear(const LinearParams& p, const Segment& weight) {
  const bool swiglu = p.epilogue == Epilogue::kSwiGlu;
  LinearParams product = p;
  if (swiglu) {
    product.epilogue = Epilogue::kNone;
    product.out = GateUpRows(p);
  }
  for (int64_t i = 0; i < weight.slices.count; ++i) {
    const int64_t begin = i * weight.slices.rows;
    Segment slice = RowsOf(weight, begin, weight.slices.RowsOf(i), p.x.columns);
    if (i + 1 == weight.slices.count) slice.slice_plans = weight.last_slice_plans;
    if (const OpCode code = MultiplySlice(PartOf(product, slice), slice); code != OpCode::kOk) return code;
  }
  return swiglu ? SwiGluOf(product.out, p, /*apart=*/false) : OpCode::kOk;
}

// In tiles where the library has no product of these rows.
OpCode CudaBackend::MultiplySlice(const LinearParams& p, const Segment& slice) {
  const DecodeWeightParams decode = {.weight = slice.data,
                                     .out = workspace_ + map_.decoded,
                                     .rows = static_cast<int32_t>(slice.out_features),
                                     .in_features = static_cast<int32_t>(p.x.columns),
                                     .format = slice.format,
                                     .row_scales = slice.row_scales};
  if (const OpCode code = Queued(LaunchDecodeWeight(decode, runtime_->stream()), "decoding a weight");
      code != OpCode::kOk)
    return code;
  const MatmulParams product = {.x = p.x.data,
                                .weight = workspace_ + map_.decoded,
                                .out = p.out.data,
                                .x_stride = p.x.row_stride,
                                .out_stride = p.out.row_stride,
                                .rows = p.rows};
  const int plan = ProductPlans::PlanOf(*slice.slice_plans, KindOf(p.epilogue, p.out.dtype), p.rows);
  const int error = runtime_->Matmul(plan, product);
  return error == Runtime::kNoMatmul ? TileLinear(p, slice) : Queued(error, "a product of a decoded weight");
}

// ---- products of fp8 by fp8: where there is none, rows stay in bf16 and the weight is decoded

// How a segment is multiplied by rows in fp8; kNotPlanned: not so.
int CudaBackend::Fp8PlanFor(const LinearParams& p, const Segment& weight) const {
  if (weight.row_scales == nullptr || p.rows <= kSmallLinearRows || !BeginsAtAPiece(PartOf(p, weight).out))
    return ProductPlans::kNotPlanned;
  const int plan = ProductPlans::PlanOf(*weight.plans, KindOf(p.epilogue, p.out.dtype), p.rows);
  return plan != ProductPlans::kNotPlanned && runtime_->HasKernel(plan) ? plan : ProductPlans::kNotPlanned;
}

// Of the rows that were quantised last. `served` is false where the library refuses the very number of rows.
OpCode CudaBackend::Fp8Linear(const LinearParams& p, const Segment& weight, int plan, bool* served) {
  const LinearParams part = PartOf(p, weight);
  const bool swiglu = p.epilogue == Epilogue::kSwiGlu;
  const Tensor out = swiglu ? GateUpRows(part) : part.out;
  const MatmulParams product = {.x = workspace_ + map_.quantised,
                                .weight = weight.data,
                                .out = out.data,
                                .x_stride = p.x.columns,
                                .out_stride = out.row_stride,
                                .rows = p.rows,
                                .x_scales = XScales(),
                                .weight_scales = weight.row_scales};
  const int error = runtime_->Matmul(plan, product);
  *served = error != Runtime::kNoMatmul;
  if (!*served) return OpCode::kOk;
  const OpCode code = Queued(error, "a matrix product in fp8");
  return code == OpCode::kOk && swiglu ? SwiGluOf(out, part, /*apart=*/false) : code;
}

OpCode CudaBackend::Multiply(const LinearParams& p, const Segment& weight, const Tensor& out) {
  const int plan = ProductPlans::PlanOf(*weight.plans, KindOf(p.epilogue, out.dtype), p.rows);
  TM_CHECK(plan != ProductPlans::kNotPlanned, "a product of %d rows, beyond what was reserved", p.rows);
  if (!BeginsAtAPiece(out))
    return MultiplyInSlices(p, weight, out);  // a segment behind any number of outputs
  const MatmulParams params = {.x = p.x.data,
                               .weight = weight.data,
                               .out = out.data,
                               .x_stride = p.x.row_stride,
                               .out_stride = out.row_stride,
                               .rows = p.rows};
  const int error = runtime_->Matmul(plan, params);
  return error == Runtime::kNoMatmul ? MultiplyInSlices(p, weight, out) : Queued(error, "a matrix product");
}

// Where the device's library has no kernel, or is promised that outputs begin elsewhere: our own, as many
// rows at a time as it takes. It reads the weight once for each slice.
OpCode CudaBackend::MultiplyInSlices(const LinearParams& p, const Segment& weight, const Tensor& out) {
  const int64_t x_bytes = Format(p.x.dtype).Bytes(p.x.row_stride),
                out_bytes = Format(out.dtype).Bytes(out.row_stride);
  for (int32_t row = 0; row < p.rows; row += kSmallLinearRows) {
    SmallLinearParams slice{};
    slice.x = static_cast<const std::byte*>(p.x.data) + row * x_bytes;
    slice.weight = weight.data;
    slice.out = static_cast<std::byte*>(out.data) + row * out_bytes;
    slice.x_stride = p.x.row_stride;
    slice.out_stride = out.row_stride;
    slice.rows = std::min(kSmallLinearRows, p.rows - row);
    slice.in_features = static_cast<int32_t>(p.x.columns);
    slice.out_features = static_cast<int32_t>(weight.out_features);
    slice.epilogue = p.epilogue == Epilogue::kSwiGlu ? Epilogue::kNone : p.epilogue;  // which is apart here
    slice.out_dtype = out.dtype;
    TM_CHECK(SmallLinearSupported(slice), "rows of %d were packed, which have no kernel of our own",
             slice.in_features);
    if (const OpCode code =
            Queued(LaunchSmallLinear(slice, runtime_->stream()), "a slice of a matrix product");
        code != OpCode::kOk)
      return code;
  }
  return OpCode::kOk;
}

// ---- mixtures of experts

void CheckMoe(const MoeParams& p, const StepMaxima& maxima) {
  TM_CHECK(p.x.dtype == DType::kBf16 && p.out.dtype == DType::kBf16 && p.out.columns == p.x.columns,
           "x is %s, out is %s", DTypeName(p.x.dtype), DTypeName(p.out.dtype));
  TM_CHECK(p.rows <= maxima.tokens && p.x.columns <= maxima.hidden && p.experts <= maxima.experts &&
               p.experts_per_token <= maxima.experts_per_token && p.experts_per_token <= p.experts,
           "%d rows of %d of %d experts, beyond what was reserved", p.rows, p.experts_per_token, p.experts);
  TM_CHECK(p.epilogue != Epilogue::kSwiGlu, "a mixture ends plain or in an addition");
  CheckPieces(p.x, "x");
  CheckPieces(p.out, "out");
}

// A segment of an expert's weight, and what becomes of its product; no segment where the weight has fewer.
struct ExpertForm {
  const Segment* segment = nullptr;
  MoeOut out_kind = MoeOut::kF32;

  bool Joins(const ExpertForm& other) const {
    return segment != nullptr && other.segment != nullptr && out_kind == other.out_kind &&
           segment->format == other.segment->format;
  }
};

ExpertForm FormOf(const WeightHandle& handle, size_t index) {
  const auto& weight = *static_cast<const PackedWeight*>(handle.impl);
  if (index >= weight.segments.size()) return {};
  const MoeOut of_gates = weight.alone() != nullptr ? MoeOut::kSwiGlu
                          : index == 0              ? MoeOut::kGate
                                                    : MoeOut::kUp;
  return {&weight.segments[index], weight.layout == LinearLayout::kGateUp ? of_gates : MoeOut::kF32};
}

// Where any expert has its columns in an order of its own: rows of x for each pair in its expert's order.
// After it gemm.x is such rows.
OpCode CudaBackend::ReorderForExperts(const WeightHandle* weights, size_t index, void* reordered,
                                      MoeGemmParams* gemm) {
  MoeOrderParams order{};
  bool in_order = true;
  for (int32_t e = 0; e < gemm->experts; ++e) {
    const ExpertForm form = FormOf(weights[e], index);
    order.orders[e] = form.segment == nullptr ? nullptr : form.segment->column_order;
    in_order &= order.orders[e] == nullptr;
  }
  if (in_order) return OpCode::kOk;
  order.x = gemm->x;
  order.y = reordered;
  order.chosen = gemm->chosen;
  order.pairs = gemm->pairs;
  order.pairs_of_a_row = gemm->pairs_of_a_row;
  order.width = gemm->in_features;
  gemm->x = reordered;
  gemm->pairs_of_a_row = 1;
  return Queued(LaunchMoeOrder(order, runtime_->stream()), "experts' columns in order");
}

// A product with segment `index` of each expert's weight, if there is one: a launch for the experts of each
// form, which is one form but in rare files.
OpCode CudaBackend::MultiplyExperts(const WeightHandle* weights, size_t index, void* reordered,
                                    MoeGemmParams gemm, const char* what) {
  if (const OpCode code = ReorderForExperts(weights, index, reordered, &gemm); code != OpCode::kOk)
    return code;
  for (int32_t first = 0; first < gemm.experts; ++first) {
    const ExpertForm form = FormOf(weights[first], index);
    bool is_new = form.segment != nullptr;
    for (int32_t e = 0; is_new && e < first; ++e) is_new = !FormOf(weights[e], index).Joins(form);
    if (!is_new) continue;
    gemm.out_kind = form.out_kind;
    gemm.out_features = static_cast<int32_t>(form.segment->out_features);
    gemm.weight_format = form.segment->format;
    for (int32_t e = 0; e < gemm.experts; ++e) {
      const ExpertForm of_expert = FormOf(weights[e], index);
      gemm.weights[e] = of_expert.Joins(form) ? of_expert.segment->data : nullptr;
    }
    if (const OpCode code = Queued(LaunchMoeGemm(gemm, runtime_->stream()), what); code != OpCode::kOk)
      return code;
  }
  return OpCode::kOk;
}

// The products of a mixture, without what differs between its two.
MoeGemmParams CudaBackend::ExpertProducts(const MoeParams& p, int32_t intermediate) const {
  MoeGemmParams gemm{};
  gemm.rows = p.rows;
  gemm.pairs = p.rows * p.experts_per_token;
  gemm.experts = p.experts;
  gemm.chosen = reinterpret_cast<const int32_t*>(workspace_ + map_.moe_chosen);
  if (MoeIsSmall(p.rows, static_cast<int32_t>(p.x.columns), intermediate)) return gemm;
  gemm.order = reinterpret_cast<const int32_t*>(workspace_ + map_.moe_order);
  gemm.tiles = reinterpret_cast<const MoeTile*>(workspace_ + map_.moe_tiles);
  gemm.max_tiles = MoeTileBound(gemm.pairs, p.experts);
  return gemm;
}

OpCode CudaBackend::Route(const MoeParams& p, const MoeGemmParams& gemm) {
  const MoeRouteParams route = {.x = p.x.data,
                                .norm_weight = p.norm_weight,
                                .router = p.router,
                                .normalised = workspace_ + map_.normalised,
                                .chosen = reinterpret_cast<int32_t*>(workspace_ + map_.moe_chosen),
                                .shares = reinterpret_cast<float*>(workspace_ + map_.moe_shares),
                                .live_rows = p.live_rows,
                                .x_stride = p.x.row_stride,
                                .rows = p.rows,
                                .hidden = static_cast<int32_t>(p.x.columns),
                                .experts = p.experts,
                                .experts_per_token = p.experts_per_token,
                                .epsilon = p.norm_epsilon};
  const OpCode code = Queued(LaunchMoeRoute(route, runtime_->stream()), "choosing experts");
  if (code != OpCode::kOk || gemm.order == nullptr) return code;
  const MoeGroupParams group = {.chosen = gemm.chosen,
                                .order = reinterpret_cast<int32_t*>(workspace_ + map_.moe_order),
                                .tiles = reinterpret_cast<MoeTile*>(workspace_ + map_.moe_tiles),
                                .pairs = gemm.pairs,
                                .experts = p.experts,
                                .max_tiles = gemm.max_tiles};
  return Queued(LaunchMoeGroup(group, runtime_->stream()), "listing rows by expert");
}

OpCode CudaBackend::Moe(const MoeParams& p) noexcept {
  CheckMoe(p, maxima_);
  if (p.rows == 0) return OpCode::kOk;
  const auto& first = *static_cast<const PackedWeight*>(p.down[0].impl);
  const auto hidden = static_cast<int32_t>(first.out_features),
             intermediate = static_cast<int32_t>(first.in_features);
  TM_CHECK(hidden == p.x.columns && intermediate <= maxima_.expert_intermediate,
           "experts of %d by %d, beyond what was reserved", hidden, intermediate);
  MoeGemmParams gemm = ExpertProducts(p, intermediate);
  if (const OpCode code = Route(p, gemm); code != OpCode::kOk) return code;

  gemm.x = workspace_ + map_.normalised;
  gemm.out = workspace_ + map_.moe_inner;
  gemm.pairs_of_a_row = p.experts_per_token;
  gemm.in_features = hidden;
  // Outputs are made last: until then their memory has room for every pair's row in another order.
  void* const reordered = workspace_ + map_.moe_outer;
  OpCode code = MultiplyExperts(p.gate_up, 0, reordered, gemm, "experts' gates");
  if (code == OpCode::kOk) code = MultiplyExperts(p.gate_up, 1, reordered, gemm, "experts' gates");
  if (code != OpCode::kOk) return code;

  gemm.x = workspace_ + map_.moe_inner;
  gemm.out = workspace_ + map_.moe_outer;
  gemm.pairs_of_a_row = 1;
  gemm.in_features = intermediate;
  code = MultiplyExperts(p.down, 0, workspace_ + map_.moe_inner, gemm, "experts' outputs");
  if (code != OpCode::kOk) return code;

  const MoeCombineParams combine = {.y = reinterpret_cast<const float*>(workspace_ + map_.moe_outer),
                                    .shares = reinterpret_cast<const float*>(workspace_ + map_.moe_shares),
                                    .out = p.out.data,
                                    .live_rows = p.live_rows,
                                    .out_stride = p.out.row_stride,
                                    .rows = p.rows,
                                    .hidden = hidden,
                                    .experts_per_token = p.experts_per_token,
                                    .add = p.epilogue == Epilogue::kAddResidual};
  return Queued(LaunchMoeCombine(combine, runtime_->stream()), "summing experts");
}

// ---- attention: the work list of a (table, window, left) is made once a step

// Whether it may be a decode whose sequences share keys: what they do share the device finds. A window that
// is never split saves too little.
bool MayShare(const AttentionParams& p, AttentionKernels kernels, int32_t max_merges) {
  const bool has_kernels = kernels == AttentionKernels::kHopperDecode ||
                           kernels == AttentionKernels::kMmaSync || kernels == AttentionKernels::kByRow;
  return has_kernels && p.sinks.len == nullptr && p.mask.bits == nullptr && max_merges > 0 && p.batch > 1 &&
         p.query.rows <= p.batch && CanShare(p.query_heads / p.kv.format.kv_heads);
}

OpCode CudaBackend::PlanFor(const AttentionParams& p, const AttentionPlan** out) {
  const AttentionKernels kernels = ChooseAttention(p, runtime_->properties());
  const size_t kept = std::min(plans_.size(), kPlanSlots);
  for (size_t i = plans_.size() - kept; i < plans_.size(); ++i) {
    *out = &plans_[i];
    if (plans_[i].Serves(p, kernels)) return OpCode::kOk;
  }
  const int32_t kv_heads = p.kv.format.kv_heads, group = p.query_heads / kv_heads;
  const auto tokens = static_cast<int32_t>(p.query.rows);
  TM_CHECK(tokens <= maxima_.tokens && p.batch <= maxima_.sequences && kv_heads <= maxima_.kv_heads,
           "attention over %d tokens of %d sequences, beyond what was reserved", tokens, p.batch);
  std::byte* slot =
      workspace_ + map_.plans + static_cast<int64_t>(plans_.size() % kPlanSlots) * map_.plan_bytes;
  AttentionPlan plan;
  plan.page_indices = p.table.page_indices;
  plan.first_entry = p.table.first_entry;
  plan.kv_end = p.table.kv_end;
  plan.qo_indptr = p.qo_indptr;
  plan.left = p.sinks.left;
  plan.by_mask = p.mask.bits != nullptr;
  plan.window = p.window;
  plan.batch = p.batch;
  plan.tokens = tokens;
  plan.kernels = kernels;
  const AttentionTiling tiling = TileAttention(p, kernels, runtime_->properties());
  plan.tile_rows = tiling.tile_rows;
  plan.max_items = tiling.max_items;
  plan.items = reinterpret_cast<AttentionItem*>(slot);
  plan.merges = reinterpret_cast<AttentionMerge*>(slot + map_.plan_merges);
  plan.work = reinterpret_cast<AttentionWork*>(slot + map_.plan_work);
  AttentionSharers* sharers = nullptr;
  if (MayShare(p, kernels, tiling.max_merges)) {
    sharers = reinterpret_cast<AttentionSharers*>(slot + map_.plan_sharers);
    plan.shares = reinterpret_cast<AttentionShare*>(slot + map_.plan_shares);
    plan.max_items = SharingItemBound(plan.max_items, p.batch, p.window);
    const int64_t key_and_value_bytes =
        p.kv.format.LayerBytes() / (int64_t{kv_heads} * p.kv.format.page_size);
    const OpCode code =
        Queued(FindAttentionSharers({.table = p.table,
                                     .qo_indptr = p.qo_indptr,
                                     .batch = p.batch,
                                     .page_size = p.kv.format.page_size,
                                     .window = p.window,
                                     .group = group,
                                     .least_tiles = LeastTilesSaved(kv_heads, key_and_value_bytes),
                                     .sharers = sharers},
                                    runtime_->stream()),
               "finding who shares keys");
    if (code != OpCode::kOk) return code;
  }
  const AttentionPlanParams params = {.kv_base = p.table.kv_base,
                                      .kv_end = p.table.kv_end,
                                      .qo_indptr = p.qo_indptr,
                                      .batch = p.batch,
                                      .window = p.window,
                                      .group = group,
                                      .tile_rows = plan.tile_rows,
                                      .kv_heads = kv_heads,
                                      .target_blocks = tiling.target_blocks,
                                      .max_items = plan.max_items,
                                      .items = plan.items,
                                      .merges = plan.merges,
                                      .work = plan.work,
                                      .left = p.sinks.left,
                                      .by_mask = plan.by_mask,
                                      .sharers = sharers,
                                      .shares = plan.shares};
  plans_.push_back(plan);
  *out = &plans_.back();
  return Queued(PlanAttention(params, runtime_->stream()), "planning attention");
}

// A map is made once a pool, and kept; a pool that comes to lie where another one did finds its own.
OpCode CudaBackend::MapOfPool(const KvLayerView& kv, TensorMap* map) {
  for (const PoolMap& known : pool_maps_) {
    if (known.Describes(kv)) {
      *map = known.map;
      return OpCode::kOk;
    }
  }
  PoolMap made{.pool = kv.pool, .page_bytes = kv.page_bytes, .format = kv.format, .map = {}};
  if (const OpCode code = Queued(MakePoolMap(kv, &made.map), "a map of the pages"); code != OpCode::kOk)
    return code;
  if (pool_maps_.size() == kMostPoolMaps) pool_maps_.erase(pool_maps_.begin());
  pool_maps_.push_back(made);
  *map = made.map;
  return OpCode::kOk;
}

OpCode CudaBackend::Attention(const AttentionParams& p) noexcept {
  TM_CHECK(p.query.dtype == DType::kBf16 && p.out.dtype == DType::kBf16, "attention of %s queries to %s",
           DTypeName(p.query.dtype), DTypeName(p.out.dtype));
  if (const OpCode code = CheckPages(p.kv); code != OpCode::kOk) return code;
  if (p.query.rows == 0 || p.batch == 0) return OpCode::kOk;
  CheckPieces(p.query, "query");
  CheckPieces(p.out, "out");
  TM_CHECK(p.kv.format.element != DType::kBf16 ||
               (IsOfPieces(p.kv.page_bytes) && IsOfPieces(p.kv.layer_offset) &&
                IsOfPieces(p.kv.value_offset) && IsOfPieces(p.kv.head_bytes) && IsOfPieces(p.kv.token_bytes)),
           "pages whose keys are no pieces of 16 bytes");
  if (p.kv.format.latent() && (p.sinks.len != nullptr || p.table.sink_entry != nullptr)) {
    return Fail(OpCode::kUnsupported, "rows that see sinks in latent pages have no kernel");
  }
  const int32_t group = p.query_heads / p.kv.format.kv_heads;
  if (!p.kv.format.latent() && !AttentionSupported(DType::kBf16, p.kv.format.head_dim, group)) {
    return Fail(OpCode::kUnsupported, NoHeads(p.kv.format.head_dim, group));
  }
  const bool by_windows = p.sinks.len == nullptr && p.mask.bits == nullptr;
  if (by_windows || !p.plain.any()) return Attend(p);
  TM_CHECK(p.plain.sequences <= p.batch && p.plain.tokens <= p.query.rows,
           "%d plain sequences of %d tokens, in all there are %d of %lld", p.plain.sequences, p.plain.tokens,
           p.batch, static_cast<long long>(p.query.rows));
  const OpCode code = Attend(PlainPart(p));
  return code == OpCode::kOk ? Attend(OtherPart(p)) : code;
}

OpCode CudaBackend::Attend(const AttentionParams& p) {
  if (p.query.rows == 0 || p.batch == 0) return OpCode::kOk;
  const AttentionPlan* plan = nullptr;
  if (const OpCode code = PlanFor(p, &plan); code != OpCode::kOk) return code;
  AttentionRunParams run = RunParamsOf(p);
  run.items = plan->items;
  run.merges = plan->merges;
  run.work = plan->work;
  run.shares = plan->shares;
  run.partial_out = reinterpret_cast<float*>(workspace_ + map_.partial_out);
  run.partial_lse = reinterpret_cast<float*>(workspace_ + map_.partial_lse);
  run.tile_rows = plan->tile_rows;
  run.max_items = plan->max_items;
  run.parts_done = reinterpret_cast<int32_t*>(workspace_ + map_.parts_done);
  if (plan->kernels == AttentionKernels::kLatent)
    return Queued(RunLatentAttention({.run = run, .mask = p.mask}, runtime_->stream()), "latent attention");
  if (plan->kernels == AttentionKernels::kMmaSync)
    return Queued(RunAttention(run, runtime_->stream()), "attention");
  if (plan->kernels != AttentionKernels::kByRow) {
    HopperAttentionParams hopper{};
    if (const OpCode code = MapOfPool(p.kv, &hopper.pool); code != OpCode::kOk) return code;
    hopper.run = run;
    hopper.blocks = runtime_->properties().multiprocessors;
    return Queued(plan->kernels == AttentionKernels::kHopperPrefill
                      ? RunHopperPrefill(hopper, runtime_->stream())
                      : RunHopperDecode(hopper, runtime_->stream()),
                  "attention of sm_90a");
  }
  if (p.sinks.len != nullptr) {
    TM_CHECK(p.sinks.query.dtype == DType::kBf16, "queries for sinks are %s", DTypeName(p.sinks.query.dtype));
    CheckPieces(p.sinks.query, "queries for sinks");
  }
  const AttentionByRowParams by_row = {.run = run, .sinks = p.sinks, .mask = p.mask};
  return Queued(RunAttentionByRow(by_row, runtime_->stream()), "attention by row");
}

}  // namespace

BackendPtr MakeCudaBackend(std::unique_ptr<Runtime> runtime, const CudaBackendOptions& options) {
  return BackendPtr(new CudaBackend(std::move(runtime), options));
}

}  // namespace tramontane::cuda
