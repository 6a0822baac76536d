#include "models/tokenizer/gguf_tokenizer_keys.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "models/files/read_file.h"
#include "models/gguf/gguf_file.h"
#include "models/tokenizer/byte_letters.h"
#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/load.h"
#include "models/tokenizer/piece_splitter.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tekken_file.h"
#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {
namespace {

// Numbered as in the file.
using Type = SentencePieceModel::Type;

constexpr float kUnusedScore = -1000.0f;

// The tokens in the making.
struct TokenList {
  std::vector<std::string> tokens;  // by id
  std::vector<int32_t> types;

  void Add(std::string_view token, Type type) {
    tokens.emplace_back(token);
    types.push_back(static_cast<int32_t>(type));
  }
  void AddUnused() { Add("[PAD" + std::to_string(tokens.size()) + "]", Type::kUnused); }
  // Up to the rows of the embedding.
  void Fill(int64_t vocab_size) {
    while (static_cast<int64_t>(tokens.size()) < vocab_size) AddUnused();
  }
  void Write(GgufKeys* keys) const {
    keys->SetStrings("tokenizer.ggml.tokens", tokens);
    keys->SetInts("tokenizer.ggml.token_type", types);
  }
};

Status CannotBeSaid(const TokenizerFile& file, const std::string& what) {
  return Unimplemented(file.path + ": " + what + ": the keys of a GGUF file cannot say it");
}

StatusOr<GgufKeys> KeysOfGguf(const TokenizerFile& from) {
  TM_ASSIGN_OR_RETURN(const GgufFile file, OpenGguf(from.path));
  GgufKeys keys;
  for (const auto& [key, value] : file.metadata.values()) {
    if (key.starts_with("tokenizer.")) keys.Copy(key, value);
  }
  if (keys.size() == 0) return NotFound(from.path + ": there is no tokenizer in it");
  return keys;
}

// Tokens that the tokenizer has beyond the file, or in the place of others, are what was added to it.
StatusOr<GgufKeys> KeysOfSentencePiece(const TokenizerFile& file, const Tokenizer& tokenizer,
                                       int64_t vocab_size) {
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, SentencePieceModel::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(const SentencePieceModel model, ParseSentencePieceModel(bytes, file.path));
  TokenList vocabulary;
  std::vector<float> scores;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto* piece =
        static_cast<size_t>(id) < model.pieces.size() ? &model.pieces[static_cast<size_t>(id)] : nullptr;
    const std::string_view text = tokenizer.Piece(id);
    scores.push_back(piece == nullptr ? kUnusedScore : piece->score);
    if (piece != nullptr && piece->text == text) {
      vocabulary.Add(text, piece->type);
    } else if (text.empty()) {
      vocabulary.AddUnused();
    } else {
      vocabulary.Add(text, tokenizer.IsControl(id) ? Type::kControl : Type::kUserDefined);
    }
  }
  vocabulary.Fill(vocab_size);
  scores.resize(vocabulary.tokens.size(), kUnusedScore);
  GgufKeys keys;
  keys.SetString("tokenizer.ggml.model", "llama");
  keys.SetString("tokenizer.ggml.pre", "default");
  vocabulary.Write(&keys);
  keys.SetFloats("tokenizer.ggml.scores", scores);
  keys.SetBool("tokenizer.ggml.add_space_prefix", model.add_dummy_prefix);
  keys.SetBool("tokenizer.ggml.remove_extra_whitespaces", model.remove_extra_whitespaces);
  return keys;
}

