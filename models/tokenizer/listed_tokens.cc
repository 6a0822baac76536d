#include "models/tokenizer/listed_tokens.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/files/built_in_files.h"
#include "models/files/read_file.h"

namespace tramontane {
namespace {

using nlohmann::json;

constexpr char kTokenizerJson[] = "tokenizer.json";
constexpr size_t kMaxListedTokens = size_t{1} << 16;  // of a file; more of them is no list of added tokens

// Of a file the keys of the outermost object that are wanted; none: all.
StatusOr<json> ReadKeys(const std::string& path, int64_t max_bytes, const std::set<std::string>& wanted) {
  TM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, max_bytes));
  constexpr int kMaxDepth = 16;
  json file = json::parse(
      bytes.begin(), bytes.end(),
      [&wanted](int depth, json::parse_event_t event, const json& part) {
        if (event != json::parse_event_t::key || depth != 1) return depth < kMaxDepth;
        return wanted.empty() || wanted.count(part.get<std::string>()) != 0;
      },
      /*allow_exceptions=*/false);
  if (!file.is_object()) return DataLoss(path + ": not a JSON object");
  return file;
}

class Listing {
 public:
  explicit Listing(std::string folder, std::vector<std::string>* warnings)
      : folder_(std::move(folder)), warnings_(warnings) {}

  // The file's keys, or an empty object.
  json Open(const std::string& name, int64_t max_bytes, const std::set<std::string>& wanted) {
    const std::string path = folder_ + "/" + name;
    if (!FileExists(path)) return json::object();
    auto file = ReadKeys(path, max_bytes, wanted);
    if (file.ok()) return *std::move(file);
    warnings_->push_back(file.status().message() + ": what it lists is left aside");
    return json::object();
  }

  // One of tokenizer.json's, or of added_tokens_decoder, which has the same keys; what is neither is passed
  // over.
  void Add(const char* file, int64_t id, const json& object) {
    const json content = object.value("content", json());
    if (!content.is_string() || id < 0 || id >= TokenizerJsonFile::kMaxVocabulary) return;
    const auto& text = content.get_ref<const std::string&>();
    if (text.empty() || text.size() > TokenizerJsonFile::kMaxPieceBytes || FirstInvalidUtf8(text)) return;
    if (tokens_.size() >= kMaxListedTokens || !contents_.insert(text).second) return;
    const auto flag = [&](const char* key) { return object.value(key, json()) == true; };
    tokens_.insert({id,
                    {.token = {.id = static_cast<int32_t>(id),
                               .content = text,
                               .is_special = flag("special"),
                               .takes_left = flag("lstrip"),
                               .takes_right = flag("rstrip"),
                               .is_single_word = flag("single_word"),
                               .is_normalized = flag("normalized")},
                     .file = file}});
  }

  std::vector<ListedToken> Take(const std::set<std::string>& special) {
    std::vector<ListedToken> listed;
    for (auto& [id, one] : tokens_) {
      TokenizerJsonFile::AddedToken& token = one.token;
      token.is_special |= special.count(token.content) != 0 || IsTurnMarker(token.content);
      listed.push_back(std::move(one));
    }
    return listed;
  }

 private:
  const std::string folder_;
  std::vector<std::string>* warnings_;
  std::map<int64_t, ListedToken> tokens_;  // by id
  std::set<std::string> contents_;
};

// A token as it is named: by its text, by an object that has it, or several.
void AddNamed(const json& value, std::set<std::string>* names) {
  if (value.is_string()) names->insert(value.get<std::string>());
  if (value.is_object() && value.contains("content")) AddNamed(value["content"], names);
  if (value.is_array()) {
    for (const json& one : value) AddNamed(one, names);
  }
}

constexpr const char* kSpecialKeys[] = {
    "bos_token",           "eos_token", "unk_token",  "sep_token",
    "pad_token",           "cls_token", "mask_token", "additional_special_tokens",
    "extra_special_tokens"};

}  // namespace

bool IsTurnMarker(std::string_view content) {
  constexpr std::string_view kMarkers[] = {"<|im_start|>",        "<|im_end|>",        "<|im_sep|>",
                                           "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                                           "<|eom_id|>"};
  return std::find(std::begin(kMarkers), std::end(kMarkers), content) != std::end(kMarkers);
}

std::vector<ListedToken> ReadListedTokens(const std::string& folder, std::vector<std::string>* warnings) {
  constexpr char kConfig[] = "tokenizer_config.json", kAdded[] = "added_tokens.json",
                 kDecoder[] = "added_tokens_decoder";
  Listing listing(folder, warnings);
  const json file = listing.Open(kTokenizerJson, TokenizerJsonFile::kMaxFileBytes, {"added_tokens"});
  const json listed = file.value("added_tokens", json());
  for (size_t i = 0; listed.is_array() && i < listed.size(); ++i) {
    const json id = listed[i].is_object() ? listed[i].value("id", json()) : json();
    if (id.is_number_integer()) listing.Add(kTokenizerJson, id.get<int64_t>(), listed[i]);
  }

  std::set<std::string> wanted(std::begin(kSpecialKeys), std::end(kSpecialKeys)), special;
  wanted.insert(kDecoder);
  const json config = listing.Open(kConfig, TokenizerConfigFile::kMaxFileBytes, wanted);
  const json map = listing.Open("special_tokens_map.json", TokenizerConfigFile::kMaxFileBytes, {});
  for (const json* names : {&config, &map}) {
    for (const char* key : kSpecialKeys) AddNamed(names->value(key, json()), &special);
  }
  const json decoder = config.value(kDecoder, json());
  if (decoder.is_object()) {
    for (const auto& [key, token] : decoder.items()) {
      int64_t id = -1;
      const char* const end = key.data() + key.size();
      if (std::from_chars(key.data(), end, id).ptr == end && token.is_object())
        listing.Add(kConfig, id, token);
    }
  }

  const json added = listing.Open(kAdded, TokenizerConfigFile::kMaxFileBytes, {});
  for (const auto& [content, id] : added.items()) {
    // As transformers takes them: looked for in normalised text where they are not special.
    const json token = {{"content", content},
                        {"normalized", special.count(content) == 0 && !IsTurnMarker(content)}};
    if (id.is_number_integer()) listing.Add(kAdded, id.get<int64_t>(), token);
  }
  return listing.Take(special);
}

}  // namespace tramontane
