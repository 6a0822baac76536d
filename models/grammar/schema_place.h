// The place of a schema in the whole, and what is said of what stands there.
// Any thread; plain values.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {

// `waiting`: the schemas whose translation would go on here without a character in between; one of them again
// would have no end.
struct SchemaPlace {
  std::string path;
  int32_t depth = 0;
  std::set<const JsonValue*> waiting;

  SchemaPlace Inside(const std::string& step) const { return {path + step, depth + 1, {}}; }
  SchemaPlace Beside(const std::string& step) const { return {path + step, depth + 1, waiting}; }
};

// INVALID_ARGUMENT of the field `path`; "": of the schema as a whole.
Status FaultAt(const std::string& path, const std::string& what);
Status TooLargeFault(const std::string& path, int64_t most, const std::string& things);

// An object, not too deep, in which every keyword is known and "type" names types. `root`: the whole.
Status CheckSchema(const JsonValue& schema, const SchemaPlace& place, const JsonValue& root,
                   const ConstraintLimits& limits);

// What is told of the schema at `place` that met `fault`: its path and why in a word, which is a keyword of
// it where that is known: ".properties.x (patternProperties)".
std::string RelaxedPart(const Status& fault, const SchemaPlace& place, const JsonValue& schema,
                        const ConstraintLimits& limits);

// {"type": as the schema says}, or {} where it does not say.
JsonValue TypeAlone(const JsonValue& schema);

JsonValue AnyValue();                          // {}
std::string JsonText(const JsonValue& value);  // as Python prints it

}  // namespace tramontane