StatusOr<GgufKeys> KeysOfTekken(const TokenizerFile& file, int64_t vocab_size) {
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, TekkenFile::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(const TekkenFile contents, ParseTekkenFile(bytes, file.path));
  if (contents.pattern != kTekkenPattern) return CannotBeSaid(file, "config.pattern is not tekken's own");
  TokenList vocabulary;
  for (const std::string& token : contents.special) vocabulary.Add(token, Type::kControl);
  for (const std::string& token : contents.tokens) vocabulary.Add(LettersOfBytes(token), Type::kNormal);
  vocabulary.Fill(vocab_size);
  std::vector<std::string> merges;
  for (const auto& [left, right] : MergesOfRanks(contents.tokens))
    merges.push_back(LettersOfBytes(left) + " " + LettersOfBytes(right));
  GgufKeys keys;
  keys.SetString("tokenizer.ggml.model", "gpt2");
  keys.SetString("tokenizer.ggml.pre", "tekken");
  vocabulary.Write(&keys);
  keys.SetStrings("tokenizer.ggml.merges", merges);
  return keys;
}

// What is not looked for as it stands.
Status CheckAddedTokens(const TokenizerFile& file, const TokenizerJsonFile& contents) {
  for (const TokenizerJsonFile::AddedToken& token : contents.added_tokens) {
    const char* flag = token.takes_left       ? "lstrip"
                       : token.takes_right    ? "rstrip"
                       : token.is_single_word ? "single_word"
                                              : nullptr;
    if (flag != nullptr)
      return CannotBeSaid(file, "added token \"" + Excerpt(token.content) + "\" has " + flag);
  }
  return {};
}

StatusOr<GgufKeys> KeysOfTokenizerJson(const TokenizerFile& file, const Tokenizer& tokenizer,
                                       int64_t vocab_size) {
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, TokenizerJsonFile::kMaxFileBytes));
  TM_ASSIGN_OR_RETURN(const TokenizerJsonFile contents, ParseTokenizerJson(bytes, file.path));
  if (contents.alphabet != TokenizerJsonFile::Alphabet::kBytes) {
    return CannotBeSaid(file,
                        "it is not byte-level, and has no scores, which a tokenizer.model beside it has");
  }
  std::string known;
  const std::string pre = FindPreTokenizerName(contents.splits, contents.ignore_merges, &known);
  if (pre.empty()) return CannotBeSaid(file, "its pre_tokenizer with its ignore_merges is none of " + known);
  TM_RETURN_IF_ERROR(CheckAddedTokens(file, contents));
  std::vector<bool> is_added(contents.pieces.size());
  for (const auto& token : contents.added_tokens) is_added[static_cast<size_t>(token.id)] = true;
  TokenList vocabulary;
  for (size_t id = 0; id < contents.pieces.size(); ++id) {
    const std::string& piece = contents.pieces[id];
    const PieceKind kind = tokenizer.Kind(static_cast<int32_t>(id));
    if (piece.empty()) {
      vocabulary.AddUnused();
    } else {
      vocabulary.Add(piece, kind == PieceKind::kControl   ? Type::kControl
                            : kind == PieceKind::kUnknown ? Type::kUnknown
                            : is_added[id]                ? Type::kUserDefined
                                                          : Type::kNormal);
    }
  }
  vocabulary.Fill(vocab_size);
  std::vector<std::string> merges;
  for (const ListedMerges::Merge& merge : contents.merges) {
    merges.push_back(contents.pieces[static_cast<size_t>(merge.left)] + " " +
                     contents.pieces[static_cast<size_t>(merge.right)]);
  }
  GgufKeys keys;
  keys.SetString("tokenizer.ggml.model", "gpt2");
  keys.SetString("tokenizer.ggml.pre", pre);
  vocabulary.Write(&keys);
  keys.SetStrings("tokenizer.ggml.merges", merges);
  return keys;
}

StatusOr<GgufKeys> KeysOf(const ChosenTokenizer& chosen, int64_t vocab_size) {
  const TokenizerFile& file = chosen.file;
  const Tokenizer& tokenizer = *chosen.tokenizer;
  // Of the two only the model file has scores.
  const bool has_model = chosen.left_aside && chosen.left_aside->kind == TokenizerFileKind::kSentencePiece;
  if (has_model) return KeysOfSentencePiece(*chosen.left_aside, tokenizer, vocab_size);
  switch (file.kind) {
    case TokenizerFileKind::kTekken:
      return KeysOfTekken(file, vocab_size);
    case TokenizerFileKind::kSentencePiece:
      return KeysOfSentencePiece(file, tokenizer, vocab_size);
    case TokenizerFileKind::kTokenizerJson:
      return KeysOfTokenizerJson(file, tokenizer, vocab_size);
    case TokenizerFileKind::kGguf:
      break;
  }
  return KeysOfGguf(file);
}

