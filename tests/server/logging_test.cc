// Logs never wait: who writes a line goes on at once, whatever becomes of the descriptor behind it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <sstream>
#include <string>

#include "server/setup/log_writer.h"

namespace tramontane {
namespace {

constexpr int64_t kPatienceMs = 60'000;  // never used up unless the test fails

// A pipe that takes one page, and a writer into it with room for `max_bytes`.
class Pipe {
 public:
  explicit Pipe(int64_t max_bytes = 1024) {
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(ends_.data(), O_CLOEXEC) != 0 || fcntl(ends_[1], F_SETPIPE_SZ, 4096) < 0) std::abort();
    LogWriterOptions options;
    options.fd = ends_[1];
    options.max_bytes = max_bytes;
    options.tell_dropped = [](int64_t dropped) { return "dropped " + std::to_string(dropped) + "\n"; };
    writer = LogWriter::Start(std::move(options)).value();
  }
  // The end that is written to stays open: a thread that is left behind knows it by its number.
  ~Pipe() { CloseReader(); }

  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }

  // Reads until the writer has nothing left.
  std::string ReadAll() {
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    std::string text;
    for (bool flushed = false; !flushed;) {
      flushed = writer->Flush(1);  // before the read: what it has written is then read
      std::array<char, 4096> buffer{};
      for (ssize_t n = 0; (n = read(ends_[0], buffer.data(), buffer.size())) > 0;) {
        text.append(buffer.data(), static_cast<size_t>(n));
      }
    }
    return text;
  }

  std::unique_ptr<LogWriter> writer;

 private:
  std::array<int, 2> ends_{};
};

std::string Line(int64_t number) { return "line " + std::to_string(number) + std::string(90, '.') + "\n"; }

TEST(LogWriter, WritesLinesInTheirOrder) {
  Pipe pipe;
  std::string expected;
  for (int64_t i = 0; i < 8; ++i) {
    pipe.writer->Write(Line(i));
    expected += Line(i);
  }
  EXPECT_EQ(pipe.ReadAll(), expected);
  EXPECT_EQ(pipe.writer->dropped(), 0);
}

TEST(LogWriter, APipeThatNobodyReadsStopsNobodyAndTheLossIsToldOnceItIsRead) {
  Pipe pipe;
  constexpr int64_t kLines = 1000;  // twenty times what pipe and buffer hold
  for (int64_t i = 0; i < kLines; ++i) pipe.writer->Write(Line(i));
  const int64_t dropped = pipe.writer->dropped();
  EXPECT_GT(dropped, kLines / 2);

  std::istringstream lines(pipe.ReadAll());
  int64_t kept = 0, told = 0;
  for (std::string word, rest; lines >> word && std::getline(lines, rest);) {
    if (word == "line") ++kept;
    if (word == "dropped") told += std::stoll(rest);
  }
  EXPECT_EQ(kept, kLines - dropped);
  EXPECT_EQ(told, dropped);

  pipe.writer->Write(Line(kLines));
  EXPECT_EQ(pipe.ReadAll(), Line(kLines)) << "a loss is told once";
}

TEST(LogWriter, FlushEndsWithItsTimeWhereNobodyReads) {
  Pipe pipe(1 << 20);
  for (int64_t i = 0; i < 100; ++i) pipe.writer->Write(Line(i));
  EXPECT_FALSE(pipe.writer->Flush(1));
}

TEST(LogWriter, GoesWhileItsThreadIsStuck) {
  Pipe pipe(1 << 20);
  for (int64_t i = 0; i < 100; ++i) pipe.writer->Write(Line(i));
  EXPECT_FALSE(pipe.writer->Flush(1));
  pipe.writer.reset();  // the pipe's end lets the thread go
}

TEST(LogWriter, LinesThatTheDescriptorRefusesAreCounted) {
  Pipe pipe;
  pipe.CloseReader();
  pipe.writer->Write(Line(1));
  EXPECT_TRUE(pipe.writer->Flush(kPatienceMs));
  EXPECT_EQ(pipe.writer->dropped(), 1);
}

}  // namespace
}  // namespace tramontane
