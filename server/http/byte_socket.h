// ByteSocket: all that a Connection knows of its socket, so that a test can be the other side.
// On the connection's thread only. Always: nothing here waits.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tramontane {

class ByteSocket {
 public:
  static constexpr size_t kMostTexts = 16;

  enum class State {
    kOpen,    // go on
    kLater,   // nothing is there, or there is no room: wait
    kEnded,   // the other side sends no more
    kBroken,  // of no use any more
  };
  struct Progress {
    size_t bytes = 0;
    State state = State::kOpen;
  };

  virtual ~ByteSocket() = default;

  // Whose it is: a PlainAddress, without a port.
  virtual const std::string& peer() const = 0;

  virtual Progress Read(std::span<char> room) = 0;
  // Texts in a row, kMostTexts at most.
  virtual Progress Write(std::span<const std::string_view> texts) = 0;
  // Calls once, from the thread's loop, when a Read or a Write can do something. After Close it may call too.
  virtual void WhenReadable(std::function<void()> call) = 0;
  virtual void WhenWritable(std::function<void()> call) = 0;
  // With input left unread, the system alone knows whether the other side is still there.
  virtual bool HasHungUp() = 0;
  virtual void ShutdownSend() = 0;
  virtual void Close() = 0;
};

}  // namespace tramontane
