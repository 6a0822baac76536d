#include "engine/kv/names/prefix_tree.h"

#include <algorithm>
#include <bit>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// Moves every bit of a word into every other (the finaliser of splitmix64).
uint64_t Spread(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
  return word ^ (word >> 31);
}

}  // namespace

PrefixHash ChainedHash(const PrefixHash& above, std::span<const int32_t> ids) {
  PrefixHash hash = {above.high + 0x9e3779b97f4a7c15ull, above.low + 0xd1b54a32d192ed03ull};
  for (const int32_t id : ids) {
    const auto bits = static_cast<uint32_t>(id);
    hash.high = Spread(hash.high ^ bits);
    hash.low = (hash.low ^ bits) * 0x9fb21c651e98df25ull;
    hash.low ^= hash.low >> 32;
  }
  return {Spread(hash.high), Spread(hash.low ^ hash.high)};
}

PrefixTree::PrefixTree(int64_t capacity, int32_t block_ids, size_t groups, PrefixHashFunction hash)
    : block_ids_(static_cast<size_t>(block_ids)),
      groups_(groups),
      hash_(hash),
      nodes_(static_cast<size_t>(capacity)),
      ids_(nodes_.size() * block_ids_),
      pages_(nodes_.size() * groups_, kNoPage),
      buckets_(std::bit_ceil(nodes_.size() + 1), kNone) {
  free_.reserve(nodes_.size());
  for (int64_t node = capacity - 1; node >= 0; --node) free_.push_back(static_cast<Node>(node));
}

int64_t PrefixTree::BytesOf(int64_t capacity, int32_t block_ids, size_t groups) {
  const size_t of_node = sizeof(Entry) + sizeof(Node) + sizeof(int32_t) * static_cast<size_t>(block_ids) +
                         sizeof(PageId) * groups;
  const auto buckets = std::bit_ceil(static_cast<size_t>(capacity) + 1) * sizeof(Node);
  return capacity * static_cast<int64_t>(of_node) + static_cast<int64_t>(buckets);
}

PrefixTree::Node PrefixTree::Find(Node above, const PrefixHash& hash, std::span<const int32_t> ids) const {
  const Node node = FindHash(hash);
  return node != kNone && Matches(node, above, ids) ? node : kNone;
}

PrefixTree::Node PrefixTree::FindOrInsert(Node above, const PrefixHash& hash, std::span<const int32_t> ids) {
  const Node known = FindHash(hash);
  if (known != kNone) return Matches(known, above, ids) ? known : kNone;
  TM_CHECK(!free_.empty() && ids.size() == block_ids_, "%zu nodes hold no more, or %zu ids are no block",
           nodes_.size(), ids.size());
  const Node node = free_.back();
  free_.pop_back();
  Node& bucket = buckets_[BucketAt(hash)];
  entry(node) = {.hash = hash, .above = above, .next_in_bucket = bucket, .life = life(node)};
  bucket = node;
  std::copy(ids.begin(), ids.end(),
            ids_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(node) * block_ids_));
  AddEnd(node, true);
  if (above == kRoot) return node;
  TM_CHECK(entry(above).holds > 0, "a block is put below one that nobody holds");
  ++entry(above).uses;
  ++entry(above).below;
  return node;
}

void PrefixTree::SetPage(Node node, size_t group, PageId page) {
  TM_CHECK(this->page(node, group) == kNoPage, "a block has page %d already", this->page(node, group));
  pages_[IndexOf(node, group)] = page;
  ++nodes_[static_cast<size_t>(node)].uses;
}

void PrefixTree::ClearPage(Node node, size_t group) {
  TM_CHECK(page(node, group) != kNoPage, "a block has no page in group %zu", group);
  pages_[IndexOf(node, group)] = kNoPage;
  Unuse(node);
}

// A node that becomes held holds the one above it.
void PrefixTree::Pin(Node node) {
  if (node == kRoot) return;
  ++entry(node).uses;
  for (; node != kRoot; node = entry(node).above) {
    if (entry(node).holds++ > 0) return;
    if (entry(node).below == 0) RemoveEnd(node);
  }
}

void PrefixTree::Unpin(Node node) {
  if (node == kRoot) return;
  for (Node at = node; at != kRoot; at = entry(at).above) {
    if (--entry(at).holds > 0) break;
    if (entry(at).below == 0) AddEnd(at, true);
  }
  Unuse(node);
}

PrefixTree::Node PrefixTree::FindHash(const PrefixHash& hash) const {
  Node node = buckets_[BucketAt(hash)];
  while (node != kNone && nodes_[static_cast<size_t>(node)].hash != hash) {
    node = nodes_[static_cast<size_t>(node)].next_in_bucket;
  }
  return node;
}

void PrefixTree::Prefetch(const PrefixHash& next, const PrefixHash& later) const {
  __builtin_prefetch(&buckets_[BucketAt(later)]);
  const Node node = buckets_[BucketAt(next)];
  if (node == kNone) return;
  __builtin_prefetch(&nodes_[static_cast<size_t>(node)]);
  __builtin_prefetch(&ids_[static_cast<size_t>(node) * block_ids_]);
}

bool PrefixTree::Matches(Node node, Node above, std::span<const int32_t> ids) const {
  const auto own = ids_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(node) * block_ids_);
  return nodes_[static_cast<size_t>(node)].above == above && std::equal(ids.begin(), ids.end(), own);
}

PrefixHash PrefixTree::HashBelow(Node above, std::span<const int32_t> ids) const {
  return hash_(above == kRoot ? PrefixHash{} : nodes_[static_cast<size_t>(above)].hash, ids);
}

// The last use of a node ends it, which may be the last use of the one above it. That one is the end of a
// text then, which was let go before those that are listed already.
void PrefixTree::Unuse(Node node) {
  while (node != kRoot && --entry(node).uses == 0) {
    const Node above = entry(node).above;
    ++entry(node).life;
    RemoveEnd(node);
    Unlink(node);
    free_.push_back(node);
    if (above != kRoot && --entry(above).below == 0 && entry(above).holds == 0) AddEnd(above, false);
    node = above;
  }
}

void PrefixTree::AddEnd(Node node, bool is_newest) {
  Entry& added = entry(node);
  added.older = is_newest ? newest_end_ : kNone;
  added.newer = is_newest ? kNone : oldest_end_;
  (added.older == kNone ? oldest_end_ : entry(added.older).newer) = node;
  (added.newer == kNone ? newest_end_ : entry(added.newer).older) = node;
}

void PrefixTree::RemoveEnd(Node node) {
  const Entry& removed = entry(node);
  (removed.older == kNone ? oldest_end_ : entry(removed.older).newer) = removed.newer;
  (removed.newer == kNone ? newest_end_ : entry(removed.newer).older) = removed.older;
}

void PrefixTree::Unlink(Node node) {
  const Entry& entry = nodes_[static_cast<size_t>(node)];
  Node* at = &buckets_[BucketAt(entry.hash)];
  while (*at != node) at = &nodes_[static_cast<size_t>(*at)].next_in_bucket;
  *at = entry.next_in_bucket;
}

}  // namespace tramontane
