#include "engine/kv/text_names.h"

#include <algorithm>
#include <utility>

namespace tramontane {
namespace {

// Of the blocks that the tree can hold one in so many may be behind leases that name theirs by a policy.
constexpr int64_t kBlocksUnderPolicies = 4;

// To look for a block takes as long as to go over so many that were found.
constexpr int64_t kFoundAsOne = 8;

// So many blocks ahead of the one that is looked for the tree is told of them: a long text lies in no cache.
constexpr int64_t kPrefetched = 16;

}  // namespace

// ---- marks --------------------------------------------------------------------------------------

TextNames::Node TextNames::FindMark(Node above) const {
  const auto block = static_cast<size_t>(paging_.tokens());
  for (size_t begin = 0; begin < mark_.size() && above != PrefixTree::kNone; begin += block) {
    above = tree_.Find(above, std::span(mark_).subspan(begin, block));
  }
  return above;
}

// REQUIRES: `above` is pinned, and stays so.
TextNames::Node TextNames::PinMark(Node above) {
  const auto block = static_cast<size_t>(paging_.tokens());
  Node node = above;
  tree_.Pin(node);
  for (size_t begin = 0; begin < mark_.size() && node != PrefixTree::kNone; begin += block) {
    const std::span<const int32_t> ids = std::span(mark_).subspan(begin, block);
    const Node below = TakeIn(node, tree_.HashBelow(node, ids), ids);
    if (below != PrefixTree::kNone) tree_.Pin(below);
    tree_.Unpin(node);
    node = below;
  }
  return node;
}

TextNames::Node TextNames::FindSalt(std::string_view salt) {
  SaltMark(salt, paging_, &mark_);
  return FindMark(PrefixTree::kRoot);
}

TextNames::Node TextNames::PinSalt(std::string_view salt) {
  SaltMark(salt, paging_, &mark_);
  return PinMark(PrefixTree::kRoot);
}

TextNames::Node TextNames::PinNewMark() {
  ++new_marks_;
  mark_ = {INT32_MIN + static_cast<int32_t>(ContextPolicyType::kNone),  // no salt's, and no policy's
           static_cast<int32_t>(new_marks_ & INT32_MAX), static_cast<int32_t>(new_marks_ >> 31)};
  mark_.resize(static_cast<size_t>(paging_.RoundUp(std::ssize(mark_))));
  return PinMark(PrefixTree::kRoot);
}

// ---- blocks -------------------------------------------------------------------------------------

TextNames::Node TextNames::TakeIn(Node above, const PrefixHash& hash, std::span<const int32_t> ids) {
  while (tree_.full() && make_room_(Room::kName)) {
  }
  return tree_.full() ? tree_.Find(above, hash, ids) : tree_.FindOrInsert(above, hash, ids);
}

TextNames::Node TextNames::TakeInBelowMark(Node mark, int64_t block) {
  block_.assign(static_cast<size_t>(paging_.tokens()), 0);
  block_[0] = static_cast<int32_t>(block);
  return TakeIn(mark, tree_.HashBelow(mark, block_), block_);
}

void TextNames::FindPath(Node salt, const Lease& lease, const PrefixQuery& query, int64_t most,
                         std::vector<Node>* path) {
  const int64_t plain_end = PlainBlocksEnd(lease.policy, layout_);
  const std::vector<Node>& found = lease.found.blocks;
  const bool is_there = !found.empty() && tree_.life(found.back()) == lease.found.life;
  const int64_t blocks = std::max<int64_t>(0, paging_.PageOf(most));
  const int64_t known = is_there ? std::min(blocks, std::ssize(found)) : 0;
  path->assign(found.begin(), found.begin() + known);
  walked_ += known / kFoundAsOne;
  Node node = known == 0 ? salt : path->back();
  for (int64_t index = known; index < blocks; ++index) {
    const int64_t begin = paging_.BeginOf(index);
    if (begin == plain_end) {
      PolicyMark(lease.policy, paging_, &mark_);
      node = FindMark(node);
    }
    if (node == PrefixTree::kNone) break;
    const std::span<const int32_t> ids = query.tokens.Piece(begin, paging_.tokens(), &block_);
    const bool is_hashed = query.path != nullptr && index < query.path->blocks();
    if (!is_hashed) ++hashed_blocks_;
    if (query.path != nullptr && index + kPrefetched < query.path->blocks())
      tree_.Prefetch(query.path->at(index + kPrefetched / 2), query.path->at(index + kPrefetched));
    ++walked_;
    node = tree_.Find(node, is_hashed ? query.path->at(index) : tree_.HashBelow(node, ids), ids);
    if (node == PrefixTree::kNone) break;
    path->push_back(node);
  }
}

void TextNames::Note(const std::vector<Node>& path, FoundNames* found) const {
  found->blocks = path;
  found->life = path.empty() ? 0 : tree_.life(path.back());
}

// ---- of leases ----------------------------------------------------------------------------------

bool TextNames::TakeInNext(Lease& lease, std::span<const int32_t> ids, const PrefixHash* hash) {
  const int64_t plain_end = PlainBlocksEnd(lease.policy, layout_);
  const bool under_policy = lease.sealed >= plain_end;
  while (under_policy && (blocks_under_policies_ + 1) * kBlocksUnderPolicies > tree_.capacity()) {
    if (!make_room_(Room::kUnderPolicy)) return false;
  }
  const bool marks = lease.sealed == plain_end;
  if (marks) PolicyMark(lease.policy, paging_, &mark_);
  const Node above = marks ? PinMark(lease.tip) : lease.tip;
  if (hash == nullptr) ++hashed_blocks_;
  Node node = above;
  if (above != PrefixTree::kNone)
    node = TakeIn(above, hash == nullptr ? tree_.HashBelow(above, ids) : *hash, ids);
  if (node != PrefixTree::kNone) {
    tree_.Pin(node);
    tree_.Unpin(std::exchange(lease.tip, node));
    lease.sealed += paging_.tokens();
    if (under_policy) ++blocks_under_policies_;
  }
  if (marks && above != PrefixTree::kNone) tree_.Unpin(above);
  return node != PrefixTree::kNone;
}

void TextNames::Follow(Lease& lease, Node tip, int64_t sealed) {
  lease.tip = tip;
  lease.sealed = sealed;
  tree_.Pin(tip);
  blocks_under_policies_ += BlocksUnderPolicy(lease);
}

void TextNames::Follow(Lease& lease, const Lease& from, int64_t end) {
  const int64_t plain_end = PlainBlocksEnd(from.policy, layout_);
  PolicyMark(from.policy, paging_, &mark_);
  const auto mark_blocks = paging_.PagesFor(std::ssize(mark_));
  Node tip = from.tip;
  int64_t sealed = from.sealed;
  while (sealed > end) {
    sealed -= paging_.tokens();
    const int64_t nodes = 1 + (sealed == plain_end ? mark_blocks : 0);
    for (int64_t node = 0; node < nodes; ++node) tip = tree_.above(tip);
  }
  lease.seals = from.seals;
  Follow(lease, tip, sealed);
}

void TextNames::LetGo(Lease& lease) {
  tree_.Unpin(lease.tip);
  blocks_under_policies_ -= BlocksUnderPolicy(lease);
  lease.tip = PrefixTree::kRoot;
  lease.sealed = 0;
  lease.seals = false;
}

int64_t TextNames::BlocksUnderPolicy(const Lease& lease) const {
  return paging_.PagesFor(std::max<int64_t>(0, lease.sealed - PlainBlocksEnd(lease.policy, layout_)));
}

}  // namespace tramontane
