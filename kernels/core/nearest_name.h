// NearestName: which known word was meant by one that nobody knows, for errors.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace tramontane {

// Letters that were put in, left out or exchanged between the two. Takes time in proportion to the product of
// their lengths.
size_t EditDistance(std::string_view a, std::string_view b);

// The one of `known` with the fewest edits from `name`, the first of several; "" where none is known.
std::string_view NearestName(std::string_view name, const std::vector<std::string_view>& known);

}  // namespace tramontane
