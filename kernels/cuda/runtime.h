// Runtime: what the CUDA backend asks of a device beyond its own kernels: memory, copies, fences, recorded
// steps and large matrix products. Two of them: cuda_runtime.cc (the CUDA runtime and cuBLASLt) and
// emulator/emulated_runtime.cc (the host), so that one CudaBackend is proved on machines without a GPU.
//
// One thread at a time, like the backend. There are two streams; what is queued on one runs in order and
// perhaps later, and waits for the other only where it is told to. An int result is 0 or an error that
// ErrorText explains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"

namespace tramontane::cuda {

struct DeviceProperties {
  std::string name;
  int64_t memory_bytes = 0;  // free when the runtime was made
  int32_t multiprocessors = 0;
  int64_t shared_bytes = 0;           // shared memory of a multiprocessor
  int64_t shared_bytes_reserved = 0;  // of it, that a block takes besides its own
  bool hopper = false;                // compute capability 9.0: wgmma and TMA
  bool fp8_products = false;          // Matmul of fp8 by fp8, with a scale for each row of both
  std::string why_no_fp8_products;    // where it is false: "the device has .."
};

// What a matrix product does with its result: f32 sums, one rounding at the end.
enum class MatmulOut : int32_t {
  kBf16 = 0,     // out = y
  kBf16Add = 1,  // out += y, rounded once after the addition
  kF32 = 2,      // out = y, not rounded
};

// What x and W are.
enum class MatmulIn : int32_t {
  kBf16 = 0,
  kFp8 = 1,  // e4m3, each row of either times a scale: y[r][n] = x_scales[r] weight_scales[n] (sum over k)
};

// A family of products y [rows, out_features] = x [rows, in_features] W^T with W [out_features, in_features],
// all row-major, for every row count in [min_rows, max_rows].
struct MatmulShape {
  int32_t min_rows = 0;
  int32_t max_rows = 0;
  int64_t in_features = 0;   // a multiple of 8, in fp8 of 16
  int64_t out_features = 0;  // any, in fp8 a multiple of 16
  MatmulOut out = MatmulOut::kBf16;
  MatmulIn in = MatmulIn::kBf16;  // kFp8 where the device has fp8_products
};

struct MatmulParams {
  const void* x = nullptr;       // [rows, in_features], rows x_stride elements apart, 16-byte aligned
  const void* weight = nullptr;  // [out_features, in_features], 16-byte aligned
  void* out = nullptr;           // [rows, out_features], rows out_stride elements apart, 16-byte aligned
  int64_t x_stride = 0;
  int64_t out_stride = 0;
  int32_t rows = 0;
  // Of fp8, 16-byte aligned.
  const float* x_scales = nullptr;       // [rows]
  const float* weight_scales = nullptr;  // [out_features]
};

// Steps: whatever is launched, and the copies that belong to it. Moves: copies of pages beside them.
enum class WhichStream : int32_t { kSteps = 0, kMoves = 1 };

class Runtime {
 public:
  static constexpr int kEvents = 64;
  static constexpr int kNoMatmul = -1;

  virtual ~Runtime() = default;
  virtual const DeviceProperties& properties() const = 0;
  virtual std::string ErrorText(int error) const = 0;

  // ---- outside of steps: null when there is not enough, or while a step is recorded
  virtual void* Allocate(int64_t bytes) = 0;  // device memory, zero-filled, 256-byte aligned
  virtual void Free(void* memory) = 0;        // waits for what is queued on either stream
  virtual void* AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(void* memory) = 0;
  virtual int64_t FreeBytes() = 0;  // of device memory, now

  // Settles how products of this family run; no device work. A plan's number. Where no one kernel serves the
  // family, each row count finds its own when it first comes.
  virtual int PlanMatmul(const MatmulShape& shape) = 0;
  // Of a plan: no kernel serves the whole family.
  virtual bool HasKernel(int plan) const = 0;

  // ---- tuning: for whoever would rather time a plan's candidates than trust the library's order
  // Device and library: what a candidate's name holds for. Not empty, and no blank in it.
  virtual const std::string& tuning_key() const = 0;
  // Names of kernels that may serve the whole family, the library's best guess first. No blank in them.
  virtual std::vector<std::string> MatmulCandidates(int plan) = 0;
  // From now on the plan goes by this candidate. False: it does not serve the family here, and nothing
  // changed.
  virtual bool ChooseMatmul(int plan, const std::string& candidate) = 0;
  // A clock that candidates are timed by.
  virtual int64_t NowNs() = 0;

  // ---- queued on either stream
  virtual int CopyToDevice(void* device, const void* host, int64_t bytes, WhichStream on) = 0;
  virtual int CopyToHost(void* host, const void* device, int64_t bytes, WhichStream on) = 0;
  // What is queued on kMoves from now on begins when all that was queued on kSteps before this event's latest
  // RecordEvent is done.
  virtual int HoldMoves(int event) = 0;
  // What is queued on kSteps from now on begins when all that was queued on kMoves is done. Refused while a
  // step is recorded.
  virtual int AwaitMoves() = 0;

  // ---- queued on kSteps
  virtual void* stream() = 0;  // what launches are given
  // kNoMatmul: there is no kernel for this very product, and nothing was queued.
  virtual int Matmul(int plan, const MatmulParams& params) = 0;
  virtual int RecordEvent(int event) = 0;  // 0..kEvents-1
  // Waits for all that is queued on either stream and returns its error; to find the op that a fault is of.
  // Refused while a step is recorded.
  virtual int Synchronize() = 0;

  // ---- waiting: refused while a step is recorded
  virtual int WaitEvent(int event) = 0;  // until everything queued before its latest RecordEvent is done

  // ---- recorded steps: what is queued between Begin and End is kept instead of run
  virtual int BeginRecording() = 0;
  virtual int EndRecording(void** recording, int64_t* launches) = 0;  // how many it has
  virtual int Replay(void* recording) = 0;                            // queues it
  virtual void FreeRecording(void* recording) = 0;
};

}  // namespace tramontane::cuda
