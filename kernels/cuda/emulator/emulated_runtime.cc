#include "kernels/cuda/emulator/emulated_runtime.h"

#include <cstdlib>
#include <cstring>

#include "kernels/core/check.h"

namespace tramontane::emulator {
namespace {

using cuda::MatmulIn;
using cuda::MatmulOut;
using cuda::MatmulParams;
using cuda::MatmulShape;

constexpr size_t kAlignment = 256;
constexpr uintptr_t kMatmulAlignment = 16;  // MatmulParams

// Number `index` of an operand.
float NumberAt(MatmulIn in, const void* numbers, int64_t index) {
  return in == MatmulIn::kBf16 ? Bf16ToFloat(static_cast<const uint16_t*>(numbers)[index])
                               : Fp8E4M3ToFloat(static_cast<const uint8_t*>(numbers)[index]);
}

// cuBLASLt's twin: every output is one f32 sum over ascending k, of fp8 times both scales, and one rounding.
void Multiply(const MatmulShape& shape, const MatmulParams& p) {
  const int64_t k_count = shape.in_features;
  std::vector<float> x_row(static_cast<size_t>(k_count));
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t k = 0; k < k_count; ++k)
      x_row[static_cast<size_t>(k)] = NumberAt(shape.in, p.x, r * p.x_stride + k);
    for (int64_t n = 0; n < shape.out_features; ++n) {
      float sum = 0.0f;
      for (int64_t k = 0; k < k_count; ++k)
        sum += x_row[static_cast<size_t>(k)] * NumberAt(shape.in, p.weight, n * k_count + k);
      if (shape.in == MatmulIn::kFp8) sum *= p.x_scales[r] * p.weight_scales[n];
      const int64_t at = r * p.out_stride + n;
      if (shape.out == MatmulOut::kF32) {
        static_cast<float*>(p.out)[at] = sum;
        continue;
      }
      uint16_t& place = static_cast<uint16_t*>(p.out)[at];
      if (shape.out == MatmulOut::kBf16Add) sum += Bf16ToFloat(place);
      place = FloatToBf16(sum);
    }
  }
}

}  // namespace

EmulatedRuntime::EmulatedRuntime() {
  properties_.name = "emulated";
  properties_.memory_bytes = int64_t{1} << 30;
  properties_.multiprocessors = 4;        // a small device: few empty blocks to run
  properties_.shared_bytes = 228 * 1024;  // as sm_90 has it
  properties_.shared_bytes_reserved = 1024;
  properties_.fp8_products = true;
}

EmulatedRuntime::~EmulatedRuntime() {
  TM_CHECK(live_allocations_ == 0, "%lld allocations were never freed",
           static_cast<long long>(live_allocations_));
}

std::string EmulatedRuntime::ErrorText(int error) const {
  return error == kRefusedWhileRecording ? "not allowed while a step is recorded"
                                         : "error " + std::to_string(error);
}

void* EmulatedRuntime::Allocate(int64_t bytes) {
  void* memory = nullptr;
  if (queue_.recording() || bytes > properties_.memory_bytes ||
      posix_memalign(&memory, kAlignment, static_cast<size_t>(bytes)) != 0) {
    return nullptr;
  }
  std::memset(memory, 0, static_cast<size_t>(bytes));
  ++live_allocations_;
  return memory;
}

void EmulatedRuntime::Free(void* memory) {
  if (memory == nullptr) return;
  TM_CHECK(!queue_.recording(), "memory is freed while a step is recorded");
  RunAll();
  std::free(memory);
  --live_allocations_;
}

int EmulatedRuntime::PlanMatmul(const MatmulShape& shape) {
  plans_.push_back({.shape = shape});
  return static_cast<int>(plans_.size()) - 1;
}

bool EmulatedRuntime::HasKernel(int plan) const {
  const MatmulShape& shape = plans_.at(static_cast<size_t>(plan)).shape;
  return refuses_ == nullptr || (!refuses_(shape, shape.min_rows) && !refuses_(shape, shape.max_rows));
}

bool EmulatedRuntime::ChooseMatmul(int plan, const std::string& candidate) {
  if (candidate.size() != 1 || candidate < "a" || candidate > "c") return false;
  plans_.at(static_cast<size_t>(plan)).candidate = candidate[0] - 'a';
  return true;
}

int EmulatedRuntime::CopyToDevice(void* device, const void* host, int64_t bytes, cuda::WhichStream on) {
  Queue(on, [=] { std::memcpy(device, host, static_cast<size_t>(bytes)); });
  return 0;
}

