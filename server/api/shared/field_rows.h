// What tables of fields are written with: rows that several endpoints have, and what copies a value into a
// GenerateRequest. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "server/api/shared/shape.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

inline constexpr double kMaxInt32 = 2147483647.0;
inline constexpr int64_t kMaxModelNameBytes = 512;

// One table behind the other.
inline std::vector<Field> operator+(std::vector<Field> fields, std::vector<Field> more) {
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

// Copies a value into one part of a GenerateRequest: Into<&v1::GenerateRequest::mutable_sampling,
// &v1::Sampling::set_top_p>.
template <typename Part, typename Value>
Value ValueOf(void (Part::*setter)(Value));
template <auto kPart, auto kSetter>
void Into(const Json& value, v1::GenerateRequest* request) {
  ((request->*kPart)()->*kSetter)(value.get<decltype(ValueOf(kSetter))>());
}

inline Field ModelRow() {
  return {.name = "model",
          .shape = String(0, kMaxModelNameBytes),
          .doc = "One of the names in /v1/models. Default: the model that is served.",
          .path = "model"};
}

// Of endpoints that take text; never of chats.
inline Field ParseSpecialTokens() {
  return {
      .name = "parse_special_tokens",
      .shape = Boolean(),
      .doc =
          "Where a text spells a control token (\"[INST]\"), that token stands there. Default false: text "
          "stays text.",
      .path = "parse_special_tokens"};
}

}  // namespace tramontane
