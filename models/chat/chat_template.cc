#include "models/chat/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/files/built_in_files.h"
#include "models/files/read_file.h"
#include "models/gguf/gguf_file.h"
#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

constexpr int64_t kMaxTemplateFileBytes = 16 << 20;
constexpr size_t kMaxTemplateBytes = 256 << 10;
constexpr size_t kMaxTokenBytes = 64;
constexpr size_t kMaxSystemBytes = 4096;  // of a default system message

// What templates of a header format may name besides its own pieces: ends of a text, and what stands for
// images.
constexpr std::string_view kHarmlessTokens[] = {
    "<|endoftext|>",  "<|end_of_text|>",  "<|begin_of_text|>", "<|eom_id|>",
    "<|python_tag|>", "<|image|>",        "<|image_pad|>",     "<|video_pad|>",
    "<|vision_pad|>", "<|vision_start|>", "<|vision_end|>",
};

// Of Mistral's formats.
constexpr std::string_view kMistralTokens[] = {
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "[MODEL_SETTINGS]",
    "[/MODEL_SETTINGS]",
    "[IMG]",
    "<s>",
    "</s>",
};

bool IsPieceOf(const HeaderFormat& format, std::string_view token) {
  return token == format.begin || token == format.behind_role || token == format.end;
}

template <typename List>
bool Holds(const List& list, std::string_view token) {
  return std::find(std::begin(list), std::end(list), token) != std::end(list);
}

bool IsSpelledAsToken(std::string_view token) {
  return token.starts_with("<|") || token.starts_with("<\xef\xbd\x9c");  // or with a full-width bar
}

// What stands in <...> or [...] and could be a control piece, in the order of the text.
std::vector<std::string_view> BracketedWords(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = text.find_first_of("<["); at != std::string_view::npos;
       at = text.find_first_of("<[", at + 1)) {
    const std::string_view rest = text.substr(at, kMaxTokenBytes);
    const size_t end = rest.find(rest.front() == '<' ? '>' : ']');
    if (end == std::string_view::npos) continue;
    const std::string_view word = rest.substr(0, end + 1);
    if (word.size() > 2 && word.find_first_of(" \t\r\n'\"{}\\+=", 1) == std::string_view::npos)
      words.push_back(word);
  }
  return words;
}

// The text between the first `begin` and the next `end`.
std::optional<std::string_view> Between(std::string_view text, std::string_view begin, std::string_view end) {
  const size_t at = text.find(begin);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + begin.size());
  const size_t length = text.find(end);
  if (length == std::string_view::npos) return std::nullopt;
  return text.substr(0, length);
}

// A template writes line breaks as \n, within a string of its own.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_line_break = text.substr(i, 2) == "\\n";
    plain += is_line_break ? '\n' : text[i];
    if (is_line_break) ++i;
  }
  return plain;
}

// The first system message spelled out whole, as in '<|im_start|>system\nText<|im_end|>'.
std::string DefaultSystemOf(const ChatTemplate& chat_template) {
  constexpr std::string_view kBegin = "<|im_start|>system";
  const std::string_view text = chat_template.text;
  for (size_t at = text.find(kBegin); at != std::string_view::npos; at = text.find(kBegin, at + 1)) {
    for (const char* line_break : {"\\n", "\n"}) {
      const std::string begin = std::string(kBegin) + line_break;
      const std::string_view rest = text.substr(at, kMaxSystemBytes);
      if (!rest.starts_with(begin)) continue;
      const auto system = Between(rest, begin, "<|im_end|>");
      if (system && system->find_first_of("'\"{}") == std::string_view::npos) return Unescaped(*system);
    }
  }
  return "";
}

