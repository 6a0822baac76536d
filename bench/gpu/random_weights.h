// A backend whose matrices hold random numbers whatever their source says, so that a benchmark of a large
// model needs no file of its size: rows come from one block in memory and go to the device as any others do.
// Owns the other backend. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/support/counting_backend.h"

namespace tramontane::gpu {

class RandomWeights final : public CountingBackend {
 public:
  // Of a normal distribution, times `scale`. matrices: the format of all but tables, bf16 or Q4_0, whose
  // numbers are evenly distributed with the same deviation.
  RandomWeights(BackendPtr inner, float scale, const Format& matrices = DType::kBf16);

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

  BackendPtr inner_;
  const Format matrices_;
  std::vector<uint16_t> bf16_;
  std::vector<std::byte> q4_0_;
};

// bf16 numbers of a normal distribution times `scale`, from 65,536 that are drawn over and over.
std::vector<uint16_t> RandomBf16(int64_t count, float scale, uint64_t seed);

}  // namespace tramontane::gpu
