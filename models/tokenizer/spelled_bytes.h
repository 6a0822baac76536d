// Bytes as people read them.
//
// Any thread. A pure function.
#pragma once

#include <string>
#include <string_view>

namespace tramontane {

// Characters as they are, bytes that are none as "<0xE4>".
std::string WithSpelledBytes(std::string_view bytes);

}  // namespace tramontane
