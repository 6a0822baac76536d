// SchemaExpansion: schemas that hold together as alternatives of plain keywords.
//
// One thread. Its schemas inside stay as they are, unexpanded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"
#include "models/grammar/relaxed_parts.h"
#include "models/grammar/schema_place.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {

// The types that "type" names, else those that the keywords are about; none: any.
std::set<std::string_view> TypesOf(const JsonValue& schema);
bool IsRequired(const JsonValue& schema, std::string_view name);  // a property

class SchemaExpansion {
 public:
  // Without $ref, anyOf, oneOf and allOf: schemas of which one or another holds; none: no value is valid.
  using Alternatives = std::vector<JsonValue>;

  // `relaxed`: what cannot be expanded is taken for any JSON of its type, and added there; null: it is
  // refused. All outlive this.
  SchemaExpansion(const JsonValue& root, const ConstraintLimits& limits, RelaxedParts* relaxed)
      : root_(root), limits_(limits), relaxed_(relaxed) {}

  StatusOr<Alternatives> Expanded(const JsonValue& schema, const SchemaPlace& place);
  StatusOr<const JsonValue*> TargetOf(const JsonValue& uri, const SchemaPlace& place) const;  // of $ref
  // The entries `first` and `second` of the oneOf at `place`: some value may be valid under both.
  Status CheckDisjoint(const Alternatives& a, const Alternatives& b, size_t first, size_t second,
                       const SchemaPlace& place);

 private:
  StatusOr<Alternatives> ExpandedAsAsked(const JsonValue& schema, const SchemaPlace& place);
  StatusOr<Alternatives> ExpandedKeyword(const JsonMember& keyword, const Alternatives& beside,
                                         const SchemaPlace& place);
  bool ArePlainDisjoint(const JsonValue& a, const JsonValue& b);
  std::optional<std::vector<JsonValue>> FiniteValues(const JsonValue& schema);

  const JsonValue& root_;
  const ConstraintLimits& limits_;
  RelaxedParts* relaxed_;
  int64_t expanded_ = 0;  // values of JSON
};

}  // namespace tramontane
