// The large part of a tokenizer.json, taken as it is read: hundreds of thousands of pieces and merges, which
// are never held as JSON.
//
// Any thread. Of tokenizer_json_file.cc alone.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/listed_merges.h"

namespace tramontane {

struct TokenizerJsonVocabulary {
  std::unordered_map<std::string, int32_t> ids;  // of "model.vocab"; each id once
  std::vector<std::string> pieces;               // the same by id; "": none has this id
  std::vector<ListedMerges::Merge> merges;       // "model.merges"
};

// Reads a whole file into `vocabulary`, and gives the rest of it, a JSON object. DATA_LOSS names the path.
StatusOr<nlohmann::json> ReadTokenizerJson(std::string_view text, TokenizerJsonVocabulary* vocabulary);

}  // namespace tramontane
