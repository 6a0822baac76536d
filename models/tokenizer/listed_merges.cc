#include "models/tokenizer/listed_merges.h"

#include <algorithm>
#include <bit>

namespace tramontane {
namespace {

// Up to this many symbols the best pair is looked for among all: no heap is faster, and the work stays
// bounded.
constexpr size_t kFewSymbols = 48;
constexpr uint32_t kNoNeighbour = UINT32_MAX;

}  // namespace

ListedMerges::ListedMerges(std::span<const Merge> merges)
    : slots_(std::bit_ceil(std::max<size_t>(2 * merges.size(), 2))) {
  results_.reserve(merges.size());
  for (const Merge& merge : merges) {
    const uint64_t pair = PairOf(merge.left, merge.right);
    slots_[SlotOf(pair)] = {pair, static_cast<uint32_t>(results_.size())};
    results_.push_back(merge.result);
  }
}

// Where the pair is, or would be.
size_t ListedMerges::SlotOf(uint64_t pair) const {
  const uint64_t hash = pair * 0x9E3779B97F4A7C15;
  size_t at = (hash ^ hash >> 32) & (slots_.size() - 1);
  while (slots_[at].rank != kNoRank && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return at;
}

uint32_t ListedMerges::RankOf(int32_t left, int32_t right) const {
  return slots_[SlotOf(PairOf(left, right))].rank;
}

void ListedMerges::Apply(std::span<const int32_t> symbols, Scratch* scratch,
                         std::vector<int32_t>* ids) const {
  scratch->work.symbols += symbols.size();
  if (symbols.size() <= kFewSymbols) {
    ApplyToFew(symbols, scratch, ids);
  } else {
    ApplyToMany(symbols, scratch, ids);
  }
}

void ListedMerges::ApplyToFew(std::span<const int32_t> symbols, Scratch* scratch,
                              std::vector<int32_t>* ids) const {
  auto& parts = scratch->parts_;
  const auto pair_rank = [&](size_t i) {
    if (i + 1 >= parts.size()) return kNoRank;
    ++scratch->work.pair_lookups;
    return RankOf(parts[i].id, parts[i + 1].id);
  };
  parts.clear();
  for (const int32_t id : symbols) parts.push_back({id, kNoRank});
  for (size_t i = 0; i + 1 < parts.size(); ++i) parts[i].pair_rank = pair_rank(i);
  while (!parts.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].pair_rank < parts[best].pair_rank) best = i;
    }
    if (parts[best].pair_rank == kNoRank) break;
    parts[best].id = results_[parts[best].pair_rank];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
    parts[best].pair_rank = pair_rank(best);
    if (best > 0) parts[best - 1].pair_rank = pair_rank(best - 1);
  }
  for (const Scratch::Part& part : parts) ids->push_back(part.id);
}

void ListedMerges::ApplyToMany(std::span<const int32_t> ids_before, Scratch* scratch,
                               std::vector<int32_t>* ids) const {
  EncodeWork& work = scratch->work;
  auto& symbols = scratch->symbols_;
  auto& heap = scratch->heap_;
  // Looks the symbol's pair up anew.
  const auto update = [&](uint32_t index) {
    Scratch::Symbol& symbol = symbols[index];
    symbol.pair_rank = kNoRank;
    if (symbol.right == kNoNeighbour) return false;
    ++work.pair_lookups;
    symbol.pair_rank = RankOf(symbol.id, symbols[symbol.right].id);
    return symbol.pair_rank != kNoRank;
  };
  const auto push = [&](uint32_t index) {
    if (!update(index)) return;
    heap.push_back({symbols[index].pair_rank, index});
    std::push_heap(heap.begin(), heap.end());
  };

  symbols.clear();
  heap.clear();
  const auto size = static_cast<uint32_t>(ids_before.size());
  for (uint32_t i = 0; i < size; ++i) {
    symbols.push_back(
        {ids_before[i], kNoRank, i == 0 ? kNoNeighbour : i - 1, i + 1 == size ? kNoNeighbour : i + 1});
  }
  for (uint32_t i = 0; i < size; ++i) {
    if (update(i)) heap.push_back({symbols[i].pair_rank, i});
  }
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    ++work.heap_pops;
    Scratch::Symbol& left = symbols[best.symbol];
    if (left.id < 0 || left.pair_rank != best.rank) continue;
    Scratch::Symbol& right = symbols[left.right];
    left.id = results_[best.rank];
    left.right = right.right;
    if (right.right != kNoNeighbour) symbols[right.right].left = best.symbol;
    right.id = -1;
    if (left.left != kNoNeighbour) push(left.left);
    push(best.symbol);
  }
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids->push_back(symbol.id);
  }
}

std::optional<std::pair<std::string, std::string>> SplitMerge(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    return std::nullopt;
  }
  return std::pair(std::string(text.substr(0, space)), std::string(text.substr(space + 1)));
}

std::optional<ListedMerges::Merge> FindMerge(const std::unordered_map<std::string, int32_t>& ids,
                                             const std::string& left, const std::string& right,
                                             std::string* missing) {
  ListedMerges::Merge merge{};
  const std::string result = left + right;
  for (const auto& [piece, id] :
       {std::pair(&left, &merge.left), {&right, &merge.right}, {&result, &merge.result}}) {
    const auto found = ids.find(*piece);
    if (found == ids.end()) {
      *missing = *piece;
      return std::nullopt;
    }
    *id = found->second;
  }
  return merge;
}

}  // namespace tramontane
