#include "models/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <string_view>

#include "models/tokenizer/gguf_tokenizer.h"

namespace tramontane {
namespace {

using nlohmann::json;
using Files = std::vector<std::pair<std::string, std::string>>;

Status FilesCannotSay(const GgufMetadata& metadata, const std::string& what) {
  return Unimplemented(metadata.file() + ": " + what);
}

// ---- tokenizer.model: a protobuf message, whose fields sentencepiece_model.cc lists

class MessageWriter {
 public:
  void Varint(uint32_t field, uint64_t value) {
    Number(uint64_t{field} << 3);
    Number(value);
  }
  void Float(uint32_t field, float value) {
    Number(uint64_t{field} << 3 | 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift);
  }
  void Bytes(uint32_t field, std::string_view value) {
    Number(uint64_t{field} << 3 | 2);
    Number(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// The id of a piece; -1: none.
uint64_t IdOfPiece(const SentencePieceModel& model, const std::string& text) {
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].text == text) return id;
  }
  return static_cast<uint64_t>(-1);
}

std::string SentencePieceBytes(const SentencePieceModel& model) {
  constexpr uint64_t kBpe = 2;
  MessageWriter file, trainer, normalizer;
  std::string unknown;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    MessageWriter message;
    message.Bytes(1, piece.text);
    message.Float(2, piece.score);
    message.Varint(3, static_cast<uint64_t>(piece.type));
    file.Bytes(1, message.bytes());
    if (piece.type == SentencePieceModel::Type::kUnknown) unknown = piece.text;
  }
  trainer.Varint(3, kBpe);
  trainer.Varint(4, model.pieces.size());
  trainer.Varint(35, model.byte_fallback ? 1 : 0);
  trainer.Varint(40, IdOfPiece(model, unknown));
  trainer.Varint(41, IdOfPiece(model, model.bos_piece));
  trainer.Varint(42, IdOfPiece(model, model.eos_piece));
  trainer.Varint(43, static_cast<uint64_t>(-1));  // nothing pads
  trainer.Bytes(44, model.unk_surface);
  trainer.Bytes(45, unknown);
  trainer.Bytes(46, model.bos_piece);
  trainer.Bytes(47, model.eos_piece);
  file.Bytes(2, trainer.bytes());
  normalizer.Bytes(1, "identity");
  normalizer.Varint(3, model.add_dummy_prefix ? 1 : 0);
  normalizer.Varint(4, model.remove_extra_whitespaces ? 1 : 0);
  normalizer.Varint(5, 1);
  file.Bytes(3, normalizer.bytes());
  return file.bytes();
}

bool SameSentencePieces(const SentencePieceModel& a, const SentencePieceModel& b) {
  const auto same = [](const SentencePieceModel::Piece& x, const SentencePieceModel::Piece& y) {
    return x.text == y.text && x.score == y.score && x.type == y.type;
  };
  return std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(), same) &&
         a.byte_fallback == b.byte_fallback && a.add_dummy_prefix == b.add_dummy_prefix &&
         a.remove_extra_whitespaces == b.remove_extra_whitespaces && a.bos_piece == b.bos_piece &&
         a.eos_piece == b.eos_piece && a.adds_bos == b.adds_bos && a.unk_surface == b.unk_surface;
}

StatusOr<Files> SentencePieceFiles(const GgufMetadata& metadata, SentencePieceModel model) {
  // What pads a vocabulary at its end is no piece of it.
  while (!model.pieces.empty() && model.pieces.back().type == SentencePieceModel::Type::kUnused)
    model.pieces.pop_back();
  std::string bytes = SentencePieceBytes(model);
  TM_ASSIGN_OR_RETURN(const SentencePieceModel read,
                      ParseSentencePieceModel(bytes, metadata.file() + " as tokenizer.model"));
  if (!SameSentencePieces(model, read))
    return FilesCannotSay(metadata, "a tokenizer.model cannot say what its tokenizer.* keys do");
  return Files{{"tokenizer.model", std::move(bytes)}};
}

// ---- tokenizer.json

json SplitJson(const TokenizerJsonFile::Split& split) {
  using Kind = TokenizerJsonFile::Split::Kind;
  if (split.kind == Kind::kPattern) {
    return {{"type", "Split"},
            {"pattern", {{"Regex", split.pattern}}},
            {"behavior", "Isolated"},
            {"invert", false}};
  }
  return {{"type", "Digits"}, {"individual_digits", split.kind == Kind::kOneDigit}};
}

json ByteLevelJson() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
}

