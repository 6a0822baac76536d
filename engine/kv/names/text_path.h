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
#include <span>
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
           PrefixHashFunction hash = ChainedHash)
      : policy_(identity.policy), plain_end_(plain_end), paging_(paging), hash_(hash) {
    std::vector<int32_t> mark;
    SaltMark(identity.salt, paging, &mark);
    PassMark(mark);
    front_ = last_;
  }
  // A text that begins with that of `prompt`, which outlives it and stays as it is.
  static TextPath Behind(const TextPath& prompt) {
    TextPath path;
    path.prompt_ = &prompt;
    path.prompt_blocks_ = prompt.blocks();
    path.front_ = prompt.front_;
    path.last_ = prompt.last_;
    path.policy_ = prompt.policy_;
    path.plain_end_ = prompt.plain_end_;
    path.paging_ = prompt.paging_;
    path.hash_ = prompt.hash_;
    return path;
  }

  int64_t blocks() const { return prompt_blocks_ + std::ssize(own_); }
  const PrefixHash& at(int64_t block) const {
    return block < prompt_blocks_ ? prompt_->at(block) : own_[static_cast<size_t>(block - prompt_blocks_)];
  }
  // Hashes the whole blocks of tokens [0, end) that are not yet; returns how many. `tokens`: the text's.
  int64_t Extend(TokenView tokens, int64_t end) {
    if (hash_ == nullptr) return 0;
    std::vector<int32_t> scratch;
    const int64_t known = blocks();
    for (int64_t block = known; block < paging_.PageOf(end); ++block) {
      const int64_t begin = paging_.BeginOf(block);
      if (begin == plain_end_) {
        PolicyMark(policy_, paging_, &scratch);
        PassMark(scratch);
      }
      last_ = hash_(last_, tokens.Piece(begin, paging_.tokens(), &scratch));
      own_.push_back(last_);
    }
    return blocks() - known;
  }
  // Its tokens are others now.
  void Clear() {
    prompt_ = nullptr;
    prompt_blocks_ = 0;
    own_.clear();
    last_ = front_;
  }
  int64_t bytes() const { return std::ssize(own_) * static_cast<int64_t>(sizeof(PrefixHash)); }

 private:
  void PassMark(std::span<const int32_t> mark) {
    const auto block = static_cast<size_t>(paging_.tokens());
    for (size_t at = 0; at < mark.size(); at += block) last_ = hash_(last_, mark.subspan(at, block));
  }

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
