// ByteBudget: how many bytes all holders of one kind may hold together. HeldBytes: one holder's
// share. A budget: any thread. A share: one thread at a time, and no longer than its budget. Always: a
// budget's bytes are the sum of its shares, and what is kept was charged when it came, not when it was
// announced.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tramontane {

class ByteBudget {
 public:
  explicit ByteBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  int64_t max_bytes() const { return max_bytes_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class HeldBytes;
  const int64_t max_bytes_;
  std::atomic<int64_t> bytes_{0};
};

class HeldBytes {
 public:
  explicit HeldBytes(ByteBudget& budget) : budget_(budget) {}
  HeldBytes(HeldBytes&& other) noexcept;
  HeldBytes& operator=(HeldBytes&& other) noexcept;  // of the same budget
  ~HeldBytes() { Set(0); }

  ByteBudget& budget() const { return budget_; }
  int64_t bytes() const { return bytes_; }
  // Whatever the others hold: for less than before, and for what has a bound of its own.
  void Set(int64_t bytes);
  // False, and nothing changed: there is no room for what this would be more.
  bool TrySet(int64_t bytes);
  // A part of it, for another holder.
  HeldBytes Split(int64_t bytes);

 private:
  ByteBudget& budget_;
  int64_t bytes_ = 0;
};

// Behind what is kept already and will have `most` bytes at most. A text of a megabyte is given room for all
// that it may become: memory that is not written costs nothing, and growing by halves would have it there
// twice.
void AppendArrived(std::string_view bytes, int64_t most, std::string* kept);

}  // namespace tramontane
