// Builds safetensors files in memory, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"

namespace tramontane {

class SafetensorsWriter {
 public:
  // values: row-major, rounded to the dtype.
  void Add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values,
           DType dtype = DType::kF32) {
    std::string bytes;
    for (const float value : values) {
      if (dtype == DType::kF32) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
      } else {
        const uint16_t bits = dtype == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value);
        bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
      }
    }
    AddRaw(name, dtype == DType::kF32 ? "F32" : dtype == DType::kBf16 ? "BF16" : "F16", shape, bytes);
  }
  void AddRaw(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
              const std::string& bytes) {
    header_[name] = {
        {"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
  }

  nlohmann::json& header() { return header_; }
  std::string& data() { return data_; }

  std::string File() const { return FileOf(header_.dump(), data_); }
  static std::string FileOf(const std::string& header, const std::string& data) {
    std::string file(8, '\0');
    const uint64_t length = header.size();
    for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
    return file + header + data;
  }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

}  // namespace tramontane
