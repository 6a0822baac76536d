#include "models/gguf/gguf_metadata.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

struct KindRow {
  const char* name;
  int64_t bytes;
};
constexpr KindRow kKindRows[] = {
    {"uint8", 1}, {"int8", 1},   {"uint16", 2}, {"int16", 2},  {"uint32", 4}, {"int32", 4},   {"float32", 4},
    {"bool", 1},  {"string", 0}, {"array", 0},  {"uint64", 8}, {"int64", 8},  {"float64", 8},
};
static_assert(std::size(kKindRows) == kGgufKinds);

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

bool IsInteger(GgufKind kind) {
  switch (kind) {
    case GgufKind::kUint8:
    case GgufKind::kInt8:
    case GgufKind::kUint16:
    case GgufKind::kInt16:
    case GgufKind::kUint32:
    case GgufKind::kInt32:
    case GgufKind::kUint64:
    case GgufKind::kInt64:
      return true;
    default:
      return false;
  }
}

bool IsFloat(GgufKind kind) { return kind == GgufKind::kFloat32 || kind == GgufKind::kFloat64; }

// None where it is larger than any int64. REQUIRES: an integer.
std::optional<int64_t> LoadInt(GgufKind kind, const char* bytes) {
  switch (kind) {
    case GgufKind::kUint8:
      return Load<uint8_t>(bytes);
    case GgufKind::kInt8:
      return Load<int8_t>(bytes);
    case GgufKind::kUint16:
      return Load<uint16_t>(bytes);
    case GgufKind::kInt16:
      return Load<int16_t>(bytes);
    case GgufKind::kUint32:
      return Load<uint32_t>(bytes);
    case GgufKind::kInt32:
      return Load<int32_t>(bytes);
    case GgufKind::kInt64:
      return Load<int64_t>(bytes);
    default:
      break;
  }
  const auto value = Load<uint64_t>(bytes);
  if (value > uint64_t{INT64_MAX}) return std::nullopt;
  return static_cast<int64_t>(value);
}

// REQUIRES: a float.
double LoadFloat(GgufKind kind, const char* bytes) {
  return kind == GgufKind::kFloat32 ? double{Load<float>(bytes)} : Load<double>(bytes);
}

std::string ScalarText(GgufKind kind, const char* bytes) {
  if (kind == GgufKind::kBool) return *bytes != 0 ? "true" : "false";
  if (IsInteger(kind)) {
    const std::optional<int64_t> value = LoadInt(kind, bytes);
    return value ? std::to_string(*value) : std::to_string(Load<uint64_t>(bytes));
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%g", LoadFloat(kind, bytes));
  return text;
}

std::string RangeText(int64_t least, int64_t most) {
  return "whole number from " + std::to_string(least) + " to " + std::to_string(most);
}

std::string QuotedKey(std::string_view key) { return "\"" + Excerpt(key) + "\""; }

}  // namespace

const char* GgufKindName(GgufKind kind) { return kKindRows[static_cast<uint32_t>(kind)].name; }
int64_t GgufKindBytes(GgufKind kind) { return kKindRows[static_cast<uint32_t>(kind)].bytes; }

std::string GgufMetadata::Text(const GgufValue& value) {
  if (value.kind == GgufKind::kString)
    return "\"" + Excerpt(ReplaceInvalidUtf8(value.bytes.substr(0, 100))) + "\"";
  if (value.kind != GgufKind::kArray) return ScalarText(value.kind, value.bytes.data());
  return "an array of " + std::to_string(value.count) + " times " + GgufKindName(value.element);
}

Status GgufMetadata::Wrong(std::string_view key, const std::string& is, const std::string& wanted) const {
  return InvalidArgument(file_ + ": key " + QuotedKey(key) + " is " + is + "; it must be " + wanted);
}

StatusOr<const GgufValue*> GgufMetadata::Find(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return NotFound(file_ + ": key " + QuotedKey(key) + " is missing");
  return &found->second;
}

StatusOr<const GgufValue*> GgufMetadata::FindArray(std::string_view key, const char* of) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->kind != GgufKind::kArray) return Wrong(key, Text(*value), std::string("an array of ") + of);
  return value;
}

