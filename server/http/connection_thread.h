// ConnectionThread: where connections live, and the clock they live by. Everything that happens to a
// connection happens on its thread. A test has one that runs when it is told to, by a clock that the test
// moves.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

namespace tramontane {

class Connection;

class ConnectionThread {
 public:
  static constexpr size_t kReadBytes = 64 << 10;  // of one read

  ConnectionThread();
  virtual ~ConnectionThread();

  // ---- any thread ----
  // Runs `work` on the thread, soon. False, and nothing done, once the thread is gone.
  virtual bool Post(std::function<void()> work) = 0;
  virtual bool is_current() const = 0;
  virtual int64_t NowNs() const = 0;  // monotonic, since some start

  // Connections that can make room for a new one stand in a line; the place is theirs until they leave it.
  enum class Line {
    kIdle,       // they wait for a request
    kReading,    // part of one is there
    kOverLimit,  // one too many themselves, and their request is not all there
  };
  // Since when the one stands there that stands there longest.
  static constexpr int64_t kNobody = INT64_MAX;
  int64_t FirstSinceNs(Line line) const { return lines_[static_cast<size_t>(line)].first_since_ns; }

  // ---- on the thread ----
  int64_t NowMs() const { return NowNs() / 1'000'000; }
  std::span<char> read_buffer() { return read_buffer_; }  // of whichever connection reads

  void Add(std::shared_ptr<Connection> connection);
  void Remove(const std::shared_ptr<Connection>& connection);
  void Sweep();    // every connection looks at its clocks
  void StopAll();  // what is open may say its last words
  void CloseAll();

  struct Place {
    Line line;
    uint64_t number;
  };
  Place Join(Line line, Connection& connection);
  void Leave(Place place);
  // Closes the one that stands there longest, of those of a client where one is given. False: there is none.
  bool CloseFirst(Line line, const std::string& client = "");

 private:
  // visit(Connection&) for every one; what is added or removed meanwhile is so afterwards.
  template <typename Visit>
  void ForConnections(const Visit& visit);
  struct Waiting {
    Connection* connection = nullptr;
    int64_t since_ns = 0;
  };
  struct LineUp {
    std::map<uint64_t, Waiting> places;
    std::atomic<int64_t> first_since_ns = kNobody;
    // Before this number nobody is that client's: each place is looked at once for it.
    std::string looked_for;
    uint64_t looked_to = 0;
  };
  LineUp& LineOf(Line line) { return lines_[static_cast<size_t>(line)]; }

  std::unordered_set<std::shared_ptr<Connection>> connections_;
  bool is_visiting_ = false;
  std::vector<std::shared_ptr<Connection>> came_;  // while visiting
  std::vector<std::shared_ptr<Connection>> went_;
  std::array<LineUp, 3> lines_;
  uint64_t next_place_ = 0;
  std::array<char, kReadBytes> read_buffer_;
};

}  // namespace tramontane
