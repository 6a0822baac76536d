// The types that a tensor of a GGUF file can have. Any thread; constants.
//
// Numbers and block sizes are ggml's, as PyPI's `gguf` lists them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/core/format.h"

namespace tramontane {

struct GgufType {
  uint32_t number;               // in the file
  const char* name;              // "Q4_K"
  std::optional<Format> format;  // none: a type that is known by its name alone, and not read
};

// Null where no type has that number.
const GgufType* FindGgufType(uint32_t number);

// The number of the type of that format. REQUIRES: there is one.
uint32_t GgufTypeNumber(const Format& format);

// "F32, F16, ...": those that are read.
std::string ReadableGgufTypes();

}  // namespace tramontane
