// A linear layer of the CUDA backend beside its definition, whatever its weight is stored in, and the device
// that such tests run on.
// One thread; fails the test that calls it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace tramontane {

// A backend, and memory that goes with the test.
struct CudaTestDevice {
  explicit CudaTestDevice(BackendPtr made) : backend(std::move(made)) {}
  ~CudaTestDevice() {
    for (void* block : memory) backend->Free(block);
  }
  CudaTestDevice(const CudaTestDevice&) = delete;
  CudaTestDevice& operator=(const CudaTestDevice&) = delete;

  template <typename T>
  T* Allocate(size_t count) {
    memory.push_back(backend->Allocate(static_cast<int64_t>(count * sizeof(T))));
    return static_cast<T*>(memory.back());
  }
  void Wait() { ASSERT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk) << backend->last_error(); }
  template <typename T>
  void Write(T* to, const std::vector<T>& values) {
    ASSERT_EQ(backend->Upload(to, values.data(), static_cast<int64_t>(values.size() * sizeof(T))),
              OpCode::kOk);
    Wait();
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* to = Allocate<T>(values.size());
    Write(to, values);
    return to;
  }
  template <typename T>
  std::vector<T> Read(const T* from, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(backend->Download(values.data(), from, static_cast<int64_t>(count * sizeof(T))), OpCode::kOk);
    Wait();
    return values;
  }

  BackendPtr backend;
  bool rounds_before_adding = false;  // ProductsAreRoundedBeforeTheyAreAdded(), of its library
  std::vector<void*> memory;
};

// Normally distributed numbers of this deviation, as bf16.
std::vector<uint16_t> RandomBf16(int64_t count, uint64_t seed, float scale = 1.0f);

struct CudaLinearCase {
  int32_t rows = 0;
  int64_t in = 0;
  int64_t part_rows = 0;  // of each of the weight's two parts
  Prologue prologue = Prologue::kNone;
  Epilogue epilogue = Epilogue::kNone;
  DType out_dtype = DType::kBf16;
};

// Runs the case over a weight that is packed, kGateUp for SwiGLU, and whose values in products are
// `weight_values` [2 part_rows, in]. With a norm the rows of x are gathered.
void ExpectLinearAgrees(CudaTestDevice& device, const CudaLinearCase& c, WeightHandle weight,
                        const std::vector<float>& weight_values);

}  // namespace tramontane
