// Shape: what a JSON value may be. One description serves twice: requests are checked against it, and it is
// printed as JSON Schema into /openapi.json, so that the two cannot differ.
// Plain values, built once; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "server/gateway/openai_json.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

struct Field;

struct Shape {
  enum class Kind { kAnything, kBoolean, kInteger, kNumber, kString, kArray, kObject, kAnyOf, kOnly };
  Kind kind = Kind::kAnything;

  double minimum = -std::numeric_limits<double>::infinity();  // numbers
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false;  // the minimum itself is out of range
  int64_t min_size = 0;        // bytes of a string, entries of an array
  int64_t max_size = std::numeric_limits<int64_t>::max();

  std::vector<Shape> parts;   // kArray: of its entries, one; kAnyOf: the alternatives;
                              // kObject: of values under other keys, one or none (then anything)
  std::vector<Field> fields;  // kObject: the keys it knows; others are accepted
  std::vector<Json> only;     // kOnly: the values
  std::string why;            // kOnly: what to say of every other value
};

Shape Anything();
Shape Boolean();
Shape Integer(double minimum = -9007199254740992.0, double maximum = 9007199254740992.0);
Shape Number(double minimum, double maximum);
Shape NumberAbove(double minimum, double maximum);  // (minimum, maximum]
Shape String(int64_t min_bytes = 0, int64_t max_bytes = std::numeric_limits<int64_t>::max());
Shape ArrayOf(Shape entries, int64_t min_size = 0, int64_t max_size = std::numeric_limits<int64_t>::max());
Shape Object(std::vector<Field> fields);
Shape MapOf(Shape values);  // an object with any keys
Shape AnyOf(std::vector<Shape> alternatives);
Shape OneOfStrings(std::vector<std::string> values);
// For fields that other servers have and this one has not: only what changes nothing is accepted, and `why`
// is said of the rest.
Shape Only(std::vector<Json> values, std::string why);

// One key of an object. In a request, a field that is not required may be null, which is as if it were
// absent.
struct Field {
  std::string name;
  Shape shape;
  std::string doc = {};  // one or two sentences; the default where there is one
  bool required = false;
  // Of a request that becomes a GenerateRequest: the .proto's path of this field ("sampling.top_p"), where
  // the server finds fault with it, and what copies it there.
  std::string path = {};
  void (*apply)(const Json& value, v1::GenerateRequest* request) = nullptr;
};

// What is wrong with a value, and where: "messages[2].role", "is \"tol\"; it must be one of ...".
struct ShapeFault {
  std::string path;
  std::string text;
};

// The first fault of `value`, which lies at `path`; none when it has the shape.
std::optional<ShapeFault> FindFault(const Shape& shape, const Json& value, const std::string& path);

// The value under `key` of an object, unless it is null; else null.
const Json* Find(const Json& object, const std::string& key);

// As JSON Schema (2020-12, the dialect of OpenAPI 3.1).
Json JsonSchema(const Shape& shape);

}  // namespace tramontane
