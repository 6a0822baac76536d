#include "models/tokenizer/tekken_file.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "models/tokenizer/json_fields.h"

namespace tramontane {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

// What files without "special_tokens" mean.
constexpr std::string_view kFirstSpecialTokens[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};
constexpr TokenizerVersion kVersions[] = {TokenizerVersion::kV3, TokenizerVersion::kV7,
                                          TokenizerVersion::kV11, TokenizerVersion::kV13,
                                          TokenizerVersion::kV15};

constexpr int kPadding = 64;
constexpr int kNoDigit = 65;

constexpr std::array<uint8_t, 256> kBase64Digits = [] {
  std::array<uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  uint8_t value = 0;
  for (char c = 'A'; c <= 'Z'; ++c) digits[static_cast<uint8_t>(c)] = value++;
  for (char c = 'a'; c <= 'z'; ++c) digits[static_cast<uint8_t>(c)] = value++;
  for (char c = '0'; c <= '9'; ++c) digits[static_cast<uint8_t>(c)] = value++;
  digits['+'] = 62;
  digits['/'] = 63;
  digits['='] = kPadding;
  return digits;
}();

// False: not base64, padding included.
bool DecodeBase64(std::string_view text, std::string* bytes) {
  if (text.size() % 4 != 0) return false;
  bytes->clear();
  for (size_t at = 0; at < text.size(); at += 4) {
    uint32_t bits = 0;
    int padding = 0;
    for (size_t i = 0; i < 4; ++i) {
      const int digit = kBase64Digits[static_cast<uint8_t>(text[at + i])];
      if (digit == kNoDigit || (digit != kPadding && padding > 0)) return false;
      padding += digit == kPadding ? 1 : 0;
      bits = bits << 6 | static_cast<uint32_t>(digit & 63);
    }
    if (padding > 2 || (padding > 0 && at + 4 < text.size())) return false;
    if (padding == 2 && (bits & 0xFFFF) != 0) return false;
    if (padding == 1 && (bits & 0xFF) != 0) return false;
    for (int i = 0; i < 3 - padding; ++i) *bytes += static_cast<char>(bits >> (16 - 8 * i));
  }
  return true;
}

// Takes the entries of "vocab" as they are read, so that their 150,000 objects are never held together, and
// keeps the rest. One thread.
class TekkenReader {
 public:
  // Everything but "vocab", and in `tokens` what that holds.
  StatusOr<json> Read(std::string_view text, std::vector<std::string>* tokens) {
    tokens_ = tokens;
    return ParseWatched(text, status_, [this](int depth, json::parse_event_t event, json& part) {
      return Watch(depth, event, part);
    });
  }

 private:
  // False drops the value.
  bool Watch(int depth, json::parse_event_t event, json& part) {
    using Event = json::parse_event_t;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        if (depth >= kMaxDepth) return Fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
        if (static_cast<int>(keys_.size()) <= depth) keys_.resize(depth + 1);
        keys_[depth].clear();
        if (depth == 1 && in_vocabulary_ && event == Event::object_start) {
          return Fail("vocab is an object, not a list");
        }
        if (depth == 2 && in_vocabulary_ && event == Event::array_start) {
          return Fail(EntryName() + " is a list, not an object");
        }
        return true;
      case Event::key:
        if (!keys_[depth - 1].insert(part.get_ref<const std::string&>()).second) {
          return Fail("key " + ShownJson(part) + " stands twice in one object");
        }
        if (depth == 1) in_vocabulary_ = part.get_ref<const std::string&>() == "vocab";
        return true;
      case Event::value:
        if (depth == 2 && in_vocabulary_)
          return Fail(EntryName() + " is " + ShownJson(part) + ", not an object");
        return true;
      case Event::object_end:
        if (depth != 2 || !in_vocabulary_) return true;
        status_ = TakeEntry(part);
        return false;
      default:
        return true;
    }
  }

  std::string EntryName() const { return "vocab[" + std::to_string(tokens_->size()) + "]"; }

