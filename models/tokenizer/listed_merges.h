// ListedMerges: byte-pair merging by a list of pairs, as Hugging Face's `tokenizers` merge.
//
// Any thread; does not change after it is made.
//
// Of all neighbours that are a pair of the list the one that stands first in it merges first, the leftmost
// among equals, until there is none. Tiktoken's merging (byte_pair_encoder.h) differs: there any two
// neighbours merge whose concatenation is a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/tokenizer/encode_work.h"

namespace tramontane {

class ListedMerges {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };

  ListedMerges() : ListedMerges(std::span<const Merge>()) {}
  // In their order. Of a pair that is listed twice the last place counts. Ids are not negative.
  explicit ListedMerges(std::span<const Merge> merges);

  // The memory of an encoding, for many pieces. One thread.
  struct Scratch;
  // Appends what the ids `symbols` become.
  void Apply(std::span<const int32_t> symbols, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Slot {
    uint64_t pair = 0;
    uint32_t rank = kNoRank;
  };

  static uint64_t PairOf(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  size_t SlotOf(uint64_t pair) const;
  uint32_t RankOf(int32_t left, int32_t right) const;
  void ApplyToFew(std::span<const int32_t> symbols, Scratch* scratch, std::vector<int32_t>* ids) const;
  void ApplyToMany(std::span<const int32_t> symbols, Scratch* scratch, std::vector<int32_t>* ids) const;

  std::vector<Slot> slots_;       // open addressing, a power of two, at most half full
  std::vector<int32_t> results_;  // [rank]
};

// The two pieces of "a b"; none where the text is not of this form.
std::optional<std::pair<std::string, std::string>> SplitMerge(std::string_view text);

// The merge of two pieces by their spellings. None where `ids` lacks one of the three; then `missing` says
// which.
std::optional<ListedMerges::Merge> FindMerge(const std::unordered_map<std::string, int32_t>& ids,
                                             const std::string& left, const std::string& right,
                                             std::string* missing);

struct ListedMerges::Scratch {
  EncodeWork work;  // grows with each piece

 private:
  friend class ListedMerges;

  // A stretch of the piece; a merge grows the left one of two over the right one.
  struct Symbol {
    int32_t id;          // -1 once merged into its left neighbour
    uint32_t pair_rank;  // of it and its right neighbour
    uint32_t left;       // index of the neighbour
    uint32_t right;
  };
  // A symbol that may merge with its right neighbour. Out of date once the symbol's pair_rank is another: a
  // rank is of one pair alone.
  struct Candidate {
    uint32_t rank;
    uint32_t symbol;

    // The heap's order: the best one is the largest.
    bool operator<(const Candidate& other) const {
      return rank > other.rank || (rank == other.rank && symbol > other.symbol);
    }
  };
  // Of short pieces.
  struct Part {
    int32_t id;
    uint32_t pair_rank;
  };

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<Part> parts_;
};

}  // namespace tramontane
