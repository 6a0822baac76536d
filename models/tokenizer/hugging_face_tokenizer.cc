#include "models/tokenizer/hugging_face_tokenizer.h"

#include <algorithm>
#include <utility>

#include "kernels/core/code_point.h"
#include "kernels/core/utf8.h"
#include "models/tokenizer/byte_letters.h"
#include "models/tokenizer/character_class.h"
#include "models/tokenizer/listed_tokens.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/space_mark.h"
#include "models/tokenizer/spelled_bytes.h"

namespace tramontane {
namespace {

// What \w is to Rust's regular expressions.
constexpr const char* kWordCharacter =
    R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149})"
    R"(\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}])";

// Bytes that no UTF-8 holds.
bool IsNeverInText(size_t byte) { return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5; }

size_t LastCharacter(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool IsWhiteSpace(std::string_view character) {
  const CharacterClass its_class = ClassOfCharacter(CodePointOf(character));
  return its_class == CharacterClass::kSpace || its_class == CharacterClass::kNewline;
}

}  // namespace

// ---- encoding

// One text on its way to ids.
class HuggingFaceTokenizer::Encoding {
 public:
  Encoding(const HuggingFaceTokenizer& tokenizer, ControlTokens control_tokens)
      : tokenizer_(tokenizer), control_tokens_(control_tokens) {}

  Status EncodeText(std::string_view text, std::span<const SpellingMatcher::Match> places);

  std::vector<int32_t> ids;
  ListedMerges::Scratch scratch;

 private:
  // [begin, end) of a text: an added token, or with -1 what lies between two.
  struct Part {
    size_t begin;
    size_t end;
    int32_t token;
  };

  Status EncodeBetween(std::string_view text, bool begins_text);
  // The place with the white space that its token takes, which is behind `done`.
  Part WithTakenSpace(std::string_view text, size_t done, const AddedToken& token, Part place) const;
  std::vector<Part> FindAddedTokens(std::string_view text, const SpellingMatcher& matcher) const;
  bool IsInsideWord(std::string_view text, const SpellingMatcher::Match& match) const;
  bool IsWordCharacter(std::string_view character) const;
  Status EncodeSegment(std::string_view segment, bool begins_text);
  Status EncodeBytes(std::string_view segment);
  void EncodeCharacters(std::string_view segment, bool begins_text);
  void EncodeSpaced(std::string_view text);
  void EncodeCut(std::string_view cut, bool ignore_merges);

  const HuggingFaceTokenizer& tokenizer_;
  const ControlTokens control_tokens_;
  std::vector<int32_t> symbols_;
  std::vector<uint32_t> ends_;
  std::vector<uint32_t> next_ends_;
  std::vector<uint32_t> step_ends_;
};

StatusOr<std::vector<int32_t>> HuggingFaceTokenizer::EncodeWithControlTokensAt(
    std::string_view text, std::span<const SpellingMatcher::Match> places) const {
  EncodeWork work;
  return EncodePlaced(text, ControlTokens::kAreText, places, &work);
}

StatusOr<std::vector<int32_t>> HuggingFaceTokenizer::EncodePlaced(
    std::string_view text, ControlTokens control_tokens, std::span<const SpellingMatcher::Match> places,
    EncodeWork* work) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument("the text has " + std::to_string(text.size()) + " bytes, the limit is " +
                           std::to_string(kMaxTextBytes));
  }
  if (const auto invalid = FirstInvalidUtf8(text)) {
    return InvalidArgument("the text is not UTF-8 at byte " + std::to_string(*invalid));
  }
  Encoding encoding(*this, control_tokens);
  encoding.ids.reserve(text.size() / 3);
  TM_RETURN_IF_ERROR(encoding.EncodeText(text, places));
  work->symbols += encoding.scratch.work.symbols;
  work->pair_lookups += encoding.scratch.work.pair_lookups;
  work->heap_pops += encoding.scratch.work.heap_pops;
  return std::move(encoding.ids);
}

Status HuggingFaceTokenizer::Encoding::EncodeText(std::string_view text,
                                                  std::span<const SpellingMatcher::Match> places) {
  size_t done = 0;
  for (const SpellingMatcher::Match& place : places) {
    const auto& added = tokenizer_.added_tokens_;
    const auto token =
        std::find_if(added.begin(), added.end(), [&](const AddedToken& one) { return one.id == place.id; });
    Part part = {place.begin, place.end, place.id};
    if (token != added.end()) part = WithTakenSpace(text, done, *token, part);
    TM_RETURN_IF_ERROR(EncodeBetween(text.substr(done, part.begin - done), done == 0));
    ids.push_back(place.id);
    done = part.end;
  }
  return EncodeBetween(text.substr(done), done == 0);
}

