// tokenizer.json files for tests: built in memory, a few merges long. Any thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/tokenizer/hugging_face_tokenizer.h"
#include "models/tokenizer/space_mark.h"

namespace tramontane {

// As ByteLevel spells bytes.
inline std::string ByteLevelSpelling(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    const auto is_printable = [](uint32_t b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD); };
    uint32_t others = 0;
    for (uint32_t b = 0; b < byte; ++b) others += is_printable(b) ? 0 : 1;
    AppendUtf8(is_printable(byte) ? byte : 256 + others, &text);
  }
  return text;
}

struct TestMerge {
  std::string left;
  std::string right;
};

inline nlohmann::json TokenizerJson(const std::vector<std::string>& symbols,
                                    const std::vector<TestMerge>& merges) {
  using nlohmann::json;
  json vocab = json::object();
  json listed = json::array();
  const auto add = [&](const std::string& piece) {
    if (!vocab.contains(piece)) vocab[piece] = vocab.size();
  };
  for (const char* special : {"<unk>", "<s>", "</s>"}) add(special);
  for (const std::string& symbol : symbols) add(symbol);
  for (const auto& [left, right] : merges) {
    add(left + right);
    listed.push_back({left, right});
  }
  json added = json::array();
  for (const char* special : {"<unk>", "<s>", "</s>"}) {
    added.push_back({{"id", vocab[special]},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model", {{"type", "BPE"}, {"unk_token", "<unk>"}, {"vocab", vocab}, {"merges", listed}}}};
}

constexpr int32_t kFirstTestByte = 3;                          // of the 256 bytes
constexpr int32_t kFirstTestMerge = kFirstTestByte + 256;      // byte level
constexpr int32_t kFirstTestCharacter = kFirstTestByte + 256;  // byte fallback

// GPT-2's splitting. Merges are of bytes: {" ", "a"}.
inline nlohmann::json ByteLevelJson(const std::vector<TestMerge>& merges) {
  std::vector<std::string> symbols;
  for (int byte = 0; byte < 256; ++byte) {
    symbols.push_back(ByteLevelSpelling(std::string(1, static_cast<char>(byte))));
  }
  std::vector<TestMerge> spelled;
  for (const auto& [left, right] : merges) {
    spelled.push_back({ByteLevelSpelling(left), ByteLevelSpelling(right)});
  }
  nlohmann::json file = TokenizerJson(symbols, spelled);
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  file["decoder"] = {{"type", "ByteLevel"}};
  return file;
}

// Llama 2's normalisers and decoder.
inline nlohmann::json FallbackJson(const std::vector<std::string>& characters,
                                   const std::vector<TestMerge>& merges) {
  std::vector<std::string> symbols;
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    symbols.emplace_back(text);
  }
  symbols.insert(symbols.end(), characters.begin(), characters.end());
  nlohmann::json file = TokenizerJson(symbols, merges);
  const std::string mark(kSpaceMark);
  file["model"]["byte_fallback"] = true;
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "Prepend"}, {"prepend", mark}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}}}}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return file;
}

inline nlohmann::json MetaspaceComponent(const std::string& scheme, bool split) {
  return {{"type", "Metaspace"},
          {"replacement", std::string(kSpaceMark)},
          {"prepend_scheme", scheme},
          {"split", split}};
}

// A template that puts `bos` in front.
inline nlohmann::json TemplateComponent(const std::string& bos, int32_t id) {
  return {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{bos, {{"id", bos}, {"ids", {id}}, {"tokens", {bos}}}}}}};
}

inline void AddToken(nlohmann::json& file, int32_t id, const std::string& content,
                     const nlohmann::json& flags = nlohmann::json::object()) {
  nlohmann::json token = {{"id", id}, {"content", content}, {"special", false}, {"normalized", false}};
  token.update(flags);
  file["added_tokens"].push_back(token);
}

inline StatusOr<std::unique_ptr<const HuggingFaceTokenizer>> MakeHuggingFace(
    const nlohmann::json& json, const TokenizerConfigFile& config = {}) {
  TM_ASSIGN_OR_RETURN(TokenizerJsonFile file, ParseTokenizerJson(json.dump(), "tokenizer.json"));
  return HuggingFaceTokenizer::Create(std::move(file), config, "tokenizer.json");
}

inline std::unique_ptr<const HuggingFaceTokenizer> SmallHuggingFace(const nlohmann::json& json,
                                                                    const TokenizerConfigFile& config = {}) {
  return MakeHuggingFace(json, config).value();
}

}  // namespace tramontane
