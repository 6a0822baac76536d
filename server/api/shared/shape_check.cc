// Values against shapes: what is wrong with one, and where.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "kernels/core/nearest_name.h"
#include "kernels/core/status.h"
#include "kernels/core/utf8.h"
#include "server/api/shared/shape.h"
#include "server/base/text.h"

namespace tramontane {

std::string ShownText(const std::string& text) {
  if (text.size() <= kMaxQuotedBytes) return text;
  const size_t cut = TruncatedUtf8Bytes(std::string_view(text).substr(0, kMaxQuotedBytes));
  return text.substr(0, kMaxQuotedBytes - cut) + "...";
}

namespace {

constexpr char kInteger64Range[] = "from -9223372036854775808 to 18446744073709551615";
constexpr double kTwoTo63 = 9223372036854775808.0;

std::string NumberText(double number) { return PrintJson(NumberJson(number)); }

// A value for an error: short ones in full, long ones by their kind.
std::string Shown(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return JsonString(ShownText(value.get_ref<const std::string&>()));
    default:
      return PrintJson(value);
  }
}

std::string Range(const Shape& shape) {
  return "from " + NumberText(shape.minimum) + (shape.above_minimum ? " (itself excluded)" : "") + " to " +
         NumberText(shape.maximum);
}

std::string Joined(const std::vector<std::string>& texts, const char* between) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : between) + text;
  return joined;
}

// "a string", "an integer from 0 to 20": what a value should have been.
std::string Wanted(const Shape& shape) {
  switch (shape.kind) {
    case Shape::Kind::kAnything:
      return "anything";
    case Shape::Kind::kBoolean:
      return "true or false";
    case Shape::Kind::kInteger:
      return "an integer " + Range(shape);
    case Shape::Kind::kInteger64:
      return std::string("an integer ") + kInteger64Range;
    case Shape::Kind::kNumber:
      return "a number " + Range(shape);
    case Shape::Kind::kString:
      return shape.min_size > 0 ? "a string that is not empty" : "a string";
    case Shape::Kind::kObject:
      return "an object";
    case Shape::Kind::kArray:
      return "an array, each entry " + Wanted(shape.parts[0]);
    case Shape::Kind::kAnyOf: {
      std::vector<std::string> wanted;
      for (const Shape& part : shape.parts) {
        std::string text = Wanted(part);
        if (std::find(wanted.begin(), wanted.end(), text) == wanted.end()) wanted.push_back(std::move(text));
      }
      return Joined(wanted, "; or ");
    }
    case Shape::Kind::kOnly: {
      std::vector<std::string> values;
      for (const Json& value : shape.only) values.push_back(PrintJson(value));
      return (values.size() == 1 ? "" : "one of ") + Joined(values, ", ");
    }
  }
  return "";
}

ShapeFault WrongKind(const Shape& shape, const Json& value, const std::string& path) {
  return {path, "is " + Shown(value) + "; it must be " + Wanted(shape)};
}

