// Pages of a case on a machine: a poisoned pool, rows appended to it, attention over it. All through the
// backend's own ops. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/foreign_kv.h"
#include "kernels/masks.h"
#include "tests/kv_vectors/machine.h"

namespace tramontane::kv_vectors {

// Whether so many pages of one layer are no more numbers than a tensor may have. INVALID_ARGUMENT names
// num_pages.
Status CheckPool(const KvFormat& format, int64_t pages);

// `pages` pages of one layer, every number of them `fill`. REQUIRES: CheckPool.
class PagedPool {
 public:
  PagedPool(Machine& machine, const KvFormat& format, int32_t pages, double fill);

  const KvFormat& format() const { return format_; }
  KvLayerView View() const { return KvLayerView(format_, numbers_.data(), format_.LayerBytes()); }
  // Keys and values in buffers of their own, side by side in the pool's memory.
  KvLayerView PairView() const;
  std::vector<double> Numbers() const { return numbers_.Get(); }

 private:
  KvFormat format_;
  int32_t pages_;
  DeviceNumbers numbers_;
};

// cos and sin of rows' positions [rows], which are on the machine and stay there until an op that reads these
// has run.
class Angles {
 public:
  Angles(Machine& machine, double theta, int32_t head_dim, const int32_t* positions, int64_t rows);

  OpCode code() const { return code_; }  // of the op that made them
  const float* data() const { return cos_sin_.data(); }

 private:
  DeviceList<double> inverse_frequency_;
  DeviceList<float> cos_sin_;
  const OpCode code_;
};

// How keys are turned as they are appended.
struct Rotation {
  RotaryStyle style = RotaryStyle::kHalfSplit;
  double theta = 0;                     // 0: not at all
  std::vector<int32_t> positions = {};  // [rows]
};

// Rows for their pages: `keys` [rows, kv_heads, head_dim], `values` the same or, of latent pages, empty.
struct AppendRows {
  std::vector<double> keys;
  std::vector<double> values;
  std::vector<int64_t> slots;
  Rotation rotation;
};
Status Append(Machine& machine, const KvLayerView& view, const AppendRows& rows);

// Keys and values that the tables list, in their order: key [tokens, kv_heads * repeat, head_dim].
struct GatheredRows {
  std::vector<double> key;
  std::vector<double> value;
};
StatusOr<GatheredRows> Gather(Machine& machine, const KvLayerView& view, const HostPageTables& tables,
                              int32_t repeat, DType out);

struct AttentionCase {
  int32_t query_heads = 0;
  std::vector<double> queries = {};  // [rows, query_heads, head_dim]
  std::vector<int32_t> qo_indptr = {};
  int32_t window = 0;
  double scale = 0;
  const RaggedMask* mask = nullptr;  // null: causal, by the window
};
struct AttentionResult {
  std::vector<double> out;  // [rows, query_heads, value dim]
  std::vector<double> lse;  // [rows, query_heads]
};
// What of the case the machine's kernels do not do; "" where they do it all.
std::string AttentionLimit(const Machine& machine, const KvFormat& format, const AttentionCase& attention);
StatusOr<AttentionResult> Attend(Machine& machine, const KvLayerView& view, const HostPageTables& tables,
                                 const AttentionCase& attention);

}  // namespace tramontane::kv_vectors