  Status TakeEntry(const json& entry) {
    const auto index = static_cast<int64_t>(tokens_->size());
    if (tokens_->size() >= TekkenFile::kMaxVocabulary) {
      return DataLoss("vocab has more than " + std::to_string(TekkenFile::kMaxVocabulary) + " entries");
    }
    const json* rank = FindField(entry, "rank");
    if (rank == nullptr || !rank->is_number_integer() || *rank != index) {
      return WrongValue(EntryName() + ".rank", rank == nullptr ? json() : *rank, "its place in the list");
    }
    const json* bytes = FindField(entry, "token_bytes");
    std::string token;
    if (bytes == nullptr || !bytes->is_string() ||
        !DecodeBase64(bytes->get_ref<const std::string&>(), &token)) {
      return WrongValue(EntryName() + ".token_bytes", bytes == nullptr ? json() : *bytes, "base64");
    }
    tokens_->push_back(std::move(token));
    return Status::Ok();
  }

  bool Fail(std::string message) {
    status_ = DataLoss(std::move(message));
    return false;
  }

  std::vector<std::string>* tokens_ = nullptr;
  Status status_;
  bool in_vocabulary_ = false;
  std::vector<std::set<std::string>> keys_;  // [depth] of the object that is open there
};

StatusOr<TokenizerVersion> ReadVersion(const json& config) {
  TM_ASSIGN_OR_RETURN(const std::string name, StringField(config, "config.", "version"));
  std::string known;
  for (const TokenizerVersion version : kVersions) {
    if (name == TokenizerVersionName(version)) return version;
    known += (known.empty() ? "" : ", ") + std::string(TokenizerVersionName(version));
  }
  return Unimplemented("config.version is " + ShownJson(name) + ", not one of " + known);
}

// The special tokens that the file names, in order.
StatusOr<std::vector<std::string>> ReadSpecialTokens(const json& file, TokenizerVersion version) {
  const json* list = FindField(file, "special_tokens");
  if (list == nullptr) {
    if (version > TokenizerVersion::kV7) {
      return DataLoss(std::string("special_tokens is missing, which ") + TokenizerVersionName(version) +
                      " files must have");
    }
    return std::vector<std::string>(std::begin(kFirstSpecialTokens), std::end(kFirstSpecialTokens));
  }
  if (!list->is_array()) return WrongValue("special_tokens", *list, "a list");
  std::vector<std::string> names;
  for (const json& entry : *list) {
    const std::string path = "special_tokens[" + std::to_string(names.size()) + "]";
    if (!entry.is_object()) return WrongValue(path, entry, "an object");
    const json* rank = FindField(entry, "rank");
    if (rank == nullptr || !rank->is_number_integer() || *rank != names.size()) {
      return WrongValue(path + ".rank", rank == nullptr ? json() : *rank, "its place in the list");
    }
    TM_ASSIGN_OR_RETURN(std::string name, StringField(entry, path + ".", "token_str"));
    if (name.empty() || name.size() > TekkenFile::kMaxSpecialBytes) {
      return WrongValue(path + ".token_str", name,
                        "1 to " + std::to_string(TekkenFile::kMaxSpecialBytes) + " bytes");
    }
    names.push_back(std::move(name));
  }
  return names;
}

// Names the rest, and looks for names that stand twice.
Status FillSpecialTokens(size_t count, std::vector<std::string>* names) {
  if (names->size() > count) {
    return DataLoss("special_tokens has " + std::to_string(names->size()) +
                    " entries, more than config.default_num_special_tokens (" + std::to_string(count) + ")");
  }
  for (size_t id = names->size(); id < count; ++id) {
    names->push_back("<SPECIAL_" + std::to_string(id) + ">");
  }
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < names->size(); ++id) {
    if (!seen.insert((*names)[id]).second) {
      return DataLoss("special_tokens[" + std::to_string(id) + "].token_str is " + ShownJson((*names)[id]) +
                      ", which another one is already");
    }
  }
  return Status::Ok();
}

