// Paged keys and values for op tests: every address by this file's own arithmetic, pages scattered at random,
// and everything that no sequence holds poisoned: NaN, and on demand memory that cannot be touched at all.
// One thread.
//
//   PagedKvFixture kv({.kv_heads = 2, .head_dim = 64}, {{.kv_base = 0, .kv_end = 33}});
//   kv.FillRandom(seed);
//   kv.SetQueries({1});  // the last token of the sequence is this step's
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/kv_quantize.h"
#include "kernels/paged_kv.h"

namespace tramontane {

struct PagedKvShape {
  DType dtype = DType::kBf16;  // or kFp8E4M3, kInt8, kInt4
  int32_t kv_heads = 1;
  int32_t head_dim = 8;
  int32_t page_size = 16;
  KvOrder order = KvOrder::kHnd;
  int32_t layers = 2;           // in a page
  int32_t layer = 1;            // the one under test; the others stay NaN
  int32_t spare_pages = 5;      // in the pool, held by nobody
  uint64_t seed = 1;            // of the page permutation
  int32_t group_log2 = 3;       // of kInt8 and kInt4
  bool rings = false;           // tables are rings, with strange pages where nothing is listed
  bool whole_os_pages = false;  // round a page up to whole pages of the operating system (for ForbidAllBut)
};

// Positions [kv_base, kv_end) of one sequence are listed in its table. kv_base is a multiple of page_size.
struct PagedSpan {
  int64_t kv_base = 0;
  int64_t kv_end = 0;
};

enum class KvHalf { kKey, kValue };

class PagedKvFixture {
 public:
  PagedKvFixture(const PagedKvShape& shape, std::vector<PagedSpan> sequences);
  ~PagedKvFixture();
  PagedKvFixture(const PagedKvFixture&) = delete;
  PagedKvFixture& operator=(const PagedKvFixture&) = delete;

  // The last counts[b] tokens of each sequence are the queries of the step, in order of b.
  void SetQueries(const std::vector<int32_t>& counts);

  // Standard normal keys and values (rounded to the page's dtype) that depend on (seed, sequence, position)
  // only: not on where the pages lie, nor on dtype, page size or order but for the rounding.
  void FillRandom(uint64_t seed);
  void Set(KvHalf half, int32_t b, int64_t position, int32_t head, int32_t d, double value);
  // A whole vector [head_dim]: the only way where numbers have their scales in common.
  void SetVector(KvHalf half, int32_t b, int64_t position, int32_t head, const std::vector<float>& vector);
  double Get(KvHalf half, int32_t b, int64_t position, int32_t head, int32_t d) const;
  // [kv_end - from, kv_heads, head_dim] from position `from` on.
  std::vector<double> All(KvHalf half, int32_t b, int64_t from) const;

  // Sequence b lists the pages of sequence `from` for the positions up to `end` that both list and that fill
  // pages: their tokens are then the same.
  void ShareUpTo(int64_t end, int32_t b, int32_t from);

  // A fault to plant: the page of this position becomes one that nobody holds.
  void ListStrangePage(int32_t b, int64_t position);

  // Makes every page of the operating system that holds no part of the slots [first[b], kv_end) of a sequence
  // unreadable: a load from it ends the test program.
  void ForbidAllBut(const std::vector<int64_t>& first);
  int64_t forbidden_bytes() const { return forbidden_bytes_; }

  KvLayerView View() const { return View(pool_); }
  KvLayerView View(std::byte* pool) const;  // of a copy of all its pages, on a device say
  PageTableView Table() const;              // lives as long as the fixture, until SetQueries
  int32_t listed_pages() const { return static_cast<int32_t>(page_indices_.size()); }
  int64_t held_pages() const;  // of all sequences; rings may list more
  const int32_t* qo_indptr() const { return qo_indptr_.data(); }
  int32_t batch() const { return static_cast<int32_t>(sequences_.size()); }
  int32_t tokens() const { return qo_indptr_.back(); }
  int32_t QueryCount(int32_t b) const { return qo_indptr_[Index(b) + 1] - qo_indptr_[Index(b)]; }
  int64_t QueryBegin(int32_t b) const { return sequences_[Index(b)].kv_end - QueryCount(b); }
  int64_t Slot(int32_t b, int64_t position) const;
  // Of a step of these queries, which has room for their pages in plain numbers.
  StepMaxima Maxima(int32_t query_heads) const;
  const std::byte* pool() const { return pool_; }
  int64_t pool_bytes() const { return pool_bytes_; }

 private:
  static size_t Index(int64_t i) { return static_cast<size_t>(i); }
  bool InGroups() const { return shape_.dtype == DType::kInt8 || shape_.dtype == DType::kInt4; }
  Format Element() const;
  int64_t VectorBytes() const { return Element().Bytes(shape_.head_dim); }
  int64_t ScaleBytes() const { return Element().CompanionBytes(shape_.head_dim); }
  int64_t LayerBytes() const;
  // The entry of a position's page.
  size_t EntryOf(int32_t b, int64_t position) const;
  // Index of a vector in its half of the layer, and the byte in the pool where that half begins.
  int64_t VectorIndex(int32_t b, int64_t position, int32_t head) const;
  int64_t HalfByte(KvHalf half, int32_t b, int64_t position) const;
  // Bytes in the pool of a vector's first number and first scale.
  int64_t VectorByte(KvHalf half, int32_t b, int64_t position, int32_t head) const;
  int64_t ScaleByte(KvHalf half, int32_t b, int64_t position, int32_t head) const;

  PagedKvShape shape_;
  std::vector<PagedSpan> sequences_;
  int64_t page_bytes_ = 0;
  int64_t pool_bytes_ = 0;
  int64_t forbidden_bytes_ = 0;
  std::byte* pool_ = nullptr;
  std::vector<int32_t> page_indices_, first_entry_, page_mask_, kv_base_, kv_end_, qo_indptr_;
  std::vector<int64_t> slots_;
};

}  // namespace tramontane
