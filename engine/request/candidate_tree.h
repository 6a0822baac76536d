// CandidateTree: one prompt and many continuations of it (Request::candidates) as one sequence, so that all
// of them are computed in one row, blind to each other.
//
// Where a token lies and where it stands are two things: it lies at a *place* (index in the sequence, in its
// page tables), and stands at a *position* (what rotates it, what windows count).
//
//   prompt of 6 (0 1 2 3 4 5), candidates "ab" and "xyz", pages of 4:
//
//   place      0 1 2 3 | 4 5 6 7 | 8 9 10 11
//   token      0 1 2 3 | 4 5 a b | 4 5  x  y     branch 0 is filled up with b, which nobody asked for
//   position   0 1 2 3 | 4 5 6 7 | 4 5  6  7
//              trunk     branch 0  branch 1
//   scores               . a b .   . x  y  z     of the token behind it
//
// The trunk is the prompt's pages in front of the one that its last token is in: all see it. A branch is the
// rest of the prompt, computed once for each, and one candidate but its last token. So a branch begins at a
// page's border, where it could begin alone, and each place scores one token at most. A place sees the trunk
// and its own branch, as far as the window of its position.
//
// How its keys are listed (BranchListing): where a row is within the trunk and branch 0, as those of any
// sequence. Else attention is given a mask, over a table in which each further branch of the row has the
// pages of the prompt in front of it once more, from a multiple S of kAttentionOrderKeys on:
//
//   | trunk, branch 0 | S .. trunk, branch 1 | S .. trunk, branch 2 |     each from such a multiple
//
// So the keys of a branch are summed in the order in which they would be if it were alone.
//
// Plain values. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/lease.h"
#include "models/kv_layout.h"

namespace tramontane {

// A token whose log-probability is wanted, and the place whose logits say it.
struct TokenToScore {
  int64_t place = 0;
  int32_t token = 0;
};

struct CandidateTree {
  int64_t prompt_len = 0;
  int64_t trunk_len = 0;              // below prompt_len; whole pages
  std::vector<int64_t> branch_begin;  // [candidates] places; that of branch 0 is trunk_len
  std::vector<int32_t> tokens;        // by place
  std::vector<TokenToScore> scores;   // by place: candidate after candidate, token after token

  // REQUIRES: a prompt, and candidates that have tokens.
  static CandidateTree Of(std::span<const int32_t> prompt,
                          const std::vector<std::vector<int32_t>>& candidates, int32_t page_size);
  // Places that such a tree would have; less than all where they are more than `most`. Quick.
  static int64_t PlacesOf(int64_t prompt_len, const std::vector<std::vector<int32_t>>& candidates,
                          int32_t page_size, int64_t most);

  int64_t places() const { return static_cast<int64_t>(tokens.size()); }
  // Places below see what those of a sequence without branches would see.
  int64_t plain_len() const { return branch_begin.size() > 1 ? branch_begin[1] : places(); }
  // The branch that a place is in; 0 for the trunk.
  size_t BranchOf(int64_t place) const;
  int64_t PositionOf(int64_t place) const;
  // The definition: whether the query at one place sees the key at another. window 0: none.
  bool Sees(int64_t query, int64_t key, int32_t window) const;
  // How many of `scores` are at places below.
  int64_t ScoresBefore(int64_t place) const;

  // Pages that the sequence may hold over all groups, at most `ahead` tokens written beyond its window at a
  // time.
  int64_t Pages(const KvLayout& layout, int64_t ahead) const;
};

// Bytes of page entries and masks that rows of trees may take together in one step, and those of a row
// [start, end) whose pages are those of the lease; 0 for one that needs no mask. A row of one token always
// fits.
int64_t MaxTreeBytes(const KvLayout& layout, int64_t context);
int64_t TreeBytes(const CandidateTree& tree, const KvLayout& layout, const Lease& lease, int64_t start,
                  int64_t end);

// How attention is told of the keys of a row [start, end) that is beyond plain_len, in one group. The tree is
// borrowed.
class BranchListing {
 public:
  BranchListing(const CandidateTree& tree, int64_t kv_base, int64_t start, int64_t end, int32_t page_size);

  // Whole pages; position kv_base is the first.
  int64_t keys() const { return keys_end_ - kv_base_; }
  int64_t pages() const;
  int64_t mask_bytes() const { return ((end_ - start_) * keys() + 7) / 8; }

  // Writes pages() entries.
  void ListPages(const PageTable& table, int32_t* entries) const;
  // Bits [end - start, keys] into mask_bytes() zeros.
  void ShowKeys(int32_t window, uint8_t* bits) const;

 private:
  template <typename Visit>
  int64_t ForEachArea(const Visit& visit) const;
  int64_t EndOf(size_t branch) const;

  const CandidateTree& tree_;
  const int64_t kv_base_;
  const int64_t start_;
  const int64_t end_;
  const int32_t page_size_;
  const int64_t unit_;    // areas begin at its multiples
  int64_t again_from_;    // S
  int64_t base_end_ = 0;  // of the places listed as they lie
  int64_t keys_end_ = 0;
};

}  // namespace tramontane
