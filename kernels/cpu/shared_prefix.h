// Rows of a decode step that read the same keys: sequences of one query each whose tables list the same pages
// from their beginning (or their window's) on, as a prefix cache and forks make them. Attention walks those
// pages once for a group of them (cascade attention), each row with a softmax of its own. A group has as many
// as SharersAllowed says: with many threads, or few rows, the same pages are walked by several groups.
// The idea: Ye et al., Cascade Inference (FlashInfer, 2024); Juravsky et al., Hydragen (2024).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace tramontane {

// Some sequences, and the segments of keys that all of them see whole and have in the same pages.
struct PrefixSharers {
  const int32_t* sequences = nullptr;  // [count]
  int32_t count = 0;
  int64_t first_segment = 0;
  int64_t end_segment = 0;
};

struct SharedPrefixes {
  const PrefixSharers* groups = nullptr;
  int32_t count = 0;
};

// How many sequences walk together.
struct SharerLimits {
  int64_t most = 0;  // of a group
  // A group of fewer than `many` is cut into groups of at most `few`, or left where that is below 2.
  int64_t many = 0;
  int64_t few = 0;

  bool operator==(const SharerLimits&) const = default;
};

// A decode step gives each thread so many tiles where it can: fewer are split, and sharers leave that many.
inline constexpr int64_t kAttentionTilesPerThread = 4;

// In a step of so many tiles, one for each kv head of a sequence, of `group` rows each.
SharerLimits SharersAllowed(int64_t tiles, int32_t group, int32_t threads);

// Bytes of memory, aligned to 8, that a search over so many sequences takes.
int64_t SharedPrefixBytes(int64_t batch);

// Finds groups of 2 and more sequences; each sequence is in one at most. What is found lies in `memory`, and
// the same params give the same groups. A sequence with a mask or sinks is in none.
SharedPrefixes FindSharedPrefixes(const AttentionParams& params, const SharerLimits& limits,
                                  std::byte* memory);

// Remembers what was found, so that the layers of a step that have one table search it once. Engine thread.
// What is handed out is what a search of these params would find, or would have found for tables of the same
// lengths: its sequences do have these segments in the same pages, which is looked at every time.
class SharedPrefixMemo {
 public:
  // Tables that are remembered; another takes the place of the oldest.
  static constexpr int32_t kTables = 4;

  // Bytes of memory, aligned to 8, for batches of up to so many sequences.
  static int64_t Bytes(int64_t batch);
  // Forgets everything. `memory` is used until the next Reset.
  void Reset(std::byte* memory, int64_t batch);

  // The same as FindSharedPrefixes; lies in the memory until kTables other tables were searched.
  SharedPrefixes Find(const AttentionParams& params, const SharerLimits& limits);

  int64_t searches() const { return searches_; }

 private:
  // What decides which keys the sequences see and where their tables lie.
  struct Table {
    const int32_t* page_indices = nullptr;  // null: nothing is remembered
    int32_t batch = 0;
    bool has_rings = false;  // PageTableView::page_mask
    int32_t page_size = 0;
    int32_t window = 0;
    SharerLimits limits;
    SharedPrefixes found;
  };
  int32_t* LengthsOf(int64_t table) const;  // [5 * batch + 1]
  std::byte* FoundOf(int64_t table) const;
  bool Holds(int64_t table, const AttentionParams& params, const SharerLimits& limits) const;

  Table tables_[kTables];
  int64_t next_ = 0;  // which one to forget
  int64_t searches_ = 0;
  std::byte* memory_ = nullptr;
  int64_t max_batch_ = 0;
};

}  // namespace tramontane
