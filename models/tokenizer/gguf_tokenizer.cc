#include "models/tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/tokenizer/hugging_face_tokenizer.h"
#include "models/tokenizer/listed_merges.h"
#include "models/tokenizer/sentencepiece.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {
namespace {

constexpr int64_t kMostPieces = TokenizerJsonFile::kMaxVocabulary;
constexpr char kModelKey[] = "tokenizer.ggml.model";
constexpr char kTokensKey[] = "tokenizer.ggml.tokens";
constexpr char kTypesKey[] = "tokenizer.ggml.token_type";
constexpr char kPreKey[] = "tokenizer.ggml.pre";
constexpr char kMergesKey[] = "tokenizer.ggml.merges";

// Numbered as in the file, and as in a SentencePiece model.
using PieceType = SentencePieceModel::Type;

// What both kinds of vocabulary have.
struct Vocabulary {
  std::vector<std::string_view> pieces;  // by id; views into the file
  std::vector<PieceType> types;          // [pieces]
  int32_t bos_id = -1;                   // -1: none
  int32_t eos_id = -1;
  int32_t unk_id = -1;
};

constexpr std::string_view kPixtral = "pixtral";

// How text is cut before any merge, by the name of the pre-tokenizer.
struct PreTokenizer {
  const char* name;
  std::vector<TokenizerJsonFile::Split> splits;
  bool ignore_merges;                         // a cut that is a piece is that piece
  bool adds_bos;                              // where add_bos_token is absent
  std::vector<std::string_view> other_names;  // for which llama.cpp does the same

