// EmulatedRuntime: the CUDA backend's Runtime on the host. Device memory is host memory, of the exact size
// asked for (an address sanitizer sees what lies beyond); nothing queued runs before somebody waits for it,
// on the stream for moves either; what the CUDA runtime forbids while a step is recorded (waiting,
// allocating) is refused here too. Tests only. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/cuda/emulator/command_queue.h"
#include "kernels/cuda/runtime.h"

namespace tramontane::emulator {

class EmulatedRuntime final : public cuda::Runtime {
 public:
  static constexpr int kRefusedWhileRecording = 1;
  static constexpr int64_t kBytesOfRecordedCommand = 1000;

  EmulatedRuntime();
  ~EmulatedRuntime() override;

  const cuda::DeviceProperties& properties() const override { return properties_; }
  std::string ErrorText(int error) const override;

  void* Allocate(int64_t bytes) override;
  void Free(void* memory) override;
  void* AllocateHost(int64_t bytes) override { return Allocate(bytes); }
  void FreeHost(void* memory) override { Free(memory); }
  // All that there is but what recordings take, kBytesOfRecordedCommand for each of their commands.
  int64_t FreeBytes() override;
  int PlanMatmul(const cuda::MatmulShape& shape) override;
  bool HasKernel(int plan) const override;
  // As cuBLASLt may: there is no kernel for products of which `refuses` is true.
  void RefuseMatmuls(std::function<bool(const cuda::MatmulShape& shape, int32_t rows)> refuses) {
    refuses_ = std::move(refuses);
  }

  const std::string& tuning_key() const override { return tuning_key_; }
  std::vector<std::string> MatmulCandidates(int) override { return {"a", "b", "c"}; }
  bool ChooseMatmul(int plan, const std::string& candidate) override;
  int64_t NowNs() override { return now_ns_; }
  // What products by candidate 0, 1, 2 take on this runtime's clock; nothing until then.
  void SetCandidateTimes(std::array<int64_t, 3> ns) { candidate_ns_ = ns; }
  // The candidate that a plan goes by, 0 at first.
  int CandidateOf(int plan) const { return plans_.at(static_cast<size_t>(plan)).candidate; }
  int64_t matmuls() const { return matmuls_; }          // queued so far
  int64_t fp8_matmuls() const { return fp8_matmuls_; }  // of them, of fp8 by fp8

  // When moves run: as late as what waits for them lets them, so that a wait that is missing is seen; or as
  // early as what they wait for lets them, before all steps that they need not wait for.
  enum class Moves { kLate, kEarly };
  void set_moves(Moves when) { when_moves_run_ = when; }

  int CopyToDevice(void* device, const void* host, int64_t bytes, cuda::WhichStream on) override;
  int CopyToHost(void* host, const void* device, int64_t bytes, cuda::WhichStream on) override;
  int HoldMoves(int event) override;
  int AwaitMoves() override;

  void* stream() override { return &queue_; }
  int Matmul(int plan, const cuda::MatmulParams& params) override;
  int RecordEvent(int event) override;
  int WaitEvent(int event) override;
  int Synchronize() override;

  int BeginRecording() override;
  int EndRecording(void** recording, int64_t* launches) override;
  int Replay(void* recording) override;
  void FreeRecording(void* recording) override;

  int64_t live_allocations() const { return live_allocations_; }
  // A device of another size.
  void set_multiprocessors(int32_t count) { properties_.multiprocessors = count; }
  // A device of compute capability 9.0, or one before it: whose kernels there are.
  void set_hopper(bool hopper) { properties_.hopper = hopper; }
  // A device without products of fp8 by fp8, and why.
  void set_no_fp8_products(std::string why) {
    properties_.fp8_products = false;
    properties_.why_no_fp8_products = std::move(why);
  }

 private:
  using Recording = std::vector<CommandQueue::Command>;

  void Queue(cuda::WhichStream on, CommandQueue::Command command);
  void RunAll();

  cuda::DeviceProperties properties_;
  CommandQueue queue_;
  CommandQueue moves_;
  Moves when_moves_run_ = Moves::kLate;
  std::array<int64_t, kEvents> event_marks_{};
  struct Plan {
    cuda::MatmulShape shape;
    int candidate = 0;
  };

  const std::string tuning_key_ = "emulated";
  std::array<int64_t, 3> candidate_ns_{};
  int64_t now_ns_ = 0;
  int64_t matmuls_ = 0;
  int64_t fp8_matmuls_ = 0;
  std::vector<Plan> plans_;
  std::function<bool(const cuda::MatmulShape& shape, int32_t rows)> refuses_;  // null: nothing
  std::unordered_map<void*, std::unique_ptr<Recording>> recordings_;
  int64_t live_allocations_ = 0;
};

}  // namespace tramontane::emulator
