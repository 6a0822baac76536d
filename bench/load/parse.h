// Numbers and pairs in the words of a command line. Pure functions; any thread.
// Errors name the flag, the value and what it may be: `--rate is "x"; it must be a number above 0`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane::load {

// A closed range, with the words for it in an error.
struct NumberRange {
  double least = 0;
  double most = 0;
};

StatusOr<double> ParseNumber(std::string_view flag, std::string_view text, const NumberRange& range);
StatusOr<int64_t> ParseWhole(std::string_view flag, std::string_view text, const NumberRange& range);

// `flag is "text"; it must be WHAT`.
Status BadValue(std::string_view flag, std::string_view text, std::string_view what);

// Whether brackets of a JSON text stand in more than 32 others, where messages about it would recurse deeply.
bool IsNestedTooDeep(std::string_view json);

// The bytes of a file, a pipe too. NOT_FOUND names the path: it cannot be opened, or is a folder or a device.
// INVALID_ARGUMENT: it holds more than most_bytes; no more than that is read.
StatusOr<std::string> ReadWhole(const std::string& path, size_t most_bytes);

// "1:2:3" at the colons; no part is left out, so an empty text has one, empty part.
std::vector<std::string_view> SplitAt(std::string_view text, char separator);

// 2000, 0.5, 1e-07: the shortest text that reads back as the same number.
std::string NumberText(double value);

}  // namespace tramontane::load
