// TextPath: the hashes of a text's blocks, each made once, by the thread that submits the text and then,
// token by token, as it is accepted. The store, transfers and sessions look blocks up by them.
//
// A block's hash says its tokens, all tokens in front of it, and what else keys and values depend on: marks
// stand for that between blocks of tokens, in blocks of their own (SaltMark, PolicyMark). An adapter, or an
// image in place of tokens, would be a mark, too. It is the same in every process of a release.
//
// Crafted texts can collide: 128 bits that are not cryptographic. The second of two such texts is then not
// found and not named (PrefixTree compares ids); it is computed, and its answer is as without a cache.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/kv/names/prefix_tree.h"
#include "engine/kv/names/token_view.h"
#include "kernels/context_policy.h"

namespace tramontane {

// Whole blocks of ids in `mark`, which no tokens are: the first is negative. No block: there is nothing to
// say.
void SaltMark(std::string_view salt, int32_t page_size, std::vector<int32_t>* mark);
void PolicyMark(const ContextPolicy& policy, int32_t page_size, std::vector<int32_t>* mark);

class TextPath {
 public:
  // Of a text whose blocks nobody looks up.
  TextPath() = default;
  // `plain_end`: where the first block begins that is named by the policy; INT64_MAX: none is.
  TextPath(std::string_view salt, const ContextPolicy& policy, int64_t plain_end, int32_t page_size,
           PrefixHashFunction hash = ChainedHash);
  // A text that begins with that of `prompt`, which outlives it and stays as it is.
  static TextPath Behind(const TextPath& prompt);

  int64_t blocks() const { return prompt_blocks_ + std::ssize(own_); }
  const PrefixHash& at(int64_t block) const {
    return block < prompt_blocks_ ? prompt_->at(block) : own_[static_cast<size_t>(block - prompt_blocks_)];
  }
  // Hashes the whole blocks of tokens [0, end) that are not yet; returns how many. `tokens`: the text's.
  int64_t Extend(TokenView tokens, int64_t end);
  // Its tokens are others now.
  void Clear();
  int64_t bytes() const { return std::ssize(own_) * static_cast<int64_t>(sizeof(PrefixHash)); }

 private:
  const TextPath* prompt_ = nullptr;
  int64_t prompt_blocks_ = 0;
  std::vector<PrefixHash> own_;
  PrefixHash salt_;  // of what stands in front of the first block
  PrefixHash last_;  // of what the next block is behind
  ContextPolicy policy_;
  int64_t plain_end_ = INT64_MAX;
  int32_t page_size_ = 0;  // 0: no block is hashed
  PrefixHashFunction hash_ = nullptr;
};

}  // namespace tramontane
