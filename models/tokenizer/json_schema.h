// Whether a JSON value is a JSON Schema of draft 7: the rule that tool parameters must keep.
//
// Any thread. Checks the schema itself; validates no data against it.
#pragma once

#include "kernels/core/status.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {

// OK, or INVALID_ARGUMENT naming the keyword's place (".properties.city.type") and what it wants.
Status CheckJsonSchema(const JsonValue& schema);

}  // namespace tramontane
