// $ref within one schema. Any thread; a pure function.
#pragma once

#include <string_view>

#include "models/tokenizer/python_json.h"

namespace tramontane {

// What `uri` leads to: "#", "#/" and a JSON pointer, percent-encoded or not, or the same behind the root's
// own $id. Null: nothing inside the schema.
const JsonValue* ResolveReference(const JsonValue& root, std::string_view uri);

// A member of an object; null if there is none.
const JsonValue* FindMember(const JsonValue& object, std::string_view key);

}  // namespace tramontane
