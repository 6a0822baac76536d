#include "server/answers/tool_call_parser.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace tramontane {
namespace {

using nlohmann::json;

constexpr std::string_view kJsonBlanks = " \t\r\n";
constexpr size_t kIdCharacters = 9;
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxHeadBytes =
    256;  // of a marked call in front of its arguments; nothing longer is held back

bool IsBlank(char c) { return kJsonBlanks.find(c) != std::string_view::npos; }

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool IsFunctionName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return IsLetterOrDigit(c) || c == '_' || c == '-';
  });
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kJsonBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kJsonBlanks) + 1 - begin);
}

// The name in front of `mark`, without that mark's control token where it was spelled out.
std::string_view NameBefore(v1::MarkKind mark, std::string_view text) {
  const std::string_view token = mark == v1::MARK_KIND_CALL_ID ? "[CALL_ID]" : "[ARGS]";
  if (text.ends_with(token)) text.remove_suffix(token.size());
  return Trimmed(text);
}

bool IsJsonObject(std::string_view text) {
  const size_t first = text.find_first_not_of(kJsonBlanks);
  return first != std::string_view::npos && text[first] == '{' && text.find('\0') == std::string_view::npos &&
         json::accept(text);
}

// The JSON string that `text` is; none if it is anything else.
std::optional<std::string> StringValue(std::string_view text) {
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

// Takes sound JSON apart without changing a byte of it. REQUIRES: what it reads is sound JSON.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  // Skips blanks and `punctuation`; false at the end.
  bool SkipTo(std::string_view punctuation) {
    while (at_ < text_.size() &&
           (IsBlank(text_[at_]) || punctuation.find(text_[at_]) != std::string_view::npos))
      ++at_;
    return at_ < text_.size();
  }
  // The value that begins here.
  std::string_view Value() {
    const size_t begin = at_;
    int64_t depth = 0;
    bool in_string = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (in_string) {
        if (c == '\\') ++at_;
        if (c == '"') in_string = false;
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ':' || IsBlank(c))) break;
      if (c == '"') in_string = true;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
    }
    return text_.substr(begin, at_ - begin);
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

// `object` from its first brace to its last; none where it is not a sound call. The id is left empty.
std::optional<ParsedToolCall> ParseCall(std::string_view object) {
  if (!IsJsonObject(object)) return std::nullopt;
  std::optional<std::string_view> name, arguments, id, type;
  JsonReader reader(object.substr(1, object.size() - 2));
  while (reader.SkipTo(",")) {
    const std::optional<std::string> key = StringValue(reader.Value());
    reader.SkipTo(":");
    std::optional<std::string_view>* member = key == "name"        ? &name
                                              : key == "arguments" ? &arguments
                                              : key == "id"        ? &id
                                              : key == "type"      ? &type
                                                                   : nullptr;
    if (member == nullptr || member->has_value()) return std::nullopt;  // would be lost
    *member = reader.Value();
  }
  ParsedToolCall call;
  const std::optional<std::string> function = StringValue(name.value_or("null"));
  if (!function || !IsFunctionName(*function)) return std::nullopt;
  call.name = *function;
  call.arguments = arguments.value_or("{}");
  if (call.arguments.starts_with('"')) call.arguments = StringValue(call.arguments).value_or("");
  if (call.arguments.empty()) call.arguments = "{}";
  if (!IsJsonObject(call.arguments)) return std::nullopt;
  return call;
}

}  // namespace

ToolCallParser::ToolCallParser(std::string id_seed, size_t max_calls)
    : id_seed_(std::move(id_seed)), max_calls_(max_calls) {}

ToolCallParser::Output ToolCallParser::Append(std::string_view text, std::optional<int32_t> tool_calls_at) {
  Output output;
  if (state_ == State::kAnswer) {
    const size_t answer_bytes =
        std::min(tool_calls_at ? static_cast<size_t>(*tool_calls_at) : text.size(), text.size());
    output.text = text.substr(0, answer_bytes);
    text.remove_prefix(answer_bytes);
    if (tool_calls_at) state_ = State::kOpening;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (state_ == State::kBroken) {
      output.text += text.substr(i);
      break;
    }
    Step(text[i], &output);
  }
  return output;
}

ToolCallParser::Output ToolCallParser::Append(const v1::Delta& delta) {
  std::optional<int32_t> calls_at;
  if (delta.has_tool_calls_at()) calls_at = delta.tool_calls_at();
  const std::string_view text = delta.text();
  if (delta.marks().empty()) return Append(text, calls_at);
  Output output;
  const auto append = [&](std::string_view piece) {
    Output more = Append(piece, std::nullopt);
    output.text += more.text;
    std::move(more.calls.begin(), more.calls.end(), std::back_inserter(output.calls));
  };
  size_t begin = 0;
  for (const v1::Mark& mark : delta.marks()) {
    const size_t end = std::clamp(static_cast<size_t>(mark.at()), begin, text.size());
    append(text.substr(begin, end - begin));
    OnMark(mark.kind(), &output);
    begin = end;
  }
  append(text.substr(begin));
  return output;
}

