#include "tests/server/program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace tramontane {
namespace {

constexpr int kMostSilenceMs = 120'000;

// Takes not one byte more.
void Fill(int pipe_end) {
  fcntl(pipe_end, F_SETFL, O_NONBLOCK);
  const std::array<char, 1> byte = {' '};
  while (write(pipe_end, byte.data(), 1) == 1) {
  }
  fcntl(pipe_end, F_SETFL, 0);
}

}  // namespace

std::string TramontaneBinary() {
  const char* path = std::getenv("TRAMONTANE_BINARY");
  return path == nullptr ? "build/release/bin/tramontane" : path;
}

Program::Program(std::vector<std::string> arguments, const ProgramOptions& options) {
  std::array<int, 2> out{}, err{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) std::abort();
  if (!options.reads_err) Fill(err[1]);
  arguments.insert(arguments.begin(), options.binary);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  child_ = fork();
  if (child_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    if (options.in_child) options.in_child();
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  err_open_ = options.reads_err;
}

Program::~Program() {
  if (!ended_) {
    kill(child_, SIGKILL);
    Wait();
  }
  close(out_);
  close(err_);
}

std::string Program::FirstLine() {
  while (stdout_.find('\n') == std::string::npos && ReadSome()) {
  }
  return stdout_.substr(0, stdout_.find('\n'));
}

bool Program::HasBegun() {
  while (stdout_.empty() && ReadSome()) {
  }
  return !stdout_.empty();
}

bool Program::HasSaid(const std::string& text) {
  while (stderr_.find(text) == std::string::npos && ReadSome()) {
  }
  return stderr_.find(text) != std::string::npos;
}

void Program::Signal(int signal) { kill(child_, signal); }

int Program::Wait() {
  while (ReadSome()) {
  }
  int status = 0;
  rusage used = {};
  wait4(child_, &status, 0, &used);
  most_resident_bytes_ = int64_t{used.ru_maxrss} << 10;
  ended_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool Program::ReadSome() {
  if (!out_open_ && !err_open_) return false;
  std::array<pollfd, 2> fds = {{{out_open_ ? out_ : -1, POLLIN, 0}, {err_open_ ? err_ : -1, POLLIN, 0}}};
  if (poll(fds.data(), fds.size(), kMostSilenceMs) <= 0) {
    ADD_FAILURE() << "silent for " << kMostSilenceMs << " ms, so it is killed. It said: " << stdout_
                  << stderr_;
    kill(child_, SIGKILL);
    return false;
  }
  if (fds[0].revents != 0) ReadFrom(out_, &out_open_, &stdout_);
  if (fds[1].revents != 0) ReadFrom(err_, &err_open_, &stderr_);
  return true;
}

void Program::ReadFrom(int fd, bool* open, std::string* text) {
  std::array<char, 4096> buffer{};
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  *open = count > 0;
  if (count > 0) text->append(buffer.data(), static_cast<size_t>(count));
}

Served::Served(const std::vector<std::string>& more, const ProgramOptions& options)
    : program(Arguments(more), options) {
  const std::string line = program.FirstLine();
  EXPECT_THAT(line, testing::StartsWith("ready {"));
  if (!line.starts_with("ready ")) return;
  const auto json = nlohmann::json::parse(line.substr(std::string("ready ").size()), nullptr, false);
  if (!json.is_object()) return;
  address = json.value("grpc", "");
  http = json.value("http", "");
}

std::vector<std::string> Served::Arguments(const std::vector<std::string>& more) {
  std::vector<std::string> all = {"serve", "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace tramontane
