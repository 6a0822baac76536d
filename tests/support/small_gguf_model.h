// A small model as a GGUF file that a test may write in another way, right or wrong. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"

namespace tramontane {

// A key of the file, which a test may leave out or write in another way.
using GgufKeyAdders = std::map<std::string, std::function<void(GgufWriter& writer, const std::string& key)>>;

// What adds a key of that value.
namespace gguf_key {

inline auto Uint32(uint32_t value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.AddUint32(key, value); };
}
inline auto Float(float value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.AddFloat(key, value); };
}
inline auto Text(const std::string& value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.AddString(key, value); };
}
inline auto Bool(bool value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.AddBool(key, value); };
}
inline auto Bools(const std::vector<uint8_t>& values) {
  return [values](GgufWriter& writer, const std::string& key) {
    writer.AddArray<uint8_t>(key, GgufKind::kBool, values);
  };
}

}  // namespace gguf_key

// Two layers of width 8, two heads of 4, one of keys and values; a vocabulary of 5.
struct SmallGgufModel {
  GgufKeyAdders keys = {
      {"general.architecture", gguf_key::Text("llama")},
      {"general.name", gguf_key::Text("small")},
      {"llama.vocab_size", gguf_key::Uint32(5)},
      {"llama.context_length", gguf_key::Uint32(64)},
      {"llama.embedding_length", gguf_key::Uint32(8)},
      {"llama.block_count", gguf_key::Uint32(2)},
      {"llama.feed_forward_length", gguf_key::Uint32(12)},
      {"llama.attention.head_count", gguf_key::Uint32(2)},
      {"llama.attention.head_count_kv", gguf_key::Uint32(1)},
      {"llama.attention.layer_norm_rms_epsilon", gguf_key::Float(1e-5f)},
      {"llama.rope.dimension_count", gguf_key::Uint32(4)},
      {"llama.rope.freq_base", gguf_key::Float(10000.0f)},
  };
  // Name -> dimensions, the one that lies side by side first.
  std::map<std::string, std::vector<uint64_t>> tensors = {
      {"token_embd.weight", {8, 5}}, {"output_norm.weight", {8}}, {"output.weight", {8, 5}}};

  SmallGgufModel() {
    for (const std::string layer : {"blk.0.", "blk.1."}) {
      tensors[layer + "attn_norm.weight"] = tensors[layer + "ffn_norm.weight"] = {8};
      tensors[layer + "attn_q.weight"] = tensors[layer + "attn_output.weight"] = {8, 8};
      tensors[layer + "attn_k.weight"] = tensors[layer + "attn_v.weight"] = {8, 4};
      tensors[layer + "ffn_gate.weight"] = tensors[layer + "ffn_up.weight"] = {8, 12};
      tensors[layer + "ffn_down.weight"] = {12, 8};
    }
  }
  // mistral3 has the same keys under its own name.
  void BeMistral3() {
    GgufKeyAdders renamed;
    for (const auto& [key, add] : keys) {
      renamed[key.starts_with("llama.") ? "mistral3." + key.substr(6) : key] = add;
    }
    keys = renamed;
    keys["general.architecture"] = gguf_key::Text("mistral3");
  }
  GgufWriter Writer() const {
    GgufWriter writer;
    for (const auto& [key, add] : keys) add(writer, key);
    for (const auto& [name, dimensions] : tensors) {
      uint64_t count = 1;
      for (const uint64_t size : dimensions) count *= size;
      writer.AddTensor(name, dimensions, std::vector<float>(count, 0.5f));
    }
    return writer;
  }
  std::string File() const { return Writer().File(); }
};

}  // namespace tramontane