int EmulatedRuntime::CopyToHost(void* host, const void* device, int64_t bytes, cuda::WhichStream on) {
  Queue(on, [=] { std::memcpy(host, device, static_cast<size_t>(bytes)); });
  return 0;
}

int EmulatedRuntime::HoldMoves(int event) {
  const int64_t mark = event_marks_.at(static_cast<size_t>(event));
  Queue(cuda::WhichStream::kMoves, [this, mark] { queue_.RunUntil(mark); });
  return 0;
}

int EmulatedRuntime::AwaitMoves() {
  if (queue_.recording()) return kRefusedWhileRecording;
  queue_.Push([this, mark = moves_.queued()] { moves_.RunUntil(mark); });
  return 0;
}

void EmulatedRuntime::Queue(cuda::WhichStream on, CommandQueue::Command command) {
  (on == cuda::WhichStream::kSteps ? queue_ : moves_).Push(std::move(command));
  if (when_moves_run_ == Moves::kEarly) moves_.RunUntil(moves_.queued());
}

void EmulatedRuntime::RunAll() {
  queue_.RunUntil(queue_.queued());
  moves_.RunUntil(moves_.queued());
}

int EmulatedRuntime::Matmul(int plan, const MatmulParams& params) {
  const auto [shape, candidate] = plans_.at(static_cast<size_t>(plan));
  TM_CHECK(params.rows >= shape.min_rows && params.rows <= shape.max_rows,
           "%d rows, the plan is for %d to %d", params.rows, shape.min_rows, shape.max_rows);
  for (const void* operand : {params.x, params.weight, static_cast<const void*>(params.out)}) {
    TM_CHECK(reinterpret_cast<uintptr_t>(operand) % kMatmulAlignment == 0, "an operand at %p", operand);
  }
  if (shape.in == MatmulIn::kFp8) {
    TM_CHECK(properties_.fp8_products && shape.in_features % 16 == 0 && shape.out_features % 16 == 0,
             "a product of fp8, %lld by %lld", static_cast<long long>(shape.in_features),
             static_cast<long long>(shape.out_features));
    for (const float* scales : {params.x_scales, params.weight_scales}) {
      TM_CHECK(scales != nullptr && reinterpret_cast<uintptr_t>(scales) % kMatmulAlignment == 0,
               "scales at %p", static_cast<const void*>(scales));
    }
  }
  if (refuses_ != nullptr && refuses_(shape, params.rows)) return kNoMatmul;
  fp8_matmuls_ += shape.in == MatmulIn::kFp8 ? 1 : 0;
  now_ns_ += candidate_ns_.at(static_cast<size_t>(candidate));
  ++matmuls_;
  queue_.Push([shape = shape, params] { Multiply(shape, params); });
  return 0;
}

int EmulatedRuntime::RecordEvent(int event) {
  if (queue_.recording()) return kRefusedWhileRecording;
  event_marks_.at(static_cast<size_t>(event)) = queue_.queued();
  return 0;
}

int EmulatedRuntime::WaitEvent(int event) {
  if (queue_.recording()) return kRefusedWhileRecording;
  queue_.RunUntil(event_marks_.at(static_cast<size_t>(event)));
  return 0;
}

int EmulatedRuntime::Synchronize() {
  if (queue_.recording()) return kRefusedWhileRecording;
  RunAll();
  return 0;
}

int EmulatedRuntime::BeginRecording() {
  if (queue_.recording()) return kRefusedWhileRecording;
  queue_.BeginRecording();
  return 0;
}

int EmulatedRuntime::EndRecording(void** recording, int64_t* launches) {
  auto commands = std::make_unique<Recording>(queue_.EndRecording());
  *launches = std::ssize(*commands);
  *recording = commands.get();
  recordings_[*recording] = std::move(commands);
  return 0;
}

int EmulatedRuntime::Replay(void* recording) {
  if (queue_.recording()) return kRefusedWhileRecording;
  for (const CommandQueue::Command& command : *recordings_.at(recording)) queue_.Push(command);
  return 0;
}

int64_t EmulatedRuntime::FreeBytes() {
  int64_t commands = 0;
  for (const auto& [at, recording] : recordings_) commands += std::ssize(*recording);
  return properties_.memory_bytes - commands * kBytesOfRecordedCommand;
}

void EmulatedRuntime::FreeRecording(void* recording) { recordings_.erase(recording); }

}  // namespace tramontane::emulator
