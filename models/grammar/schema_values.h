// Values that a schema enumerates: whether they hold under what stands beside them.
//
// Any thread.
#pragma once

#include <string>
#include <string_view>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"
#include "models/grammar/string_grammar.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {

// "integer" has whole numbers however they are written: 1.0.
bool HasType(const JsonValue& value, std::string_view type);

// The same value: numbers by what they are worth, objects whatever the order of their members.
bool IsSameJson(const JsonValue& a, const JsonValue& b);

// pattern and format, each as often as it stands there, and lengths. INVALID_ARGUMENT, of the keyword's
// field.
StatusOr<StringKeywords> StringKeywordsOf(const JsonValue& schema);

// Whether `value` is valid under `schema`, of `root`. INVALID_ARGUMENT, at a field: a keyword whose meaning
// is not known here. REQUIRES: UTF-8 in `value`.
StatusOr<bool> ValueHolds(const JsonValue& root, const JsonValue& schema, const JsonValue& value,
                          const ConstraintLimits& limits, RegexWork* work);

}  // namespace tramontane
