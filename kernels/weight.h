// How weights enter a backend: rows as they lie in a file, packed once, and never seen raw again.
// Loading thread. After Backend::PackLinear returns, the source memory may go.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/core/format.h"

namespace tramontane {

// Part of a matrix in a file: [rows, in_features], row-major. A slice for tensor parallelism is another
// pointer, row count or stride.
struct WeightRows {
  const void* data = nullptr;
  Format format = DType::kBf16;
  int64_t rows = 0;
  int64_t row_stride = 0;  // elements from one row to the next
  // [in_features] the input that each column, as the rows lie, is multiplied with; a permutation. Null:
  // columns are in order. Of weights whose groups are not of neighbouring inputs. Read whenever the source
  // is.
  const int32_t* column_order = nullptr;
  // 1: a row's groups all have the same scale, for sure. Of types in groups alone.
  int32_t scale_of_row = 0;
};

enum class LinearLayout : int32_t {
  kStacked = 0,  // parts follow each other along the output: [q; k; v]
  kGateUp = 1,   // exactly two parts of equal rows, gate then up; used with Epilogue::kSwiGlu
};

// What takes a weight. A backend may have fewer forms for some.
enum class WeightUse : int32_t {
  kLinear = 0,
  kTable = 1,   // Embed, and perhaps Linear too
  kExpert = 2,  // Moe
  kHead = 3,    // Linear to logits: out is f32
};

// Rows that are brought in while they are packed, so that a source need not be in memory whole. Loading
// thread.
class RowFeed {
 public:
  // Rows [begin, begin + count) of a part, as it describes them, until the next call for that part. Each row
  // is asked for once, in ascending order. Null: they cannot be had, and whoever made the feed knows why.
  virtual const void* Rows(int32_t part, int64_t begin, int64_t count) = 0;

  // For numbers that no host has, as a benchmark's: makes plain rows of bf16 where they will lie in a
  // device's memory, `numbers` of them, whichever rows they are, and is done when it returns. A backend that
  // packs there asks this first. False: there are rows to ask for.
  virtual bool FillOnDevice(void* /*packed*/, int64_t /*numbers*/) { return false; }

 protected:
  ~RowFeed() = default;
};

// y = x W^T with W [sum of part rows, in_features]. Whether parts may differ in format or in the order of
// their columns is the backend's word.
struct LinearSource {
  const WeightRows* parts = nullptr;  // [part_count]
  int32_t part_count = 0;
  int64_t in_features = 0;
  LinearLayout layout = LinearLayout::kStacked;
  RowFeed* feed = nullptr;  // where there is one, the rows come from it and the parts' data is null
  WeightUse use = WeightUse::kLinear;
};

// Whether columns of both parts are multiplied with the same inputs.
inline bool SameColumnOrder(const WeightRows& a, const WeightRows& b, int64_t in_features) {
  if (a.column_order == b.column_order) return true;
  if (a.column_order == nullptr || b.column_order == nullptr) return false;
  return std::equal(a.column_order, a.column_order + in_features, b.column_order);
}

// Rows of gate and up, `rows` in all, packed in turns: `run` of gate, then the `run` of up of the same
// outputs. The row of the source, gate's first, that stands at `packed`.
constexpr int64_t GateUpRow(int64_t packed, int64_t run, int64_t rows) {
  const int64_t output = packed / (2 * run) * run + packed % run;
  return packed % (2 * run) < run ? output : rows / 2 + output;
}

inline constexpr int64_t kMaxFeatures = int64_t{1} << 30;

// What a backend asks of a source beside that it is well formed.
struct PackingLimits {
  const char* backend = "";  // "the CUDA backend", for refusals
  int32_t max_parts = std::numeric_limits<int32_t>::max();
  int64_t in_features_multiple = 1;
  int64_t gate_rows_multiple = 1;
  int64_t max_expert_order = kMaxFeatures;  // columns of an expert with an order of their own
};

// "" when a backend of these limits can pack a source, else what is wrong with it. Pure; reads column orders,
// and no weights.
std::string WhyNotPackable(const LinearSource& source, const PackingLimits& limits);

// A packed weight, owned by the backend until Backend::FreeWeight or its end. Opaque outside the backend.
struct WeightHandle {
  void* impl = nullptr;
};

}  // namespace tramontane
