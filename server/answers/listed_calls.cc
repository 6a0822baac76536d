#include "server/answers/listed_calls.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace tramontane {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxTokenBytes = 1024;  // of a key or a name, with its escapes

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

// REQUIRES: `token` is a JSON string.
std::string StringValue(std::string_view token) {
  const auto value = nlohmann::json::parse(token, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

bool IsFunctionName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), IsNameCharacter);
}

ListedCalls::Step ListedCalls::Take(char c, std::string* arguments) {
  const bool is_key = json_.expects_key();
  if (!json_.Take(c)) return Step::kBroken;
  switch (part_) {
    case Part::kNone:
      return IsJsonBlank(c) ? Step::kNone : TakeBetween(c, is_key, arguments);
    case Part::kKey:
    case Part::kName:
      token_ += c;
      if (token_.size() > kMaxTokenBytes) return Step::kBroken;
      if (json_.is_in_string()) return Step::kNone;
      return part_ == Part::kKey ? EndKey() : EndName(arguments);
    case Part::kArguments:
      Shown(arguments) += c;
      if (json_.depth() == depth_) part_ = Part::kNone;
      return held_.size() > kMaxHeldArguments ? Step::kBroken : Step::kNone;
    case Part::kArgumentsText:
      held_ += c;
      if (held_.size() > kMaxHeldArguments) return Step::kBroken;
      return json_.is_in_string() ? Step::kNone : EndArgumentsText(arguments);
    case Part::kOther:  // a number ends with what comes behind it
      if (json_.depth() < depth_) return EndCall(arguments);
      if (json_.depth() == depth_ && (json_.is_behind_value() || json_.expects_key())) part_ = Part::kNone;
      return Step::kNone;
  }
  return Step::kBroken;
}

ListedCalls::Step ListedCalls::TakeBetween(char c, bool is_key, std::string* arguments) {
  if (!is_in_call_) {
    const bool is_lists_own = (c == '[' && json_.depth() == 1) || c == ',' || c == ']';
    if (c != '{') return is_lists_own ? Step::kNone : Step::kBroken;
    is_in_call_ = true;
    depth_ = json_.depth();
    seen_.reset();
    name_.clear();
    held_.clear();
    return Step::kNone;
  }
  if (c == '}') return EndCall(arguments);
  if (c == ':' || c == ',') return Step::kNone;
  if (!is_key) return BeginValue(c, arguments);
  part_ = Part::kKey;
  token_ = c;
  return Step::kNone;
}

ListedCalls::Step ListedCalls::EndKey() {
  constexpr std::array<std::string_view, kMembers> kKeys = {"name", "arguments", "id", "type"};
  part_ = Part::kNone;
  member_ = static_cast<size_t>(
      std::find(kKeys.begin(), kKeys.end(), StringValue(std::exchange(token_, {}))) - kKeys.begin());
  if (member_ == kMembers || seen_[member_]) return Step::kBroken;  // it would be lost
  seen_.set(member_);
  return Step::kNone;
}

ListedCalls::Step ListedCalls::BeginValue(char c, std::string* arguments) {
  if (member_ == kNameMember) {
    if (c != '"') return Step::kBroken;
    part_ = Part::kName;
    token_ = c;
  } else if (member_ == kArgumentsMember) {
    if (c != '{' && c != '"') return Step::kBroken;
    part_ = c == '{' ? Part::kArguments : Part::kArgumentsText;
    (c == '{' ? Shown(arguments) : held_) += c;
  } else {
    part_ = Part::kOther;
  }
  return Step::kNone;
}

ListedCalls::Step ListedCalls::EndName(std::string* arguments) {
  part_ = Part::kNone;
  name_ = StringValue(std::exchange(token_, {}));
  if (!IsFunctionName(name_)) return Step::kBroken;
  *arguments += std::exchange(held_, {});
  return Step::kName;
}

ListedCalls::Step ListedCalls::EndArgumentsText(std::string* arguments) {
  part_ = Part::kNone;
  const std::string value = StringValue(std::exchange(held_, {}));
  const std::string_view text = TrimmedJson(value);
  if (!text.empty() && !IsJsonObject(text)) return Step::kBroken;
  Shown(arguments) += text.empty() ? std::string_view("{}") : text;
  return Step::kNone;
}

ListedCalls::Step ListedCalls::EndCall(std::string* arguments) {
  part_ = Part::kNone;
  is_in_call_ = false;
  if (name_.empty()) return Step::kBroken;
  if (!seen_[kArgumentsMember]) *arguments += "{}";
  return Step::kWhole;
}

}  // namespace tramontane