// One token in front of a text.
json TemplateJson(const std::string& token, int32_t id) {
  const json special = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  const auto sequence = [](const char* name) { return json{{"Sequence", {{"id", name}, {"type_id", 0}}}}; };
  return {{"type", "TemplateProcessing"},
          {"single", {special, sequence("A")}},
          {"pair", {special, sequence("A"), special, sequence("B")}},
          {"special_tokens", {{token, {{"id", token}, {"ids", {id}}, {"tokens", {token}}}}}}};
}

json TokenizerJson(const TokenizerJsonFile& file, const TokenizerConfigFile& config) {
  json vocabulary = json::object(), added = json::array(), merges = json::array(), steps = json::array();
  int32_t bos_id = -1;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (!file.pieces[id].empty()) vocabulary[file.pieces[id]] = id;
    if (file.pieces[id] == config.bos_token && !config.bos_token.empty()) bos_id = static_cast<int32_t>(id);
  }
  for (const TokenizerJsonFile::AddedToken& token : file.added_tokens) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.is_single_word},
                     {"lstrip", token.takes_left},
                     {"rstrip", token.takes_right},
                     {"normalized", token.is_normalized},
                     {"special", token.is_special}});
  }
  const auto piece = [&](int32_t id) { return file.pieces[static_cast<size_t>(id)]; };
  for (const ListedMerges::Merge& merge : file.merges)
    merges.push_back({piece(merge.left), piece(merge.right)});
  for (const TokenizerJsonFile::Split& split : file.splits) steps.push_back(SplitJson(split));
  steps.push_back(ByteLevelJson());
  const bool adds_bos = config.adds_bos == TokenizerConfigFile::AddsBos::kYes && bos_id >= 0;
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
          {"post_processor", adds_bos ? TemplateJson(config.bos_token, bos_id) : ByteLevelJson()},
          {"decoder", ByteLevelJson()},
          {"model",
           {{"type", "BPE"},
            {"unk_token", file.unk_id < 0 ? json() : json(piece(file.unk_id))},
            {"ignore_merges", file.ignore_merges},
            {"vocab", vocabulary},
            {"merges", merges}}}};
}

bool SameTokenizerJson(const TokenizerJsonFile& a, const TokenizerJsonFile& b) {
  const auto same_merge = [](const ListedMerges::Merge& x, const ListedMerges::Merge& y) {
    return x.left == y.left && x.right == y.right;
  };
  const auto same_token = [](const TokenizerJsonFile::AddedToken& x, const TokenizerJsonFile::AddedToken& y) {
    return x.id == y.id && x.content == y.content && x.is_special == y.is_special;
  };
  const auto same_split = [](const TokenizerJsonFile::Split& x, const TokenizerJsonFile::Split& y) {
    return x.kind == y.kind && x.pattern == y.pattern;
  };
  return a.alphabet == b.alphabet && a.pieces == b.pieces && a.ignore_merges == b.ignore_merges &&
         a.unk_id == b.unk_id &&
         std::equal(a.merges.begin(), a.merges.end(), b.merges.begin(), b.merges.end(), same_merge) &&
         std::equal(a.added_tokens.begin(), a.added_tokens.end(), b.added_tokens.begin(),
                    b.added_tokens.end(), same_token) &&
         std::equal(a.splits.begin(), a.splits.end(), b.splits.begin(), b.splits.end(), same_split);
}

StatusOr<Files> TokenizerJsonFiles(const GgufMetadata& metadata, GgufVocabulary vocabulary) {
  while (!vocabulary.json.pieces.empty() && vocabulary.json.pieces.back().empty())
    vocabulary.json.pieces.pop_back();
  const TokenizerConfigFile& config = vocabulary.config;
  std::string bytes = TokenizerJson(vocabulary.json, config).dump(1) + "\n";
  TM_ASSIGN_OR_RETURN(const TokenizerJsonFile read,
                      ParseTokenizerJson(bytes, metadata.file() + " as tokenizer.json"));
  if (!SameTokenizerJson(vocabulary.json, read))
    return FilesCannotSay(metadata, "a tokenizer.json cannot say what its tokenizer.* keys do");
  json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"add_bos_token", config.adds_bos == TokenizerConfigFile::AddsBos::kYes}};
  if (!config.bos_token.empty()) settings["bos_token"] = config.bos_token;
  if (!config.eos_token.empty()) settings["eos_token"] = config.eos_token;
  return Files{{"tokenizer.json", std::move(bytes)}, {"tokenizer_config.json", settings.dump(2) + "\n"}};
}

}  // namespace

StatusOr<Files> MakeTokenizerFiles(const GgufMetadata& metadata) {
  TM_ASSIGN_OR_RETURN(GgufVocabulary vocabulary, ReadGgufVocabulary(metadata));
  if (vocabulary.sentencepiece) return SentencePieceFiles(metadata, *std::move(vocabulary.sentencepiece));
  return TokenizerJsonFiles(metadata, std::move(vocabulary));
}

}  // namespace tramontane
