#include "bench/load/wire/answer_event.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "kernels/core/utf8.h"

namespace tramontane::load {
namespace {

using Json = nlohmann::json;

// Where in an event a value stands, as far as that matters.
enum class Place : uint8_t {
  kElsewhere,
  kEvent,
  kObjectName,  // `object`
  kError,
  kTiming,
  kChoices,
  kChoice,
  kFinishReason,
  kDelta,  // of a chat
  kText,   // a string that is content, or a list of parts
  kPart,
  kToolCalls,
  kToolCall,
  kFunction,
  kArguments,
  kIds,
  kLogprobs,
  kLogprobTokens,
  kUsage,
  kPromptTokens,
  kCompletionTokens,
};

struct Step {
  Place from;
  std::string_view key;  // empty: any element of a list
  Place to;
};

// The whole of the format: which keys lead where. What is not here is kElsewhere.
constexpr std::array kSteps = {
    Step{Place::kEvent, "choices", Place::kChoices},
    Step{Place::kEvent, "usage", Place::kUsage},
    Step{Place::kEvent, "object", Place::kObjectName},
    Step{Place::kEvent, "error", Place::kError},
    Step{Place::kEvent, "timing", Place::kTiming},
    Step{Place::kChoices, "", Place::kChoice},
    Step{Place::kChoice, "delta", Place::kDelta},
    Step{Place::kChoice, "text", Place::kText},
    Step{Place::kChoice, "finish_reason", Place::kFinishReason},
    Step{Place::kChoice, "logprobs", Place::kLogprobs},
    Step{Place::kChoice, "token_ids", Place::kIds},
    Step{Place::kDelta, "content", Place::kText},
    Step{Place::kDelta, "reasoning_content", Place::kText},
    Step{Place::kDelta, "reasoning", Place::kText},
    Step{Place::kDelta, "refusal", Place::kText},
    Step{Place::kDelta, "tool_calls", Place::kToolCalls},
    Step{Place::kDelta, "function_call", Place::kFunction},
    Step{Place::kDelta, "token_ids", Place::kIds},
    Step{Place::kText, "", Place::kPart},
    Step{Place::kPart, "text", Place::kText},
    Step{Place::kPart, "thinking", Place::kText},
    Step{Place::kToolCalls, "", Place::kToolCall},
    Step{Place::kToolCall, "function", Place::kFunction},
    Step{Place::kFunction, "arguments", Place::kArguments},
    Step{Place::kLogprobs, "content", Place::kLogprobTokens},
    Step{Place::kLogprobs, "tokens", Place::kLogprobTokens},
    Step{Place::kUsage, "prompt_tokens", Place::kPromptTokens},
    Step{Place::kUsage, "completion_tokens", Place::kCompletionTokens},
};

Place Inside(Place from, std::string_view key) {
  if (from == Place::kElsewhere) return from;
  for (const Step& step : kSteps) {
    if (step.from == from && step.key == key) return step.to;
  }
  return Place::kElsewhere;
}

enum class Kind { kNull, kTrue, kFalse, kNumber, kString, kObject, kArray };

// Reads one JSON text from left to right.
class EventScanner {
 public:
  explicit EventScanner(std::string_view text) : at_(text.data()), end_(at_ + text.size()), begin_(at_) {}

  bool Scan() {
    SkipBlanks();
    if (at_ == end_ || *at_ != '{') return Fail("not a JSON object");
    if (!Value(Place::kEvent)) return false;
    while (depth_ > 0) {
      if (!Continue()) return false;
    }
    SkipBlanks();
    return at_ == end_ || Fail("something behind the JSON object");
  }

  const AnswerEvent& event() const { return event_; }
  const std::string& fault() const { return fault_; }

 private:
  struct Open {
    Place place;
    bool is_object;
    bool is_empty;
  };

