// Shape: what a JSON value may be. One description serves twice: requests are checked against it, and it is
// printed as JSON Schema into /openapi.json, so that the two cannot differ.
// Plain values, built once; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "server/api/shared/json.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

struct Field;

struct Shape {
  enum class Kind {
    kAnything,
    kBoolean,
    kInteger,
    kInteger64,
    kNumber,
    kString,
    kArray,
    kObject,
    kAnyOf,
    kOnly
  };
  Kind kind = Kind::kAnything;

  double minimum = -std::numeric_limits<double>::infinity();  // numbers
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false;  // the minimum itself is out of range
  int64_t min_size = 0;        // bytes of a string, entries of an array, keys of an object
  int64_t max_size = std::numeric_limits<int64_t>::max();
  int64_t max_json_bytes = std::numeric_limits<int64_t>::max();  // of the whole value, written as JSON

  std::vector<Shape> parts;   // kArray: of its entries, one; kAnyOf: the alternatives;
                              // kObject: of values under other keys, one or none (then anything)
  std::vector<Field> fields;  // kObject: the keys it knows
  bool closed = false;        // kObject: other keys are mistakes (FindUnknownKey), else they are accepted
  std::vector<Json> only;     // kOnly: the values
  std::string why;            // kOnly: what to say of every other value
};

Shape Anything();
Shape Boolean();
Shape Integer(double minimum = -9007199254740992.0, double maximum = 9007199254740992.0);
Shape Integer64();  // any that fits 64 bits, with or without a sign
Shape Number(double minimum, double maximum);
Shape NumberAbove(double minimum, double maximum);  // (minimum, maximum]
Shape String(int64_t min_bytes = 0, int64_t max_bytes = std::numeric_limits<int64_t>::max());
Shape ArrayOf(Shape entries, int64_t min_size = 0, int64_t max_size = std::numeric_limits<int64_t>::max());
Shape Object(std::vector<Field> fields);
Shape ClosedObject(std::vector<Field> fields);
// An object with any keys.
Shape MapOf(Shape values, int64_t max_size = std::numeric_limits<int64_t>::max());
// What `shape` describes, of at most so many bytes as JSON: for values that are kept or copied as a whole.
Shape Within(int64_t max_json_bytes, Shape shape);
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
  bool ignored = false;  // accepted, and changes nothing
};

// Of an answer: a key that is always there and never null, and one that may be null or absent.
Field Always(std::string name, Shape shape, std::string doc = "");
Field Maybe(std::string name, Shape shape, std::string doc = "");

// What is wrong with a value, and where: "messages[2].role", "is \"tol\"; it must be one of ...".
struct ShapeFault {
  std::string path;
  std::string text;
};

// What an error shows of a text that was sent: all of it, or its beginning.
std::string ShownText(const std::string& text);

// The first fault of `value`, which lies at `path`; none when it has the shape.
std::optional<ShapeFault> FindFault(const Shape& shape, const Json& value, const std::string& path);

// The first key of a closed object in `value` that the object has no row for, with the nearest that it has.
// Null is as absent here too.
std::optional<ShapeFault> FindUnknownKey(const Shape& shape, const Json& value, const std::string& path);

// The keys of closed objects in `value` that change nothing: those without a row, and those whose row says
// so. Their paths can be shown; at most kMaxIgnoredKeys.
inline constexpr size_t kMaxIgnoredKeys = 64;
std::vector<std::string> IgnoredKeys(const Shape& shape, const Json& value);

// The value under `key` of an object, unless it is null; else null.
const Json* Find(const Json& object, const std::string& key);
// Of a value that was checked; absent: false, "".
bool IsTrue(const Json& object, const std::string& key);
std::string TextOf(const Json& object, const std::string& key);

// As JSON Schema (2020-12, the dialect of OpenAPI 3.1).
Json JsonSchema(const Shape& shape);

}  // namespace tramontane
