#include "models/tokenizer/load.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "models/files/built_in_files.h"
#include "models/files/read_file.h"
#include "models/gguf/gguf_file.h"
#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/hugging_face_tokenizer.h"
#include "models/tokenizer/sentencepiece.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tekken.h"
#include "models/tokenizer/tekken_file.h"
#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {
namespace {

using Loader = StatusOr<std::unique_ptr<const Tokenizer>> (*)(const TokenizerFile& file);

// A kind of tokenizer file: its name before any ".vN", and what reads it. The first kind that a folder holds
// is used.
struct TokenizerFormat {
  TokenizerFileKind kind;
  const char* file_name;
  bool may_have_suffix;
  Loader load;
};

StatusOr<std::unique_ptr<const Tokenizer>> LoadSentencePiece(const TokenizerFile& file);
StatusOr<std::unique_ptr<const Tokenizer>> LoadTekken(const TokenizerFile& file);
StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizerJson(const TokenizerFile& file);

constexpr TokenizerFormat kFormats[] = {
    {TokenizerFileKind::kTekken, "tekken.json", false, LoadTekken},
    {TokenizerFileKind::kSentencePiece, "tokenizer.model", true, LoadSentencePiece},
    {TokenizerFileKind::kTokenizerJson, "tokenizer.json", false, LoadTokenizerJson},
};

// The ".vN" that follows the format's name, also ".vNmM" (with images); -1 for no suffix, none for other
// names.
std::optional<int> SuffixVersion(std::string_view name, const TokenizerFormat& format) {
  if (!name.starts_with(format.file_name)) return std::nullopt;
  std::string_view suffix = name.substr(std::string_view(format.file_name).size());
  if (suffix.empty()) return -1;
  if (!format.may_have_suffix || !suffix.starts_with(".v")) return std::nullopt;
  suffix.remove_prefix(2);
  int version = 0;
  const char* const end = suffix.data() + suffix.size();
  auto [at, error] = std::from_chars(suffix.data(), end, version);
  if (error != std::errc() || version < 0) return std::nullopt;
  if (at == end) return version;
  int images = 0;
  if (*at != 'm' || std::from_chars(at + 1, end, images).ptr != end || images < 1) return std::nullopt;
  return version;
}

// The format of a file that is named by hand and has another name than in a folder: "tekken_240911.json",
// "tokenizer-old.json", "some_tokenizer.model.v3".
std::string NameInAFolder(const std::string& name) {
  const size_t model = name.rfind(".model");
  if (model != std::string::npos) return "tokenizer" + name.substr(model);
  if (!name.ends_with(".json")) return name;
  for (const char* kind : {"tekken", "tokenizer"}) {
    if (name.starts_with(kind)) return std::string(kind) + ".json";
  }
  return name;
}

// For files whose name does not say: the versions differ in where they keep their control pieces.
TokenizerVersion VersionFromPieces(const SentencePieceModel& model) {
  const auto control_at = [&](size_t id, std::string_view text) {
    return id < model.pieces.size() && model.pieces[id].text == text &&
           model.pieces[id].type == SentencePieceModel::Type::kControl;
  };
  const bool has_instructions = std::any_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
    return piece.text == "[INST]" && piece.type == SentencePieceModel::Type::kControl;
  });
  if (!has_instructions) return TokenizerVersion::kV1;
  if (control_at(16, "[SYSTEM_PROMPT]")) return TokenizerVersion::kV7;
  if (control_at(10, "[IMG]")) return TokenizerVersion::kV3;
  return TokenizerVersion::kV2;
}

StatusOr<TokenizerVersion> VersionFromSuffix(const TokenizerFile& file) {
  for (const TokenizerVersion version :
       {TokenizerVersion::kV1, TokenizerVersion::kV2, TokenizerVersion::kV3, TokenizerVersion::kV7}) {
    if (static_cast<int>(version) == file.suffix_version) return version;
  }
  return Unimplemented(file.path + ": tokenizer version " + std::to_string(file.suffix_version) +
                       " is not one of 1, 2, 3, 7");
}

StatusOr<std::unique_ptr<const Tokenizer>> LoadSentencePiece(const TokenizerFile& file) {
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, SentencePieceModel::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(SentencePieceModel model, ParseSentencePieceModel(bytes, file.path));
  if (file.suffix_version < 0) {
    const TokenizerVersion version = VersionFromPieces(model);
    return std::unique_ptr<const Tokenizer>(new SentencePieceTokenizer(std::move(model), version));
  }
  TM_ASSIGN_OR_RETURN(const TokenizerVersion version, VersionFromSuffix(file));
  return std::unique_ptr<const Tokenizer>(
      new SentencePieceTokenizer(std::move(model), version, "the suffix of its name says so"));
}

StatusOr<std::unique_ptr<const Tokenizer>> LoadTekken(const TokenizerFile& file) {
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, TekkenFile::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(TekkenFile contents, ParseTekkenFile(bytes, file.path));
  TM_ASSIGN_OR_RETURN(auto tokenizer, TekkenTokenizer::Create(std::move(contents), file.path));
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

// With what the tokenizer_config.json beside it says, if there is one.
StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizerJson(const TokenizerFile& file) {
  TokenizerConfigFile config;
  const std::string config_path =
      (std::filesystem::path(file.path).parent_path() / "tokenizer_config.json").string();
  auto config_bytes = ReadFile(config_path, TokenizerConfigFile::kMaxFileBytes);
  if (config_bytes.ok()) {
    TM_ASSIGN_OR_RETURN(config, ParseTokenizerConfig(*config_bytes, config_path));
  } else if (config_bytes.status().code() != StatusCode::kNotFound) {
    return config_bytes.status();
  }
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, TokenizerJsonFile::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(TokenizerJsonFile contents, ParseTokenizerJson(bytes, file.path));
  TM_ASSIGN_OR_RETURN(auto tokenizer, HuggingFaceTokenizer::Create(std::move(contents), config, file.path));
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

StatusOr<std::unique_ptr<const Tokenizer>> LoadGguf(const TokenizerFile& from) {
  TM_ASSIGN_OR_RETURN(const GgufFile file, OpenGguf(from.path));
  return MakeGgufTokenizer(file.metadata);
}

}  // namespace

StatusOr<TokenizerFile> FindTokenizerFile(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  const bool by_file = std::filesystem::is_regular_file(path, error);
  if (by_file) {
    if (IsGgufFile(path)) return TokenizerFile{path, TokenizerFileKind::kGguf, -1};
    names = {NameInAFolder(std::filesystem::path(path).filename().string())};
  } else {
    TM_ASSIGN_OR_RETURN(names, NamesInFolder(path));
  }
  for (const TokenizerFormat& format : kFormats) {
    std::optional<TokenizerFile> best;
    for (const std::string& name : names) {
      const std::optional<int> version = SuffixVersion(name, format);
      if (!version || (best && *version <= best->suffix_version)) continue;
      best = TokenizerFile{by_file ? path : (std::filesystem::path(path) / name).string(), format.kind,
                           *version};
    }
    if (best) return *best;
  }
  return NotFound(path + ": no tekken.json, tokenizer.model, tokenizer.model.vN or tokenizer.json");
}

StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const std::string& path) {
  TM_ASSIGN_OR_RETURN(const TokenizerFile file, FindTokenizerFile(path));
  for (const TokenizerFormat& format : kFormats) {
    if (format.kind == file.kind) return format.load(file);
  }
  return LoadGguf(file);
}

}  // namespace tramontane
