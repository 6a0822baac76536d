#include "engine/kv/names/text_path.h"

#include <span>

namespace tramontane {
namespace {

PrefixHash BehindMark(PrefixHash above, std::span<const int32_t> mark, Paging paging,
                      PrefixHashFunction hash) {
  const auto block = static_cast<size_t>(paging.tokens());
  for (size_t begin = 0; begin < mark.size(); begin += block) above = hash(above, mark.subspan(begin, block));
  return above;
}

}  // namespace

TextPath::TextPath(const TextIdentity& identity, int64_t plain_end, Paging paging, PrefixHashFunction hash)
    : policy_(identity.policy), plain_end_(plain_end), paging_(paging), hash_(hash) {
  std::vector<int32_t> mark;
  SaltMark(identity.salt, paging, &mark);
  front_ = last_ = BehindMark({}, mark, paging, hash);
}

TextPath TextPath::Behind(const TextPath& prompt) {
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

int64_t TextPath::Extend(TokenView tokens, int64_t end) {
  if (hash_ == nullptr) return 0;
  std::vector<int32_t> scratch;
  const int64_t known = blocks();
  for (int64_t block = known; block < paging_.PageOf(end); ++block) {
    const int64_t begin = paging_.BeginOf(block);
    if (begin == plain_end_) {
      PolicyMark(policy_, paging_, &scratch);
      last_ = BehindMark(last_, scratch, paging_, hash_);
    }
    last_ = hash_(last_, tokens.Piece(begin, paging_.tokens(), &scratch));
    own_.push_back(last_);
  }
  return blocks() - known;
}

void TextPath::Clear() {
  prompt_ = nullptr;
  prompt_blocks_ = 0;
  own_.clear();
  last_ = front_;
}

}  // namespace tramontane
