// TextNames: which blocks of texts have names (PrefixTree), and how far the text of each lease has them.
// A block is named by its tokens and all in front of them; and by marks between blocks, for the salt of its
// request, and for a context policy from the first block on with a row that sees another set than without it
// (Lease::plain_len): requests under the same one find them. Of such blocks, which make chains as long as the
// text, leases together name at most a kBlocksUnderPolicies-th of those that the tree can hold: what lies
// behind is not found again.
//
// Engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kv/kv_owner.h"
#include "engine/kv/lease.h"
#include "engine/kv/names/paging.h"
#include "engine/kv/names/prefix_tree.h"
#include "engine/kv/names/text_identity.h"
#include "engine/kv/names/text_path.h"
#include "engine/kv/names/token_view.h"
#include "kernels/context_policy.h"
#include "models/kv_layout.h"

namespace tramontane {

// What a lease is wanted for.
struct PrefixQuery {
  TokenView tokens;                        // prompt, and the output where a sequence begins again
  const TextIdentity* identity = nullptr;  // the text's; null: of no salt. Its policy is the lease's, too
  int64_t most_tokens = INT64_MAX;  // that may be found; what is asked of later positions must be computed
  // What it has left idle may be had, too; null: nobody. All that one asks is of one salt and one policy.
  const KvOwner* owner = nullptr;
  // The tokens' blocks, as far as they are hashed; the others are hashed each time. Null: none is.
  const TextPath* path = nullptr;

  std::string_view salt() const { return identity == nullptr ? std::string_view() : identity->salt; }
};

class TextNames {
 public:
  using Node = PrefixTree::Node;
  // Room for another name, or for another one under a policy. It gives up what is not in use; false: nothing.
  enum class Room { kName, kUnderPolicy };
  using MakeRoom = std::function<bool(Room)>;

  // `layout` outlives it. `columns`: of the tree.
  TextNames(const KvLayout& layout, int64_t capacity, size_t columns, PrefixHashFunction hash,
            MakeRoom make_room)
      : layout_(layout),
        paging_(layout.format),
        tree_(capacity, paging_.tokens(), columns, hash),
        make_room_(std::move(make_room)) {}

  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  // Blocks that were hashed here so far, marks apart.
  int64_t hashed_blocks() const { return hashed_blocks_; }
  // Those that were looked for by their hashes; of what a lease had found some count as one.
  int64_t walked() const { return walked_; }

  // ---- finding, and taking in: kNone: not known, or there is no room ------------------------------
  Node FindSalt(std::string_view salt);
  // The known blocks below `salt`, of at most so many tokens. `lease`: by whose policy, and what was found
  // for it before.
  void FindPath(Node salt, const Lease& lease, const PrefixQuery& query, int64_t most,
                std::vector<Node>* path);
  // What was found, for a lease that asks for this text again.
  void Note(const std::vector<Node>& path, FoundNames* found) const;
  // What is pinned stays so.
  Node PinSalt(std::string_view salt);
  // Of a name that nothing else has.
  Node PinNewMark();
  // REQUIRES: `above` is pinned. kNone also where the hash is another block's.
  Node TakeIn(Node above, const PrefixHash& hash, std::span<const int32_t> ids);
  // The block of this index below such a mark.
  Node TakeInBelowMark(Node mark, int64_t block);

  // ---- how far a lease's text has names: Lease::tip, sealed ---------------------------------------
  // Hashes the text's blocks up to `end`.
  void Extend(TextPath& path, TokenView tokens, int64_t end) { hashed_blocks_ += path.Extend(tokens, end); }
  // Takes in the block behind those that the lease has named, which is named from now on. `path`: where it is
  // hashed, or null. False: there is no room for it, or too much under policies has names, or its hash is
  // another one's.
  bool TakeInNext(Lease& lease, std::span<const int32_t> ids, const PrefixHash* hash);
  // The lease's text has names up to `tip`, pinned, which ends at `sealed`. REQUIRES: it has none.
  void Follow(Lease& lease, Node tip, int64_t sealed);
  // As far as that of `from`, and not behind `end`. `lease` may be a copy of it.
  void Follow(Lease& lease, const Lease& from, int64_t end);
  void LetGo(Lease& lease);
  int64_t BlocksUnderPolicy(const Lease& lease) const;

 private:
  // Of what mark_ holds.
  Node FindMark(Node above) const;
  Node PinMark(Node above);

  const KvLayout& layout_;
  const Paging paging_;
  PrefixTree tree_;
  const MakeRoom make_room_;
  // Of live leases, behind what is named without their policies; one that is shared counts for each.
  int64_t blocks_under_policies_ = 0;
  int64_t hashed_blocks_ = 0;
  int64_t walked_ = 0;
  int64_t new_marks_ = 0;       // so far
  std::vector<int32_t> mark_;   // scratch
  std::vector<int32_t> block_;  // scratch: one that lies in two pieces
};

}  // namespace tramontane
