#include "engine/kv/names/text_path.h"

#include <span>

#include "kernels/paged_kv.h"

namespace tramontane {
namespace {

PrefixHash BehindMark(PrefixHash above, std::span<const int32_t> mark, int32_t page_size,
                      PrefixHashFunction hash) {
  const auto block = static_cast<size_t>(page_size);
  for (size_t begin = 0; begin < mark.size(); begin += block) above = hash(above, mark.subspan(begin, block));
  return above;
}

}  // namespace

TextPath::TextPath(const TextIdentity& identity, int64_t plain_end, int32_t page_size,
                   PrefixHashFunction hash)
    : policy_(identity.policy), plain_end_(plain_end), page_size_(page_size), hash_(hash) {
  std::vector<int32_t> mark;
  SaltMark(identity.salt, page_size, &mark);
  front_ = last_ = BehindMark({}, mark, page_size, hash);
}

TextPath TextPath::Behind(const TextPath& prompt) {
  TextPath path;
  path.prompt_ = &prompt;
  path.prompt_blocks_ = prompt.blocks();
  path.front_ = prompt.front_;
  path.last_ = prompt.last_;
  path.policy_ = prompt.policy_;
  path.plain_end_ = prompt.plain_end_;
  path.page_size_ = prompt.page_size_;
  path.hash_ = prompt.hash_;
  return path;
}

int64_t TextPath::Extend(TokenView tokens, int64_t end) {
  if (page_size_ == 0) return 0;
  std::vector<int32_t> scratch;
  const int64_t known = blocks();
  for (int64_t begin = known * page_size_; begin + page_size_ <= end; begin += page_size_) {
    if (begin == plain_end_) {
      PolicyMark(policy_, page_size_, &scratch);
      last_ = BehindMark(last_, scratch, page_size_, hash_);
    }
    last_ = hash_(last_, tokens.Piece(begin, page_size_, &scratch));
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
