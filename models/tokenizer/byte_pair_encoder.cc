#include "models/tokenizer/byte_pair_encoder.h"

#include <algorithm>
#include <optional>

namespace tramontane {
namespace {

// Up to this length the best pair is looked for among all: no heap is faster, and the work stays bounded.
constexpr size_t kShortPieceBytes = 48;
constexpr uint32_t kNoSymbol = UINT32_MAX;

}  // namespace

StatusOr<BytePairEncoder> BytePairEncoder::Create(const std::vector<std::string>& tokens) {
  if (tokens.size() < 256 || tokens.size() > kMaxTokens) {
    return DataLoss(std::to_string(tokens.size()) + " tokens are not 256 to " + std::to_string(kMaxTokens));
  }
  BytePairEncoder encoder(tokens.size());
  encoder.doubles_.assign(256 * 256, kNoRank);
  for (uint32_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string& token = tokens[rank];
    const std::string name = "the token of rank " + std::to_string(rank);
    if (rank < 256 && token != std::string(1, static_cast<char>(rank))) {
      return DataLoss(name + " is not the byte " + std::to_string(rank));
    }
    if (token.empty() || token.size() > kMaxTokenBytes) {
      return DataLoss(name + " has " + std::to_string(token.size()) + " bytes, not 1 to " +
                      std::to_string(kMaxTokenBytes));
    }
    if (const uint32_t other = encoder.tokens_.Find(token); other != kNoRank) {
      return DataLoss("the tokens of rank " + std::to_string(other) + " and " + std::to_string(rank) +
                      " are the same bytes");
    }
    encoder.tokens_.Add(token);
    if (token.size() == 2) {
      encoder.doubles_[static_cast<uint8_t>(token[0]) << 8 | static_cast<uint8_t>(token[1])] = rank;
    }
  }
  return encoder;
}

uint32_t BytePairEncoder::PairRank(std::string_view text, uint32_t begin, uint32_t bytes) const {
  if (bytes == 2) {
    return doubles_[static_cast<uint8_t>(text[begin]) << 8 | static_cast<uint8_t>(text[begin + 1])];
  }
  return tokens_.Find(text.substr(begin, bytes));
}

void BytePairEncoder::Encode(std::string_view piece, int32_t first_id, Scratch* scratch,
                             std::vector<int32_t>* ids) const {
  const uint32_t whole = tokens_.Find(piece);
  if (whole != kNoRank) {
    ids->push_back(first_id + static_cast<int32_t>(whole));
  } else if (piece.size() <= kShortPieceBytes) {
    MergeShort(piece, first_id, scratch, ids);
  } else {
    MergeLong(piece, first_id, scratch, ids);
  }
}

void BytePairEncoder::MergeShort(std::string_view piece, int32_t first_id, Scratch* scratch,
                                 std::vector<int32_t>* ids) const {
  EncodeWork& work = scratch->work;
  auto& parts = scratch->parts_;  // the last one is the end
  parts.clear();
  const auto size = static_cast<uint32_t>(piece.size());
  for (uint32_t at = 0; at < size; ++at) {
    parts.push_back({at, at + 1 < size ? PairRank(piece, at, 2) : kNoRank});
  }
  parts.push_back({size, kNoRank});
  work.symbols += size;
  work.pair_lookups += size;
  const auto pair_rank = [&](size_t i) {
    if (i + 2 >= parts.size()) return kNoRank;
    ++work.pair_lookups;
    return PairRank(piece, parts[i].begin, parts[i + 2].begin - parts[i].begin);
  };
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].pair_rank < parts[best].pair_rank) best = i;
    }
    if (parts[best].pair_rank == kNoRank) break;
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
    parts[best].pair_rank = pair_rank(best);
    if (best > 0) parts[best - 1].pair_rank = pair_rank(best - 1);
  }
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const uint32_t rank = tokens_.Find(piece.substr(parts[i].begin, parts[i + 1].begin - parts[i].begin));
    ids->push_back(first_id + static_cast<int32_t>(rank));
  }
}

void BytePairEncoder::MergeLong(std::string_view piece, int32_t first_id, Scratch* scratch,
                                std::vector<int32_t>* ids) const {
  EncodeWork& work = scratch->work;
  auto& symbols = scratch->symbols_;
  auto& heap = scratch->heap_;
  const auto size = static_cast<uint32_t>(piece.size());
  const auto candidate = [&](uint32_t left, uint32_t right) -> std::optional<Scratch::Candidate> {
    if (left == kNoSymbol || right == kNoSymbol) return std::nullopt;
    ++work.pair_lookups;
    const uint32_t bytes = symbols[left].bytes + symbols[right].bytes;
    const uint32_t rank = PairRank(piece, symbols[left].begin, bytes);
    if (rank == kNoRank) return std::nullopt;
    return Scratch::Candidate{rank, left, right, bytes};
  };
  const auto push = [&](uint32_t left, uint32_t right) {
    if (const auto pair = candidate(left, right)) {
      heap.push_back(*pair);
      std::push_heap(heap.begin(), heap.end());
    }
  };

  symbols.clear();
  heap.clear();
  for (uint32_t at = 0; at < size; ++at) {
    symbols.push_back({at, 1, at == 0 ? kNoSymbol : at - 1, at + 1 == size ? kNoSymbol : at + 1});
  }
  work.symbols += size;
  for (uint32_t at = 0; at + 1 < size; ++at) {
    if (const auto pair = candidate(at, at + 1)) heap.push_back(*pair);
  }
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    ++work.heap_pops;
    Scratch::Symbol& left = symbols[best.left];
    Scratch::Symbol& right = symbols[best.right];
    if (left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != best.bytes) continue;
    left.bytes = best.bytes;
    left.right = right.right;
    if (right.right != kNoSymbol) symbols[right.right].left = best.left;
    right.bytes = 0;
    push(left.left, best.left);
    push(best.left, left.right);
  }
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.bytes == 0) continue;
    ids->push_back(first_id + static_cast<int32_t>(tokens_.Find(piece.substr(symbol.begin, symbol.bytes))));
  }
}

}  // namespace tramontane
