// Finds and loads the tokenizer of a model's folder.
//
// Any thread; reads files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

// The file of that path, or the one of that folder which comes first by its name: `tekken.json`, else
// `tokenizer.model` or `tokenizer.model.vN` (of several, the one with the highest N, which is then the
// version), else `tokenizer.json`. Without a suffix the version comes from the control pieces; a tekken.json
// says its own.
StatusOr<TokenizerFile> FindTokenizerFile(const std::string& path);

struct ChosenTokenizer {
  TokenizerFile file;                       // that it is read from
  std::optional<TokenizerFile> left_aside;  // that came first by its name, and lacks tokens
  std::unique_ptr<const Tokenizer> tokenizer;
};

// Loads the tokenizer of the folder `path`. Where files beside the one that comes first list tokens that it
// lacks, the folder's tokenizer.json is taken, if that has all of both; else they are added to a
// tokenizer.model, as they are to a tokenizer.json. Tokens for padding alone are no reason to take another
// file. `rows`: of the model's embedding, beyond which no token counts; 0: not known. What differs is among
// the tokenizer's warnings. A `path` that is a file is read alone; a GGUF file's keys say it.
// Errors name the file.
StatusOr<ChosenTokenizer> ChooseTokenizer(const std::string& path, int64_t rows);

// The same, without its file.
StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const std::string& path, int64_t rows = 0);

}  // namespace tramontane
