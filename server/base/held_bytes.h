// ByteBudget: how many bytes all holders of one kind may hold together. HeldBytes: what one holder has of it,
// for a client. A budget: any thread. A holder: one thread at a time; it holds
// nothing any more when its budget ends. Always:
// a budget's bytes are the sum of its holders', and what is kept was charged when it came, not when it was
// announced.
//
// Shares: however greedy a client is, a seventh of what it holds stays free for the others, and it has no
// more than half of the budget while another holds something. So one that comes finds room, also where
// several are greedy; and one that is alone has seven eighths.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tramontane {

// Whether a client may have `mine` of what all have together, of the most that there is.
bool FitsShare(int64_t mine, int64_t all, int64_t most);

class ByteBudget {
 public:
  explicit ByteBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  int64_t max_bytes() const { return max_bytes_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class HeldBytes;
  using Part = std::atomic<int64_t>;  // bytes of one client

  struct Parts {
    std::mutex mutex;                                                // guards the rest
    std::unordered_map<std::string, std::weak_ptr<Part>> of_client;  // those that have holders
  };

  std::shared_ptr<Part> PartOf(const std::string& client) const;

  const int64_t max_bytes_;
  std::atomic<int64_t> bytes_{0};
  const std::shared_ptr<Parts> parts_ = std::make_shared<Parts>();  // the holders of nothing may be the last
};

class HeldBytes {
 public:
  // Nobody's in particular: without a share.
  explicit HeldBytes(ByteBudget& budget) : budget_(budget) {}
  // `client`: whose share it counts in (AddressShare).
  HeldBytes(ByteBudget& budget, const std::string& client) : budget_(budget), part_(budget.PartOf(client)) {}
  HeldBytes(HeldBytes&& other) noexcept;
  HeldBytes& operator=(HeldBytes&& other) noexcept;  // of the same budget
  ~HeldBytes() { Set(0); }

  ByteBudget& budget() const { return budget_; }
  int64_t bytes() const { return bytes_; }
  // Whatever the others hold: for less than before, and for what has a bound of its own.
  void Set(int64_t bytes);
  // False, and nothing changed: there is no room for what this would be more.
  bool TrySet(int64_t bytes);
  // A part of it, for another holder. Of nothing: another holder of the same client.
  HeldBytes Split(int64_t bytes);

 private:
  HeldBytes(ByteBudget& budget, std::shared_ptr<ByteBudget::Part> part)
      : budget_(budget), part_(std::move(part)) {}

  ByteBudget& budget_;
  std::shared_ptr<ByteBudget::Part> part_;  // null: no share
  int64_t bytes_ = 0;
};

// Behind what is kept already and will have `most` bytes at most. A text of a megabyte is given room for all
// that it may become: memory that is not written costs nothing, and growing by halves would have it there
// twice.
void AppendArrived(std::string_view bytes, int64_t most, std::string* kept);

}  // namespace tramontane
