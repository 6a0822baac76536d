// The contents of a tekken.json: Mistral's byte-level vocabularies, from v3 on.
//
// Any thread. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/model_settings.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

struct TekkenFile {
  static constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
  static constexpr size_t kMaxVocabulary = size_t{1} << 20;  // of the file; a model may use fewer
  static constexpr int64_t kMaxSpecialTokens = 65536;
  static constexpr size_t kMaxSpecialBytes = 256;  // of a special token's name

  TokenizerVersion version = TokenizerVersion::kV3;
  std::string pattern;
  // By rank: id = rank + special.size(). Decoded, and only those that the model uses.
  std::vector<std::string> tokens;
  std::vector<std::string> special;  // by id; those that the file does not name are "<SPECIAL_k>"
  std::optional<ModelSettings> settings;
  std::vector<std::string> warnings;  // one sentence each
};

// Reads a whole file. `name` names it in errors: DATA_LOSS names the key, what stands there and what may;
// UNIMPLEMENTED is a version that we do not know.
StatusOr<TekkenFile> ParseTekkenFile(std::string_view bytes, std::string_view name);

}  // namespace tramontane