  // One element of the innermost bracket, or its end.
  bool Continue() {
    Open& open = open_[depth_ - 1];
    SkipBlanks();
    if (at_ == end_) return Fail("the JSON ends in the middle");
    if (*at_ == (open.is_object ? '}' : ']')) {
      ++at_;
      --depth_;
      return true;
    }
    if (!open.is_empty) {
      if (*at_ != ',') return Fail("no comma between two values");
      ++at_;
      SkipBlanks();
    }
    open.is_empty = false;
    if (!open.is_object) return Value(Inside(open.place, ""));
    std::string_view key;
    if (!String(&key)) return false;
    SkipBlanks();
    if (at_ == end_ || *at_ != ':') return Fail("no colon after a key");
    ++at_;
    SkipBlanks();
    // An empty key is no element of a list.
    return Value(key.empty() ? Place::kElsewhere : KeyPlace(open.place, key));
  }

  Place KeyPlace(Place from, std::string_view key) const {
    if (key.find('\\') == std::string_view::npos) return Inside(from, key);
    const Json plain = Json::parse('"' + std::string(key) + '"', nullptr, false);
    return plain.is_string() ? Inside(from, plain.get_ref<const std::string&>()) : Place::kElsewhere;
  }

  bool Value(Place place) {
    if (at_ == end_) return Fail("the JSON ends in the middle");
    switch (*at_) {
      case '{':
      case '[': {
        if (depth_ == open_.size())
          return Fail("brackets inside each other more than " + std::to_string(depth_));
        const bool is_object = *at_ == '{';
        ++at_;
        Note(place, is_object ? Kind::kObject : Kind::kArray, {});
        open_[depth_++] = Open{place, is_object, true};
        return true;
      }
      case '"': {
        std::string_view string;
        if (!String(&string)) return false;
        Note(place, Kind::kString, string);
        return true;
      }
      case 't':
        return Word("true", place, Kind::kTrue);
      case 'f':
        return Word("false", place, Kind::kFalse);
      case 'n':
        return Word("null", place, Kind::kNull);
      default:
        return Number(place);
    }
  }

  bool Word(std::string_view word, Place place, Kind kind) {
    if (!std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(word)) return Fail("not a value");
    at_ += word.size();
    Note(place, kind, word);
    return true;
  }

  bool Number(Place place) {
    const char* begin = at_;
    if (at_ != end_ && *at_ == '-') ++at_;
    if (at_ != end_ && *at_ == '0') {
      ++at_;  // and no digit behind it
    } else if (!Digits()) {
      return Fail("not a value");
    }
    if (at_ != end_ && *at_ == '.') {
      ++at_;
      if (!Digits()) return Fail("not a number");
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!Digits()) return Fail("not a number");
    }
    Note(place, Kind::kNumber, std::string_view(begin, static_cast<size_t>(at_ - begin)));
    return true;
  }

  // At least one.
  bool Digits() {
    const char* begin = at_;
    while (at_ != end_ && IsDigit(*at_)) ++at_;
    return at_ != begin;
  }

  // `string`: what stands between the quotes, escapes as they are.
  bool String(std::string_view* string) {
    if (at_ == end_ || *at_ != '"') return Fail("no quote where a string begins");
    const char* begin = ++at_;
    for (; at_ != end_; ++at_) {
      const auto byte = static_cast<unsigned char>(*at_);
      if (byte == '"') {
        *string = std::string_view(begin, static_cast<size_t>(at_ - begin));
        ++at_;
        return true;
      }
      if (byte < 0x20) return Fail("a control character in a string");
      if (byte == '\\' && !Escape()) return false;
    }
    return Fail("a string without an end");
  }

  // From the backslash to its last byte.
  bool Escape() {
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    if (++at_ == end_) return Fail("a string without an end");
    if (kEscapes.find(*at_) != std::string_view::npos) return true;
    if (*at_ != 'u' || end_ - at_ < 5) return Fail("not an escape");
    const bool is_hex = std::all_of(at_ + 1, at_ + 5, [](char c) {
      return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    });
    at_ += 4;
    return is_hex || Fail("not an escape");
  }

