// TokenView: some tokens that lie in one piece or in two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tramontane {

// Borrowed, as a span is.
class TokenView {
 public:
  TokenView() = default;
  TokenView(std::span<const int32_t> tokens) : head_(tokens) {}     // NOLINT(google-explicit-constructor)
  TokenView(const std::vector<int32_t>& tokens) : head_(tokens) {}  // NOLINT(google-explicit-constructor)
  TokenView(std::span<const int32_t> head, std::span<const int32_t> tail) : head_(head), tail_(tail) {}

  int64_t size() const { return std::ssize(head_) + std::ssize(tail_); }
  TokenView First(int64_t count) const {
    const int64_t of_head = std::min(count, std::ssize(head_));
    return {head_.first(static_cast<size_t>(of_head)), tail_.first(static_cast<size_t>(count - of_head))};
  }
  // Tokens [begin, begin + count), where they lie if that is in one piece, else in `copy`.
  std::span<const int32_t> Piece(int64_t begin, int64_t count, std::vector<int32_t>* copy) const;
  // How many of the first tokens are those of `other`.
  int64_t CountAlike(std::span<const int32_t> other) const;
  std::vector<int32_t> ToVector() const;

 private:
  std::span<const int32_t> head_;
  std::span<const int32_t> tail_;
};

inline std::span<const int32_t> TokenView::Piece(int64_t begin, int64_t count,
                                                 std::vector<int32_t>* copy) const {
  const auto at = static_cast<size_t>(begin);
  const auto size = static_cast<size_t>(count);
  if (at + size <= head_.size()) return head_.subspan(at, size);
  if (at >= head_.size()) return tail_.subspan(at - head_.size(), size);
  const std::span<const int32_t> from_head = head_.subspan(at);
  const std::span<const int32_t> from_tail = tail_.first(size - from_head.size());
  copy->assign(from_head.begin(), from_head.end());
  copy->insert(copy->end(), from_tail.begin(), from_tail.end());
  return *copy;
}

inline int64_t TokenView::CountAlike(std::span<const int32_t> other) const {
  const auto alike = [](std::span<const int32_t> a, std::span<const int32_t> b) {
    return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  };
  const int64_t of_head = alike(head_, other);
  return of_head < std::ssize(head_) ? of_head : of_head + alike(tail_, other.subspan(head_.size()));
}

inline std::vector<int32_t> TokenView::ToVector() const {
  std::vector<int32_t> tokens(head_.begin(), head_.end());
  tokens.insert(tokens.end(), tail_.begin(), tail_.end());
  return tokens;
}

}  // namespace tramontane
