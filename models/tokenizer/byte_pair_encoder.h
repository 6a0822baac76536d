// BytePairEncoder: pieces of text to the ranks of their tokens, as tiktoken merges them.
//
// Any thread; does not change after Create().
//
// A piece that is a token is that token. Any other starts as single bytes; of all neighbours whose
// concatenation is a token the one with the lowest rank merges first, the leftmost among equals, until there
// is none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/encode_work.h"
#include "models/tokenizer/token_table.h"

namespace tramontane {

class BytePairEncoder {
 public:
  static constexpr size_t kMaxTokens = size_t{1} << 20;
  static constexpr size_t kMaxTokenBytes = 1024;

  // `tokens` by rank; the first 256 are the single bytes in order. DATA_LOSS names a rank that breaks a rule:
  // tokens are distinct, not empty and at most kMaxTokenBytes long.
  static StatusOr<BytePairEncoder> Create(const std::vector<std::string>& tokens);

  uint32_t size() const { return tokens_.size(); }
  std::string_view token(uint32_t rank) const { return tokens_.text(rank); }

  // The memory of an encoding, for many pieces. One thread.
  struct Scratch;
  // Appends `first_id` + the rank of each of the piece's tokens.
  void Encode(std::string_view piece, int32_t first_id, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  static constexpr uint32_t kNoRank = TokenTable::kNone;

  explicit BytePairEncoder(size_t tokens) : tokens_(tokens) {}
  uint32_t PairRank(std::string_view text, uint32_t begin, uint32_t bytes) const;
  void MergeShort(std::string_view piece, int32_t first_id, Scratch* scratch,
                  std::vector<int32_t>* ids) const;
  void MergeLong(std::string_view piece, int32_t first_id, Scratch* scratch, std::vector<int32_t>* ids) const;

  TokenTable tokens_;              // the index is the rank
  std::vector<uint32_t> doubles_;  // [first byte][second byte] -> rank of the two
};

struct BytePairEncoder::Scratch {
  EncodeWork work;  // grows with each piece

 private:
  friend class BytePairEncoder;

  // A stretch of the piece; a merge grows the left one of two over the right one.
  struct Symbol {
    uint32_t begin;
    uint32_t bytes;  // 0 once merged into its left neighbour
    uint32_t left;   // index of the neighbour
    uint32_t right;
  };
  // Two neighbours that may merge. Out of date once either has merged otherwise: then `bytes` differs.
  struct Candidate {
    uint32_t rank;
    uint32_t left;
    uint32_t right;
    uint32_t bytes;

    // The heap's order: the best one is the largest.
    bool operator<(const Candidate& other) const {
      return rank > other.rank || (rank == other.rank && left > other.left);
    }
  };
  // Of short pieces: where a token begins, and the rank of it joined with the next one.
  struct Part {
    uint32_t begin;
    uint32_t pair_rank;
  };

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<Part> parts_;
};

}  // namespace tramontane
