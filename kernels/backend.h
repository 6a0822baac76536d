// Backend: the ops and the memory of one device. This page is the table of contents of kernels/.
//
// Owner: the engine thread (the loading thread before it starts). No method may be called from two threads at
// once. A backend may live in its own shared library: only plain structs, pointers and OpCode cross this
// border, no exception and no standard-library type.
//
// Device and host: pointers inside params structs are device memory (from Allocate) unless a comment says
// host. Ops are queued in order and may run later; nothing returns data to the host but Download and
// MovePages, and their bytes may be read only after WaitFence on a fence recorded behind the one, or behind
// AwaitMoves for the other. The CPU backend runs each op before it returns. No op allocates: Reserve() takes
// what the largest step needs. Sizes passed by value are maxima of the batch (what a captured graph would
// fix); rows beyond the live ones are padding and harmless: slot -1, no token.
//
// Numerics: kernels/README.md is the contract; tests hold every backend to tests/reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/attention.h"
#include "kernels/core/tensor.h"
#include "kernels/paged_kv.h"
#include "kernels/sampling.h"
#include "kernels/weight.h"

namespace tramontane {

// Raised whenever a struct or a method of this border changes.
inline constexpr uint32_t kBackendAbiVersion = 18;

enum class OpCode : int32_t {
  kOk = 0,
  kOutOfMemory = 1,  // the caller asked for more than there is
  kUnsupported = 2,  // a shape or dtype this backend has no kernel for: said at load, never in a step
  kDeviceFault = 3,  // the device is lost; the process must end its streams and stop
};

struct BackendInfo {
  const char* name = "";                 // "cpu"
  const char* variant = "";              // "avx2", "avx512", "amx_bf16", "portable", ...
  DType activation_dtype = DType::kF32;  // of the residual stream and every activation
  int32_t threads = 1;
  int64_t memory_bytes = 0;  // of the device, as much as this process may use
  // 1: ops run after they return, so a step can be queued while the one before it runs.
  int32_t asynchronous = 0;
  int32_t records_steps = 0;  // 1: BeginRecording and its kin work
};

// A recorded step, owned by the backend until Backend::FreeRecording. Opaque outside the backend.
struct RecordingHandle {
  void* impl = nullptr;
};

// The largest step that ops will be asked for.
struct StepMaxima {
  int32_t tokens = 0;      // rows of Embed, Linear, RopeAppend
  int32_t sequences = 0;   // batch of Attention
  int32_t logit_rows = 0;  // rows of Sample
  int32_t hidden = 0;      // widest in_features of any Linear
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab = 0;
  int64_t context = 0;  // longest sequence in tokens
  // Rows by in_features of the largest weight of any Linear of which some rows are not plain; 0: there is
  // none. What a backend may want to make plain of one, rows of x being many.
  int64_t quantised_numbers = 0;
  // Where pages are quantised: as many as a step lists together in which one sequence is the longest and
  // others begin; 0: they are plain. What a backend may want to make plain of a layer. And tokens of a page.
  int64_t quantised_pages = 0;
  int32_t page_size = 0;
  // Of Moe; 0 where there are no experts.
  int32_t experts = 0;
  int32_t experts_per_token = 0;
  int32_t expert_intermediate = 0;
};

struct EmbedParams {
  const int32_t* token_ids = nullptr;  // [tokens]
  int32_t tokens = 0;
  WeightHandle table;  // packed [vocab, hidden]
  Tensor out;          // [tokens, hidden]
};

enum class Prologue : int32_t { kNone = 0, kRmsNorm = 1 };
enum class Epilogue : int32_t {
  kNone = 0,
  kAddResidual = 1,  // out += y
  kSwiGlu = 2,       // out = silu(gate) * up; the weight is packed as kGateUp
};

// out = epilogue(prologue(x) W^T).
struct LinearParams {
  Tensor x;                         // [rows of x, in_features]
  const int32_t* x_rows = nullptr;  // [rows] which rows of x to read; null: 0..rows-1
  int32_t rows = 0;                 // rows of out
  Prologue prologue = Prologue::kNone;
  const float* norm_weight = nullptr;  // [in_features] f32, for kRmsNorm
  float norm_epsilon = 0.0f;
  WeightHandle weight;  // packed [out_features, in_features]
  Epilogue epilogue = Epilogue::kNone;
  Tensor out;  // [rows, out_features], or [rows, out_features / 2] for kSwiGlu; activation dtype or f32
  const int32_t* adapter_index = nullptr;  // [rows] which adapter a row uses, -1 none; null: none has one
};

// Most experts of one Moe.
inline constexpr int32_t kMaxExperts = 256;

// A feed-forward layer of many experts, of which each row takes a few:
//
//   n = RMSNorm(x)                    unrounded for the router
//   scores = n router^T               f32, as are its weights
//   chosen = the experts_per_token largest scores; of equal ones the lower expert
//   share  = softmax of the chosen scores
//   y = sum over the chosen, in ascending expert, of share * (silu(gate n) * up n) down^T
//
// out = y, or out += y. The rows of one expert share a pass over its weights. `out` may be `x`.
struct MoeParams {
  Tensor x;  // [rows, hidden]
  int32_t rows = 0;
  // One number: rows from there on are padding, which no expert is asked for; their out stays as it was.
  const int32_t* live_rows = nullptr;  // null: none is
  const float* norm_weight = nullptr;  // [hidden]
  float norm_epsilon = 0.0f;
  const float* router = nullptr;  // [experts, hidden]
  int32_t experts = 0;            // 1 to kMaxExperts
  int32_t experts_per_token = 0;  // 1 to experts
  // Host arrays [experts], which outlive the model's recordings: an op that runs later reads them then.
  const WeightHandle* gate_up = nullptr;  // each packed [2 * intermediate, hidden], kGateUp
  const WeightHandle* down = nullptr;     // each packed [hidden, intermediate]
  Epilogue epilogue = Epilogue::kNone;    // or kAddResidual
  Tensor out = {};                        // [rows, hidden]
};

// Which elements of a head form a rotated pair. Settled per model when it is loaded.
enum class RotaryStyle : int32_t {
  kHalfSplit = 0,    // (i, i + head_dim / 2): Hugging Face files
  kInterleaved = 1,  // (2i, 2i + 1): Mistral's own files
};

// cos and sin of position * inverse_frequency, once per step and used by every layer. Angles in double
// precision. Models made for long contexts also scale their queries by where they stand:
// query_scale = 1 + query_scale_beta * ln(1 + floor(position / query_scale_positions)).
struct RopeTableParams {
  const int32_t* positions = nullptr;  // [tokens]
  int32_t tokens = 0;
  const double* inverse_frequency = nullptr;  // [head_dim / 2]
  int32_t half_dim = 0;                       // head_dim / 2
  float* cos_sin = nullptr;                   // [tokens, half_dim, 2] out
  double magnitude = 1.0;                     // times cos and sin
  float* query_scale = nullptr;               // [tokens] out; null: not wanted
  double query_scale_beta = 0.0;
  int32_t query_scale_positions = 1;  // > 0
};

// Rotates q in place and k, and writes k and v into their pages. Latent pages take k alone.
struct RopeAppendParams {
  Tensor qkv;                      // [tokens, (query_heads + Halves() * kv_heads) * head_dim]
  const float* cos_sin = nullptr;  // [tokens, head_dim / 2, 2]; null: nothing is turned
  RotaryStyle style = RotaryStyle::kHalfSplit;
  int32_t query_heads = 0;
  KvLayerView kv;
  const int64_t* slots = nullptr;      // [tokens] page * page_size + offset; < 0: write nothing
  const float* query_scale = nullptr;  // [tokens] times the rotated queries; null: 1
  // The queries once more, turned by other angles, for sink keys (AttentionSinks).
  const float* sink_cos_sin = nullptr;  // [tokens, head_dim / 2, 2]; null: not wanted
  Tensor sink_query = {};               // [tokens, query_heads * head_dim] out
};

// Keys and values out of their pages: row out_indptr[b] + i is the i-th token that sequence b's table lists
// from kv_base on, in the type of the tensors.
struct GatherKvParams {
  KvLayerView kv;
  PageTableView table;
  const int32_t* out_indptr = nullptr;  // [batch + 1] rows; as many as the tables list
  int32_t batch = 0;
  int32_t repeat = 1;  // output head h is kv head h / repeat
  Tensor key = {};     // [rows, kv_heads * repeat * head_dim] out
  Tensor value = {};   // [rows, kv_heads * repeat * ValueDim()] out
};

// out[index] = value, for numbers of 32 bits. What is kept on the device from step to step (page tables,
// changed logits) is brought up to date by this. No index twice.
struct ScatterParams {
  const int32_t* pairs = nullptr;  // [count, 2] (index, value)
  int32_t count = 0;
  int32_t* out = nullptr;
};

struct CopyPagesParams {
  std::byte* pool = nullptr;
  int64_t page_bytes = 0;
  const int32_t* pairs = nullptr;  // [count, 2] (from, to) page ids; no page is both
  int32_t count = 0;
};

// Whole pages to the host, or from there.
struct MovePagesParams {
  std::byte* pool = nullptr;
  int64_t page_bytes = 0;
  const PageMove* moves = nullptr;  // host [count], read before MovePages returns
  int32_t count = 0;
  // The last fence behind what wrote to these pages, or copies them; 0: nothing did. What was queued since
  // may be running meanwhile: it writes to none of them, and no row of it sees what is in one that is moved
  // in.
  uint64_t after = 0;
};

class Backend {
 public:
  virtual const BackendInfo& info() const = 0;
  // The reason of the last OpCode that was not kOk; "" when there is none. Valid until the next call.
  virtual const char* last_error() const = 0;
  // What a log should say of this device once weights are packed and memory is reserved: lines, or "". Valid
  // until the next call.
  virtual const char* remarks() const = 0;