void WriteSpecialIds(const Tokenizer& tokenizer, GgufKeys* keys) {
  for (const auto& [key, id] : {std::pair("tokenizer.ggml.bos_token_id", tokenizer.bos_id()),
                                {"tokenizer.ggml.eos_token_id", tokenizer.eos_id()},
                                {"tokenizer.ggml.unknown_token_id", tokenizer.unk_id()}}) {
    if (id >= 0) keys->SetUint32(key, id);
  }
  keys->SetBool("tokenizer.ggml.add_bos_token", tokenizer.adds_bos());
  keys->SetBool("tokenizer.ggml.add_eos_token", false);
}

}  // namespace

StatusOr<GgufKeys> MakeGgufTokenizerKeys(const std::string& path, int64_t vocab_size) {
  TM_ASSIGN_OR_RETURN(const TokenizerFile first, FindTokenizerFile(path));
  if (first.kind == TokenizerFileKind::kGguf) return KeysOfGguf(first);
  TM_ASSIGN_OR_RETURN(const ChosenTokenizer chosen, ChooseTokenizer(path, vocab_size));
  const TokenizerFile& file = chosen.file;
  const Tokenizer* const tokenizer = chosen.tokenizer.get();
  if (tokenizer->vocab_size() > vocab_size) {
    return InvalidArgument(file.path + ": the tokenizer has " + std::to_string(tokenizer->vocab_size()) +
                           " tokens, the embedding has rows for " + std::to_string(vocab_size));
  }
  TM_ASSIGN_OR_RETURN(GgufKeys keys, KeysOf(chosen, vocab_size));
  WriteSpecialIds(*tokenizer, &keys);
  // What a reader refuses, tokens that stand twice for one, is refused here.
  TM_RETURN_IF_ERROR(MakeGgufTokenizer(keys.Metadata(file.path + " as GGUF")).status());
  return keys;
}

std::vector<std::pair<std::string, std::string>> MergesOfRanks(const std::vector<std::string>& tokens) {
  constexpr size_t kBytes = 256;
  constexpr size_t kNone = SIZE_MAX;
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) ranks.emplace(tokens[rank], rank);
  std::vector<std::pair<std::string, std::string>> merges;
  for (size_t rank = kBytes; rank < tokens.size(); ++rank) {
    const std::string_view token = tokens[rank];
    std::vector<size_t> begins(token.size() + 1);  // of the parts, and the end of the last
    for (size_t at = 0; at < begins.size(); ++at) begins[at] = at;
    const auto rank_of_pair = [&](size_t part) {
      const auto found = ranks.find(token.substr(begins[part], begins[part + 2] - begins[part]));
      return found == ranks.end() || found->second >= rank ? kNone : found->second;
    };
    std::vector<size_t> pairs;  // the rank of each part joined with the next one
    for (size_t part = 0; part + 2 < begins.size(); ++part) pairs.push_back(rank_of_pair(part));
    while (!pairs.empty()) {
      const auto best = std::min_element(pairs.begin(), pairs.end());
      if (*best == kNone) break;
      const auto part = static_cast<size_t>(best - pairs.begin());
      begins.erase(begins.begin() + static_cast<std::ptrdiff_t>(part) + 1);
      pairs.erase(best);
      if (part < pairs.size()) pairs[part] = rank_of_pair(part);
      if (part > 0) pairs[part - 1] = rank_of_pair(part - 1);
    }
    if (pairs.size() != 1) continue;
    merges.emplace_back(token.substr(0, begins[1]), token.substr(begins[1]));
  }
  return merges;
}

}  // namespace tramontane