Status HuggingFaceTokenizer::Encoding::EncodeBetween(std::string_view text, bool begins_text) {
  for (const Part& part : FindAddedTokens(text, tokenizer_.raw_tokens_)) {
    if (part.token >= 0) {
      ids.push_back(tokenizer_.added_tokens_[Index(part.token)].id);
      continue;
    }
    const std::string normalized = tokenizer_.Normalize(text.substr(part.begin, part.end - part.begin));
    for (const Part& inner : FindAddedTokens(normalized, tokenizer_.normalized_tokens_)) {
      if (inner.token >= 0) {
        ids.push_back(tokenizer_.added_tokens_[Index(inner.token)].id);
        continue;
      }
      const bool is_first = begins_text && part.begin == 0 && inner.begin == 0;
      TM_RETURN_IF_ERROR(
          EncodeSegment(std::string_view(normalized).substr(inner.begin, inner.end - inner.begin), is_first));
    }
  }
  return Status::Ok();
}

// The leftmost token first, of several that begin there the longest; one that may not stand there is text,
// and the search goes on behind it.
std::vector<HuggingFaceTokenizer::Encoding::Part> HuggingFaceTokenizer::Encoding::FindAddedTokens(
    std::string_view text, const SpellingMatcher& matcher) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (auto match = matcher.Find(text, 0); match; match = matcher.Find(text, match->end)) {
    const AddedToken& token = tokenizer_.added_tokens_[Index(match->id)];
    if (token.is_special && control_tokens_ == ControlTokens::kAreText) continue;
    if (token.is_single_word && IsInsideWord(text, *match)) continue;
    const Part part = WithTakenSpace(text, done, token, {match->begin, match->end, match->id});
    if (part.begin > done) parts.push_back({done, part.begin, -1});
    parts.push_back(part);
    done = part.end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

HuggingFaceTokenizer::Encoding::Part HuggingFaceTokenizer::Encoding::WithTakenSpace(std::string_view text,
                                                                                    size_t done,
                                                                                    const AddedToken& token,
                                                                                    Part place) const {
  while (token.takes_left && place.begin > done) {
    const size_t last = LastCharacter(text.substr(0, place.begin));
    if (!IsWhiteSpace(text.substr(last, place.begin - last))) break;
    place.begin = last;
  }
  while (token.takes_right && place.end < text.size()) {
    const size_t length = NextUtf8(text.substr(place.end)).bytes;
    if (!IsWhiteSpace(text.substr(place.end, length))) break;
    place.end += length;
  }
  return place;
}

bool HuggingFaceTokenizer::Encoding::IsInsideWord(std::string_view text,
                                                  const SpellingMatcher::Match& match) const {
  if (match.begin > 0) {
    const size_t last = LastCharacter(text.substr(0, match.begin));
    if (IsWordCharacter(text.substr(last, match.begin - last))) return true;
  }
  const std::string_view behind = text.substr(match.end);
  return !behind.empty() && IsWordCharacter(behind.substr(0, NextUtf8(behind).bytes));
}

bool HuggingFaceTokenizer::Encoding::IsWordCharacter(std::string_view character) const {
  std::vector<uint32_t> ends;
  return tokenizer_.word_character_->Split(character, &ends).ok();
}

Status HuggingFaceTokenizer::Encoding::EncodeSegment(std::string_view segment, bool begins_text) {
  if (tokenizer_.alphabet_ == Alphabet::kBytes) return EncodeBytes(segment);
  EncodeCharacters(segment, begins_text);
  return Status::Ok();
}

// Each step cuts what the one before has left whole.
Status HuggingFaceTokenizer::Encoding::EncodeBytes(std::string_view segment) {
  ends_.assign(1, static_cast<uint32_t>(segment.size()));
  for (const auto& splitter : tokenizer_.splitters_) {
    next_ends_.clear();
    uint32_t begin = 0;
    for (const uint32_t end : ends_) {
      TM_RETURN_IF_ERROR(splitter->Split(segment.substr(begin, end - begin), &step_ends_));
      for (const uint32_t step_end : step_ends_) next_ends_.push_back(begin + step_end);
      begin = end;
    }
    ends_.swap(next_ends_);
  }
  uint32_t begin = 0;
  for (const uint32_t end : ends_) {
    EncodeCut(segment.substr(begin, end - begin), tokenizer_.ignore_merges_);
    begin = end;
  }
  return Status::Ok();
}

void HuggingFaceTokenizer::Encoding::EncodeCharacters(std::string_view segment, bool begins_text) {
  const DummySpace dummy = tokenizer_.dummy_space_;
  if (dummy == DummySpace::kNever || dummy == DummySpace::kBeforeSegments) {
    EncodeSpaced(segment);  // normalised already
    return;
  }
  std::string spaced = WithSpaceMarks(segment);
  const bool may_prepend =
      dummy == DummySpace::kMetaspaceAlways || (dummy == DummySpace::kMetaspaceFirst && begins_text);
  if (may_prepend && !spaced.starts_with(kSpaceMark)) spaced.insert(0, kSpaceMark);
  EncodeSpaced(spaced);
}

// Words are merged one by one where no merge goes from one to the next.
void HuggingFaceTokenizer::Encoding::EncodeSpaced(std::string_view text) {
  const bool each_mark_cuts = tokenizer_.cuts_before_spaces_;
  if (tokenizer_.ignore_merges_ && !each_mark_cuts && tokenizer_.texts_.Find(text) != TokenTable::kNone) {
    EncodeCut(text, /*ignore_merges=*/true);
    return;
  }
  size_t begin = 0;
  bool behind_mark = false;
  for (size_t at = 0; at < text.size();) {
    const bool at_mark = text.substr(at).starts_with(kSpaceMark);
    const bool cuts = each_mark_cuts || (tokenizer_.words_are_independent_ && !behind_mark);
    if (at_mark && cuts && at > begin) {
      EncodeCut(text.substr(begin, at - begin), each_mark_cuts && tokenizer_.ignore_merges_);
      begin = at;
    }
    behind_mark = at_mark;
    at += at_mark ? kSpaceMark.size() : 1;
  }
  if (begin < text.size()) EncodeCut(text.substr(begin), each_mark_cuts && tokenizer_.ignore_merges_);
}

void HuggingFaceTokenizer::Encoding::EncodeCut(std::string_view cut, bool ignore_merges) {
  const uint32_t whole = tokenizer_.texts_.Find(cut);
  if (whole != TokenTable::kNone && (ignore_merges || tokenizer_.is_merged_[whole])) {
    ids.push_back(tokenizer_.text_ids_[whole]);
    return;
  }
  symbols_.clear();
  tokenizer_.AppendSymbols(cut, &symbols_);
  const auto begin = static_cast<std::ptrdiff_t>(ids.size());
  tokenizer_.merges_.Apply(symbols_, &scratch, &ids);
  if (!tokenizer_.leaves_out_bytes_) return;
  ids.erase(std::remove(ids.begin() + begin, ids.end(), tokenizer_.vocab_size()), ids.end());
}

void HuggingFaceTokenizer::AppendSymbols(std::string_view cut, std::vector<int32_t>* symbols) const {
  if (alphabet_ == Alphabet::kBytes) {
    for (const char byte : cut) symbols->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    return;
  }
  while (!cut.empty()) {
    const std::string_view character = cut.substr(0, NextUtf8(cut).bytes);
    if (const uint32_t found = texts_.Find(character); found != TokenTable::kNone) {
      symbols->push_back(text_ids_[found]);
    } else {
      for (const char byte : character) symbols->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
    cut.remove_prefix(character.size());
  }
}

std::string HuggingFaceTokenizer::Normalize(std::string_view text) const {
  const bool has_normalizer =
      alphabet_ == Alphabet::kByteFallback &&
      (dummy_space_ == DummySpace::kNever || dummy_space_ == DummySpace::kBeforeSegments);
  if (!has_normalizer || text.empty()) return std::string(text);
  return (dummy_space_ == DummySpace::kBeforeSegments ? std::string(kSpaceMark) : "") + WithSpaceMarks(text);
}

// ---- making one

StatusOr<std::unique_ptr<const HuggingFaceTokenizer>> HuggingFaceTokenizer::Create(
    const TokenizerJsonFile& file, const TokenizerConfigFile& config, std::string_view name) {
  std::unique_ptr<HuggingFaceTokenizer> tokenizer(new HuggingFaceTokenizer(file, config));
  tokenizer->FindMissingBytes();
  const Status status = tokenizer->MakeSplitters(file);
  if (!status.ok()) return Status(status.code(), std::string(name) + ": " + status.message());
  for (std::string& warning : tokenizer->warnings_) warning = std::string(name) + ": " + warning;
  return std::unique_ptr<const HuggingFaceTokenizer>(std::move(tokenizer));
}

HuggingFaceTokenizer::HuggingFaceTokenizer(TokenizerJsonFile file, const TokenizerConfigFile& config)
    : family_(file.family),
      alphabet_(file.alphabet),
      dummy_space_(file.dummy_space),
      cuts_before_spaces_(file.cuts_before_spaces),
      drops_first_space_(file.drops_first_space),
      ignore_merges_(file.ignore_merges),
      unk_id_(file.unk_id) {
  warnings_ = file.warnings;
  byte_ids_.fill(-1);
  ChooseSpecialTokens(config, &file);
  MakePieces(&file);
  KeepMerges(file);
  FindMergedTexts();
  MakeMatchers(std::move(file.added_tokens));
}

// Whatever tokenizer_config.json names is structure, even where tokenizer.json does not say so, and so is
// what opens and ends turns.
void HuggingFaceTokenizer::ChooseSpecialTokens(const TokenizerConfigFile& config, TokenizerJsonFile* file) {
  for (AddedToken& token : file->added_tokens) token.is_special |= IsTurnMarker(token.content);
  const auto make_special = [&](const char* key, const std::string& content) -> int32_t {
    if (content.empty()) return -1;
    for (AddedToken& token : file->added_tokens) {
      if (token.content != content) continue;
      token.is_special = true;
      return token.id;
    }
    const auto piece = std::find(file->pieces.begin(), file->pieces.end(), content);
    if (piece == file->pieces.end()) {
      warnings_.push_back(std::string("tokenizer_config.json: ") + key + " \"" + Excerpt(content) +
                          "\" is not in the vocabulary, so that there is none");
      return -1;
    }
    AddedToken token;
    token.id = static_cast<int32_t>(piece - file->pieces.begin());
    token.content = content;
    token.is_special = true;
    token.is_in_model = true;
    file->added_tokens.push_back(token);
    return token.id;
  };
  bos_id_ = make_special("bos_token", config.bos_token);
  eos_id_ = make_special("eos_token", config.eos_token);
  if (bos_id_ < 0) bos_id_ = file->template_bos_id;
  using AddsBos = TokenizerConfigFile::AddsBos;
  const bool says_so =
      config.adds_bos == AddsBos::kYes || (config.adds_bos == AddsBos::kUnsaid && file->template_bos_id >= 0);
  adds_bos_ = bos_id_ >= 0 && says_so;
  if (adds_bos_ && file->template_bos_id >= 0 && file->template_bos_id != bos_id_) {
    warnings_.push_back("post_processor puts the id " + std::to_string(file->template_bos_id) +
                        " in front of a text, tokenizer_config.json's bos_token is " +
                        std::to_string(bos_id_) + ", which is taken");
  }
}

// Only what is text gets into texts_ and byte_ids_, and so into Encode()'s ids.
void HuggingFaceTokenizer::MakePieces(TokenizerJsonFile* file) {
  pieces_.resize(file->pieces.size());
  texts_ = TokenTable(file->pieces.size());
  std::vector<const AddedToken*> added(file->pieces.size(), nullptr);
  for (const AddedToken& token : file->added_tokens) added[Index(token.id)] = &token;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    PieceEntry& piece = pieces_[Index(id)];
    piece.text = std::move(file->pieces[Index(id)]);
    if (piece.text.empty()) continue;
    const AddedToken* const token = added[Index(id)];
    if (token != nullptr && token->is_special) {
      control_ids_.emplace(piece.text, id);
      continue;
    }
    piece.kind = id == unk_id_ ? PieceKind::kUnknown : PieceKind::kText;
    const bool is_in_model = token == nullptr || token->is_in_model;
    if (alphabet_ == Alphabet::kBytes) {
      const auto bytes = BytesOfLetters(piece.text);
      if (is_in_model && bytes) AddText(*bytes, id);
      // An added token is spelled as it is in text.
      if (token == nullptr && bytes)
        piece.bytes = *bytes;
      else
        piece.bytes = piece.text;
      if (token == nullptr && piece.bytes.size() == 1) piece.kind = PieceKind::kByte;
      piece.text = WithSpelledBytes(piece.bytes);
    } else if (const int byte = ParseBytePiece(piece.text); byte >= 0) {
      piece.kind = PieceKind::kByte;
      piece.bytes = static_cast<char>(byte);
      byte_ids_[static_cast<size_t>(byte)] = id;
    } else {
      const bool is_normalized = token != nullptr && token->is_normalized;
      piece.bytes = WithPlainSpaces(is_normalized ? Normalize(piece.text) : piece.text);
      if (is_in_model) AddText(piece.text, id);
    }
  }
}

void HuggingFaceTokenizer::AddText(std::string_view text, int32_t id) {
  texts_.Add(text);
  text_ids_.push_back(id);
  if (alphabet_ == Alphabet::kBytes && text.size() == 1) byte_ids_[static_cast<uint8_t>(text[0])] = id;
}

// A merge into a control piece never happens: conversions of SentencePiece list some.
void HuggingFaceTokenizer::KeepMerges(const TokenizerJsonFile& file) {
  std::vector<ListedMerges::Merge> merges;
  merges.reserve(file.merges.size());
  for (const ListedMerges::Merge& merge : file.merges) {
    if (IsControl(merge.left) || IsControl(merge.right) || IsControl(merge.result)) continue;
    merges.push_back(merge);
    words_are_independent_ = words_are_independent_ && !HasSpaceMarkInside(Piece(merge.result));
  }
  merges_ = ListedMerges(merges);
}

void HuggingFaceTokenizer::FindMergedTexts() {
  is_merged_.resize(texts_.size());
  ListedMerges::Scratch scratch;
  std::vector<int32_t> symbols;
  std::vector<int32_t> ids;
  for (uint32_t index = 0; index < texts_.size(); ++index) {
    symbols.clear();
    ids.clear();
    AppendSymbols(texts_.text(index), &symbols);
    merges_.Apply(symbols, &scratch, &ids);
    is_merged_[index] = ids.size() == 1 && ids[0] == text_ids_[index];
  }
}

void HuggingFaceTokenizer::MakeMatchers(std::vector<AddedToken> added_tokens) {
  added_tokens_ = std::move(added_tokens);
  std::vector<std::pair<std::string, int32_t>> raw;
  std::vector<std::pair<std::string, int32_t>> normalized;
  for (size_t i = 0; i < added_tokens_.size(); ++i) {
    const AddedToken& token = added_tokens_[i];
    if (token.is_normalized) {
      normalized.emplace_back(Normalize(token.content), static_cast<int32_t>(i));
    } else {
      raw.emplace_back(token.content, static_cast<int32_t>(i));
    }
    if (token.is_single_word && word_character_ == nullptr) {
      word_character_ = MakePcre2Splitter(kWordCharacter).value();
    }
  }
  raw_tokens_ = SpellingMatcher(std::move(raw));
  normalized_tokens_ = SpellingMatcher(std::move(normalized));
}

Status HuggingFaceTokenizer::MakeSplitters(const TokenizerJsonFile& file) {
  using Kind = TokenizerJsonFile::Split::Kind;
  for (const TokenizerJsonFile::Split& split : file.splits) {
    if (split.kind != Kind::kPattern) {
      splitters_.push_back(
          MakeDigitSplitter(split.kind == Kind::kOneDigit ? DigitPieces::kOne : DigitPieces::kRun));
      continue;
    }
    auto splitter = MakePieceSplitter(split.pattern, UnmatchedText::kIsPiece);
    if (!splitter.ok()) return DataLoss(split.path + ": " + splitter.status().message());
    splitters_.push_back(std::move(splitter).value());
  }
  return Status::Ok();
}

// A byte without a piece is left out, as SmolLM2's byte 4 is by its own library. It stands between its
// neighbours until the merges are done: they do not merge across.
void HuggingFaceTokenizer::FindMissingBytes() {
  std::string missing;
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    if (byte_ids_[byte] >= 0 || IsNeverInText(byte)) continue;
    byte_ids_[byte] = vocab_size();
    leaves_out_bytes_ = true;
    missing += (missing.empty() ? "" : ", ") + std::to_string(byte);
  }
  if (leaves_out_bytes_)
    warnings_.push_back("no piece for the bytes " + missing + ": they are left out of text");
}

// ---- pieces

std::string HuggingFaceTokenizer::Spelling(std::span<const int32_t> ids) const {
  if (alphabet_ != Alphabet::kBytes) return Tokenizer::Spelling(ids);
  std::string bytes;
  for (const int32_t id : ids) bytes += IsControl(id) ? Piece(id) : PieceBytes(id);
  return ReplaceInvalidUtf8(bytes);
}

std::optional<int32_t> HuggingFaceTokenizer::ControlId(std::string_view piece) const {
  const auto found = control_ids_.find(std::string(piece));
  if (found == control_ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace tramontane
