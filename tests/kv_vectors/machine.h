// Where cases run: a backend, what it stores and computes in, and its memory. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/status.h"

namespace tramontane::kv_vectors {

struct Machine {
  BackendPtr backend;
  DType cache = DType::kF32;  // of pages that the case leaves to the backend
  bool is_cpu = true;         // and so has no limits

  DType activation() const { return backend->info().activation_dtype; }
  // Whether attention computes in f32 over an f32 cache.
  bool exact() const { return activation() == DType::kF32 && cache == DType::kF32; }
};

// "cpu", "emulator" (the CUDA kernels on the host), "cuda" (a GPU).
StatusOr<Machine> MakeMachine(std::string_view name);

// Memory of a machine, filled from the host. Freed with it.
class DeviceBytes {
 public:
  DeviceBytes(Machine& machine, const void* host, int64_t bytes);
  ~DeviceBytes() { machine_.backend->Free(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::byte* data() const { return data_; }
  void Download(void* host, int64_t bytes) const;

 private:
  Machine& machine_;
  std::byte* data_;
};

template <typename T>
class DeviceList {
 public:
  DeviceList(Machine& machine, const std::vector<T>& values)
      : size_(values.size()),
        bytes_(machine, values.data(), static_cast<int64_t>(values.size() * sizeof(T))) {}

  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  std::vector<T> Get() const {
    std::vector<T> values(size_);
    bytes_.Download(values.data(), static_cast<int64_t>(size_ * sizeof(T)));
    return values;
  }

 private:
  size_t size_;
  DeviceBytes bytes_;
};

// Numbers in a plain type, rounded once.
class DeviceNumbers {
 public:
  DeviceNumbers(Machine& machine, DType dtype, const std::vector<double>& values);

  DType dtype() const { return dtype_; }
  std::byte* data() const { return bytes_.data(); }
  Tensor Rows(int64_t rows, int64_t columns) const {
    return MakeTensor(bytes_.data(), dtype_, rows, columns);
  }
  std::vector<double> Get() const;

 private:
  DType dtype_;
  int64_t size_;
  DeviceBytes bytes_;
};

// Numbers as bytes of a plain type, and back.
std::vector<std::byte> EncodeNumbers(DType dtype, const std::vector<double>& values);
std::vector<double> DecodeNumbers(DType dtype, const std::vector<std::byte>& bytes);

// What an op said, as an error of the case.
Status OpStatus(const Machine& machine, OpCode code, const char* op);

}  // namespace tramontane::kv_vectors
