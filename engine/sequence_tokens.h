// SequenceTokens: what the positions of a sequence hold: the prompt, which all choices of a request share,
// then its own. TokenView: some tokens that lie in one piece or in two.
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

class SequenceTokens {
 public:
  SequenceTokens() = default;
  // `prompt` is borrowed: it outlives the sequence, and stays as it is.
  explicit SequenceTokens(const std::vector<int32_t>& prompt) : shared_(prompt) {}
  explicit SequenceTokens(std::vector<int32_t>&&) = delete;

  size_t size() const { return shared_.size() + own_.size(); }
  bool empty() const { return size() == 0; }
  int32_t operator[](size_t position) const {
    return position < shared_.size() ? shared_[position] : own_[position - shared_.size()];
  }
  operator TokenView() const { return {shared_, own_}; }  // NOLINT(google-explicit-constructor)

  void push_back(int32_t token) { own_.push_back(token); }
  // Takes `count` tokens out; those behind move up, and are the sequence's own from then on.
  void Erase(int64_t begin, int64_t count);

 private:
  std::span<const int32_t> shared_;
  std::vector<int32_t> own_;
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

inline void SequenceTokens::Erase(int64_t begin, int64_t count) {
  const auto end = static_cast<size_t>(begin + count);
  if (static_cast<size_t>(begin) < shared_.size()) {
    if (end < shared_.size()) {
      const std::span<const int32_t> behind = shared_.subspan(end);
      own_.insert(own_.begin(), behind.begin(), behind.end());
    } else {
      own_.erase(own_.begin(), own_.begin() + static_cast<std::ptrdiff_t>(end - shared_.size()));
    }
    shared_ = shared_.first(static_cast<size_t>(begin));
    return;
  }
  const auto first = own_.begin() + (begin - std::ssize(shared_));
  own_.erase(first, first + count);
}

}  // namespace tramontane
