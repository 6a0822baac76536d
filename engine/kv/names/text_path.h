// TextPath: the hashes of a text's blocks, each made once, by the thread that submits the text and then,
// token by token, as it is accepted. The store, transfers and sessions look blocks up by them.
//
// A block's hash says its tokens, all tokens in front of it, and the text's identity, whose marks stand
// between blocks of tokens. It is the same in every process of a release.
//
// Crafted texts can collide: 128 bits that are not cryptographic. The second of two such texts is then not
// found and not named (PrefixTree compares ids); it is computed, and its answer is as without a cache.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/names/paging.h"
#include "engine/kv/names/prefix_tree.h"
#include "engine/kv/names/text_identity.h"
#include "engine/kv/names/token_view.h"
#include "kernels/context_policy.h"

namespace tramontane {

class TextPath {
 public:
  // Of a text whose blocks nobody looks up.
  TextPath() = default;
  // `plain_end`: where the first block begins that is named by the policy; INT64_MAX: none is.
  TextPath(const TextIdentity& identity, int64_t plain_end, Paging paging,
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
  PrefixHash front_;  // of what stands in front of the first block
  PrefixHash last_;   // of what the next block is behind
  ContextPolicy policy_;
  int64_t plain_end_ = INT64_MAX;
  Paging paging_{1};
  PrefixHashFunction hash_ = nullptr;  // null: no block is hashed
};

}  // namespace tramontane
