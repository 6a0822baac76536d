// TokenTable: a vocabulary's texts by index, and the index of a text.
//
// Any thread once it is filled.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tramontane {

class TokenTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  TokenTable() : TokenTable(0) {}
  // For up to `tokens` texts.
  explicit TokenTable(size_t tokens) : slots_(std::bit_ceil(std::max<size_t>(2 * tokens, 2))) {
    begins_.reserve(tokens + 1);
    begins_.push_back(0);
  }

  // The index that it gets is the number of those before it. REQUIRES: not in the table; room for it.
  void Add(std::string_view text) {
    const uint32_t index = size();
    bytes_ += text;
    begins_.push_back(static_cast<uint32_t>(bytes_.size()));
    const uint64_t hash = HashOf(text);
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].index != kNone) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {index, CheckOf(hash)};
    max_bytes_ = std::max(max_bytes_, text.size());
  }

  uint32_t size() const { return static_cast<uint32_t>(begins_.size() - 1); }
  size_t max_bytes() const { return max_bytes_; }  // of the longest text
  std::string_view text(uint32_t index) const {
    return std::string_view(bytes_).substr(begins_[index], begins_[index + 1] - begins_[index]);
  }

  // kNone where no token has this text.
  uint32_t Find(std::string_view text) const {
    if (text.size() > max_bytes_) return kNone;
    const uint64_t hash = HashOf(text);
    const uint32_t check = CheckOf(hash);
    for (size_t at = hash & (slots_.size() - 1); slots_[at].index != kNone;
         at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].check == check && this->text(slots_[at].index) == text) return slots_[at].index;
    }
    return kNone;
  }

 private:
  struct Slot {
    uint32_t index = kNone;
    uint32_t check = 0;  // bits of the text's hash that did not choose the slot
  };

  static uint64_t Mix(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  static uint64_t Load(const char* bytes, size_t count) {
    uint64_t value = 0;
    std::memcpy(&value, bytes, count);
    return value;
  }
  // A product of eight bytes at a time, both halves kept. Of tokens, which are short; not for tables that
  // grow.
  static uint64_t HashOf(std::string_view text) {
    constexpr uint64_t kOne = 0x9E3779B97F4A7C15;
    constexpr uint64_t kTwo = 0xD6E8FEB86659FD93;
    uint64_t hash = text.size() * kTwo;
    const char* at = text.data();
    size_t left = text.size();
    for (; left > 8; left -= 8, at += 8) hash = Mix(hash ^ Load(at, 8), kOne);
    return Mix(hash ^ Load(at, left), kTwo);
  }
  static uint32_t CheckOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

  std::string bytes_;             // of all texts, one behind the other
  std::vector<uint32_t> begins_;  // by index, and the end
  std::vector<Slot> slots_;       // open addressing, a power of two, at most half full
  size_t max_bytes_ = 0;
};

}  // namespace tramontane