// Whether a value is of the kind, whatever its size or content.
bool HasKind(const Shape& shape, const Json& value) {
  switch (shape.kind) {
    case Shape::Kind::kBoolean:
      return value.is_boolean();
    case Shape::Kind::kInteger:
    case Shape::Kind::kInteger64:  // 16.0 is an integer, as in JSON Schema
      return value.is_number_integer() ||
             (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
    case Shape::Kind::kNumber:
      return value.is_number();
    case Shape::Kind::kString:
      return value.is_string();
    case Shape::Kind::kArray:
      return value.is_array();
    case Shape::Kind::kObject:
      return value.is_object();
    default:
      return true;
  }
}

// An array is told apart by its first entry too: [1, "a"] is meant as ids, and "a" is what is wrong.
bool LooksLike(const Shape& shape, const Json& value) {
  if (shape.kind == Shape::Kind::kOnly) {
    return std::any_of(shape.only.begin(), shape.only.end(), [&](const Json& only) {
      return std::string_view(only.type_name()) == value.type_name();
    });
  }
  if (!HasKind(shape, value)) return false;
  if (shape.kind != Shape::Kind::kArray || value.empty()) return true;
  return LooksLike(shape.parts[0], value[0]);
}

// Bytes of `value` as JSON, without escapes, counted until they are more than `most`.
int64_t JsonBytes(const Json& value, int64_t most) {
  if (value.is_string()) return static_cast<int64_t>(value.get_ref<const std::string&>().size()) + 2;
  if (!value.is_structured()) return 1;
  int64_t bytes = value.empty() ? 2 : 1;  // as many commas as entries, less one
  for (auto item = value.begin(); item != value.end() && bytes <= most; ++item) {
    if (value.is_object()) bytes += static_cast<int64_t>(item.key().size()) + 3;
    bytes += JsonBytes(*item, most - bytes) + 1;
  }
  return bytes;
}

bool IsLongerThan(const Json& value, int64_t most) {
  return most != std::numeric_limits<int64_t>::max() && JsonBytes(value, most) > most;
}

// Whether something is counted at all: a value of any other kind has no size.
bool IsSized(const Json& value) { return value.is_string() || value.is_structured(); }

std::optional<ShapeFault> CheckSize(const Shape& shape, const Json& value, const std::string& path) {
  if (!IsSized(value)) return std::nullopt;
  const bool is_string = value.is_string();
  const auto size =
      static_cast<int64_t>(is_string ? value.get_ref<const std::string&>().size() : value.size());
  const std::string unit = is_string ? " bytes" : " entries";
  if (size < shape.min_size) {
    if (size == 0) return ShapeFault{path, "is empty"};
    return ShapeFault{
        path, "has " + std::to_string(size) + unit + ", the least is " + std::to_string(shape.min_size)};
  }
  if (size > shape.max_size) {
    return ShapeFault{
        path, "has " + std::to_string(size) + unit + ", the most is " + std::to_string(shape.max_size)};
  }
  if (IsLongerThan(value, shape.max_json_bytes)) {
    return ShapeFault{path, "has more than " + std::to_string(shape.max_json_bytes) + " bytes as JSON"};
  }
  return std::nullopt;
}

std::optional<ShapeFault> CheckRange(const Shape& shape, const Json& value, const std::string& path) {
  const double number = value.get<double>();
  const bool too_small = shape.above_minimum ? number <= shape.minimum : number < shape.minimum;
  // Numbers go on with 32 bits, and one that is nothing there must not be told as 0, which nobody sent.
  const bool vanishes = !too_small && shape.kind == Shape::Kind::kNumber && shape.above_minimum &&
                        static_cast<double>(static_cast<float>(number)) <= shape.minimum;
  if (vanishes) {
    return ShapeFault{path, "is " + Shown(value) + ", too close to " + NumberText(shape.minimum) +
                                " for a number of 32 bits; the range is " + Range(shape)};
  }
  if (!too_small && number <= shape.maximum) return std::nullopt;
  return ShapeFault{path, "is " + Shown(value) + "; the range is " + Range(shape)};
}

// Integers that were parsed as such fit by themselves.
std::optional<ShapeFault> CheckRange64(const Json& value, const std::string& path) {
  const double number = value.get<double>();
  if (value.is_number_integer() || (number >= -kTwoTo63 && number < 2 * kTwoTo63)) return std::nullopt;
  return ShapeFault{path, "is " + Shown(value) + "; the range is " + kInteger64Range};
}

std::optional<ShapeFault> CheckObject(const Shape& shape, const Json& value, const std::string& path) {
  if (auto fault = CheckSize(shape, value, path)) return fault;
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const Field& field : shape.fields) {
    const Json* member = Find(value, field.name);
    if (member == nullptr) {
      if (field.required) return ShapeFault{prefix + field.name, "is missing"};
      continue;
    }
    if (auto fault = FindFault(field.shape, *member, prefix + field.name)) return fault;
  }
  if (shape.parts.empty()) return std::nullopt;
  for (const auto& [key, member] : value.items()) {
    if (auto fault = FindFault(shape.parts[0], member, path + "[" + JsonString(ShownText(key)) + "]"))
      return fault;
  }
  return std::nullopt;
}

// Where an array is none of several kinds of arrays, its first entry is what is wrong.
std::optional<ShapeFault> FindEntryFault(const Shape& shape, const Json& value, const std::string& path) {
  std::vector<Shape> entries;
  for (const Shape& part : shape.parts) {
    if (part.kind == Shape::Kind::kArray) entries.push_back(part.parts[0]);
  }
  if (entries.empty() || !value.is_array() || value.empty()) return std::nullopt;
  return FindFault(entries.size() == 1 ? entries[0] : AnyOf(std::move(entries)), value[0], path + "[0]");
}

// Of several alternatives, the fault is that of the one which was meant.
std::optional<ShapeFault> CheckAlternatives(const Shape& shape, const Json& value, const std::string& path) {
  const Shape* meant = nullptr;
  for (const Shape& part : shape.parts) {
    if (!LooksLike(part, value)) continue;
    if (!FindFault(part, value, path)) return std::nullopt;
    if (meant == nullptr) meant = &part;
  }
  if (meant != nullptr) return FindFault(*meant, value, path);
  if (auto fault = FindEntryFault(shape, value, path)) return fault;
  return WrongKind(shape, value, path);
}

}  // namespace

