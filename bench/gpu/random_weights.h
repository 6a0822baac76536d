// A backend whose matrices hold random numbers whatever their source says, so that a benchmark of a large
// model needs no file of its size. Where there is a device that draws numbers itself, matrices of bf16 are
// made there; else rows come from one block in memory and are packed as any others are. Owns the other
// backend. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "bench/gpu/fill_normal.h"
#include "kernels/backend.h"
#include "tests/support/counting_backend.h"

namespace tramontane::gpu {

class RandomWeights final : public CountingBackend {
 public:
  // LaunchFillNormal, and done when it returns.
  using Fill = std::function<void(const FillNormalParams&)>;

  // Of a normal distribution, times `scale`. matrices: the format of all but tables: bf16; or, from memory,
  // fp8 in groups of 128, or Q4_0 or int4 in groups of 128, whose numbers are evenly distributed with the
  // same deviation. fill: into the memory of the other backend, which then takes no row of bf16 from the
  // host; null: there is no device.
  RandomWeights(BackendPtr inner, float scale, const Format& matrices = DType::kBf16, Fill fill = nullptr);

  // As of a model whose files say that its matrices are quantised.
  int64_t WorkspaceBytes(const StepMaxima& maxima) const override {
    return CountingBackend::WorkspaceBytes(WithMatrices(maxima));
  }
  OpCode Reserve(const StepMaxima& maxima) override { return CountingBackend::Reserve(WithMatrices(maxima)); }
  // REQUIRES: parts of bf16.
  OpCode PackLinear(const LinearSource& source, WeightHandle* out) override;
  OpCode GatherKv(const GatherKvParams& params) override { return inner_->GatherKv(params); }
  OpCode BeginRecording() override { return inner_->BeginRecording(); }
  OpCode EndRecording(RecordingHandle* out) override { return inner_->EndRecording(out); }
  OpCode Replay(RecordingHandle recording) override { return inner_->Replay(recording); }
  void FreeRecording(RecordingHandle recording) override { inner_->FreeRecording(recording); }
  void Destroy() override { delete this; }

 private:
  ~RandomWeights() = default;

  StepMaxima WithMatrices(StepMaxima maxima) const {
    constexpr int64_t kNumbers = int64_t{1} << 40;  // of the largest, which is not known yet
    if (!matrices_.plain()) maxima.quantised_numbers = kNumbers;
    return maxima;
  }

  BackendPtr inner_;
  const float scale_;
  const Format matrices_;
  const Fill fill_;
  uint64_t next_seed_ = 0;         // of fill_
  std::vector<uint16_t> bf16_;     // empty where there is fill_
  std::vector<std::byte> blocks_;  // of matrices_; empty where these are bf16
};

// bf16 numbers of a normal distribution times `scale`, from 65,536 that are drawn over and over.
std::vector<uint16_t> RandomBf16(int64_t count, float scale, uint64_t seed);

}  // namespace tramontane::gpu
