// Files of tensors: an 8-byte little-endian header length, that many bytes of JSON (name -> dtype, shape,
// data_offsets), then the tensors' bytes. Such a file comes from anywhere, so every number in it is checked
// before any byte of a tensor is used.
//
// Loading thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/status.h"
#include "models/files/tensor_file.h"

namespace tramontane {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 32 << 20;

// The header of a file whose bytes are `bytes`; only the header is read. Refused, naming `file` and the
// tensor: byte ranges outside the file, of the wrong length, overlapping or leaving bytes that belong to
// nothing; a name that stands twice; an unknown dtype.
StatusOr<TensorMap> ParseSafetensors(std::string_view bytes, const std::string& file);

// The file of that path, mapped if it is not built in.
StatusOr<TensorFile> OpenSafetensors(const std::string& path);

}  // namespace tramontane
