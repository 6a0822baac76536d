#include "models/grammar/schema_reference.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

std::optional<int> HexValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// "%3C" is "<"; a % that begins no such code stands for itself.
std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto high = text[i] == '%' && i + 2 < text.size() ? HexValue(text[i + 1]) : std::nullopt;
    const auto low = high ? HexValue(text[i + 2]) : std::nullopt;
    if (low) {
      decoded += static_cast<char>(*high * 16 + *low);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

// "~1" is "/", "~0" is "~".
std::string PointerDecoded(std::string_view step) {
  std::string decoded;
  for (size_t i = 0; i < step.size(); ++i) {
    const bool escape = step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1');
    decoded += !escape ? step[i] : step[i + 1] == '0' ? '~' : '/';
    if (escape) ++i;
  }
  return decoded;
}

// `pointer` is "" or begins with "/".
const JsonValue* Follow(const JsonValue& root, std::string_view pointer) {
  const JsonValue* at = &root;
  while (!pointer.empty() && at != nullptr) {
    pointer.remove_prefix(1);
    const std::string_view coded = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(coded.size());
    const std::string step = PointerDecoded(coded);
    if (at->kind == JsonValue::Kind::kArray) {
      const bool is_index =
          !step.empty() && step.size() < 8 && step.find_first_not_of("0123456789") == std::string::npos;
      const size_t index = is_index ? std::stoul(step) : at->items.size();
      at = index < at->items.size() ? &at->items[index] : nullptr;
    } else {
      at = at->kind == JsonValue::Kind::kObject ? FindMember(*at, step) : nullptr;
    }
  }
  return at;
}

}  // namespace

const JsonValue* ResolveReference(const JsonValue& root, std::string_view uri) {
  const JsonValue* id = root.kind == JsonValue::Kind::kObject ? FindMember(root, "$id") : nullptr;
  if (id != nullptr && id->kind == JsonValue::Kind::kString) {
    std::string_view own = id->text;
    if (own.ends_with('#')) own.remove_suffix(1);
    if (!own.empty() && uri == own) return &root;
    if (!own.empty() && uri.starts_with(own) && uri[own.size()] == '#') uri.remove_prefix(own.size());
  }
  if (uri == "#") return &root;
  if (!uri.starts_with("#/")) return nullptr;
  uri.remove_prefix(1);
  const JsonValue* target = Follow(root, PercentDecoded(uri));
  return target != nullptr ? target : Follow(root, uri);
}

const JsonValue* FindMember(const JsonValue& object, std::string_view key) {
  for (const JsonMember& member : object.members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

}  // namespace tramontane
