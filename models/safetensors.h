// Files of tensors: an 8-byte little-endian header length, that many bytes of JSON (name -> dtype, shape,
// data_offsets), then the tensors' bytes. Such a file comes from anywhere, so every number in it is checked
// before any byte of a tensor is used.
//
// Loading thread. A SafetensorsFile owns its mapping; pointers into it die with it. A file that is truncated
// by somebody else while it is mapped ends the process with SIGBUS, as with any mapped file: replace files,
// do not rewrite them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/format.h"
#include "kernels/core/status.h"

namespace tramontane {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 32 << 20;

struct TensorInfo {
  std::string dtype_name;        // "BF16"
  std::optional<Format> format;  // none: one that weights cannot have here ("I64", "F8_E4M3")
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the file
  int64_t end = 0;
};

// "[64, 256]"
std::string ShapeText(const std::vector<int64_t>& shape);

using TensorMap = std::map<std::string, TensorInfo>;

// The header of a file whose bytes are `bytes`; only the header is read. Refused, naming `file` and the
// tensor: byte ranges outside the file, of the wrong length, overlapping or leaving bytes that belong to
// nothing; a name that stands twice; an unknown dtype.
StatusOr<TensorMap> ParseSafetensors(std::string_view bytes, const std::string& file);

class SafetensorsFile {
 public:
  static StatusOr<SafetensorsFile> Open(const std::string& path);  // maps it, if it is not built in
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const TensorMap& tensors() const { return tensors_; }

  // The tensor's bytes, announced to the kernel so that they are read ahead in one go.
  const std::byte* Data(const TensorInfo& tensor) const;
  // The tensor is packed: its pages need not stay in memory.
  void Release(const TensorInfo& tensor) const;

 private:
  SafetensorsFile() = default;
  Status Map();

  std::string path_;
  const char* data_ = nullptr;
  size_t bytes_ = 0;
  bool mapped_ = false;  // by this object
  TensorMap tensors_;
};

}  // namespace tramontane
