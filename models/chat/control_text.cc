#include "models/chat/control_text.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

// The private code points of three bytes in UTF-8: more than text of a request ever holds but on purpose.
constexpr uint32_t kFirstPrivate = 0xE000;
constexpr uint32_t kLastPrivate = 0xF8FF;

std::string Utf8Of(uint32_t code_point) {
  return {static_cast<char>(0xE0 | (code_point >> 12)), static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

// "\ue000"
std::string EscapeOf(uint32_t code_point) {
  char escape[8];
  std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(code_point));
  return escape;
}

// Which private code points a text holds, as they are or escaped.
class PrivateCodePoints {
 public:
  void AddAll(const JsonValue& value) {
    Add(value.text);
    for (const JsonValue& item : value.items) AddAll(item);
    for (const JsonMember& member : value.members) {
      Add(member.key);
      AddAll(member.value);
    }
  }
  void Add(std::string_view text) {
    for (size_t at = text.find_first_of("\xEE\xEF"); at != std::string_view::npos;
         at = text.find_first_of("\xEE\xEF", at + 1)) {
      if (at + 2 >= text.size()) break;
      const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i])); };
      held_.insert(((byte(0) & 0xF) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F));
    }
    for (size_t at = text.find("\\u"); at != std::string_view::npos; at = text.find("\\u", at + 1)) {
      const std::string_view digits = text.substr(at + 2, 4);
      uint32_t code_point = 0;
      for (const char digit : digits) {
        const bool is_letter = (digit | 0x20) >= 'a';
        code_point =
            code_point * 16 + static_cast<uint32_t>(is_letter ? (digit | 0x20) - 'a' + 10 : digit - '0');
      }
      held_.insert(code_point);
    }
  }
  // The first code point that it does not hold, and its two neighbours neither.
  std::optional<uint32_t> Free() const {
    for (uint32_t code_point = kFirstPrivate; code_point + 2 <= kLastPrivate; code_point += 3) {
      if (held_.lower_bound(code_point) == held_.upper_bound(code_point + 2)) return code_point;
    }
    return std::nullopt;
  }

 private:
  std::set<uint32_t> held_;
};

// The end of the code point that begins `text`. REQUIRES: UTF-8, not empty.
size_t EndOfFirst(std::string_view text) {
  size_t end = 1;
  while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
  return end;
}

// Keys that templates ask messages and tools for.
bool IsAskedFor(const std::string& key) {
  static const std::unordered_set<std::string> names = {"additionalProperties",
                                                        "allOf",
                                                        "anyOf",
                                                        "arguments",
                                                        "const",
                                                        "content",
                                                        "default",
                                                        "description",
                                                        "enum",
                                                        "examples",
                                                        "format",
                                                        "function",
                                                        "id",
                                                        "items",
                                                        "maxItems",
                                                        "maxLength",
                                                        "maximum",
                                                        "minItems",
                                                        "minLength",
                                                        "minimum",
                                                        "name",
                                                        "nullable",
                                                        "oneOf",
                                                        "parameters",
                                                        "pattern",
                                                        "properties",
                                                        "reasoning_content",
                                                        "required",
                                                        "return",
                                                        "strict",
                                                        "title",
                                                        "tool_call_id",
                                                        "tool_calls",
                                                        "type"};
  return names.count(key) != 0;
}

}  // namespace

ControlSpellings::ControlSpellings(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, int32_t>> found;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string piece(tokenizer.Piece(id));
    if (!tokenizer.IsControl(id) || piece.empty() || EndOfFirst(piece) == piece.size()) continue;
    if (tokenizer.ControlId(piece) != id) continue;
    for (size_t begin = 0; begin < piece.size(); ++begin) {
      for (size_t end = begin + 1; end <= piece.size(); ++end) {
        if (end - begin == piece.size()) continue;
        if (begin == 0) prefixes_.insert(piece.substr(0, end));
        if (end == piece.size()) suffixes_.insert(piece.substr(begin));
        insides_.insert(piece.substr(begin, end - begin));
      }
    }
    longest_ = std::max(longest_, piece.size());
    found.emplace_back(piece, id);
  }
  matcher_ = SpellingMatcher(std::move(found));
}

