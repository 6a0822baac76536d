// tekken.json files for tests: built in memory, a few tokens long. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/piece_splitter.h"
#include "models/tokenizer/tekken.h"

namespace tramontane {

inline std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<uint8_t>(bytes[at + i]) : 0);
    }
    for (size_t i = 0; i < 4; ++i) text += at + i > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * i) & 63];
  }
  return text;
}

inline constexpr int kTestSpecialTokens = 48;

// The 256 bytes and `merges`, with the control tokens of every version at places of their own.
inline nlohmann::json TekkenJson(const std::vector<std::string>& merges, const std::string& version = "v3") {
  using nlohmann::json;
  json file;
  json& vocab = file["vocab"] = json::array();
  const auto add = [&](const std::string& bytes) {
    vocab.push_back({{"rank", vocab.size()}, {"token_bytes", Base64(bytes)}, {"token_str", nullptr}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& merge : merges) add(merge);
  json& special = file["special_tokens"] = json::array();
  for (const char* name : {"<unk>",
                           "<s>",
                           "</s>",
                           "[INST]",
                           "[/INST]",
                           "[AVAILABLE_TOOLS]",
                           "[/AVAILABLE_TOOLS]",
                           "[TOOL_RESULTS]",
                           "[/TOOL_RESULTS]",
                           "[TOOL_CALLS]",
                           "[IMG]",
                           "<pad>",
                           "[SYSTEM_PROMPT]",
                           "[/SYSTEM_PROMPT]",
                           "[TOOL_CONTENT]",
                           "[ARGS]",
                           "[CALL_ID]",
                           "[THINK]",
                           "[/THINK]",
                           "[MODEL_SETTINGS]",
                           "[/MODEL_SETTINGS]",
                           "[PREFIX]",
                           "[MIDDLE]",
                           "[SUFFIX]"}) {
    special.push_back({{"rank", special.size()}, {"token_str", name}, {"is_control", true}});
  }
  file["config"] = {{"pattern", std::string(kTekkenPattern)},
                    {"num_vocab_tokens", vocab.size()},
                    {"default_vocab_size", vocab.size() + kTestSpecialTokens},
                    {"default_num_special_tokens", kTestSpecialTokens},
                    {"version", version}};
  if (version == "v15") {
    file["model_settings_builder"]["reasoning_effort"] = {
        {"type", "enum"}, {"accepts_none", true}, {"values", {"none", "high"}}, {"default", "none"}};
    file["model_settings_builder"]["json_schema"] = {{"type", "json_schema"}};
  }
  return file;
}

inline std::unique_ptr<const TekkenTokenizer> SmallTekken(const nlohmann::json& json) {
  return TekkenTokenizer::Create(ParseTekkenFile(json.dump(), "tekken.json").value(), "tekken.json").value();
}

}  // namespace tramontane
