#include "server/answers/answer_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
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

struct NamedArguments {
  std::string name, arguments;
};

// `object` from its first brace to its last; none where it is not a sound call.
std::optional<NamedArguments> ParseCall(std::string_view object) {
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
  NamedArguments call;
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

AnswerEvents AnswerReader::Read(const v1::Delta& delta) {
  if (!delta.reasoning().empty()) events_.emplace_back(AnswerThought{delta.reasoning()});
  const std::string_view text = delta.text();
  size_t begin = 0;
  const auto take_until = [&](int32_t at) {
    const size_t end = std::clamp(static_cast<size_t>(at), begin, text.size());
    Take(text.substr(begin, end - begin));
    begin = end;
  };
  if (delta.marks().empty() && delta.has_tool_calls_at() && state_ == State::kAnswer) {
    take_until(delta.tool_calls_at());
    state_ = State::kOpening;
  }
  for (const v1::Mark& mark : delta.marks()) {
    take_until(mark.at());
    OnMark(mark.kind());
  }
  Take(text.substr(begin));
  return std::exchange(events_, {});
}

AnswerEvents AnswerReader::Finish(End end) {
  FinishCall(end);
  return std::exchange(events_, {});
}

void AnswerReader::Take(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (state_ == State::kAnswer || state_ == State::kBroken) return TellText(text.substr(i));
    Step(text[i]);
  }
}

void AnswerReader::TellText(std::string_view text) {
  if (text.empty()) return;
  auto* last = events_.empty() ? nullptr : std::get_if<AnswerText>(&events_.back());
  if (last == nullptr) last = &std::get<AnswerText>(events_.emplace_back(AnswerText{}));
  last->bytes += text;
}

void AnswerReader::OnMark(v1::MarkKind kind) {
  if (kind == v1::MARK_KIND_CALL) {
    if (state_ != State::kAnswer) FinishCall(End::kOfTheModel);
    state_ = State::kName;
    name_.clear();
    in_list_ = in_string_ = escaped_ = false;
    return;
  }
  const bool follows =
      state_ == State::kName || (state_ == State::kCallId && kind == v1::MARK_KIND_ARGUMENTS);
  if (!follows) return;
  if (state_ == State::kName) name_ = NameBefore(kind, unclaimed_);
  if (!IsFunctionName(name_)) return Break();
  state_ = kind == v1::MARK_KIND_CALL_ID ? State::kCallId : State::kBeforeArguments;
}

bool AnswerReader::IsCutBy(End end) const {
  if (state_ == State::kBeforeArguments) return end == End::kCutOff;
  return state_ == State::kOpening || state_ == State::kCall || state_ == State::kName ||
         state_ == State::kCallId;
}

void AnswerReader::FinishCall(End end) {
  if (state_ == State::kBeforeArguments && end == End::kOfTheModel) EndCall(name_, "{}");
  const bool only_punctuation =
      state_ == State::kAfterCall || state_ == State::kBeforeCall || state_ == State::kClosed;
  if (calls_ == 0 || !only_punctuation) TellText(unclaimed_);
  unclaimed_.clear();
  state_ = State::kBroken;
}

void AnswerReader::Step(char c) {
  unclaimed_ += c;
  if (state_ == State::kCall) return StepInCall(c);
  if (state_ == State::kName || state_ == State::kCallId) {
    if (unclaimed_.size() > kMaxHeadBytes) Break();
    return;
  }
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
    Break();
  }
}

void AnswerReader::Break() {
  state_ = State::kBroken;
  TellText(unclaimed_);
  unclaimed_.clear();
}

void AnswerReader::StepInCall(char c) {
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

  const std::string_view object = std::string_view(unclaimed_).substr(call_begin_);
  if (!name_.empty()) return IsJsonObject(object) ? EndCall(name_, std::string(object)) : Break();
  std::optional<NamedArguments> call = ParseCall(object);
  if (!call) return Break();
  EndCall(std::move(call->name), std::move(call->arguments));
}

void AnswerReader::EndCall(std::string name, std::string arguments) {
  state_ = in_list_ ? State::kAfterCall : State::kClosed;
  unclaimed_.clear();
  if (options_.one_call && calls_ > 0) return;
  const size_t number = calls_++;
  std::string id = NineCharacterId(options_.id_seed + "/" + std::to_string(number));
  events_.emplace_back(CallBegins{.number = number, .id = std::move(id), .name = std::move(name)});
  events_.emplace_back(CallArguments{std::move(arguments)});
  events_.emplace_back(CallEnds{});
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
