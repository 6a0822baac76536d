// A caller's own grammar, looked over before the library that compiles grammars sees it: sizes within bounds,
// and nothing but plain EBNF. What is wrong with the grammar itself is the library's to say.
//
// Any thread.
#pragma once

#include <string_view>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"

namespace tramontane {

// INVALID_ARGUMENT: "at byte 12: a repetition of more than 1024". REQUIRES: UTF-8.
Status CheckEbnf(std::string_view grammar, const ConstraintLimits& limits);

}  // namespace tramontane
