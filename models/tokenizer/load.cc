#include "models/tokenizer/load.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/files/built_in_files.h"
#include "models/files/read_file.h"
#include "models/gguf/gguf_file.h"
#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/hugging_face_tokenizer.h"
#include "models/tokenizer/listed_tokens.h"
#include "models/tokenizer/sentencepiece.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tekken.h"
#include "models/tokenizer/tekken_file.h"
#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {
namespace {

// A kind of tokenizer file: its name before any ".vN". The first kind that a folder holds is used.
struct TokenizerFormat {
  TokenizerFileKind kind;
  const char* file_name;
  bool may_have_suffix;
};

constexpr TokenizerFormat kFormats[] = {
    {TokenizerFileKind::kTekken, "tekken.json", false},
    {TokenizerFileKind::kSentencePiece, "tokenizer.model", true},
    {TokenizerFileKind::kTokenizerJson, "tokenizer.json", false},
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

using TokenizerPtr = std::unique_ptr<const Tokenizer>;

ChosenTokenizer Chosen(TokenizerFile file, TokenizerPtr tokenizer,
                       std::optional<TokenizerFile> left_aside = std::nullopt) {
  ChosenTokenizer chosen;
  chosen.file = std::move(file);
  chosen.left_aside = std::move(left_aside);
  chosen.tokenizer = std::move(tokenizer);
  return chosen;
}

// What files beside a vocabulary's say of it.
struct Beside {
  std::string folder;  // "": the file was named, and nothing beside it is looked at
  int64_t rows = 0;    // of the model; 0: not known
  std::vector<ListedToken> listed;
  std::vector<std::string> warnings;
};

// Text that stands for a token which a later one may replace.
bool IsPlaceholder(std::string_view text) {
  return text.starts_with("<SPECIAL_") || text.starts_with("[control_");
}

// What fills batches up in training, and never stands in a text.
bool IsPadding(std::string_view text) {
  constexpr std::string_view kPads[] = {"<pad>", "[PAD]", "<PAD>", "<|pad|>", "<|padding|>"};
  return std::find(std::begin(kPads), std::end(kPads), text) != std::end(kPads);
}

// The listed tokens that a vocabulary of Mistral's lacks: behind its last, or in the place of one that stands
// for none. `structure`: the control token of an id, "" for others.
template <typename Structure>
std::vector<const ListedToken*> TokensItLacks(const Beside& beside, int64_t size,
                                              const std::unordered_set<std::string_view>& known,
                                              const Structure& structure) {
  std::vector<const ListedToken*> lacking;
  for (const ListedToken& listed : beside.listed) {
    const auto& token = listed.token;
    if (known.count(token.content) != 0 || (beside.rows > 0 && token.id >= beside.rows)) continue;
    const bool takes_a_place =
        token.id < size && IsTurnMarker(token.content) && IsPlaceholder(structure(token.id));
    if (token.id >= size || takes_a_place) lacking.push_back(&listed);
  }
  return lacking;
}

// "<|im_end|> (32000) and 1 more"
std::string NamesOf(const std::vector<const ListedToken*>& tokens) {
  const auto& first = tokens.front()->token;
  return "\"" + Excerpt(first.content) + "\" (" + std::to_string(first.id) + ")" +
         (tokens.size() == 1 ? "" : " and " + std::to_string(tokens.size() - 1) + " more");
}

bool AnyIsSaid(const std::vector<const ListedToken*>& tokens) {
  return std::any_of(tokens.begin(), tokens.end(),
                     [](const ListedToken* listed) { return !IsPadding(listed->token.content); });
}

// What stands beside that file; nothing where it is not there.
StatusOr<TokenizerConfigFile> ConfigBeside(const std::string& path) {
  const std::string config = (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  if (!FileExists(config)) return TokenizerConfigFile();
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(config, TokenizerConfigFile::kMaxFileBytes));
  return ParseTokenizerConfig(bytes, config);
}

// With what the tokenizer_config.json beside it says, if there is one, and with the tokens that other files
// beside it list and it lacks, as transformers adds them.
StatusOr<TokenizerPtr> LoadTokenizerJson(const std::string& path, const Beside& beside,
                                         std::string why = "") {
  TM_ASSIGN_OR_RETURN(const TokenizerConfigFile config, ConfigBeside(path));
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, TokenizerJsonFile::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(TokenizerJsonFile contents, ParseTokenizerJson(bytes, path));
  const std::unordered_set<std::string_view> known(contents.pieces.begin(), contents.pieces.end());
  std::vector<const ListedToken*> added;
  for (const ListedToken& listed : beside.listed) {
    const auto id = static_cast<size_t>(listed.token.id);
    const bool has_place = id >= contents.pieces.size() || contents.pieces[id].empty();
    const bool has_row = beside.rows == 0 || listed.token.id < beside.rows;
    if (has_place && has_row && known.count(listed.token.content) == 0) added.push_back(&listed);
  }
  for (const ListedToken* listed : added) {
    const auto id = static_cast<size_t>(listed->token.id);
    contents.pieces.resize(std::max(contents.pieces.size(), id + 1));
    contents.pieces[id] = listed->token.content;
    contents.added_tokens.push_back(listed->token);
  }
  if (!added.empty())
    contents.warnings.push_back("it lacks " + NamesOf(added) + " of " + added[0]->file + ": added to it");
  if (!why.empty()) contents.warnings.push_back(std::move(why));
  TM_ASSIGN_OR_RETURN(auto tokenizer, HuggingFaceTokenizer::Create(std::move(contents), config, path));
  return TokenizerPtr(std::move(tokenizer));
}

// The tokenizer.json of the folder, where it has all that `known` has (by id; "" fits any) and all that this
// lacks; else an error that says why not.
StatusOr<TokenizerPtr> LoadTheOther(const TokenizerFile& file, const Beside& beside,
                                    const std::vector<const ListedToken*>& lacking,
                                    const std::vector<std::string_view>& known) {
  const std::string path = beside.folder + "/tokenizer.json";
  if (!FileExists(path)) return NotFound(path + " is not there");
  TM_ASSIGN_OR_RETURN(
      TokenizerPtr other,
      LoadTokenizerJson(path, beside,
                        "it is taken, and " + file.path + " is left aside, which lacks " + NamesOf(lacking)));
  for (const ListedToken* listed : lacking) {
    if (other->Piece(listed->token.id) != listed->token.content)
      return InvalidArgument(path + " lacks " + NamesOf({listed}) + " of " + listed->file + " too");
  }
  if (other->vocab_size() < static_cast<int64_t>(known.size())) {
    return InvalidArgument(path + " has " + std::to_string(other->vocab_size()) + " tokens, it has " +
                           std::to_string(known.size()));
  }
  for (size_t id = 0; id < known.size(); ++id) {
    const std::string_view piece = other->Piece(static_cast<int32_t>(id));
    if (known[id].empty() || piece == known[id] || IsPlaceholder(known[id])) continue;
    return InvalidArgument(path + " says that " + std::to_string(id) + " is \"" + Excerpt(piece) +
                           "\", which in it is \"" + Excerpt(known[id]) + "\"");
  }
  return other;
}

// Puts them behind the model's pieces, or into their places.
void AddTokens(const std::vector<const ListedToken*>& tokens, SentencePieceModel* model) {
  using Type = SentencePieceModel::Type;
  for (const ListedToken* listed : tokens) {
    const auto id = static_cast<size_t>(listed->token.id);
    while (model->pieces.size() <= id) model->pieces.push_back({"", 0, Type::kControl});
    model->pieces[id] = {listed->token.content, 0,
                         listed->token.is_special ? Type::kControl : Type::kUserDefined};
  }
}

// What a tokenizer_config.json says of a model whose tokens it names.
void AdoptConfig(const TokenizerConfigFile& config, SentencePieceModel* model) {
  if (!config.bos_token.empty()) model->bos_piece = config.bos_token;
  if (!config.eos_token.empty()) model->eos_piece = config.eos_token;
  if (config.adds_bos == TokenizerConfigFile::AddsBos::kNo) model->adds_bos = false;
  model->prefix_begins_text = !config.legacy;
}

StatusOr<ChosenTokenizer> ChooseSentencePiece(const TokenizerFile& file, const Beside& beside) {
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, SentencePieceModel::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(SentencePieceModel model, ParseSentencePieceModel(bytes, file.path));
  TokenizerVersion version = VersionFromPieces(model);
  const char* source = "by its control pieces";
  if (file.suffix_version >= 0) {
    TM_ASSIGN_OR_RETURN(version, VersionFromSuffix(file));
    source = "the suffix of its name says so";
  }
  std::vector<std::string_view> pieces;
  for (const auto& piece : model.pieces) pieces.emplace_back(piece.text);
  const std::vector<const ListedToken*> lacking =
      TokensItLacks(beside, std::ssize(pieces), {pieces.begin(), pieces.end()},
                    [&](int32_t id) { return pieces[static_cast<size_t>(id)]; });
  if (AnyIsSaid(lacking)) {
    auto other = LoadTheOther(file, beside, lacking, pieces);
    if (other.ok()) {
      return Chosen({beside.folder + "/tokenizer.json", TokenizerFileKind::kTokenizerJson, -1},
                    *std::move(other), file);
    }
    TM_ASSIGN_OR_RETURN(const TokenizerConfigFile config, ConfigBeside(file.path));
    AdoptConfig(config, &model);
    model.warnings.push_back(file.path + ": it lacks " + NamesOf(lacking) + " of " + lacking[0]->file +
                             ": added to it; " + other.status().message());
  }
  pieces.clear();
  AddTokens(lacking, &model);
  model.warnings.insert(model.warnings.end(), beside.warnings.begin(), beside.warnings.end());
  return Chosen(file, std::make_unique<SentencePieceTokenizer>(std::move(model), version, source));
}

StatusOr<ChosenTokenizer> ChooseTekken(const TokenizerFile& file, const Beside& beside) {
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, TekkenFile::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(TekkenFile contents, ParseTekkenFile(bytes, file.path));
  const std::vector<std::string>& special = contents.special;
  const size_t size = special.size() + contents.tokens.size();
  const std::vector<const ListedToken*> lacking =
      TokensItLacks(beside, static_cast<int64_t>(size), {special.begin(), special.end()}, [&](int32_t id) {
        return static_cast<size_t>(id) < special.size() ? special[static_cast<size_t>(id)] : std::string();
      });
  if (AnyIsSaid(lacking)) {
    auto other = LoadTheOther(file, beside, lacking, std::vector<std::string_view>(size));
    if (other.ok()) {
      return Chosen({beside.folder + "/tokenizer.json", TokenizerFileKind::kTokenizerJson, -1},
                    *std::move(other), file);
    }
    contents.warnings.push_back(file.path + ": it lacks " + NamesOf(lacking) + " of " + lacking[0]->file +
                                ", which are left aside; " + other.status().message());
  }
  TM_ASSIGN_OR_RETURN(auto tokenizer, TekkenTokenizer::Create(std::move(contents), file.path));
  return Chosen(file, std::move(tokenizer));
}

StatusOr<ChosenTokenizer> ChooseTokenizerJson(const TokenizerFile& file, const Beside& beside) {
  TM_ASSIGN_OR_RETURN(TokenizerPtr tokenizer, LoadTokenizerJson(file.path, beside));
  return Chosen(file, std::move(tokenizer));
}

StatusOr<ChosenTokenizer> LoadGguf(const TokenizerFile& from) {
  TM_ASSIGN_OR_RETURN(const GgufFile file, OpenGguf(from.path));
  TM_ASSIGN_OR_RETURN(TokenizerPtr tokenizer, MakeGgufTokenizer(file.metadata));
  return Chosen(from, std::move(tokenizer));
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

StatusOr<ChosenTokenizer> ChooseTokenizer(const std::string& path, int64_t rows) {
  TM_ASSIGN_OR_RETURN(const TokenizerFile file, FindTokenizerFile(path));
  if (file.kind == TokenizerFileKind::kGguf) return LoadGguf(file);
  Beside beside;
  beside.rows = rows;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    beside.folder = path;
    beside.listed = ReadListedTokens(path, &beside.warnings);
  }
  if (file.kind == TokenizerFileKind::kTekken) return ChooseTekken(file, beside);
  if (file.kind == TokenizerFileKind::kSentencePiece) return ChooseSentencePiece(file, beside);
  return ChooseTokenizerJson(file, beside);
}

StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const std::string& path, int64_t rows) {
  TM_ASSIGN_OR_RETURN(ChosenTokenizer chosen, ChooseTokenizer(path, rows));
  return std::move(chosen.tokenizer);
}

}  // namespace tramontane
