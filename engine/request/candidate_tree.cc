#include "engine/request/candidate_tree.h"

#include <algorithm>
#include <numeric>

#include "kernels/attention.h"
#include "kernels/masks.h"
#include "kernels/packed_block.h"
#include "kernels/paged_kv.h"

namespace tramontane {
namespace {

// What steps without a tree pay for them, of memory.
constexpr int64_t kLeastMaxTreeBytes = int64_t{1} << 20;

int64_t WholePages(int64_t tokens, int32_t page_size) { return PagesFor(tokens, page_size) * page_size; }

// The page of its last token is each branch's own.
int64_t TrunkOf(int64_t prompt_len, int32_t page_size) {
  return PageOf(prompt_len - 1, 0, page_size) * page_size;
}

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Multiples of it are page borders, and keep the order of attention's sums.
int64_t UnitOf(int32_t page_size) { return std::lcm<int64_t>(kAttentionOrderKeys, page_size); }

int64_t ListingBytes(int64_t pages, int64_t mask_bytes) {
  return PackedBlock::Bytes<int32_t>(pages) + PackedBlock::Bytes<uint8_t>(mask_bytes);
}

}  // namespace

CandidateTree CandidateTree::Of(std::span<const int32_t> prompt,
                                const std::vector<std::vector<int32_t>>& candidates, int32_t page_size) {
  CandidateTree tree;
  tree.prompt_len = static_cast<int64_t>(prompt.size());
  tree.trunk_len = TrunkOf(tree.prompt_len, page_size);
  const std::span<const int32_t> trunk = prompt.first(static_cast<size_t>(tree.trunk_len));
  const std::span<const int32_t> rest = prompt.subspan(trunk.size());
  tree.tokens.assign(trunk.begin(), trunk.end());
  int32_t filler = 0;
  for (const std::vector<int32_t>& candidate : candidates) {
    tree.tokens.resize(static_cast<size_t>(WholePages(tree.places(), page_size)), filler);
    tree.branch_begin.push_back(tree.places());
    tree.tokens.insert(tree.tokens.end(), rest.begin(), rest.end());
    int64_t place = tree.places() - 1;
    for (const int32_t token : candidate) tree.scores.push_back({place++, token});
    tree.tokens.insert(tree.tokens.end(), candidate.begin(), candidate.end() - 1);
    filler = candidate.back();
  }
  return tree;
}

int64_t CandidateTree::PlacesOf(int64_t prompt_len, const std::vector<std::vector<int32_t>>& candidates,
                                int32_t page_size, int64_t most) {
  const int64_t trunk = TrunkOf(prompt_len, page_size);
  int64_t places = trunk;
  for (const std::vector<int32_t>& candidate : candidates) {
    if (places > most) break;
    places = WholePages(places, page_size) + prompt_len - trunk + static_cast<int64_t>(candidate.size()) - 1;
  }
  return places;
}

size_t CandidateTree::BranchOf(int64_t place) const {
  const auto after = std::upper_bound(branch_begin.begin(), branch_begin.end(), place);
  return after == branch_begin.begin() ? 0 : static_cast<size_t>(after - branch_begin.begin()) - 1;
}

int64_t CandidateTree::PositionOf(int64_t place) const {
  return place < plain_len() ? place : trunk_len + place - branch_begin[BranchOf(place)];
}

bool CandidateTree::Sees(int64_t query, int64_t key, int32_t window) const {
  const bool shared = key < trunk_len || BranchOf(key) == BranchOf(query);
  return shared && key <= query && PositionOf(key) >= FirstVisible(PositionOf(query), window);
}

int64_t CandidateTree::ScoresBefore(int64_t place) const {
  const auto at = std::lower_bound(scores.begin(), scores.end(), place,
                                   [](const TokenToScore& score, int64_t end) { return score.place < end; });
  return at - scores.begin();
}

int64_t CandidateTree::Pages(const KvLayout& layout, int64_t ahead) const {
  int64_t pages = 0;
  for (size_t group = 0; group < layout.groups.size(); ++group)
    pages += PagesOfGroupUnderBranches(layout, group, trunk_len, places(), ahead);
  return pages;
}

int64_t MaxTreeBytes(const KvLayout& layout, int64_t context) {
  const int32_t page_size = layout.format.page_size;
  const int64_t keys = context + 3 * UnitOf(page_size);
  const auto groups = static_cast<int64_t>(layout.groups.size());
  return std::max(kLeastMaxTreeBytes, groups * ListingBytes(PagesFor(keys, page_size), (keys + 7) / 8));
}

int64_t TreeBytes(const CandidateTree& tree, const KvLayout& layout, const Lease& lease, int64_t start,
                  int64_t end) {
  if (end <= tree.plain_len()) return 0;
  int64_t bytes = 0;
  for (const PageTable& table : lease.tables) {
    const BranchListing listing(tree, table.kv_base, start, end, layout.format.page_size);
    bytes += ListingBytes(listing.pages(), listing.mask_bytes());
  }
  return bytes;
}

BranchListing::BranchListing(const CandidateTree& tree, int64_t kv_base, int64_t start, int64_t end,
                             int32_t page_size)
    : tree_(tree),
      kv_base_(kv_base),
      start_(start),
      end_(end),
      page_size_(page_size),
      unit_(UnitOf(page_size)),
      again_from_(tree.trunk_len / unit_ * unit_) {
  base_end_ = start < tree.plain_len() ? tree.plain_len() : std::max(kv_base, again_from_);
  keys_end_ = ForEachArea([](size_t, int64_t) {});
}

int64_t BranchListing::pages() const { return PagesFor(keys(), page_size_); }

// visit(branch, where position again_from_ is listed) for the branches of the row that are listed apart;
// returns the end of the last.
template <typename Visit>
int64_t BranchListing::ForEachArea(const Visit& visit) const {
  int64_t end = base_end_;
  for (size_t branch = std::max<size_t>(1, tree_.BranchOf(start_)); branch <= tree_.BranchOf(end_ - 1);
       ++branch) {
    const int64_t begin = RoundUp(end, unit_);
    visit(branch, begin);
    end = begin + tree_.trunk_len - again_from_ + EndOf(branch) - tree_.branch_begin[branch];
  }
  return end;
}

// Of the branch's places as far as they are written with this row.
int64_t BranchListing::EndOf(size_t branch) const {
  const int64_t written = WholePages(end_, page_size_);
  return branch + 1 < tree_.branch_begin.size() ? std::min(tree_.branch_begin[branch + 1], written) : written;
}

// Pages between areas, and those of positions that no window reaches any more, are never read: any will do.
void BranchListing::ListPages(const PageTable& table, int32_t* entries) const {
  std::fill_n(entries, pages(), table.pages.front());
  const auto copy = [&](int64_t begin, int64_t end, int64_t listed_at) {
    const auto from = table.pages.begin() + PageOf(begin, kv_base_, page_size_);
    std::copy_n(from, PagesFor(end - begin, page_size_), entries + PageOf(listed_at, kv_base_, page_size_));
  };
  copy(kv_base_, std::min(base_end_, tree_.plain_len()), kv_base_);
  ForEachArea([&](size_t branch, int64_t begin) {
    const int64_t from = std::max(again_from_, kv_base_);
    copy(from, tree_.trunk_len, begin + from - again_from_);
    copy(tree_.branch_begin[branch], EndOf(branch), begin + tree_.trunk_len - again_from_);
  });
}

void BranchListing::ShowKeys(int32_t window, uint8_t* bits) const {
  int64_t bit = -kv_base_;  // of position 0, as it is listed for the place
  const auto show = [&](int64_t begin, int64_t end) { tramontane::ShowKeys(bits, bit + begin, bit + end); };
  for (int64_t place = start_; place < std::min(end_, tree_.plain_len()); ++place, bit += keys()) {
    show(FirstVisible(place, window), place + 1);
  }
  ForEachArea([&](size_t branch, int64_t begin) {
    const int64_t first = std::max(start_, tree_.branch_begin[branch]);
    const int64_t last = branch + 1 < tree_.branch_begin.size() ? tree_.branch_begin[branch + 1] : end_;
    for (int64_t place = first; place < std::min(end_, last); ++place, bit += keys()) {
      const int64_t position = tree_.PositionOf(place);
      const int64_t seen = FirstVisible(position, window);
      show(std::min(seen, again_from_), again_from_);
      show(begin + std::max(seen, again_from_) - again_from_, begin + position + 1 - again_from_);
    }
  });
}

}  // namespace tramontane
