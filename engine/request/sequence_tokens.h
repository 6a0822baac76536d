// SequenceTokens: what the positions of a sequence hold: the prompt, which all choices of a request share,
// then its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/names/token_view.h"

namespace tramontane {

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
