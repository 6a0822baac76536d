// SourceRows: the rows of a LinearSource that a backend packs next, whether they lie in memory or come from a
// feed.
//
// Loading thread for Take; Row from any thread while nothing is taken. Borrows the source.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/weight.h"

namespace tramontane {

class SourceRows {
 public:
  explicit SourceRows(const LinearSource& source)
      : source_(source), taken_(static_cast<size_t>(source.part_count)) {}

  // Outputs [begin, end): of kStacked rows of all parts one after the other, of kGateUp a gate and an up
  // each. Ranges ascend and do not overlap. False: the feed has none, and the weight cannot be packed.
  bool Take(int64_t begin, int64_t end) {
    int64_t first = 0;  // output that a part begins with
    for (int32_t i = 0; i < source_.part_count; ++i) {
      const int64_t rows = source_.parts[i].rows;
      if (!TakePart(i, std::clamp<int64_t>(begin - first, 0, rows),
                    std::clamp<int64_t>(end - first, 0, rows)))
        return false;
      if (source_.layout == LinearLayout::kStacked) first += rows;
    }
    return true;
  }

  // A row of the source, all parts one after the other. REQUIRES: taken last.
  const std::byte* Row(int64_t row) const {
    for (int32_t i = 0; i < source_.part_count; ++i) {
      const WeightRows& part = source_.parts[i];
      if (row < part.rows) {
        const Taken& taken = taken_[static_cast<size_t>(i)];
        TM_CHECK(row >= taken.begin && row < taken.end, "a row that was not taken");
        return taken.rows + part.format.Bytes((row - taken.begin) * part.row_stride);
      }
      row -= part.rows;
    }
    TM_CHECK(false, "row beyond the parts of a source");
  }

 private:
  struct Taken {
    const std::byte* rows = nullptr;
    int64_t begin = 0;  // of the part
    int64_t end = 0;
  };

  bool TakePart(int32_t i, int64_t begin, int64_t end) {
    const WeightRows& part = source_.parts[i];
    Taken& taken = taken_[static_cast<size_t>(i)];
    taken = {.begin = begin, .end = end};
    if (begin == end) return true;
    if (source_.feed != nullptr) {
      taken.rows = static_cast<const std::byte*>(source_.feed->Rows(i, begin, end - begin));
    } else {
      taken.rows = static_cast<const std::byte*>(part.data) + part.format.Bytes(begin * part.row_stride);
    }
    return taken.rows != nullptr;
  }

  const LinearSource& source_;
  std::vector<Taken> taken_;  // of each part
};

}  // namespace tramontane