  bool IsCalled(std::string_view text) const {
    return text == name || std::find(other_names.begin(), other_names.end(), text) != other_names.end();
  }
};

const std::vector<PreTokenizer>& PreTokenizers() {
  using Split = TokenizerJsonFile::Split;
  using Kind = Split::Kind;
  const auto pattern = [](std::string_view text) {
    return Split{Kind::kPattern, std::string(text), "tokenizer.ggml.pre"};
  };
  const Split gpt2 = pattern(kGpt2Pattern);
  const Split one_digit = {Kind::kOneDigit, "", ""};
  const Split digit_run = {Kind::kDigitRun, "", ""};
  static const std::vector<PreTokenizer> table = {
      {"default",
       {pattern(R"([\p{P}$+<=>^~|]+)"), gpt2, digit_run, pattern("[0-9][0-9][0-9]")},
       false,
       false,
       {}},
      {"gpt-2",
       {gpt2},
       false,
       false,
       {"phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum",
        "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"}},
      {"smollm",
       {one_digit, gpt2},
       false,
       false,
       {"starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}},
      {"qwen2",
       {pattern(kQwen2Pattern)},
       false,
       false,
       {"deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"}},
      {"llama-bpe",
       {pattern(kLlama3Pattern)},
       true,
       true,
       {"llama3", "llama-v3", kPixtral, "falcon3", "falcon-h1", "midm-2.0", "lfm2", "jina-v5-nano"}},
      {"smaug-bpe", {pattern(kLlama3Pattern)}, false, false, {"dbrx"}},
      {"tekken", {pattern(kTekkenPattern)}, true, true, {}},
  };
  return table;
}

std::string KeyIn(const GgufMetadata& metadata, std::string_view key) {
  return metadata.file() + ": " + std::string(key);
}

std::string ElementIn(const GgufMetadata& metadata, std::string_view key, size_t index) {
  return KeyIn(metadata, key) + "[" + std::to_string(index) + "]";
}

Status WrongCount(const GgufMetadata& metadata, std::string_view key, size_t count, size_t pieces) {
  return DataLoss(KeyIn(metadata, key) + " has " + std::to_string(count) + " entries, " + kTokensKey +
                  " has " + std::to_string(pieces));
}

// -1 where the key is absent.
StatusOr<int32_t> IdOf(const GgufMetadata& metadata, std::string_view name, size_t pieces) {
  const std::string key = "tokenizer.ggml." + std::string(name) + "_token_id";
  TM_ASSIGN_OR_RETURN(const int64_t id, metadata.IntOr(key, 0, static_cast<int64_t>(pieces) - 1, -1));
  return static_cast<int32_t>(id);
}

Status CheckPiece(const GgufMetadata& metadata, const Vocabulary& vocabulary, size_t id) {
  const std::string_view piece = vocabulary.pieces[id];
  if (piece.empty() || piece.size() > TokenizerJsonFile::kMaxPieceBytes) {
    return DataLoss(ElementIn(metadata, kTokensKey, id) + " has " + std::to_string(piece.size()) +
                    " bytes, the limits are 1 and " + std::to_string(TokenizerJsonFile::kMaxPieceBytes));
  }
  if (FirstInvalidUtf8(piece)) return DataLoss(ElementIn(metadata, kTokensKey, id) + " is not UTF-8");
  return Status::Ok();
}

// Whatever a key names as the end or the beginning of a text is structure, even where its type says less.
Status ReadSpecialIds(const GgufMetadata& metadata, Vocabulary* vocabulary) {
  const size_t count = vocabulary->pieces.size();
  TM_ASSIGN_OR_RETURN(vocabulary->unk_id, IdOf(metadata, "unknown", count));
  TM_ASSIGN_OR_RETURN(vocabulary->bos_id, IdOf(metadata, "bos", count));
  TM_ASSIGN_OR_RETURN(vocabulary->eos_id, IdOf(metadata, "eos", count));
  for (const char* name : {"bos", "eos", "eot", "eom"}) {
    TM_ASSIGN_OR_RETURN(const int32_t id, IdOf(metadata, name, count));
    if (id >= 0) vocabulary->types[static_cast<size_t>(id)] = PieceType::kControl;
  }
  return Status::Ok();
}

StatusOr<Vocabulary> ReadVocabulary(const GgufMetadata& metadata) {
  Vocabulary vocabulary;
  TM_ASSIGN_OR_RETURN(vocabulary.pieces, metadata.Strings(kTokensKey));
  const size_t count = vocabulary.pieces.size();
  if (count < 1 || static_cast<int64_t>(count) > kMostPieces) {
    return DataLoss(KeyIn(metadata, kTokensKey) + " has " + std::to_string(count) +
                    " entries, the limits are 1 and " + std::to_string(kMostPieces));
  }
  vocabulary.types.assign(count, PieceType::kNormal);
  if (metadata.Has(kTypesKey)) {
    TM_ASSIGN_OR_RETURN(const std::vector<int64_t> types,
                        metadata.Ints(kTypesKey, static_cast<int64_t>(PieceType::kNormal),
                                      static_cast<int64_t>(PieceType::kByte)));
    if (types.size() != count) return WrongCount(metadata, kTypesKey, types.size(), count);
    for (size_t id = 0; id < count; ++id) vocabulary.types[id] = static_cast<PieceType>(types[id]);
  }
  std::unordered_map<std::string_view, size_t> seen;
  for (size_t id = 0; id < count; ++id) {
    TM_RETURN_IF_ERROR(CheckPiece(metadata, vocabulary, id));
    const auto [first, is_new] = seen.emplace(vocabulary.pieces[id], id);
    if (!is_new) {
      return DataLoss(ElementIn(metadata, kTokensKey, id) + " is the same piece as [" +
                      std::to_string(first->second) + "]");
    }
  }
  TM_RETURN_IF_ERROR(ReadSpecialIds(metadata, &vocabulary));
  TM_ASSIGN_OR_RETURN(const bool adds_eos, metadata.BoolOr("tokenizer.ggml.add_eos_token", false));
  if (adds_eos) {
    return Unimplemented(KeyIn(metadata, "tokenizer.ggml.add_eos_token") +
                         " is true: tokens behind a text are not supported");
  }
  return vocabulary;
}

// Whether a text begins with bos. `usual`: where the file does not say.
StatusOr<bool> AddsBos(const GgufMetadata& metadata, const Vocabulary& vocabulary, bool usual) {
  constexpr char kKey[] = "tokenizer.ggml.add_bos_token";
  TM_ASSIGN_OR_RETURN(const bool adds, metadata.BoolOr(kKey, usual));
  if (adds && metadata.Has(kKey) && vocabulary.bos_id < 0) {
    return DataLoss(KeyIn(metadata, kKey) + " is true, and tokenizer.ggml.bos_token_id is missing");
  }
  return adds && vocabulary.bos_id >= 0;
}

// ---- model "llama"

// All 256 byte pieces, or none.
StatusOr<bool> HasBytePieces(const GgufMetadata& metadata, const Vocabulary& vocabulary) {
  std::vector<bool> has(256, false);
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    if (vocabulary.types[id] != PieceType::kByte) continue;
    const int byte = ParseBytePiece(vocabulary.pieces[id]);
    if (byte < 0)
      return DataLoss(ElementIn(metadata, kTokensKey, id) + " is of type 6 (byte), not \"<0x0A>\"");
    has[static_cast<size_t>(byte)] = true;
  }
  const auto count = std::count(has.begin(), has.end(), true);
  if (count != 0 && count != 256) {
    return DataLoss(KeyIn(metadata, kTokensKey) + " has pieces for " + std::to_string(count) +
                    " bytes, the limits are 0 and 256");
  }
  return count == 256;
}

// The one piece that stands for text which cannot be spelled.
Status CheckUnknownPiece(const GgufMetadata& metadata, bool byte_fallback, Vocabulary* vocabulary) {
  for (size_t id = 0; id < vocabulary->types.size(); ++id) {
    if (vocabulary->types[id] != PieceType::kUnknown) continue;
    if (vocabulary->unk_id < 0) vocabulary->unk_id = static_cast<int32_t>(id);
    // A second one is never said.
    if (vocabulary->unk_id != static_cast<int32_t>(id)) vocabulary->types[id] = PieceType::kControl;
  }
  if (vocabulary->unk_id >= 0) {
    vocabulary->types[static_cast<size_t>(vocabulary->unk_id)] = PieceType::kUnknown;
    return Status::Ok();
  }
  if (byte_fallback) return Status::Ok();
  return DataLoss(KeyIn(metadata, kTokensKey) +
                  " has neither byte pieces nor an unknown one, so that some text has no ids");
}

StatusOr<SentencePieceModel> ReadLlama(const GgufMetadata& metadata) {
  TM_ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(metadata));
  if (!metadata.Has(kTypesKey)) {
    return NotFound(KeyIn(metadata, kTypesKey) + " is missing, which says what is no text");
  }
  constexpr char kScoresKey[] = "tokenizer.ggml.scores";
  TM_ASSIGN_OR_RETURN(const std::vector<float> scores, metadata.Floats(kScoresKey));
  const size_t count = vocabulary.pieces.size();
  if (scores.size() != count) return WrongCount(metadata, kScoresKey, scores.size(), count);
  SentencePieceModel model;
  TM_ASSIGN_OR_RETURN(model.byte_fallback, HasBytePieces(metadata, vocabulary));
  TM_RETURN_IF_ERROR(CheckUnknownPiece(metadata, model.byte_fallback, &vocabulary));
  TM_ASSIGN_OR_RETURN(model.add_dummy_prefix, metadata.BoolOr("tokenizer.ggml.add_space_prefix", true));
  TM_ASSIGN_OR_RETURN(model.remove_extra_whitespaces,
                      metadata.BoolOr("tokenizer.ggml.remove_extra_whitespaces", false));
  TM_ASSIGN_OR_RETURN(model.adds_bos, AddsBos(metadata, vocabulary, true));
  model.pieces.reserve(count);
  for (size_t id = 0; id < count; ++id) {
    model.pieces.push_back({std::string(vocabulary.pieces[id]), scores[id], vocabulary.types[id]});
  }
  const auto spelling = [&](int32_t id) {
    return id < 0 ? std::string() : model.pieces[static_cast<size_t>(id)].text;
  };
  model.bos_piece = spelling(vocabulary.bos_id);
  model.eos_piece = spelling(vocabulary.eos_id);
  return model;
}

// ---- model "gpt2"

StatusOr<const PreTokenizer*> FindPreTokenizer(const GgufMetadata& metadata) {
  TM_ASSIGN_OR_RETURN(const std::string_view name, metadata.StringOr(kPreKey, "default"));
  std::string names;
  for (const PreTokenizer& row : PreTokenizers()) {
    if (row.IsCalled(name)) return &row;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return Unimplemented(KeyIn(metadata, kPreKey) + " is " + GgufMetadata::Text(metadata.values().at(kPreKey)) +
                       ", which is none of " + names + ", nor another name of one of these");
}

// Each is two pieces with a space between.
StatusOr<std::vector<ListedMerges::Merge>> ReadMerges(const GgufMetadata& metadata,
                                                      const std::vector<std::string_view>& pieces) {
  TM_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, metadata.Strings(kMergesKey));
  if (texts.size() > TokenizerJsonFile::kMaxMerges) {
    return DataLoss(KeyIn(metadata, kMergesKey) + " has " + std::to_string(texts.size()) +
                    " entries, the limit is " + std::to_string(TokenizerJsonFile::kMaxMerges));
  }
  std::unordered_map<std::string, int32_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id) ids.emplace(pieces[id], static_cast<int32_t>(id));
  std::vector<ListedMerges::Merge> merges;
  merges.reserve(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto pair = SplitMerge(texts[rank]);
    if (!pair) return DataLoss(ElementIn(metadata, kMergesKey, rank) + " is not two pieces");
    std::string missing;
    const auto merge = FindMerge(ids, pair->first, pair->second, &missing);
    if (!merge) {
      return DataLoss(ElementIn(metadata, kMergesKey, rank) + " needs \"" + missing + "\", which is not in " +
                      kTokensKey);
    }
    merges.push_back(*merge);
  }
  return merges;
}

