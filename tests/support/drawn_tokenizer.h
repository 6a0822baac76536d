// A tokenizer of each kind of file that is read, all with what a prompt to fill in the middle needs: what
// storms speak. Any thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "models/tokenizer/load.h"
#include "tests/models/gguf_tokenizer_keys.h"
#include "tests/support/temp_folder.h"

namespace tramontane {

enum class TokenizerKind : uint8_t { kSentencePiece, kTekken, kTokenizerJson, kGguf };
inline constexpr uint32_t kTokenizerKinds = 4;

// Id 1 begins a text and id 2 ends an answer, whatever the kind.
inline std::unique_ptr<const Tokenizer> LoadTokenizerOf(TokenizerKind kind) {
  const std::string goldens = std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/";
  if (kind == TokenizerKind::kSentencePiece) return LoadTokenizer(goldens + "chat_v7_tokenizer").value();
  if (kind == TokenizerKind::kTekken) return LoadTokenizer(goldens + "chat_tekken_tokenizer").value();

  std::ifstream stream(goldens + "tokenizer_json/tekken/tokenizer.json");
  nlohmann::json file = nlohmann::json::parse(stream);
  for (const char* const name : {"[PREFIX]", "[MIDDLE]", "[SUFFIX]"}) {
    nlohmann::json token = file["added_tokens"][1];
    token["id"] = file["model"]["vocab"].size();
    token["content"] = name;
    file["model"]["vocab"][name] = token["id"];
    file["added_tokens"].push_back(std::move(token));
  }
  const TempFolder folder;
  if (kind == TokenizerKind::kTokenizerJson) {
    folder.Write("tokenizer.json", file.dump());
    folder.Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    return LoadTokenizer(folder.path()).value();
  }
  GgufTokenizerKeys keys = KeysOfTokenizerJson(file, "tekken");
  keys.bos = 1;
  keys.eos = 2;
  folder.Write("model.gguf", keys.File());
  return LoadTokenizer(folder.PathOf("model.gguf")).value();
}

}  // namespace tramontane