void ToolCallParser::OnMark(v1::MarkKind kind, Output* output) {
  if (kind == v1::MARK_KIND_CALL) {
    if (state_ != State::kAnswer) {
      Output rest = Finish(End::kOfTheModel);
      output->text += rest.text;
      std::move(rest.calls.begin(), rest.calls.end(), std::back_inserter(output->calls));
    }
    state_ = State::kName;
    name_.clear();
    in_list_ = in_string_ = escaped_ = false;
    return;
  }
  const bool follows =
      state_ == State::kName || (state_ == State::kCallId && kind == v1::MARK_KIND_ARGUMENTS);
  if (!follows) return;
  if (state_ == State::kName) name_ = NameBefore(kind, unclaimed_);
  if (!IsFunctionName(name_)) return Break(output);
  state_ = kind == v1::MARK_KIND_CALL_ID ? State::kCallId : State::kBeforeArguments;
}

bool ToolCallParser::IsCutBy(End end) const {
  if (state_ == State::kBeforeArguments) return end == End::kCutOff;
  return state_ == State::kOpening || state_ == State::kCall || state_ == State::kName ||
         state_ == State::kCallId;
}

ToolCallParser::Output ToolCallParser::Finish(End end) {
  Output output;
  if (state_ == State::kBeforeArguments && end == End::kOfTheModel) {
    EndCall({.id = {}, .name = name_, .arguments = "{}"}, &output);
  }
  const bool only_punctuation =
      state_ == State::kAfterCall || state_ == State::kBeforeCall || state_ == State::kClosed;
  if (calls_ == 0 || !only_punctuation) output.text = std::move(unclaimed_);
  unclaimed_.clear();
  state_ = State::kBroken;
  return output;
}

void ToolCallParser::Step(char c, Output* output) {
  unclaimed_ += c;
  if (state_ == State::kCall) return StepInCall(c, output);
  if (state_ == State::kName || state_ == State::kCallId) return StepInHead(output);
  if (IsBlank(c)) return;

  const bool may_begin_a_call =
      state_ == State::kOpening || state_ == State::kBeforeCall || state_ == State::kBeforeArguments;
  if (c == '{' && may_begin_a_call) {
    state_ = State::kCall;
    call_begin_ = unclaimed_.size() - 1;
    depth_ = 1;
  } else if (c == '[' && state_ == State::kOpening) {
    in_list_ = true;
    state_ = State::kBeforeCall;
  } else if (c == ',' && state_ == State::kAfterCall) {
    state_ = State::kBeforeCall;
  } else if (c == ']' && (state_ == State::kAfterCall || (state_ == State::kBeforeCall && calls_ > 0))) {
    state_ = State::kClosed;
    unclaimed_.clear();
  } else {
    Break(output);
  }
}

void ToolCallParser::StepInHead(Output* output) {
  if (unclaimed_.size() > kMaxHeadBytes) Break(output);
}

void ToolCallParser::Break(Output* output) {
  state_ = State::kBroken;
  output->text += unclaimed_;
  unclaimed_.clear();
}

std::optional<ParsedToolCall> ToolCallParser::CallRead() const {
  const std::string_view object = std::string_view(unclaimed_).substr(call_begin_);
  if (name_.empty()) return ParseCall(object);
  if (!IsJsonObject(object)) return std::nullopt;
  return ParsedToolCall{.id = {}, .name = name_, .arguments = std::string(object)};
}

void ToolCallParser::StepInCall(char c, Output* output) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
    return;
  }
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') --depth_;
  if (depth_ > 0) return;

  std::optional<ParsedToolCall> call = CallRead();
  if (!call) return Break(output);
  EndCall(*std::move(call), output);
}

void ToolCallParser::EndCall(ParsedToolCall call, Output* output) {
  state_ = in_list_ ? State::kAfterCall : State::kClosed;
  unclaimed_.clear();
  if (calls_ >= max_calls_) return;
  call.id = NineCharacterId(id_seed_ + "/" + std::to_string(calls_++));
  output->calls.push_back(std::move(call));
}

std::string NineCharacterId(std::string_view seed) {
  uint64_t hash =
      0xcbf29ce484222325;  // FNV-1a, then the finisher of SplitMix64: every bit depends on every byte
  for (const char c : seed) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  hash ^= hash >> 31;
  constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (size_t i = 0; i < kIdCharacters; ++i) {
    id += kDigits[hash % kDigits.size()];
    hash /= kDigits.size();
  }
  return id;
}

}  // namespace tramontane