StatusOr<GgufVocabulary> ReadGpt2(const GgufMetadata& metadata) {
  TM_ASSIGN_OR_RETURN(const PreTokenizer* pre, FindPreTokenizer(metadata));
  TM_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(metadata));
  GgufVocabulary read;
  TokenizerJsonFile& file = read.json;
  file.family = "GGUF gpt2";
  file.splits = pre->splits;
  file.ignore_merges = pre->ignore_merges;
  TM_ASSIGN_OR_RETURN(file.merges, ReadMerges(metadata, vocabulary.pieces));
  if (!metadata.Has(kPreKey)) {
    file.warnings.emplace_back("tokenizer.ggml.pre is missing, so that text is cut as by default");
  } else if (*metadata.StringOr(kPreKey, "") == kPixtral) {
    file.warnings.emplace_back(
        "tokenizer.ggml.pre is \"pixtral\": text is cut as by llama-bpe, as llama.cpp does it; the release's "
        "tekken.json cuts it otherwise");
  }
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const PieceType type = vocabulary.types[id];
    const auto index = static_cast<int32_t>(id);
    // What pads a vocabulary is no piece.
    file.pieces.emplace_back(type == PieceType::kUnused ? std::string_view() : vocabulary.pieces[id]);
    if (type == PieceType::kUnknown && file.unk_id < 0) file.unk_id = index;
    if (type != PieceType::kControl && type != PieceType::kUserDefined) continue;
    file.added_tokens.push_back({.id = index,
                                 .content = std::string(vocabulary.pieces[id]),
                                 .is_special = type == PieceType::kControl,
                                 .is_in_model = true});
  }
  TokenizerConfigFile& config = read.config;
  TM_ASSIGN_OR_RETURN(const bool adds_bos, AddsBos(metadata, vocabulary, pre->adds_bos));
  config.adds_bos = adds_bos ? TokenizerConfigFile::AddsBos::kYes : TokenizerConfigFile::AddsBos::kNo;
  const auto spelling = [&](int32_t id) {
    return id < 0 ? std::string() : std::string(vocabulary.pieces[static_cast<size_t>(id)]);
  };
  config.bos_token = spelling(vocabulary.bos_id);
  config.eos_token = spelling(vocabulary.eos_id);
  return read;
}

}  // namespace

