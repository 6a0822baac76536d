// The keywords of JSON Schema that are known here, and what each is about.
// Any thread; constants.
#pragma once

#include <array>
#include <string_view>

namespace tramontane {

enum class KeywordGroup {
  kAnnotation,   // says nothing about the text
  kDefinitions,  // schemas that others refer to
  kApplied,      // other schemas that hold too: $ref, anyOf and their like
  kValues,       // enum, const
  kType,
  kString,
  kNumber,
  kArray,
  kObject,
  kRefused,
};

struct Keyword {
  std::string_view name;
  KeywordGroup group;
};

const Keyword* FindKeyword(std::string_view name);  // null: not known

// What "type" may name.
inline constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                           "string", "array",   "object"};

}  // namespace tramontane