StatusOr<std::string_view> GgufMetadata::String(std::string_view key) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->kind != GgufKind::kString) return Wrong(key, Text(*value), "a string");
  return value->bytes;
}

StatusOr<bool> GgufMetadata::Bool(std::string_view key) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->kind != GgufKind::kBool) return Wrong(key, Text(*value), "a bool");
  return value->bytes[0] != 0;
}

StatusOr<int64_t> GgufMetadata::Int(std::string_view key, int64_t least, int64_t most) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (IsInteger(value->kind)) {
    const std::optional<int64_t> number = LoadInt(value->kind, value->bytes.data());
    if (number && *number >= least && *number <= most) return *number;
  }
  return Wrong(key, Text(*value), "a " + RangeText(least, most));
}

StatusOr<double> GgufMetadata::Number(std::string_view key) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (IsFloat(value->kind)) {
    const double number = LoadFloat(value->kind, value->bytes.data());
    if (std::isfinite(number)) return number;
  }
  return Wrong(key, Text(*value), "a finite float");
}

StatusOr<std::string_view> GgufMetadata::StringOr(std::string_view key, std::string_view fallback) const {
  return Has(key) ? String(key) : fallback;
}
StatusOr<bool> GgufMetadata::BoolOr(std::string_view key, bool fallback) const {
  return Has(key) ? Bool(key) : fallback;
}
StatusOr<int64_t> GgufMetadata::IntOr(std::string_view key, int64_t least, int64_t most,
                                      int64_t fallback) const {
  return Has(key) ? Int(key, least, most) : fallback;
}
StatusOr<double> GgufMetadata::NumberOr(std::string_view key, double fallback) const {
  return Has(key) ? Number(key) : fallback;
}

StatusOr<std::vector<std::string_view>> GgufMetadata::Strings(std::string_view key) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, FindArray(key, "strings"));
  if (value->element != GgufKind::kString) return Wrong(key, Text(*value), "an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(static_cast<size_t>(value->count));
  const char* at = value->bytes.data();
  for (int64_t i = 0; i < value->count; ++i) {
    const auto length = Load<uint64_t>(at);
    at += sizeof(length);
    strings.emplace_back(at, length);
    at += length;
  }
  return strings;
}

StatusOr<std::vector<bool>> GgufMetadata::Bools(std::string_view key) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, FindArray(key, "bools"));
  if (value->element != GgufKind::kBool) return Wrong(key, Text(*value), "an array of bools");
  return std::vector<bool>(value->bytes.begin(), value->bytes.end());
}

StatusOr<std::vector<int64_t>> GgufMetadata::Ints(std::string_view key, int64_t least, int64_t most) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, FindArray(key, "integers"));
  if (!IsInteger(value->element)) return Wrong(key, Text(*value), "an array of integers");
  const auto stride = static_cast<size_t>(GgufKindBytes(value->element));
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(value->count));
  for (size_t at = 0; at < value->bytes.size(); at += stride) {
    const char* bytes = value->bytes.data() + at;
    const std::optional<int64_t> number = LoadInt(value->element, bytes);
    if (!number || *number < least || *number > most) {
      return Wrong(key, ScalarText(value->element, bytes) + " at index " + std::to_string(numbers.size()),
                   "each a " + RangeText(least, most));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

StatusOr<std::vector<float>> GgufMetadata::Floats(std::string_view key) const {
  TM_ASSIGN_OR_RETURN(const GgufValue* value, FindArray(key, "floats"));
  if (!IsFloat(value->element)) return Wrong(key, Text(*value), "an array of floats");
  const auto stride = static_cast<size_t>(GgufKindBytes(value->element));
  std::vector<float> numbers;
  numbers.reserve(static_cast<size_t>(value->count));
  for (size_t at = 0; at < value->bytes.size(); at += stride) {
    const auto number = static_cast<float>(LoadFloat(value->element, value->bytes.data() + at));
    if (!std::isfinite(number)) {
      return Wrong(key,
                   ScalarText(value->element, value->bytes.data() + at) + " at index " +
                       std::to_string(numbers.size()),
                   "each a finite float");
    }
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace tramontane
