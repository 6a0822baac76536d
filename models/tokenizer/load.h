// Finds and loads the tokenizer of a model's folder.
//
// Any thread; reads files.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

enum class TokenizerFileKind { kTekken, kSentencePiece, kTokenizerJson, kGguf };

struct TokenizerFile {
  std::string path;
  TokenizerFileKind kind = TokenizerFileKind::kTekken;
  int suffix_version = -1;  // N of ".vN"; -1 without one
};

// The file that LoadTokenizer() reads.
StatusOr<TokenizerFile> FindTokenizerFile(const std::string& path);

// Loads `tekken.json` from the folder `path`, else `tokenizer.model` or `tokenizer.model.vN`; of several, the
// one with the highest N, which is then the version; else `tokenizer.json`; or the file `path`, which has one
// of these names, or is a GGUF file, whose keys say it. Without a suffix the version comes from the control
// pieces; a tekken.json says its own. Errors name the file.
StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const std::string& path);

}  // namespace tramontane
