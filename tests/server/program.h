// The binary itself, started as a user starts it.
//
// Test thread only. Every wait has an end: a program that does not do what a test waits for is killed, and
// the test fails.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tramontane {

std::string TramontaneBinary();

struct ProgramOptions {
  std::string binary = TramontaneBinary();
  std::function<void()> in_child = {};  // between fork and exec: limits, ignored signals
  bool reads_err = true;                // false: standard error is a full pipe that nobody reads
};

// A run of the binary, its output gathered through pipes.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments, const ProgramOptions& options = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Reads until standard output holds a whole line, or the program has ended.
  std::string FirstLine();
  // Waits until there is any output.
  bool HasBegun();
  // Waits until standard error holds `text`; false when the program has ended without it.
  bool HasSaid(const std::string& text);
  void Signal(int signal);
  // The exit status; -signal when a signal ended it.
  int Wait();
  pid_t pid() const { return child_; }  // until it has ended
  // Of memory that it had at once, or the test when it started it, if that was more (Linux counts a fork's
  // too); known once it has ended.
  int64_t most_resident_bytes() const { return most_resident_bytes_; }

  const std::string& out() const { return stdout_; }
  const std::string& err() const { return stderr_; }

 private:
  // False when the program has closed both, or was killed for its silence.
  bool ReadSome();
  void ReadFrom(int fd, bool* open, std::string* text);

  pid_t child_ = -1;
  int out_ = -1, err_ = -1;
  int64_t most_resident_bytes_ = 0;
  bool out_open_ = true, err_open_ = true, ended_ = false;
  std::string stdout_, stderr_;
};

// A server with the embedded model on free ports, and its addresses.
struct Served {
  Program program;
  std::string address;  // of gRPC
  std::string http;

  explicit Served(const std::vector<std::string>& more = {}, const ProgramOptions& options = {});
  static std::vector<std::string> Arguments(const std::vector<std::string>& more = {});
};

}  // namespace tramontane
