// The tokenizer of a GGUF file as its keys, as a converter writes them, for tests. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"

namespace tramontane {

struct GgufTokenizerKeys {
  static constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;

  std::string model = "gpt2";
  std::string pre = "gpt-2";  // "": the key is left out
  std::vector<std::string> tokens;
  std::vector<int32_t> types;       // empty: left out
  std::vector<float> scores;        // empty: left out
  std::vector<std::string> merges;  // empty: left out
  int bos = -1, eos = -1, eot = -1, unknown = -1;
  int adds_bos = -1;      // -1: left out
  int adds_eos = -1;      // -1: left out
  int space_prefix = -1;  // -1: left out

  std::string File() const {
    GgufWriter writer;
    if (!model.empty()) writer.AddString("tokenizer.ggml.model", model);
    if (!pre.empty()) writer.AddString("tokenizer.ggml.pre", pre);
    writer.AddStrings("tokenizer.ggml.tokens", tokens);
    if (!types.empty()) writer.AddArray("tokenizer.ggml.token_type", GgufKind::kInt32, types);
    if (!scores.empty()) writer.AddArray("tokenizer.ggml.scores", GgufKind::kFloat32, scores);
    if (!merges.empty()) writer.AddStrings("tokenizer.ggml.merges", merges);
    AddId(&writer, "bos", bos);
    AddId(&writer, "eos", eos);
    AddId(&writer, "eot", eot);
    AddId(&writer, "unknown", unknown);
    if (adds_bos >= 0) writer.AddBool("tokenizer.ggml.add_bos_token", adds_bos != 0);
    if (adds_eos >= 0) writer.AddBool("tokenizer.ggml.add_eos_token", adds_eos != 0);
    if (space_prefix >= 0) writer.AddBool("tokenizer.ggml.add_space_prefix", space_prefix != 0);
    return writer.File();
  }

 private:
  static void AddId(GgufWriter* writer, const std::string& name, int id) {
    if (id >= 0) writer->AddUint32("tokenizer.ggml." + name + "_token_id", static_cast<uint32_t>(id));
  }
};

// The vocabulary of a tokenizer.json, which has byte-pair merges. Its ids of bos and eos are not there.
inline GgufTokenizerKeys KeysOfTokenizerJson(const nlohmann::json& file, const std::string& pre) {
  GgufTokenizerKeys keys;
  keys.pre = pre;
  const auto put = [&](size_t id, const std::string& text, int32_t type) {
    if (id >= keys.tokens.size()) {
      keys.tokens.resize(id + 1);
      keys.types.resize(id + 1, GgufTokenizerKeys::kNormal);
    }
    keys.tokens[id] = text;
    keys.types[id] = type;
  };
  for (const auto& [text, id] : file["model"]["vocab"].items())
    put(id.get<size_t>(), text, GgufTokenizerKeys::kNormal);
  for (const nlohmann::json& token : file["added_tokens"]) {
    put(token["id"].get<size_t>(), token["content"],
        token["special"].get<bool>() ? GgufTokenizerKeys::kControl : GgufTokenizerKeys::kUserDefined);
  }
  for (const nlohmann::json& merge : file["model"]["merges"]) {
    keys.merges.push_back(merge.is_string()
                              ? merge.get<std::string>()
                              : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return keys;
}

}  // namespace tramontane
