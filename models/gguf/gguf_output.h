// A GGUF file in the making: its keys, and a file whose tensors are all planned before the first byte is
// written and then appended one after another. gguf_file.h has the format; version 3, alignment 32.
//
// One thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/gguf/gguf_metadata.h"

namespace tramontane {

// Written in the order of their names, so that the same keys give the same bytes. A key that is set again has
// its last value.
class GgufKeys {
 public:
  void SetString(const std::string& key, std::string_view text);
  void SetBool(const std::string& key, bool value);
  void SetUint32(const std::string& key, int64_t value);  // REQUIRES: in the range of uint32
  void SetFloat(const std::string& key, double value);    // rounded to float
  void SetStrings(const std::string& key, const std::vector<std::string>& texts);
  void SetBools(const std::string& key, const std::vector<bool>& values);
  void SetInts(const std::string& key, const std::vector<int32_t>& values);
  void SetFloats(const std::string& key, const std::vector<float>& values);
  // As it stands in another file.
  void Copy(const std::string& key, const GgufValue& value);
  // Every key of `other`.
  void Add(const GgufKeys& other);

  bool Has(std::string_view key) const { return values_.find(key) != values_.end(); }
  // What a reader of the file will see: views into these keys. `file` names it in messages.
  GgufMetadata Metadata(const std::string& file) const;
  // As in a file, one after another.
  std::string Bytes() const;
  size_t size() const { return values_.size(); }

 private:
  struct Value {
    GgufKind kind = GgufKind::kUint8;
    GgufKind element = GgufKind::kUint8;
    int64_t count = 0;
    std::string bytes;  // as GgufValue has them
  };

  std::map<std::string, Value, std::less<>> values_;
};

class GgufOutput {
 public:
  // shape: rows first. type: the number of gguf_types.h.
  void Plan(const std::string& name, const std::vector<int64_t>& shape, uint32_t type, int64_t bytes);
  // Makes the file and writes what comes before the data. REQUIRES: nothing of that name is there.
  Status Begin(const std::string& path, const GgufKeys& keys);
  // The tensors' bytes, in the order of the plan.
  Status Append(std::string_view bytes);
  // After the last byte of each tensor. REQUIRES: as many as were planned.
  Status EndTensor();
  Status End();

  // Of the tensors, without what fills up to the next one.
  int64_t tensor_bytes() const { return tensor_bytes_; }

 private:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    uint32_t type = 0;
    int64_t bytes = 0;
  };

  std::vector<Tensor> tensors_;
  int64_t tensor_bytes_ = 0;
  size_t done_ = 0;    // tensors
  int64_t begun_ = 0;  // bytes of the tensor that is being written
  std::string path_;
  std::ofstream file_;
};

}  // namespace tramontane
