// Whether Python's `re` would compile a regular expression: what mistral-common asks of a schema's patterns.
//
// Any thread. Nothing is matched here.
#pragma once

#include <string_view>

namespace tramontane {

// Follows the grammar of CPython 3.11. Two things are taken on trust: the names in \N{...}, and everything
// after an inline flag x, which changes the grammar itself.
bool IsPythonRegex(std::string_view pattern);

}  // namespace tramontane
