// JSON Schema to grammars: every text of the grammar is JSON that is valid under the schema.
//
// Any thread. Each keyword of a schema is translated, known to say nothing about the text, or refused by its
// path and name; docs/structured.md lists which is which. The grammar may have fewer texts than the schema
// allows: properties come in the schema's order, objects have no properties that the schema does not name
// unless it says additionalProperties, numbers are of bounded length.
#pragma once

#include <string>
#include <string_view>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"

namespace tramontane {

// A whole grammar with the rule "root". INVALID_ARGUMENT: "is not supported", of the field
// ".properties.tags.uniqueItems"; the path is as long as the schema makes it. REQUIRES: UTF-8.
StatusOr<std::string> JsonSchemaGrammar(std::string_view schema, const ConstraintLimits& limits);

// Any JSON object.
std::string JsonObjectGrammar();

}  // namespace tramontane