  // ---- memory -----------------------------------------------------------------------------------

  // Zero-filled, 64-byte aligned; null when there is not enough.
  virtual void* Allocate(int64_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Host memory that Upload and Download run fastest from.
  virtual void* AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(void* memory) = 0;
  // Queued copies; the host side must stay untouched until a fence behind them has passed.
  virtual OpCode Upload(void* device, const void* host, int64_t bytes) = 0;
  virtual OpCode Download(void* host, const void* device, int64_t bytes) = 0;
  // A fence passes when everything queued before it is done, of moves those that were awaited.
  virtual uint64_t RecordFence() = 0;
  virtual OpCode WaitFence(uint64_t fence) = 0;

  // ---- pages between the pool and the host, beside the steps --------------------------------------

  // Queued in a queue of its own, in order; begins when `after` has passed, and holds up nothing else. Images
  // from AllocateHost, else the host may wait for them.
  virtual OpCode MovePages(const MovePagesParams& params) = 0;
  // What is queued from now on begins when all moves until now are done. Nobody waits but the device. Not
  // while a step is recorded: in front of its Replay.
  virtual OpCode AwaitMoves() = 0;

  // ---- before the first step --------------------------------------------------------------------

  // Bytes that PackLinear will take for such a source (its data pointers are not read). Pure.
  virtual int64_t PackedBytes(const LinearSource& source) const = 0;
  virtual OpCode PackLinear(const LinearSource& source, WeightHandle* out) = 0;
  virtual void FreeWeight(WeightHandle weight) = 0;
  // Bytes that Reserve will take. Pure.
  virtual int64_t WorkspaceBytes(const StepMaxima& maxima) const = 0;
  virtual OpCode Reserve(const StepMaxima& maxima) = 0;

  // Tuning, of backends that can choose among kernels by time; kUnsupported: there is nothing to choose. What
  // Tuning said before, of this device or others: taken before weights are packed. Text that is none of it is
  // refused.
  virtual OpCode UseTuning(const char*) { return OpCode::kUnsupported; }
  // Times what that text does not say of this device, and chooses. Seconds; between Reserve and the first
  // step.
  virtual OpCode Tune() { return OpCode::kUnsupported; }
  // Every choice that is known, a line each. Valid until the next call.
  virtual const char* Tuning() { return ""; }

  // ---- a step: about six calls a layer ----------------------------------------------------------

  virtual OpCode Embed(const EmbedParams& params) = 0;
  virtual OpCode RopeTable(const RopeTableParams& params) = 0;
  virtual OpCode Linear(const LinearParams& params) = 0;
  virtual OpCode Moe(const MoeParams& params) = 0;
  virtual OpCode RopeAppend(const RopeAppendParams& params) = 0;
  virtual OpCode Attention(const AttentionParams& params) = 0;
  virtual OpCode Sample(const SampleParams& params) = 0;
  virtual OpCode Advance(const AdvanceParams& params) = 0;
  virtual OpCode Scatter(const ScatterParams& params) = 0;
  virtual OpCode CopyPages(const CopyPagesParams& params) = 0;
  // Not part of a step: for whoever hands pages on.
  virtual OpCode GatherKv(const GatherKvParams&) { return OpCode::kUnsupported; }

  // ---- recorded steps: where info().records_steps is 1, else kUnsupported -------------------------

  // Ops between BeginRecording and EndRecording are kept instead of run, with the sizes and pointers they are
  // given; Replay queues them again in one call, over what the buffers hold by then. Ops of a step only:
  // nothing is allocated, waited for or copied to or from the host meanwhile. Each must have run before with
  // these sizes, since a device may load kernels when it first runs them. Buffers, weights and the workspace
  // outlive the recording.
  virtual OpCode BeginRecording() { return OpCode::kUnsupported; }
  virtual OpCode EndRecording(RecordingHandle*) { return OpCode::kUnsupported; }
  virtual OpCode Replay(RecordingHandle) { return OpCode::kUnsupported; }
  virtual void FreeRecording(RecordingHandle) {}

  // Ends the backend and everything it owns. Callers hold it in a BackendPtr.
  virtual void Destroy() = 0;

 protected:
  ~Backend() = default;
};

struct BackendDeleter {
  void operator()(Backend* backend) const {
    if (backend != nullptr) backend->Destroy();
  }
};
// What owns a backend, on the caller's side of the border.
using BackendPtr = std::unique_ptr<Backend, BackendDeleter>;

}  // namespace tramontane
