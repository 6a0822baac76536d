#include "kernels/core/nearest_name.h"

#include <algorithm>

namespace tramontane {

// Row i of the table holds the distances of a's first i letters to each beginning of b.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string_view NearestName(std::string_view name, const std::vector<std::string_view>& known) {
  const auto nearest =
      std::min_element(known.begin(), known.end(), [name](std::string_view a, std::string_view b) {
        return EditDistance(name, a) < EditDistance(name, b);
      });
  return nearest == known.end() ? std::string_view() : *nearest;
}

}  // namespace tramontane
