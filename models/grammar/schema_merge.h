// Schemas that hold together as one: what stands beside $ref, anyOf, oneOf and allOf, and in each of them.
//
// Any thread; pure functions.
#pragma once

#include <optional>

#include "models/tokenizer/python_json.h"

namespace tramontane {

// A schema that both hold for: types, bounds and names met; enum for const; of pattern and format, one member
// for each that differs, so a key may come twice. Schemas inside become {"allOf": [one, the other]};
// annotations and definitions are left aside. None: no value is valid under both. REQUIRES: objects without
// $ref, anyOf, oneOf and allOf.
std::optional<JsonValue> MergedSchema(const JsonValue& a, const JsonValue& b);

}  // namespace tramontane
