// Any bytes as a safetensors file: an error or tensors whose ranges lie inside the file.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/core/check.h"
#include "models/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = tramontane::ParseSafetensors({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!tensors.ok()) return 0;
  for (const auto& [name, tensor] : *tensors) {
    TM_CHECK(8 <= tensor.begin && tensor.begin <= tensor.end && tensor.end <= static_cast<int64_t>(size),
             "tensor %s leaves the file", name.c_str());
  }
  return 0;
}
