// OutputBuffer: what a connection has to write, until its client has taken it, and the clock that the client
// takes it by. On the connection's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/held_bytes.h"
#include "server/http/byte_socket.h"

namespace tramontane {

inline constexpr size_t kLeastTakenBytes = 64 << 10;  // of a write, or its rest, in write_timeout_ms
inline constexpr size_t kLeastTakenPart = 32;         // and at least this part of it where it is long

class OutputBuffer {
 public:
  enum class State {
    kWritten,  // the system has all of it
    kWaiting,  // until the socket has room
    kBroken,   // the socket is of no use any more
  };

  // `budget`: of what clients have not taken, and `client`, whose share of it this is.
  OutputBuffer(ByteBudget& budget, const std::string& client) : held_(budget, client) {}

  // Whether so many bytes more may be kept until they are taken. What the system is likely to take at once
  // needs no room before.
  bool TryHold(size_t bytes);
  // A long text is moved; short ones are joined, so that they leave in one write.
  void Append(std::string bytes);

  // Writes what it can without waiting. What is written is freed. Broken too where what is left finds no
  // room.
  State WriteTo(ByteSocket& socket, int64_t now_ms);
  bool is_waiting() const { return is_waiting_; }
  // A client that takes its answer crumb by crumb does not take it: only kLeastTakenBytes, and of a long one
  // one part in kLeastTakenPart, wind its clock up again.
  bool HasStalled(int64_t now_ms, int64_t timeout_ms) const {
    return is_waiting_ && now_ms - waiting_since_ms_ > timeout_ms;
  }

  void Clear();

 private:
  State Wait(int64_t now_ms);
  void Free(size_t bytes);
  void GiveBackPages();

  std::vector<std::string> texts_;  // of which [first_, ..) are not written
  size_t first_ = 0;
  size_t written_ = 0;     // of texts_[first_]
  size_t given_back_ = 0;  // of these, to the system
  size_t kept_ = 0;        // of all texts, as long as they are there
  HeldBytes held_;         // for these, while the client is waited for
  bool is_waiting_ = false;
  int64_t waiting_since_ms_ = 0;  // or since it took the least
  size_t least_taken_ = 0;
  size_t taken_bytes_ = 0;  // since then
};

}  // namespace tramontane
