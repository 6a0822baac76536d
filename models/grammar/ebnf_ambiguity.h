// A caller's own grammar, looked over for rules that are ambiguous by construction: a text of theirs has so
// many derivations that each token would take seconds. A grammar may be ambiguous in other ways, which is
// found out token by token.
//
// Any thread; time in proportion to the grammar.
#pragma once

#include <string_view>

#include "kernels/core/status.h"

namespace tramontane {

// INVALID_ARGUMENT: "rule \"list\": begins and ends with itself, ...". What is no grammar is OK here: the
// library says what is wrong with it. REQUIRES: CheckEbnf is OK with it.
Status CheckUnambiguous(std::string_view grammar);

}  // namespace tramontane
