#include "server/api/shared/shape.h"

#include <utility>

namespace tramontane {

namespace {

Shape Of(Shape::Kind kind) {
  Shape shape;
  shape.kind = kind;
  return shape;
}

Shape Numeric(Shape::Kind kind, double minimum, double maximum) {
  Shape shape = Of(kind);
  shape.minimum = minimum;
  shape.maximum = maximum;
  return shape;
}

Shape Sized(Shape::Kind kind, int64_t min_size, int64_t max_size) {
  Shape shape = Of(kind);
  shape.min_size = min_size;
  shape.max_size = max_size;
  return shape;
}

}  // namespace

Shape Anything() { return {}; }
Shape Boolean() { return Of(Shape::Kind::kBoolean); }
Shape Integer(double minimum, double maximum) { return Numeric(Shape::Kind::kInteger, minimum, maximum); }
Shape Integer64() { return Of(Shape::Kind::kInteger64); }
Shape Number(double minimum, double maximum) { return Numeric(Shape::Kind::kNumber, minimum, maximum); }
Shape NumberAbove(double minimum, double maximum) {
  Shape shape = Number(minimum, maximum);
  shape.above_minimum = true;
  return shape;
}
Shape String(int64_t min_bytes, int64_t max_bytes) {
  return Sized(Shape::Kind::kString, min_bytes, max_bytes);
}
Shape ArrayOf(Shape entries, int64_t min_size, int64_t max_size) {
  Shape shape = Sized(Shape::Kind::kArray, min_size, max_size);
  shape.parts.push_back(std::move(entries));
  return shape;
}
Shape Object(std::vector<Field> fields) {
  Shape shape = Of(Shape::Kind::kObject);
  shape.fields = std::move(fields);
  return shape;
}
Shape ClosedObject(std::vector<Field> fields) {
  Shape shape = Object(std::move(fields));
  shape.closed = true;
  return shape;
}
Shape MapOf(Shape values, int64_t max_size) {
  Shape shape = Sized(Shape::Kind::kObject, 0, max_size);
  shape.parts.push_back(std::move(values));
  return shape;
}
Shape Within(int64_t max_json_bytes, Shape shape) {
  shape.max_json_bytes = max_json_bytes;
  return shape;
}
Shape AnyOf(std::vector<Shape> alternatives) {
  Shape shape = Of(Shape::Kind::kAnyOf);
  shape.parts = std::move(alternatives);
  return shape;
}
Shape OneOfStrings(std::vector<std::string> values) {
  Shape shape = Of(Shape::Kind::kOnly);
  shape.only.assign(values.begin(), values.end());
  return shape;
}
Shape Only(std::vector<Json> values, std::string why) {
  Shape shape = Of(Shape::Kind::kOnly);
  shape.only = std::move(values);
  shape.why = std::move(why);
  return shape;
}

Field Always(std::string name, Shape shape, std::string doc) {
  return {.name = std::move(name), .shape = std::move(shape), .doc = std::move(doc), .required = true};
}
Field Maybe(std::string name, Shape shape, std::string doc) {
  return {.name = std::move(name), .shape = std::move(shape), .doc = std::move(doc)};
}

// ---- reading checked values ---------------------------------------------------------------------

const Json* Find(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool IsTrue(const Json& object, const std::string& key) {
  const Json* value = Find(object, key);
  return value != nullptr && value->get<bool>();
}

std::string TextOf(const Json& object, const std::string& key) {
  const Json* value = Find(object, key);
  return value == nullptr ? "" : value->get<std::string>();
}

}  // namespace tramontane