// "Cutting Knowledge Date: ..." and "Today Date: ..." of Llama 3.1 and later.
std::string SystemHeadOf(const ChatTemplate& chat_template) {
  constexpr std::string_view kCutting = "Cutting Knowledge Date: ";
  const auto cutting = Between(chat_template.text, kCutting, "\\n");
  // The last one: a template that looks at the clock first says it first.
  constexpr std::string_view kDate = "date_string = \"";
  const size_t last = chat_template.text.rfind(kDate);
  if (!cutting || last == std::string::npos) return "";
  const auto today = Between(std::string_view(chat_template.text).substr(last), kDate, "\"");
  if (!today) return "";
  return std::string(kCutting) + std::string(*cutting) + "\nToday Date: " + std::string(*today) + "\n\n";
}

const JsonValue* Member(const JsonValue& object, std::string_view key) {
  for (const JsonMember& member : object.members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

StatusOr<std::string> ReadUtf8(const std::string& path) {
  TM_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxTemplateFileBytes));
  if (const auto invalid = FirstInvalidUtf8(text)) {
    return DataLoss(path + ": not UTF-8 at byte " + std::to_string(*invalid));
  }
  return text;
}

// `chat_template` of a JSON file; none where it has no such key.
StatusOr<std::optional<std::string>> TemplateInJson(const std::string& path) {
  TM_ASSIGN_OR_RETURN(const std::string text, ReadUtf8(path));
  const StatusOr<JsonValue> json = ParsePythonJson(text);
  if (!json.ok()) return DataLoss(path + ": " + json.status().message());
  const JsonValue* found = Member(*json, "chat_template");
  if (found == nullptr || found->kind == JsonValue::Kind::kNull) return std::optional<std::string>();
  if (found->kind == JsonValue::Kind::kString) return std::optional<std::string>(found->text);
  for (const JsonValue& named : found->items) {
    const JsonValue* name = Member(named, "name");
    const JsonValue* body = Member(named, "template");
    if (name == nullptr || body == nullptr || name->text != "default") continue;
    if (body->kind == JsonValue::Kind::kString) return std::optional<std::string>(body->text);
  }
  return DataLoss(path + ": chat_template is neither a text nor a list with one named default");
}

StatusOr<ChatTemplate> CheckedTemplate(std::string text, const std::string& path) {
  if (text.size() <= kMaxTemplateBytes) return ChatTemplate{std::move(text), path};
  return DataLoss(path + ": a chat template of " + std::to_string(text.size()) + " bytes, the limit is " +
                  std::to_string(kMaxTemplateBytes));
}

StatusOr<std::optional<ChatTemplate>> TemplateInFolder(const std::string& folder) {
  constexpr char kWhole[] = "chat_template.jinja";
  if (FileExists(folder + "/" + kWhole)) {
    TM_ASSIGN_OR_RETURN(ChatTemplate found, ReadChatTemplate(folder + "/" + kWhole));
    found.file = kWhole;
    return std::optional<ChatTemplate>(std::move(found));
  }
  for (const char* file : {"chat_template.json", "tokenizer_config.json"}) {
    if (!FileExists(folder + "/" + file)) continue;
    TM_ASSIGN_OR_RETURN(std::optional<std::string> text, TemplateInJson(folder + "/" + file));
    if (!text) continue;
    TM_ASSIGN_OR_RETURN(ChatTemplate found, CheckedTemplate(*std::move(text), folder + "/" + file));
    found.file = file;
    return std::optional<ChatTemplate>(std::move(found));
  }
  return std::optional<ChatTemplate>();
}

StatusOr<std::optional<ChatTemplate>> TemplateInGguf(const std::string& path) {
  constexpr char kKey[] = "tokenizer.chat_template";
  TM_ASSIGN_OR_RETURN(const GgufFile file, OpenGguf(path));
  if (!file.metadata.Has(kKey)) return std::optional<ChatTemplate>();
  TM_ASSIGN_OR_RETURN(const std::string_view text, file.metadata.String(kKey));
  if (const auto invalid = FirstInvalidUtf8(text)) {
    return DataLoss(path + ": " + kKey + ": not UTF-8 at byte " + std::to_string(*invalid));
  }
  TM_ASSIGN_OR_RETURN(ChatTemplate found, CheckedTemplate(std::string(text), path + ": " + kKey));
  found.file = std::filesystem::path(path).filename().string();
  return std::optional<ChatTemplate>(std::move(found));
}

}  // namespace

