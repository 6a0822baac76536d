// PrefixTree: which token sequences have pages, block by block. A node is one block of ids (a page's worth)
// after all those above it, and names the page of each layer group that holds those tokens there.
// Engine thread only.
//
//   salt "a" -- [1 5 9 2] -- [7 7 3 1] -- [4 4 8 6]       a node's page in a group may be missing: never
//                        '-- [8 2 2 6]                    stored, or evicted
//
// A node is found by a chained hash of 128 bits, and compared by its ids and the node above it: so what is
// found has exactly these tokens, all the way up. Of two nodes with one hash the second is not taken in, so
// a collision costs a miss and nothing else.
//
// A node is *held* where it, or one below it, is pinned. Ends of texts that nobody holds are in a list, the
// one let go first in front: where there is no room for a name, those go (OldestEnd), and never a name that
// leads to one that somebody holds, which would free nothing.
//
// Always: a node has a page, a node below it or a pin, else it is gone; there are at most `capacity` nodes.
// No memory is taken after construction (BytesOf).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tramontane {

using PageId = int32_t;
inline constexpr PageId kNoPage = -1;

struct PrefixHash {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const PrefixHash&) const = default;
};

// The hash of a block, given that of the block above it.
using PrefixHashFunction = PrefixHash (*)(const PrefixHash& above, std::span<const int32_t> ids);
PrefixHash ChainedHash(const PrefixHash& above, std::span<const int32_t> ids);

class PrefixTree {
 public:
  using Node = int32_t;
  static constexpr Node kRoot = -1;  // above the first blocks; has no page, and needs no pin
  static constexpr Node kNone = -2;

  PrefixTree(int64_t capacity, int32_t block_ids, size_t groups, PrefixHashFunction hash);

  // Host memory of so many nodes.
  static int64_t BytesOf(int64_t capacity, int32_t block_ids, size_t groups);

  bool full() const { return free_.empty(); }
  // The node without others below it that nobody has held for longest; kNone: all are held.
  Node OldestEnd() const { return oldest_end_; }
  int64_t capacity() const { return static_cast<int64_t>(nodes_.size()); }
  int64_t nodes() const { return static_cast<int64_t>(nodes_.size() - free_.size()); }

  // The block of these ids below `above`; kNone where there is none. ids: [block_ids].
  Node Find(Node above, std::span<const int32_t> ids) const {
    return Find(above, HashBelow(above, ids), ids);
  }
  // `hash`: that of the block, as HashBelow says it.
  Node Find(Node above, const PrefixHash& hash, std::span<const int32_t> ids) const;
  // The same, taken in where it is not known; kNone where its hash is another one's. A new node is pinned by
  // nobody and has no page yet: the caller gives it one of both at once. REQUIRES: not full(), and `above` is
  // pinned.
  Node FindOrInsert(Node above, const PrefixHash& hash, std::span<const int32_t> ids);
  PrefixHash HashBelow(Node above, std::span<const int32_t> ids) const;
  // Blocks of these hashes are looked for next, and after some others: their memory is asked for now.
  void Prefetch(const PrefixHash& next, const PrefixHash& later) const;

  // As long as this stays, the node is the block that it was, and so are all above it.
  uint32_t life(Node node) const { return nodes_[static_cast<size_t>(node)].life; }

  Node above(Node node) const { return nodes_[static_cast<size_t>(node)].above; }
  PageId page(Node node, size_t group) const { return pages_[IndexOf(node, group)]; }
  // REQUIRES: it has none.
  void SetPage(Node node, size_t group, PageId page);
  // The node goes with its last page, if nothing else holds it. REQUIRES: it has one.
  void ClearPage(Node node, size_t group);

  void Pin(Node node);
  void Unpin(Node node);

 private:
  struct Entry {
    PrefixHash hash;
    Node above = kNone;
    Node next_in_bucket = kNone;
    int32_t uses = 0;    // pages, nodes below, pins
    int32_t below = 0;   // nodes
    int32_t holds = 0;   // pins, and nodes below that are held
    uint32_t life = 0;   // another one each time that the node goes
    Node older = kNone;  // among ends that nobody holds
    Node newer = kNone;
  };

  Node FindHash(const PrefixHash& hash) const;
  bool Matches(Node node, Node above, std::span<const int32_t> ids) const;
  size_t IndexOf(Node node, size_t group) const { return static_cast<size_t>(node) * groups_ + group; }
  size_t BucketAt(const PrefixHash& hash) const { return hash.low & (buckets_.size() - 1); }
  Entry& entry(Node node) { return nodes_[static_cast<size_t>(node)]; }
  void Unuse(Node node);
  void Unlink(Node node);
  void AddEnd(Node node, bool is_newest);
  void RemoveEnd(Node node);

  const size_t block_ids_;
  const size_t groups_;
  const PrefixHashFunction hash_;
  std::vector<Entry> nodes_;
  std::vector<int32_t> ids_;   // [capacity, block_ids]
  std::vector<PageId> pages_;  // [capacity, groups]
  std::vector<Node> buckets_;  // a power of two
  std::vector<Node> free_;
  Node oldest_end_ = kNone;
  Node newest_end_ = kNone;
};

}  // namespace tramontane