bool ControlSpellings::OpenAtBegin(std::string_view text) const {
  if (text.size() < longest_ && insides_.count(std::string(text)) != 0) return true;
  for (size_t size = std::min(longest_, text.size()); size > 0; --size) {
    if (suffixes_.count(std::string(text.substr(0, size))) != 0) return true;
  }
  return false;
}

bool ControlSpellings::OpenAtEnd(std::string_view text) const {
  if (text.size() < longest_ && insides_.count(std::string(text)) != 0) return true;
  for (size_t size = std::min(longest_, text.size()); size > 0; --size) {
    if (prefixes_.count(std::string(text.substr(text.size() - size))) != 0) return true;
  }
  return false;
}

StatusOr<ControlText> ControlText::For(const ControlSpellings& spellings, std::string_view template_text,
                                       const JsonValue& values) {
  PrivateCodePoints held;
  held.Add(template_text);
  held.AddAll(values);
  const std::optional<uint32_t> free = held.Free();
  if (!free) return ResourceExhausted("the chat holds every private code point of Unicode");
  return ControlText(spellings, *free);
}

ControlText::ControlText(const ControlSpellings& spellings, uint32_t breaker)
    : spellings_(&spellings),
      breaker_(Utf8Of(breaker)),
      escaped_(EscapeOf(breaker)),
      mark_(Utf8Of(breaker + 1) + Utf8Of(breaker + 2)) {}

std::string ControlText::Break(std::string_view text) const {
  if (text.empty()) return "";
  std::string broken;
  if (spellings_->OpenAtBegin(text)) broken += breaker_;
  size_t done = 0;
  // From behind the first character on again: a spelling may begin inside of another.
  while (const auto match = spellings_->matcher().Find(text, done)) {
    const size_t cut = match->begin + EndOfFirst(text.substr(match->begin));
    broken.append(text.substr(done, cut - done)).append(breaker_);
    done = cut;
  }
  broken.append(text.substr(done));
  if (spellings_->OpenAtEnd(text)) broken += breaker_;
  return broken;
}

void ControlText::BreakAll(Keys keys, JsonValue* value) const {
  if (value->kind == JsonValue::Kind::kString) value->text = Break(value->text);
  for (JsonValue& item : value->items) BreakAll(keys, &item);
  for (JsonMember& member : value->members) {
    const bool may_be_asked_for = keys == Keys::kAskedFor || IsAskedFor(member.key);
    if (!may_be_asked_for || spellings_->matcher().Find(member.key, 0)) member.key = Break(member.key);
    BreakAll(keys, &member.value);
  }
}

void ControlText::AppendMended(std::string_view text, std::string* mended) const {
  while (!text.empty()) {
    const size_t at = std::min(text.find(breaker_), text.find(escaped_));
    mended->append(text.substr(0, at));
    if (at == std::string_view::npos) break;
    text.remove_prefix(at + (text.substr(at).starts_with(breaker_) ? breaker_.size() : escaped_.size()));
  }
}

StatusOr<std::vector<int32_t>> ControlText::Encode(const Tokenizer& tokenizer,
                                                   std::string_view rendered) const {
  std::string text;
  std::vector<SpellingMatcher::Match> places;  // in `text`
  size_t done = 0;
  while (const auto match = spellings_->matcher().Find(rendered, done)) {
    AppendMended(rendered.substr(done, match->begin - done), &text);
    const size_t begin = text.size();
    text.append(rendered.substr(match->begin, match->end - match->begin));
    places.push_back({begin, text.size(), match->id});
    done = match->end;
  }
  AppendMended(rendered.substr(done), &text);
  return tokenizer.EncodeWithControlTokensAt(text, places);
}

}  // namespace tramontane
