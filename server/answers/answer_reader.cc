#include "server/answers/answer_reader.h"

#include <algorithm>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

constexpr size_t kIdCharacters = 9;
constexpr size_t kMaxHeldBytes = 256;  // of a name that may be text, and of white space

bool IsCallPunctuation(char c) { return c == '[' || c == ']' || c == '{' || c == '}' || c == ','; }

// The name in front of `mark`, without that mark's control token where it was spelled out.
std::string_view NameBefore(v1::MarkKind mark, std::string_view text) {
  const std::string_view token = mark == v1::MARK_KIND_CALL_ID ? "[CALL_ID]" : "[ARGS]";
  if (text.ends_with(token)) text.remove_suffix(token.size());
  return TrimmedJson(text);
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
  if (delta.marks().empty() && delta.has_tool_calls_at() && state_ == State::kText) {
    take_until(delta.tool_calls_at());
    state_ = State::kOpening;
  }
  for (const v1::Mark& mark : delta.marks()) {
    take_until(mark.at());
    OnMark(mark.kind());
  }
  Take(text.substr(begin));
  TellArguments();
  return std::exchange(events_, {});
}

AnswerEvents AnswerReader::Finish(End end) {
  LeaveCall(end);
  return std::exchange(events_, {});
}

bool AnswerReader::is_within_call() const {
  const bool is_name =
      state_ == State::kName && (TrimmedJson(held_).empty() || IsFunctionName(TrimmedJson(held_)));
  return is_in_call_ || is_name || state_ == State::kOpening ||
         (state_ == State::kList && list_.is_in_call());
}

void AnswerReader::Take(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (state_ == State::kText) return TellText(text.substr(i));
    Step(text[i]);
  }
}

void AnswerReader::Step(char c) {
  switch (state_) {
    case State::kOpening:
    case State::kClosed:
      return StepInSpace(c);
    case State::kList:
      return StepInList(c);
    case State::kName:
      held_ += c;
      if (held_.size() <= kMaxHeldBytes) return;
      state_ = State::kText;
      return TellText(std::exchange(held_, {}));
    case State::kBeforeArguments:
      if (IsJsonBlank(c)) return;
      if (c != '{') return Drop();
      state_ = State::kArguments;
      [[fallthrough]];
    case State::kArguments:
      if (!json_.Take(c)) return Drop();
      arguments_ += c;
      if (json_.depth() > 0) return;
      state_ = State::kClosed;
      return EndCall(/*is_whole=*/true);
    default:  // nobody's
      return;
  }
}

void AnswerReader::StepInSpace(char c) {
  if (IsJsonBlank(c)) {
    if (held_.size() < kMaxHeldBytes) held_ += c;
  } else if (state_ == State::kOpening && (c == '[' || c == '{')) {
    held_.clear();
    state_ = State::kList;
    StepInList(c);
  } else if (IsCallPunctuation(c)) {
    Drop();
  } else {
    held_ += c;
    state_ = State::kText;
    TellText(std::exchange(held_, {}));
  }
}

void AnswerReader::StepInList(char c) {
  switch (list_.Take(c, &arguments_)) {
    case ListedCalls::Step::kBroken:
      return Drop();
    case ListedCalls::Step::kName:
      BeginCall(list_.name());
      break;
    case ListedCalls::Step::kWhole:
      EndCall(/*is_whole=*/true);
      break;
    default:
      break;
  }
  if (list_.is_closed()) state_ = State::kClosed;
}

void AnswerReader::OnMark(v1::MarkKind kind) {
  if (kind == v1::MARK_KIND_CALL) {
    LeaveCall(End::kOfTheModel);
    state_ = State::kName;
    return;
  }
  switch (state_) {
    case State::kName: {
      const std::string head = std::exchange(held_, {});
      const std::string_view name = NameBefore(kind, head);
      if (!IsFunctionName(name)) return Drop();
      BeginCall(name);
      state_ = kind == v1::MARK_KIND_CALL_ID ? State::kCallId : State::kBeforeArguments;
      return;
    }
    case State::kCallId:
      if (kind == v1::MARK_KIND_ARGUMENTS) state_ = State::kBeforeArguments;
      return;
    case State::kText:
    case State::kClosed:
      return Drop();
    default:
      return;
  }
}

// The call being read, if any, ends here; behind it is text.
void AnswerReader::LeaveCall(End end) {
  if (state_ == State::kBeforeArguments && end == End::kOfTheModel) {
    arguments_ = "{}";
    EndCall(/*is_whole=*/true);
  } else if (state_ == State::kName && !is_within_call()) {
    TellText(held_);
  }
  Drop();
}

void AnswerReader::Drop() {
  if (is_in_call_) EndCall(/*is_whole=*/false);
  held_.clear();
  list_ = {};
  state_ = State::kDropped;
}

void AnswerReader::TellText(std::string_view text) {
  auto* last = events_.empty() ? nullptr : std::get_if<AnswerText>(&events_.back());
  if (last == nullptr) last = &std::get<AnswerText>(events_.emplace_back(AnswerText{}));
  last->bytes += text;
}

void AnswerReader::BeginCall(std::string_view name) {
  is_in_call_ = true;
  json_ = {};
  is_told_ = !options_.one_call || begun_calls_ == 0;
  const size_t number = begun_calls_++;
  if (!is_told_) return;
  std::string id = NineCharacterId(options_.id_seed + "/" + std::to_string(number));
  events_.emplace_back(CallBegins{.number = number, .id = std::move(id), .name = std::string(name)});
}

// But for the bytes of a character that is not whole.
void AnswerReader::TellArguments() {
  const size_t end = arguments_.size() - TruncatedUtf8Bytes(arguments_);
  std::string bytes = std::exchange(arguments_, arguments_.substr(end));
  bytes.resize(end);
  if (end > 0 && is_told_) events_.emplace_back(CallArguments{std::move(bytes)});
}

void AnswerReader::EndCall(bool is_whole) {
  TellArguments();
  arguments_.clear();
  is_in_call_ = false;
  if (!is_told_) return;
  events_.emplace_back(CallEnds{is_whole});
  if (is_whole) ++whole_calls_;
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
