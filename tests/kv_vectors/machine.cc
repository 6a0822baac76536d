#include "tests/kv_vectors/machine.h"

#include <cstring>
#include <utility>

#include "kernels/backends/cpu_backend.h"
#include "kernels/core/format.h"
#include "server/setup/cuda_loader.h"
#include "tests/support/cuda_device.h"

namespace tramontane::kv_vectors {

StatusOr<Machine> MakeMachine(std::string_view name) {
  constexpr int32_t kThreads = 2;
  Machine machine;
  if (name == "cpu") {
    TM_ASSIGN_OR_RETURN(machine.backend, MakeCpuBackend({.threads = kThreads, .variant = ""}));
    return machine;
  }
  machine.is_cpu = false;
  machine.cache = DType::kBf16;
  if (name == "emulator") {
    machine.backend = MakeCudaTestBackend();
    return machine;
  }
  if (name == "cuda") {
    TM_ASSIGN_OR_RETURN(machine.backend, OpenCudaBackend(CudaLibraryPath()));
    return machine;
  }
  return InvalidArgument("--backend is '" + std::string(name) + "', not cpu, emulator or cuda");
}

DeviceBytes::DeviceBytes(Machine& machine, const void* host, int64_t bytes)
    : machine_(machine), data_(static_cast<std::byte*>(machine.backend->Allocate(bytes))) {
  TM_CHECK(data_ != nullptr, "no device memory for %lld bytes", static_cast<long long>(bytes));
  const OpCode code = machine.backend->Upload(data_, host, bytes);
  TM_CHECK(code == OpCode::kOk, "%s", machine.backend->last_error());
  const OpCode waited = machine.backend->WaitFence(machine.backend->RecordFence());
  TM_CHECK(waited == OpCode::kOk, "%s", machine.backend->last_error());
}

void DeviceBytes::Download(void* host, int64_t bytes) const {
  OpCode code = machine_.backend->Download(host, data_, bytes);
  if (code == OpCode::kOk) code = machine_.backend->WaitFence(machine_.backend->RecordFence());
  TM_CHECK(code == OpCode::kOk, "%s", machine_.backend->last_error());
}

std::vector<std::byte> EncodeNumbers(DType dtype, const std::vector<double>& values) {
  const int64_t size = Format(dtype).Bytes(1);
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(size));
  std::byte* at = bytes.data();
  for (const double value : values) {
    const auto number = static_cast<float>(value);
    const uint16_t half = dtype == DType::kBf16 ? FloatToBf16(number) : FloatToF16(number);
    if (dtype == DType::kF32) {
      std::memcpy(at, &number, sizeof(number));
    } else {
      std::memcpy(at, &half, sizeof(half));
    }
    at += size;
  }
  return bytes;
}

std::vector<double> DecodeNumbers(DType dtype, const std::vector<std::byte>& bytes) {
  const auto size = static_cast<size_t>(Format(dtype).Bytes(1));
  std::vector<double> values(bytes.size() / size);
  for (size_t i = 0; i < values.size(); ++i) {
    float number = 0;
    uint16_t half = 0;
    if (dtype == DType::kF32) {
      std::memcpy(&number, bytes.data() + i * size, sizeof(number));
      values[i] = number;
    } else {
      std::memcpy(&half, bytes.data() + i * size, sizeof(half));
      values[i] = dtype == DType::kBf16 ? Bf16ToFloat(half) : F16ToFloat(half);
    }
  }
  return values;
}

DeviceNumbers::DeviceNumbers(Machine& machine, DType dtype, const std::vector<double>& values)
    : dtype_(dtype),
      size_(static_cast<int64_t>(values.size())),
      bytes_(machine, EncodeNumbers(dtype, values).data(), Format(dtype).Bytes(size_)) {}

std::vector<double> DeviceNumbers::Get() const {
  std::vector<std::byte> bytes(static_cast<size_t>(Format(dtype_).Bytes(size_)));
  bytes_.Download(bytes.data(), static_cast<int64_t>(bytes.size()));
  return DecodeNumbers(dtype_, bytes);
}

Status OpStatus(const Machine& machine, OpCode code, const char* op) {
  if (code == OpCode::kOk) return Status::Ok();
  return Internal(std::string(op) + " on " + machine.backend->info().name + ": " +
                  machine.backend->last_error());
}

}  // namespace tramontane::kv_vectors
