// The header of a weight file for models larger than a test would like to hold in memory. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/weights.h"
#include "tests/support/safetensors_writer.h"

namespace tramontane {

struct WeightFileHeader {
  std::string bytes;       // what the file begins with
  int64_t data_bytes = 0;  // what must follow
};

// Of every tensor that a model asks for, one after the other. The data begins `misaligned` bytes after a
// multiple of 16.
inline WeightFileHeader HeaderOfAll(const std::vector<WeightSpec>& weights,
                                    const std::function<DType(const std::string& name)>& dtype_of,
                                    size_t misaligned = 0) {
  WeightFileHeader header;
  nlohmann::json entries;
  for (const WeightSpec& weight : weights) {
    for (const TensorSpec& tensor : weight.parts) {
      const DType dtype = dtype_of(tensor.name);
      const int64_t count = tensor.rows * std::max<int64_t>(1, tensor.columns);
      const int64_t begin = std::exchange(header.data_bytes, header.data_bytes + Format(dtype).Bytes(count));
      nlohmann::json shape = {tensor.rows};
      if (tensor.columns > 0) shape.push_back(tensor.columns);
      entries[tensor.name] = {{"dtype", dtype == DType::kF32    ? "F32"
                                        : dtype == DType::kBf16 ? "BF16"
                                                                : "F16"},
                              {"shape", shape},
                              {"data_offsets", {begin, header.data_bytes}}};
    }
  }
  std::string text = entries.dump();
  text.append((16 - (8 + text.size()) % 16 + misaligned) % 16, ' ');
  header.bytes = SafetensorsWriter::FileOf(text, "");
  return header;
}

}  // namespace tramontane
