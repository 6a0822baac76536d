// Vocabularies for fuzz targets that need one, of either kind: control pieces of every chat format, bytes,
// and a few merges; SentencePiece's with user-defined pieces. Any thread; built once.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "models/tokenizer/sentencepiece.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tekken.h"
#include "tests/models/tekken_test_file.h"

namespace tramontane {

inline const SentencePieceTokenizer& SmallVocabulary() {
  static const SentencePieceTokenizer tokenizer = [] {
    using Type = SentencePieceModel::Type;
    SentencePieceModel model;
    model.byte_fallback = true;
    model.remove_extra_whitespaces = false;
    model.pieces.push_back({"<unk>", 0, Type::kUnknown});
    for (const char* text :
         {"<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
          "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"}) {
      model.pieces.push_back({text, 0, Type::kControl});
    }
    for (int byte = 0; byte < 256; ++byte) {
      char text[8];
      std::snprintf(text, sizeof(text), "<0x%02X>", byte);
      model.pieces.push_back({text, 0, Type::kByte});
    }
    float score = 0;
    for (const char* text : {"▁", "a", "b", "é", "▁▁", "▁a", "ab", "▁ab", "aa", "a▁", "é▁b", "你"}) {
      model.pieces.push_back({text, score -= 1, Type::kNormal});
    }
    for (const char* text : {"[REF]", "[REF]1", "ba"}) model.pieces.push_back({text, 0, Type::kUserDefined});
    return SentencePieceTokenizer(std::move(model), TokenizerVersion::kV7);
  }();
  return tokenizer;
}

inline const TekkenTokenizer& SmallTekkenVocabulary() {
  static const std::unique_ptr<const TekkenTokenizer> tokenizer = [] {
    return SmallTekken(
        TekkenJson({"ab", "aa", "  ", " a", "é", "\xE4\xBD", "aab", "aaaa", "你", " ab", "\n\n"}, "v15"));
  }();
  return *tokenizer;
}

}  // namespace tramontane
