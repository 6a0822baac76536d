// Builds GGUF files in memory, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/gguf/gguf_metadata.h"

namespace tramontane {

// Numbers of tensor types in the file.
inline constexpr uint32_t kGgufF32 = 0, kGgufF16 = 1, kGgufQ4_0 = 2, kGgufQ8_0 = 8, kGgufQ6K = 14,
                          kGgufBf16 = 30;

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dimensions;  // the one that lies side by side first
    uint32_t type = kGgufF32;
    std::string data;
    uint64_t offset = 0;  // from the data's begin
  };

  template <typename T>
  static std::string Bytes(T number) {
    static_assert(std::is_arithmetic_v<T>);
    return {reinterpret_cast<const char*>(&number), sizeof(number)};
  }
  static std::string StringBytes(std::string_view text) {
    return Bytes(uint64_t{text.size()}) + std::string(text);
  }
  static std::string ArrayBytes(GgufKind element, uint64_t count, const std::string& elements) {
    return Bytes(static_cast<uint32_t>(element)) + Bytes(count) + elements;
  }

  // `bytes` as they stand after the kind.
  void AddKey(const std::string& key, GgufKind kind, const std::string& bytes) {
    keys_ += StringBytes(key) + Bytes(static_cast<uint32_t>(kind)) + bytes;
    ++key_count;
  }
  void AddUint32(const std::string& key, uint32_t value) { AddKey(key, GgufKind::kUint32, Bytes(value)); }
  void AddFloat(const std::string& key, float value) { AddKey(key, GgufKind::kFloat32, Bytes(value)); }
  void AddBool(const std::string& key, bool value) {
    AddKey(key, GgufKind::kBool, Bytes(static_cast<uint8_t>(value)));
  }
  void AddString(const std::string& key, std::string_view text) {
    AddKey(key, GgufKind::kString, StringBytes(text));
  }
  void AddStrings(const std::string& key, const std::vector<std::string>& texts) {
    std::string elements;
    for (const std::string& text : texts) elements += StringBytes(text);
    AddKey(key, GgufKind::kArray, ArrayBytes(GgufKind::kString, texts.size(), elements));
  }
  template <typename T>
  void AddArray(const std::string& key, GgufKind element, const std::vector<T>& numbers) {
    std::string elements;
    for (const T number : numbers) elements += Bytes(number);
    AddKey(key, GgufKind::kArray, ArrayBytes(element, numbers.size(), elements));
  }

  // Behind the last one, aligned.
  void AddTensor(const std::string& name, const std::vector<uint64_t>& dimensions, uint32_t type,
                 const std::string& data) {
    const uint64_t offset = tensors.empty() ? 0 : AlignUp(tensors.back().offset + tensors.back().data.size());
    tensors.push_back({name, dimensions, type, data, offset});
    ++tensor_count;
  }
  // Of f32.
  void AddTensor(const std::string& name, const std::vector<uint64_t>& dimensions,
                 const std::vector<float>& values) {
    AddTensor(name, dimensions, kGgufF32,
              {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  std::string Header() const {
    std::string header = "GGUF" + Bytes(version) + Bytes(tensor_count) + Bytes(key_count) + keys_;
    for (const Tensor& tensor : tensors) {
      header += StringBytes(tensor.name) + Bytes(static_cast<uint32_t>(tensor.dimensions.size()));
      for (const uint64_t size : tensor.dimensions) header += Bytes(size);
      header += Bytes(tensor.type) + Bytes(tensor.offset);
    }
    return header;
  }
  std::string File() const {
    std::string file = Header();
    file.resize(AlignUp(file.size()));
    const size_t data_begin = file.size();
    for (const Tensor& tensor : tensors) {
      if (tensor.data.empty()) continue;
      const size_t begin = data_begin + tensor.offset;
      if (file.size() < begin + tensor.data.size()) file.resize(begin + tensor.data.size());
      file.replace(begin, tensor.data.size(), tensor.data);
    }
    return file;
  }

  uint64_t AlignUp(uint64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }

  // Free to be made wrong.
  uint32_t version = 3;
  uint64_t alignment = 32;  // what general.alignment says is not looked at
  uint64_t tensor_count = 0;
  uint64_t key_count = 0;
  std::vector<Tensor> tensors;

 private:
  std::string keys_;
};

}  // namespace tramontane