bool IsGgufFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::array<char, 4> begin{};
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), begin.size()) && std::string_view(begin.data(), begin.size()) == "GGUF";
}

std::string FindPreTokenizerName(const std::vector<TokenizerJsonFile::Split>& splits, bool ignore_merges,
                                 std::string* known) {
  const auto same = [](const TokenizerJsonFile::Split& a, const TokenizerJsonFile::Split& b) {
    return a.kind == b.kind && a.pattern == b.pattern;
  };
  for (const PreTokenizer& row : PreTokenizers()) {
    *known += (known->empty() ? "" : ", ") + std::string(row.name);
    const bool fits = std::equal(splits.begin(), splits.end(), row.splits.begin(), row.splits.end(), same);
    if (fits && row.ignore_merges == ignore_merges) return row.name;
  }
  return "";
}

StatusOr<GgufVocabulary> ReadGgufVocabulary(const GgufMetadata& metadata) {
  if (!metadata.Has(kModelKey)) {
    return NotFound(metadata.file() + ": there is no tokenizer in it (" + kModelKey +
                    " is missing); --tokenizer names one");
  }
  TM_ASSIGN_OR_RETURN(const std::string_view model, metadata.String(kModelKey));
  if (model == "gpt2") return ReadGpt2(metadata);
  if (model == "llama") {
    GgufVocabulary read;
    TM_ASSIGN_OR_RETURN(read.sentencepiece, ReadLlama(metadata));
    return read;
  }
  return Unimplemented(KeyIn(metadata, kModelKey) + " is " +
                       GgufMetadata::Text(metadata.values().at(kModelKey)) +
                       ", which is neither llama nor gpt2");
}

StatusOr<std::unique_ptr<const Tokenizer>> MakeGgufTokenizer(const GgufMetadata& metadata) {
  TM_ASSIGN_OR_RETURN(GgufVocabulary read, ReadGgufVocabulary(metadata));
  if (read.sentencepiece) {
    return std::unique_ptr<const Tokenizer>(
        new SentencePieceTokenizer(*std::move(read.sentencepiece), std::nullopt));
  }
  TM_ASSIGN_OR_RETURN(auto tokenizer, HuggingFaceTokenizer::Create(read.json, read.config, metadata.file()));
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

}  // namespace tramontane
