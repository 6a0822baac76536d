// A small decoder in memory whose weights a test chooses, written as a model folder in either layout.
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace tramontane {

struct TinyTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
  DType dtype = DType::kF32;
};

struct TinyModel {
  int32_t vocab = 96;
  int32_t hidden = 32;
  int32_t layers = 2;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 8;
  int32_t intermediate = 48;
  int32_t experts = 0;  // 0: feed-forward layers are whole
  int32_t experts_per_token = 2;
  int32_t context = 512;
  double rope_theta = 1e4;
  bool tied = false;
  std::vector<int32_t> window;  // empty: none; else [layers], 0 for none
  // Mistral's own names and row order: rotated pairs side by side.
  std::map<std::string, TinyTensor> tensors;

  // Random weights, peaked attention and spread logits.
  void Randomise(uint64_t seed);

  nlohmann::json MistralParams() const;
  nlohmann::json HuggingFaceConfig() const;  // needs windows that are all equal, or one width and none
  SafetensorsWriter MistralTensors() const;
  SafetensorsWriter HuggingFaceTensors() const;

  void WriteMistral(const TempFolder& folder) const;
  void WriteHuggingFace(const TempFolder& folder) const;
};

}  // namespace tramontane
