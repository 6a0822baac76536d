// JSON Schema to grammars: every text of the grammar is JSON that is valid under the schema.
//
// Any thread. Each keyword of a schema is translated, known to say nothing about the text, or refused by its
// path and name; docs/structured.md lists which is which. The grammar may have fewer texts than the schema
// allows: properties come in the schema's order, objects have no properties that the schema does not name
// unless it says additionalProperties, numbers are of bounded length.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"

namespace tramontane {

// A whole grammar with the rule "root". INVALID_ARGUMENT: "is not supported", of the field
// ".properties.tags.uniqueItems"; the path is as long as the schema makes it. REQUIRES: UTF-8.
StatusOr<std::string> JsonSchemaGrammar(std::string_view schema, const ConstraintLimits& limits);

struct SchemaGrammar {
  std::string ebnf;                     // with the rule "root"
  std::vector<std::string> unenforced;  // ".properties.x (patternProperties)"
};

// For callers who cannot change their schemas. The smallest schema in it that cannot be enforced, or would
// take long to compile (the bounds of tools in constraint.h), is any JSON of its "type", any JSON where that
// says nothing, and is told with a keyword of it, or one of:
//   size   too large; for all that may be generated, patterns apart, see limits.max_size
//   depth  too many schemas inside each other
//   false, no value, not a schema
// INVALID_ARGUMENT: is not JSON.
StatusOr<SchemaGrammar> RelaxedSchemaGrammar(std::string_view schema, const ConstraintLimits& limits);

// The same of a tool's arguments, which are an object whatever else their schema says. INVALID_ARGUMENT as
// well: is of another type.
StatusOr<SchemaGrammar> ToolArgumentsGrammar(std::string_view schema, const ConstraintLimits& limits);

// Any JSON object.
std::string JsonObjectGrammar();

}  // namespace tramontane