StatusOr<ChatTemplate> ReadChatTemplate(const std::string& path) {
  TM_ASSIGN_OR_RETURN(std::string text, ReadUtf8(path));
  return CheckedTemplate(std::move(text), path);
}

StatusOr<std::optional<ChatTemplate>> FindChatTemplate(std::span<const std::string> places) {
  for (const std::string& place : places) {
    TM_ASSIGN_OR_RETURN(std::optional<ChatTemplate> found,
                        IsGgufFile(place) ? TemplateInGguf(place) : TemplateInFolder(place));
    if (found) return found;
  }
  return std::optional<ChatTemplate>();
}

TokenizerVersion VersionOfTemplate(const ChatTemplate& chat_template, std::string* because) {
  struct Row {
    std::vector<std::string_view> pieces;  // all named
    TokenizerVersion version;
  };
  static const Row rows[] = {
      {{"[MODEL_SETTINGS]"}, TokenizerVersion::kV15},    {{"[THINK]"}, TokenizerVersion::kV13},
      {{"[ARGS]", "[CALL_ID]"}, TokenizerVersion::kV11}, {{"[ARGS]"}, TokenizerVersion::kV13},
      {{"[SYSTEM_PROMPT]"}, TokenizerVersion::kV7},
  };
  for (const Row& row : rows) {
    const bool all = std::all_of(row.pieces.begin(), row.pieces.end(),
                                 [&](std::string_view piece) { return chat_template.Names(piece); });
    if (!all) continue;
    because->clear();
    for (const std::string_view piece : row.pieces) {
      *because += (because->empty() ? "" : " and ") + std::string(piece);
    }
    return row.version;
  }
  *because = "no piece of a later version";
  return TokenizerVersion::kV3;
}

bool IsPlainInstTemplate(const ChatTemplate& chat_template) {
  constexpr std::string_view kPlain[] = {"[INST]", "[/INST]", "<s>", "</s>"};
  if (!chat_template.Names("[INST]") || !chat_template.Names("[/INST]")) return false;
  if (chat_template.Names("<<SYS>>")) return false;
  const std::vector<std::string_view> words = BracketedWords(chat_template.text);
  return std::all_of(words.begin(), words.end(), [&](std::string_view word) {
    return Holds(kPlain, word) || (!IsSpelledAsToken(word) && !Holds(kMistralTokens, word));
  });
}

bool IsTemplateOf(const ChatTemplate& chat_template, const HeaderFormat& format) {
  if (!chat_template.Names(format.begin) || !chat_template.Names(format.end)) return false;
  const std::vector<std::string_view> words = BracketedWords(chat_template.text);
  return std::all_of(words.begin(), words.end(), [&](std::string_view word) {
    return !IsSpelledAsToken(word) || IsPieceOf(format, word) || Holds(kHarmlessTokens, word);
  });
}

HeaderDetails DetailsOf(const ChatTemplate& chat_template) {
  return {.begins_with_bos = chat_template.Names("bos_token") || chat_template.Names("<|begin_of_text|>"),
          .default_system = DefaultSystemOf(chat_template),
          .system_head = SystemHeadOf(chat_template),
          .thinks = chat_template.Names("<think>")};
}

std::string FirstUnknownToken(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  for (const std::string_view word : BracketedWords(chat_template.text)) {
    const auto formats = HeaderFormats();
    const bool is_known = Holds(kMistralTokens, word) || Holds(kHarmlessTokens, word) ||
                          std::any_of(formats.begin(), formats.end(),
                                      [&](const HeaderFormat& format) { return IsPieceOf(format, word); });
    if (!is_known && (IsSpelledAsToken(word) || tokenizer.ControlId(word))) return std::string(word);
  }
  return "";
}

}  // namespace tramontane
