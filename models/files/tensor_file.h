// A file of named tensors, whatever its format: where each lies, and its bytes. The parsers of the formats
// (models/safetensors.h, models/gguf/) make one of a file whose every range they have checked.
//
// Loading thread. A TensorFile owns its mapping; pointers into it die with it.
// Always: 0 <= begin <= end <= bytes of the file, for each tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/format.h"
#include "models/files/mapped_file.h"

namespace tramontane {

struct TensorInfo {
  std::string dtype_name;        // as the file's format calls it: "BF16", "Q4_K"
  std::optional<Format> format;  // none: one that weights cannot have here by itself ("I64", "F8_E4M3")
  std::vector<int64_t> shape;    // rows first: the last dimension is the one that lies side by side
  int64_t begin = 0;             // bytes from the start of the file
  int64_t end = 0;
};

// "[64, 256]"
std::string ShapeText(const std::vector<int64_t>& shape);

using TensorMap = std::map<std::string, TensorInfo>;

class TensorFile {
 public:
  TensorFile(MappedFile file, TensorMap tensors) : file_(std::move(file)), tensors_(std::move(tensors)) {}

  const std::string& path() const { return file_.path(); }
  const TensorMap& tensors() const { return tensors_; }

  // The tensor's bytes will be wanted: the kernel may read them in one go.
  void ReadAhead(const TensorInfo& tensor) const { file_.WillNeed(tensor.begin, tensor.end); }
  const std::byte* Data(const TensorInfo& tensor) const {
    return reinterpret_cast<const std::byte*>(file_.bytes().data() + tensor.begin);
  }
  // Bytes [begin, end) of the file are packed: their pages need not stay in memory.
  void Release(int64_t begin, int64_t end) const { file_.DontNeed(begin, end); }

 private:
  MappedFile file_;
  TensorMap tensors_;
};

// A tensor and the file it lies in.
struct FoundTensor {
  const TensorFile* file = nullptr;
  const TensorInfo* tensor = nullptr;

  const std::byte* data() const { return file->Data(*tensor); }
};

}  // namespace tramontane