std::optional<ShapeFault> FindFault(const Shape& shape, const Json& value, const std::string& path) {
  if (!HasKind(shape, value)) return WrongKind(shape, value, path);
  switch (shape.kind) {
    case Shape::Kind::kBoolean:
      return std::nullopt;
    case Shape::Kind::kInteger:
    case Shape::Kind::kNumber:
      return CheckRange(shape, value, path);
    case Shape::Kind::kInteger64:
      return CheckRange64(value, path);
    case Shape::Kind::kAnything:
    case Shape::Kind::kString:
      return CheckSize(shape, value, path);
    case Shape::Kind::kArray: {
      if (auto fault = CheckSize(shape, value, path)) return fault;
      for (size_t i = 0; i < value.size(); ++i) {
        if (auto fault = FindFault(shape.parts[0], value[i], "")) {
          fault->path =
              FieldElement(path, i) + (fault->path.empty() || fault->path[0] == '[' ? "" : ".") + fault->path;
          return fault;
        }
      }
      return std::nullopt;
    }
    case Shape::Kind::kObject:
      return CheckObject(shape, value, path);
    case Shape::Kind::kAnyOf:
      return CheckAlternatives(shape, value, path);
    case Shape::Kind::kOnly:
      if (std::find(shape.only.begin(), shape.only.end(), value) != shape.only.end()) return std::nullopt;
      if (shape.why.empty()) return WrongKind(shape, value, path);
      return ShapeFault{path, "is " + Shown(value) + "; " + shape.why};
  }
  return std::nullopt;
}

// ---- keys that no row knows ---------------------------------------------------------------------

namespace {

// Further apart, a known name is no help.
constexpr size_t kMaxEdits = 4;

const Field* FindRow(const Shape& shape, const std::string& key) {
  const auto row = std::find_if(shape.fields.begin(), shape.fields.end(),
                                [&key](const Field& field) { return field.name == key; });
  return row == shape.fields.end() ? nullptr : &*row;
}

// Of the rows that do something.
std::string_view NearestRow(const Shape& shape, const std::string& key) {
  std::vector<std::string_view> names;
  for (const Field& field : shape.fields) {
    const bool refused = field.shape.kind == Shape::Kind::kOnly && !field.shape.why.empty();
    if (!refused && !field.ignored) names.emplace_back(field.name);
  }
  const std::string_view nearest = NearestName(key, names);
  return EditDistance(key, nearest) <= std::min(kMaxEdits, key.size() / 2) ? nearest : std::string_view();
}

std::string UnknownKeyText(const Shape& shape, const std::string& key) {
  const std::string_view nearest =
      key.size() <= kMaxQuotedBytes ? NearestRow(shape, key) : std::string_view();
  const std::string text = "is not a field of this request";
  return nearest.empty() ? text : text + "; the nearest is " + JsonString(nearest);
}

std::string Inside(const std::string& path, const std::string& key) {
  return path.empty() ? ShownText(key) : path + "." + ShownText(key);
}

void AddIgnoredKeys(const Shape& shape, const Json& value, const std::string& path,
                    std::vector<std::string>* keys) {
  if (!shape.closed || !value.is_object()) return;
  for (const auto& [key, member] : value.items()) {
    if (member.is_null()) continue;
    const Field* row = FindRow(shape, key);
    if (row != nullptr) AddIgnoredKeys(row->shape, member, Inside(path, key), keys);
    if ((row == nullptr || row->ignored) && keys->size() < kMaxIgnoredKeys)
      keys->push_back(Inside(path, key));
  }
}

}  // namespace

std::optional<ShapeFault> FindUnknownKey(const Shape& shape, const Json& value, const std::string& path) {
  if (!shape.closed || !value.is_object()) return std::nullopt;
  for (const auto& [key, member] : value.items()) {
    if (member.is_null()) continue;
    const Field* row = FindRow(shape, key);
    if (row == nullptr) return ShapeFault{Inside(path, key), UnknownKeyText(shape, key)};
    if (auto fault = FindUnknownKey(row->shape, member, Inside(path, key))) return fault;
  }
  return std::nullopt;
}

std::vector<std::string> IgnoredKeys(const Shape& shape, const Json& value) {
  std::vector<std::string> keys;
  AddIgnoredKeys(shape, value, "", &keys);
  return keys;
}

}  // namespace tramontane
