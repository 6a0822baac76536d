// Tokens that files beside a vocabulary's own list by their ids: added_tokens.json, added_tokens_decoder in
// tokenizer_config.json, and added_tokens in tokenizer.json. What was trained further has some there that its
// tokenizer.model or tekken.json lacks.
//
// Any thread; reads files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {

struct ListedToken {
  TokenizerJsonFile::AddedToken token;  // content: UTF-8, 1 to kMaxPieceBytes bytes
  std::string file;                     // that lists it first
};

// In ascending order of ids, each id and each content once: of files that disagree added_tokens.json counts
// last and tokenizer.json first. Files that are not there, or are no such lists, have none; `warnings` says
// of the latter why. special_tokens_map.json, and the keys of its names in tokenizer_config.json, make
// special what they name.
std::vector<ListedToken> ReadListedTokens(const std::string& folder, std::vector<std::string>* warnings);

// Whether a token opens or ends the turns of a chat in ChatML or as Llama 3 does. It is structure, whatever
// a file's flags say.
bool IsTurnMarker(std::string_view content);

}  // namespace tramontane
