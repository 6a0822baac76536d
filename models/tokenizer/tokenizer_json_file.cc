#include "models/tokenizer/tokenizer_json_file.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "models/tokenizer/json_fields.h"
#include "models/tokenizer/piece_splitter.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/space_mark.h"
#include "models/tokenizer/tokenizer_json_vocabulary.h"

namespace tramontane {
namespace {

using nlohmann::json;
using File = TokenizerJsonFile;

constexpr int kMaxConfigDepth = 4;  // what lies deeper in tokenizer_config.json is passed over

// A normaliser, pre-tokenizer, post-processor or decoder of the file.
struct Component {
  std::string type;
  std::string path;
  const json* value;

  std::string Key(const char* key) const { return path + "." + key; }
};

Status UnsupportedValue(const std::string& path, const json& value, const std::string& wanted) {
  return Unimplemented(path + " is " + ShownJson(value) + ", only " + wanted + " is supported");
}

// UNIMPLEMENTED unless the key is absent or has this value.
Status ExpectField(const Component& component, const char* key, const json& wanted) {
  const json* value = FindField(*component.value, key);
  if (value == nullptr || *value == wanted) return Status::Ok();
  return UnsupportedValue(component.Key(key), *value, ShownJson(wanted));
}

// What is not known may change the ids.
Status CheckFields(const Component& component, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : component.value->items()) {
    if (key == "type" || std::find(known.begin(), known.end(), key) != known.end()) continue;
    return Unimplemented(component.Key(key.c_str()) + " is not known");
  }
  return Status::Ok();
}

// The components under `key`, those of a "Sequence", which has them under `list_key`, one by one.
StatusOr<std::vector<Component>> ReadComponents(const json& parent, const std::string& path, const char* key,
                                                const char* list_key) {
  std::vector<Component> components;
  const json* value = FindField(parent, key);
  if (value == nullptr) return components;
  std::vector<Component> open = {{"", path + key, value}};
  while (!open.empty()) {
    Component component = std::move(open.back());
    open.pop_back();
    if (!component.value->is_object()) return WrongValue(component.path, *component.value, "an object");
    TM_ASSIGN_OR_RETURN(component.type, StringField(*component.value, component.path + ".", "type"));
    if (component.type != "Sequence") {
      components.push_back(std::move(component));
      continue;
    }
    TM_RETURN_IF_ERROR(CheckFields(component, {list_key}));
    const json* list = FindField(*component.value, list_key);
    if (list == nullptr || !list->is_array()) {
      return WrongValue(component.Key(list_key), list == nullptr ? json() : *list, "a list");
    }
    for (size_t i = list->size(); i > 0; --i) {
      open.push_back({"", component.Key(list_key) + "[" + std::to_string(i - 1) + "]", &(*list)[i - 1]});
    }
  }
  return components;
}

Status UnknownComponent(const Component& component, const char* known) {
  return Unimplemented(component.path + ".type is " + ShownJson(component.type) + ", not one of " + known);
}

// A pattern that is an object of one key, "String" or "Regex".
StatusOr<std::string> ReadPattern(const Component& component, const char* kind) {
  const json* pattern = FindField(*component.value, "pattern");
  if (pattern == nullptr || !pattern->is_object() || pattern->size() != 1) {
    return WrongValue(component.Key("pattern"), pattern == nullptr ? json() : *pattern, "a pattern");
  }
  if (!pattern->contains(kind)) {
    return Unimplemented(component.Key("pattern") + " is " + ShownJson(*pattern) + ", only " + kind +
                         " is supported");
  }
  return StringField(*pattern, component.Key("pattern") + ".", kind);
}

// ---- model

Status ReadModel(const json& rest, File* file, std::string* unk_token, bool* byte_fallback) {
  const json* model = FindField(rest, "model");
  if (model == nullptr || !model->is_object()) {
    return WrongValue("model", model == nullptr ? json() : *model, "an object");
  }
  const Component component{"", "model", model};
  if (const json* type = FindField(*model, "type"); type != nullptr && *type != "BPE") {
    return UnsupportedValue("model.type", *type, "\"BPE\"");
  }
  for (const char* key : {"vocab", "merges"}) {
    if (FindField(*model, key) == nullptr) return DataLoss(component.Key(key) + " is missing");
  }
  TM_RETURN_IF_ERROR(
      CheckFields(component, {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                              "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  TM_RETURN_IF_ERROR(ExpectField(component, "dropout", 0.0));
  TM_RETURN_IF_ERROR(ExpectField(component, "continuing_subword_prefix", ""));
  TM_RETURN_IF_ERROR(ExpectField(component, "end_of_word_suffix", ""));
  TM_ASSIGN_OR_RETURN(*byte_fallback, BoolField(*model, "model.", "byte_fallback", false));
  TM_ASSIGN_OR_RETURN(file->ignore_merges, BoolField(*model, "model.", "ignore_merges", false));
  if (FindField(*model, "unk_token") != nullptr) {
    TM_ASSIGN_OR_RETURN(*unk_token, StringField(*model, "model.", "unk_token"));
  }
  return Status::Ok();
}

// ---- added_tokens

StatusOr<File::AddedToken> ReadAddedToken(const json& entry, const std::string& path) {
  File::AddedToken token;
  if (!entry.is_object()) return WrongValue(path, entry, "an object");
  const std::string in = path + ".";
  TM_ASSIGN_OR_RETURN(const int64_t id, IntegerField(entry, in, "id", 0, File::kMaxVocabulary - 1));
  token.id = static_cast<int32_t>(id);
  TM_ASSIGN_OR_RETURN(token.content, StringField(entry, in, "content"));
  if (token.content.empty() || token.content.size() > File::kMaxPieceBytes) {
    return WrongValue(in + "content", token.content,
                      "1 to " + std::to_string(File::kMaxPieceBytes) + " bytes");
  }
  TM_ASSIGN_OR_RETURN(token.is_special, BoolField(entry, in, "special", false));
  TM_ASSIGN_OR_RETURN(token.takes_left, BoolField(entry, in, "lstrip", false));
  TM_ASSIGN_OR_RETURN(token.takes_right, BoolField(entry, in, "rstrip", false));
  TM_ASSIGN_OR_RETURN(token.is_single_word, BoolField(entry, in, "single_word", false));
  TM_ASSIGN_OR_RETURN(token.is_normalized, BoolField(entry, in, "normalized", !token.is_special));
  return token;
}

// Reads them, and gives those that are not in the vocabulary their place in it.
Status ReadAddedTokens(const json& rest, TokenizerJsonVocabulary* vocabulary, File* file) {
  const json* list = FindField(rest, "added_tokens");
  if (list == nullptr) return Status::Ok();
  if (!list->is_array()) return WrongValue("added_tokens", *list, "a list");
  std::vector<bool> is_added;
  for (const json& entry : *list) {
    const std::string path = "added_tokens[" + std::to_string(file->added_tokens.size()) + "]";
    TM_ASSIGN_OR_RETURN(File::AddedToken token, ReadAddedToken(entry, path));
    const auto index = static_cast<size_t>(token.id);
    const auto [known, is_new] = vocabulary->ids.emplace(token.content, token.id);
    if (known->second != token.id) {
      return DataLoss(path + ".id is " + std::to_string(token.id) + ", but " + ShownJson(token.content) +
                      " has the id " + std::to_string(known->second));
    }
    if (index >= vocabulary->pieces.size()) vocabulary->pieces.resize(index + 1);
    std::string& piece = vocabulary->pieces[index];
    if (!piece.empty() && piece != token.content) {
      return DataLoss(path + ".id is " + std::to_string(token.id) + ", which " + ShownJson(piece) +
                      " is already");
    }
    is_added.resize(vocabulary->pieces.size());
    if (is_added[index])
      return DataLoss(path + ".id is " + std::to_string(token.id) + " for the second time");
    is_added[index] = true;
    piece = token.content;
    token.is_in_model = !is_new;
    file->added_tokens.push_back(std::move(token));
  }
  return Status::Ok();
}

// ---- pre_tokenizer

Status ReadSplit(const Component& component, File* file) {
  TM_RETURN_IF_ERROR(CheckFields(component, {"pattern", "behavior", "invert"}));
  TM_RETURN_IF_ERROR(ExpectField(component, "behavior", "Isolated"));
  TM_RETURN_IF_ERROR(ExpectField(component, "invert", false));
  File::Split split;
  TM_ASSIGN_OR_RETURN(split.pattern, ReadPattern(component, "Regex"));
  split.path = component.Key("pattern");
  file->splits.push_back(std::move(split));
  return Status::Ok();
}

Status ReadDigits(const Component& component, File* file) {
  TM_RETURN_IF_ERROR(CheckFields(component, {"individual_digits"}));
  TM_ASSIGN_OR_RETURN(const bool one,
                      BoolField(*component.value, component.path + ".", "individual_digits", false));
  File::Split split;
  split.kind = one ? File::Split::Kind::kOneDigit : File::Split::Kind::kDigitRun;
  split.path = component.path;
  file->splits.push_back(std::move(split));
  return Status::Ok();
}

Status ReadByteLevel(const Component& component, File* file) {
  TM_RETURN_IF_ERROR(CheckFields(component, {"add_prefix_space", "trim_offsets", "use_regex"}));
  TM_RETURN_IF_ERROR(ExpectField(component, "add_prefix_space", false));
  TM_ASSIGN_OR_RETURN(const bool use_regex,
                      BoolField(*component.value, component.path + ".", "use_regex", true));
  if (use_regex) {
    file->splits.push_back({File::Split::Kind::kPattern, std::string(kGpt2Pattern), component.path});
  }
  return Status::Ok();
}

// Splits, and ByteLevel as the last.
Status ReadByteLevelSequence(const std::vector<Component>& components, File* file) {
  if (components.size() > File::kMaxSplits) {
    return Unimplemented("pre_tokenizer has " + std::to_string(components.size()) + " parts, the limit is " +
                         std::to_string(File::kMaxSplits));
  }
  for (const Component& component : components) {
    const bool is_last = &component == &components.back();
    if (component.type == "ByteLevel" && is_last) {
      TM_RETURN_IF_ERROR(ReadByteLevel(component, file));
    } else if (component.type == "Split" && !is_last) {
      TM_RETURN_IF_ERROR(ReadSplit(component, file));
    } else if (component.type == "Digits" && !is_last) {
      TM_RETURN_IF_ERROR(ReadDigits(component, file));
    } else {
      return UnknownComponent(component, "Split and Digits before ByteLevel, which is the last");
    }
  }
  return Status::Ok();
}

Status ReadMetaspace(const Component& component, File* file) {
  TM_RETURN_IF_ERROR(
      CheckFields(component, {"replacement", "str_rep", "prepend_scheme", "add_prefix_space", "split"}));
  TM_RETURN_IF_ERROR(ExpectField(component, "replacement", kSpaceMark));
  const std::string in = component.path + ".";
  TM_ASSIGN_OR_RETURN(const bool adds_prefix, BoolField(*component.value, in, "add_prefix_space", true));
  TM_ASSIGN_OR_RETURN(file->cuts_before_spaces, BoolField(*component.value, in, "split", true));
  std::string scheme = adds_prefix ? "always" : "never";
  if (FindField(*component.value, "prepend_scheme") != nullptr) {
    TM_ASSIGN_OR_RETURN(scheme, StringField(*component.value, in, "prepend_scheme"));
  }
  if (!adds_prefix && scheme != "never") {
    return DataLoss(component.Key("prepend_scheme") + " is " + ShownJson(scheme) +
                    ", although add_prefix_space is false");
  }
  if (scheme == "always") {
    file->dummy_space = File::DummySpace::kMetaspaceAlways;
  } else if (scheme == "first") {
    file->dummy_space = File::DummySpace::kMetaspaceFirst;
  } else if (scheme == "never") {
    file->dummy_space = File::DummySpace::kMetaspaceNever;
  } else {
    return WrongValue(component.Key("prepend_scheme"), scheme, "first, always or never");
  }
  return Status::Ok();
}

// ---- normalizer

// Those of Llama 2: a mark in front, and one for each space.
Status ReadSpaceNormalizers(const std::vector<Component>& components, File* file) {
  bool prepends = false;
  bool replaces = false;
  for (const Component& component : components) {
    if (component.type == "Prepend" && !prepends) {
      TM_RETURN_IF_ERROR(CheckFields(component, {"prepend"}));
      TM_RETURN_IF_ERROR(ExpectField(component, "prepend", kSpaceMark));
      prepends = true;
    } else if (component.type == "Replace" && !replaces) {
      TM_RETURN_IF_ERROR(CheckFields(component, {"pattern", "content"}));
      TM_RETURN_IF_ERROR(ExpectField(component, "content", kSpaceMark));
      TM_ASSIGN_OR_RETURN(const std::string replaced, ReadPattern(component, "String"));
      if (replaced != " ") return UnsupportedValue(component.Key("pattern"), replaced, "a space");
      replaces = true;
    } else {
      return UnknownComponent(component, "Prepend and Replace, once each");
    }
  }
  if (!replaces) return Unimplemented("normalizer has no Replace, and pre_tokenizer no Metaspace");
  file->dummy_space = prepends ? File::DummySpace::kBeforeSegments : File::DummySpace::kNever;
  return Status::Ok();
}

// How text is cut and spelled before the merges.
Status ReadSpelling(const json& rest, bool byte_fallback, File* file) {
  TM_ASSIGN_OR_RETURN(const auto normalizers, ReadComponents(rest, "", "normalizer", "normalizers"));
  TM_ASSIGN_OR_RETURN(const auto pre_tokenizers, ReadComponents(rest, "", "pre_tokenizer", "pretokenizers"));
  const bool has_metaspace = !pre_tokenizers.empty() && pre_tokenizers.front().type == "Metaspace";
  if (!pre_tokenizers.empty() && !has_metaspace) {
    file->alphabet = File::Alphabet::kBytes;
    TM_RETURN_IF_ERROR(ReadByteLevelSequence(pre_tokenizers, file));
    return normalizers.empty() ? Status::Ok()
                               : UnknownComponent(normalizers.front(), "those of ByteLevel: none");
  }
  file->alphabet = File::Alphabet::kByteFallback;
  if (!byte_fallback) {
    return Unimplemented(
        "model.byte_fallback is false and pre_tokenizer is not ByteLevel, so that some text "
        "would have no ids");
  }
  if (!has_metaspace) return ReadSpaceNormalizers(normalizers, file);
  if (!normalizers.empty()) return UnknownComponent(normalizers.front(), "those of Metaspace: none");
  if (pre_tokenizers.size() > 1) return UnknownComponent(pre_tokenizers[1], "Metaspace, alone");
  return ReadMetaspace(pre_tokenizers.front(), file);
}

// ---- decoder

Status ReadByteLevelDecoder(const std::vector<Component>& components) {
  if (components.empty()) return Unimplemented("decoder is missing, only ByteLevel is supported");
  for (const Component& component : components) {
    if (component.type != "ByteLevel" || components.size() > 1)
      return UnknownComponent(component, "ByteLevel, alone");
    TM_RETURN_IF_ERROR(CheckFields(component, {"add_prefix_space", "trim_offsets", "use_regex"}));
  }
  return Status::Ok();
}

// Replace, ByteFallback, Fuse and perhaps Strip, in this order.
Status ReadFallbackDecoder(const std::vector<Component>& components, File* file) {
  constexpr const char* kOrder[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  if (components.size() < 3) {
    return Unimplemented("decoder has " + std::to_string(components.size()) +
                         " parts, not Replace, ByteFallback and Fuse");
  }
  for (size_t i = 0; i < components.size(); ++i) {
    if (i < std::size(kOrder) && components[i].type == kOrder[i]) continue;
    return UnknownComponent(components[i], "Replace, ByteFallback, Fuse and Strip in this order");
  }
  TM_RETURN_IF_ERROR(CheckFields(components[0], {"pattern", "content"}));
  TM_RETURN_IF_ERROR(ExpectField(components[0], "content", " "));
  TM_ASSIGN_OR_RETURN(const std::string replaced, ReadPattern(components[0], "String"));
  if (replaced != kSpaceMark) return UnsupportedValue(components[0].Key("pattern"), replaced, "U+2581");
  TM_RETURN_IF_ERROR(CheckFields(components[1], {}));
  TM_RETURN_IF_ERROR(CheckFields(components[2], {}));
  if (components.size() < 4) return Status::Ok();
  TM_RETURN_IF_ERROR(CheckFields(components[3], {"content", "start", "stop"}));
  TM_RETURN_IF_ERROR(ExpectField(components[3], "content", " "));
  TM_RETURN_IF_ERROR(ExpectField(components[3], "stop", 0));
  TM_ASSIGN_OR_RETURN(const int64_t start,
                      IntegerField(*components[3].value, components[3].path + ".", "start", 0, 1));
  file->drops_first_space = start == 1;
  return Status::Ok();
}

// ---- post_processor

// What the template puts in front of text "A".
Status ReadTemplate(const Component& component, File* file) {
  TM_RETURN_IF_ERROR(CheckFields(component, {"single", "pair", "special_tokens"}));
  const json* single = FindField(*component.value, "single");
  if (single == nullptr || !single->is_array()) {
    return WrongValue(component.Key("single"), single == nullptr ? json() : *single, "a list");
  }
  const json* tokens = FindField(*component.value, "special_tokens");
  bool text_has_come = false;
  for (size_t i = 0; i < single->size(); ++i) {
    const json& part = (*single)[i];
    const std::string path = component.Key("single") + "[" + std::to_string(i) + "]";
    if (!part.is_object() || part.size() != 1) return WrongValue(path, part, "a token or a text");
    const std::string& kind = part.begin().key();
    const json& content = part.begin().value();
    if (!content.is_object()) return WrongValue(path, part, "a token or a text");
    TM_ASSIGN_OR_RETURN(const std::string id, StringField(content, path + "." + kind + ".", "id"));
    if (kind == "Sequence" && id == "A" && !text_has_come) {
      text_has_come = true;
      continue;
    }
    if (kind != "SpecialToken") return WrongValue(path, part, "a token, or the text A once");
    if (text_has_come) return Unimplemented(path + " puts " + ShownJson(id) + " behind the text");
    if (file->template_bos_id >= 0) return Unimplemented(path + " puts a second token in front of the text");
    const json* token = tokens == nullptr || !tokens->is_object() ? nullptr : FindField(*tokens, id.c_str());
    const json* ids = token == nullptr || !token->is_object() ? nullptr : FindField(*token, "ids");
    const auto last = static_cast<int64_t>(file->pieces.size()) - 1;
    if (ids == nullptr || !ids->is_array() || ids->size() != 1 || !IsIntegerWithin((*ids)[0], 0, last)) {
      return DataLoss(
          component.Key("special_tokens") + "[" + ShownJson(id) + "].ids is " +
          (ids == nullptr ? "missing" : ShownJson(*ids) + ", not one id up to " + std::to_string(last)));
    }
    file->template_bos_id = (*ids)[0].get<int32_t>();
  }
  if (!text_has_come) return DataLoss(component.Key("single") + " leaves out the text");
  return Status::Ok();
}

Status ReadPostProcessor(const json& rest, File* file) {
  TM_ASSIGN_OR_RETURN(const auto components, ReadComponents(rest, "", "post_processor", "processors"));
  bool has_template = false;
  for (const Component& component : components) {
    if (component.type == "ByteLevel") continue;  // about offsets in the text alone
    if (component.type != "TemplateProcessing" || has_template) {
      return UnknownComponent(component, "ByteLevel and TemplateProcessing, which stands once");
    }
    has_template = true;
    TM_RETURN_IF_ERROR(ReadTemplate(component, file));
  }
  return Status::Ok();
}

// ---- the file

Status CheckBytePieces(const TokenizerJsonVocabulary& vocabulary) {
  bool has_byte[256] = {};
  for (const std::string& piece : vocabulary.pieces) {
    if (const int byte = ParseBytePiece(piece); byte >= 0) has_byte[byte] = true;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!has_byte[byte]) {
      return DataLoss("model.byte_fallback is true, but model.vocab has no piece for the byte " +
                      std::to_string(byte));
    }
  }
  return Status::Ok();
}

void AddWarnings(const json& rest, File* file) {
  for (const char* key : {"truncation", "padding"}) {
    if (FindField(rest, key) != nullptr) file->warnings.push_back(std::string(key) + " is ignored");
  }
  for (const auto& [key, value] : rest.items()) {
    static constexpr std::string_view kKnown[] = {"version",        "truncation", "padding",
                                                  "added_tokens",   "normalizer", "pre_tokenizer",
                                                  "post_processor", "decoder",    "model"};
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      file->warnings.push_back("unknown key " + ShownJson(key) + " is ignored");
    }
  }
  for (const File::Split& split : file->splits) {
    if (split.kind != File::Split::Kind::kPattern || IsKnownPattern(split.pattern)) continue;
    file->warnings.push_back(split.path + " is none of the known ones (" + ShownJson(split.pattern) +
                             "): PCRE2 matches it, whose rules differ from those of Oniguruma in places");
  }
}

// By its special tokens: no other byte-level vocabulary has them.
bool IsTekkenVocabulary(const File& file) {
  const auto has = [&](std::string_view content) {
    return std::any_of(file.added_tokens.begin(), file.added_tokens.end(),
                       [&](const File::AddedToken& token) { return token.content == content; });
  };
  return file.alphabet == File::Alphabet::kBytes && has("<s>") && has("[INST]") && has("[/INST]");
}

StatusOr<File> ParseFile(std::string_view bytes) {
  if (bytes.size() > File::kMaxFileBytes) {
    return DataLoss(std::to_string(bytes.size()) + " bytes, the limit is " +
                    std::to_string(File::kMaxFileBytes));
  }
  File file;
  TokenizerJsonVocabulary vocabulary;
  TM_ASSIGN_OR_RETURN(const json rest, ReadTokenizerJson(bytes, &vocabulary));
  if (const json* version = FindField(rest, "version"); version != nullptr && *version != "1.0") {
    return UnsupportedValue("version", *version, "\"1.0\"");
  }
  std::string unk_token;
  bool byte_fallback = false;
  TM_RETURN_IF_ERROR(ReadModel(rest, &file, &unk_token, &byte_fallback));
  if (vocabulary.ids.empty()) return DataLoss("model.vocab has no pieces");
  TM_RETURN_IF_ERROR(ReadSpelling(rest, byte_fallback, &file));
  if (file.alphabet == File::Alphabet::kByteFallback) TM_RETURN_IF_ERROR(CheckBytePieces(vocabulary));
  TM_RETURN_IF_ERROR(ReadAddedTokens(rest, &vocabulary, &file));
  TM_ASSIGN_OR_RETURN(const auto decoders, ReadComponents(rest, "", "decoder", "decoders"));
  TM_RETURN_IF_ERROR(file.alphabet == File::Alphabet::kBytes ? ReadByteLevelDecoder(decoders)
                                                             : ReadFallbackDecoder(decoders, &file));
  if (const auto unk = vocabulary.ids.find(unk_token); unk != vocabulary.ids.end()) file.unk_id = unk->second;
  file.pieces = std::move(vocabulary.pieces);
  file.merges = std::move(vocabulary.merges);
  TM_RETURN_IF_ERROR(ReadPostProcessor(rest, &file));
  AddWarnings(rest, &file);
  if (IsTekkenVocabulary(file) && (file.splits.size() != 1 || file.splits[0].pattern != kTekkenPattern)) {
    file.warnings.push_back(
        "the special tokens are those of Mistral's tekken, but pre_tokenizer does not split as tekken does: "
        "some conversions are wrong there, and the ids are then not those that the model has learnt");
  }
  return file;
}

// A token's content: a string, or an object that has one.
StatusOr<std::string> TokenContent(const json& config, const char* key) {
  const json* value = FindField(config, key);
  if (value == nullptr) return std::string();
  if (value->is_object()) return StringField(*value, std::string(key) + ".", "content");
  return StringField(config, "", key);
}

StatusOr<TokenizerConfigFile> ParseConfig(std::string_view bytes) {
  if (bytes.size() > TokenizerConfigFile::kMaxFileBytes) {
    return DataLoss(std::to_string(bytes.size()) + " bytes, the limit is " +
                    std::to_string(TokenizerConfigFile::kMaxFileBytes));
  }
  // Of the file only these are kept: others hold whole vocabularies.
  const json config = json::parse(
      bytes.begin(), bytes.end(),
      [](int depth, json::parse_event_t event, const json& part) {
        if (event != json::parse_event_t::key || depth != 1) return depth < kMaxConfigDepth;
        return part == "bos_token" || part == "eos_token" || part == "add_bos_token" || part == "legacy";
      },
      /*allow_exceptions=*/false);
  if (!config.is_object()) return DataLoss("not a JSON object");
  TokenizerConfigFile file;
  TM_ASSIGN_OR_RETURN(file.bos_token, TokenContent(config, "bos_token"));
  TM_ASSIGN_OR_RETURN(file.eos_token, TokenContent(config, "eos_token"));
  if (FindField(config, "add_bos_token") != nullptr) {
    TM_ASSIGN_OR_RETURN(const bool adds, BoolField(config, "", "add_bos_token", false));
    file.adds_bos = adds ? TokenizerConfigFile::AddsBos::kYes : TokenizerConfigFile::AddsBos::kNo;
  }
  if (FindField(config, "legacy") != nullptr) {
    TM_ASSIGN_OR_RETURN(file.legacy, BoolField(config, "", "legacy", true));
  }
  return file;
}

template <typename Contents>
StatusOr<Contents> Named(StatusOr<Contents> file, std::string_view name) {
  if (!file.ok()) return Status(file.status().code(), std::string(name) + ": " + file.status().message());
  return file;
}

}  // namespace

StatusOr<TokenizerJsonFile> ParseTokenizerJson(std::string_view bytes, std::string_view name) {
  return Named(ParseFile(bytes), name);
}

StatusOr<TokenizerConfigFile> ParseTokenizerConfig(std::string_view bytes, std::string_view name) {
  return Named(ParseConfig(bytes), name);
}

}  // namespace tramontane