  void SkipBlanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  void Note(Place place, Kind kind, std::string_view text) {
    switch (place) {
      case Place::kChoice:
        event_.has_choices = true;
        break;
      case Place::kText:
      case Place::kArguments:
        if (kind == Kind::kString && !text.empty()) event_.has_content = true;
        break;
      case Place::kPart:  // a part may be a string, too
        if (kind == Kind::kString && !text.empty()) event_.has_content = true;
        break;
      case Place::kFinishReason:
        if (kind != Kind::kString || text.empty()) break;
        event_.finishes = true;
        if (text == "error" || text == "abort") event_.fails = true;
        break;
      case Place::kError:
        if (kind != Kind::kNull) event_.is_error = true;
        break;
      case Place::kObjectName:
        if (kind == Kind::kString && text == "error") event_.is_error = true;
        break;
      case Place::kTiming:
        if (kind == Kind::kObject) event_.has_timing = true;
        break;
      case Place::kPromptTokens:
        if (kind == Kind::kNumber) event_.prompt_tokens = Count(text);
        break;
      case Place::kCompletionTokens:
        if (kind == Kind::kNumber) event_.completion_tokens = Count(text);
        break;
      default:
        NoteElement(kind);
    }
  }

  // Elements of lists that are counted.
  void NoteElement(Kind kind) {
    const Place list =
        depth_ > 0 && !open_[depth_ - 1].is_object ? open_[depth_ - 1].place : Place::kElsewhere;
    if (list == Place::kLogprobTokens) ++event_.logprobs;
    if (list == Place::kIds && kind == Kind::kNumber) {
      ++event_.ids;
      event_.has_content = true;
    }
  }

  static std::optional<int32_t> Count(std::string_view number) {
    int32_t count = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), count);
    const bool is_count = error == std::errc() && end == number.data() + number.size() && count >= 0;
    return is_count ? std::optional<int32_t>(count) : std::nullopt;
  }

  bool Fail(const std::string& what) {
    fault_ = what + ", at byte " + std::to_string(at_ - begin_);
    return false;
  }

  const char* at_;
  const char* end_;
  const char* begin_;
  std::array<Open, kMaxEventDepth> open_;  // brackets that have begun, the innermost last
  size_t depth_ = 0;
  AnswerEvent event_;
  std::string fault_;
};

std::string TextOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string text;
  if (!value.is_array()) return text;
  for (const Json& part : value) {
    if (part.is_string()) text += part.get<std::string>();
    if (!part.is_object()) continue;
    for (const char* key : {"thinking", "text"}) {
      if (part.contains(key)) text += TextOf(part[key]);
    }
  }
  return text;
}

std::string TextOfMember(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? TextOf(object[key]) : "";
}

}  // namespace

std::optional<AnswerEvent> ReadAnswerEvent(std::string_view data, std::string* fault) {
  EventScanner scanner(data);
  if (scanner.Scan()) return scanner.event();
  constexpr size_t kShownBytes = 1024;
  *fault = scanner.fault() + ": " + std::string(data.substr(0, kShownBytes));
  return std::nullopt;
}

std::string ErrorMessageOf(std::string_view data) {
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) return "";
  const Json& error = event.contains("error") ? event["error"] : event;
  if (error.is_string()) return error.get<std::string>();
  for (const char* key : {"message", "detail"}) {
    if (error.is_object() && error.contains(key) && error[key].is_string())
      return error[key].get<std::string>();
  }
  return "";
}

std::string TimingOf(std::string_view data) {
  const Json event = Json::parse(data, nullptr, false);
  const bool has_timing = event.is_object() && event.contains("timing") && event["timing"].is_object();
  return has_timing ? event["timing"].dump(-1, ' ', false, Json::error_handler_t::replace) : "";
}

std::string ContentTextOf(std::string_view data) {
  const Json event = Json::parse(data, nullptr, false);
  std::string text;
  if (!event.is_object() || !event.contains("choices") || !event["choices"].is_array()) return text;
  for (const Json& choice : event["choices"]) {
    text += TextOfMember(choice, "text");
    if (!choice.is_object() || !choice.contains("delta")) continue;
    const Json& delta = choice["delta"];
    const std::string thought = TextOfMember(delta, "reasoning_content");
    text += thought.empty() ? TextOfMember(delta, "reasoning") : thought;  // two names of one thing
    text += TextOfMember(delta, "content");
  }
  return text;
}

}  // namespace tramontane::load