StatusOr<ModelSettings::ReasoningEffort> ReadReasoningEffort(const json& builder) {
  const std::string path = "model_settings_builder.reasoning_effort";
  if (!builder.is_object()) return WrongValue(path, builder, "an object");
  const json* values = FindField(builder, "values");
  if (values == nullptr || !values->is_array() || values->empty()) {
    return WrongValue(path + ".values", values == nullptr ? json() : *values, "a list of efforts");
  }
  ModelSettings::ReasoningEffort effort;
  for (const json& value : *values) {
    const bool is_known =
        value.is_string() && std::find(std::begin(kReasoningEfforts), std::end(kReasoningEfforts),
                                       value.get_ref<const std::string&>()) != std::end(kReasoningEfforts);
    if (!is_known) {
      return WrongValue(path + ".values", value, "one of none, minimal, low, medium, high, xhigh, max");
    }
    if (std::find(effort.values.begin(), effort.values.end(), value.get<std::string>()) !=
        effort.values.end()) {
      return DataLoss(path + ".values has " + ShownJson(value) + " twice");
    }
    effort.values.push_back(value.get<std::string>());
  }
  TM_ASSIGN_OR_RETURN(effort.default_value, StringField(builder, path + ".", "default"));
  if (std::find(effort.values.begin(), effort.values.end(), effort.default_value) == effort.values.end()) {
    return WrongValue(path + ".default", effort.default_value, "one of its values");
  }
  return effort;
}

StatusOr<std::optional<ModelSettings>> ReadModelSettings(const json& file, TokenizerVersion version) {
  const json* builder = FindField(file, "model_settings_builder");
  if (builder == nullptr) return std::optional<ModelSettings>();
  if (version < TokenizerVersion::kV15) {
    return DataLoss(std::string("model_settings_builder stands in a ") + TokenizerVersionName(version) +
                    " file, which is below v15");
  }
  if (!builder->is_object()) return WrongValue("model_settings_builder", *builder, "an object");
  ModelSettings settings;
  for (const auto& [key, value] : builder->items()) {
    if (value.is_null()) continue;
    if (key == "reasoning_effort") {
      TM_ASSIGN_OR_RETURN(settings.reasoning_effort, ReadReasoningEffort(value));
    } else if (key == "json_schema") {
      settings.json_schema = true;
    } else {
      return Unimplemented("model_settings_builder." + key + " is not one of reasoning_effort, json_schema");
    }
  }
  return std::optional<ModelSettings>(std::move(settings));
}

StatusOr<TekkenFile> Parse(std::string_view bytes) {
  if (bytes.size() > TekkenFile::kMaxFileBytes) {
    return DataLoss(std::to_string(bytes.size()) + " bytes, the limit is " +
                    std::to_string(TekkenFile::kMaxFileBytes));
  }
  TekkenFile file;
  TekkenReader reader;
  TM_ASSIGN_OR_RETURN(const json rest, reader.Read(bytes, &file.tokens));
  const json* config = FindField(rest, "config");
  if (config == nullptr) return DataLoss("config is missing");
  if (!config->is_object()) return WrongValue("config", *config, "an object");
  TM_ASSIGN_OR_RETURN(file.version, ReadVersion(*config));
  TM_ASSIGN_OR_RETURN(file.pattern, StringField(*config, "config.", "pattern"));
  TM_ASSIGN_OR_RETURN(const int64_t special, IntegerField(*config, "config.", "default_num_special_tokens", 0,
                                                          TekkenFile::kMaxSpecialTokens));
  const auto in_file = static_cast<int64_t>(file.tokens.size());
  TM_ASSIGN_OR_RETURN(const int64_t vocabulary,
                      IntegerField(*config, "config.", "default_vocab_size", special + 256,
                                   special + std::max<int64_t>(in_file, 256)));
  if (vocabulary - special > in_file) {
    return DataLoss("vocab has " + std::to_string(in_file) + " entries, the model uses " +
                    std::to_string(vocabulary - special));
  }
  file.tokens.resize(static_cast<size_t>(vocabulary - special));
  TM_ASSIGN_OR_RETURN(file.special, ReadSpecialTokens(rest, file.version));
  TM_RETURN_IF_ERROR(FillSpecialTokens(static_cast<size_t>(special), &file.special));
  TM_ASSIGN_OR_RETURN(file.settings, ReadModelSettings(rest, file.version));
  return file;
}

}  // namespace

StatusOr<TekkenFile> ParseTekkenFile(std::string_view bytes, std::string_view name) {
  StatusOr<TekkenFile> file = Parse(bytes);
  if (!file.ok()) return Status(file.status().code(), std::string(name) + ": " + file.status().message());
  return file;
}

}  // namespace tramontane
