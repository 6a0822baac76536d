// Logs never wait: who writes a line goes on at once, whatever becomes of the descriptor behind it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "server/call/trace_context.h"
#include "server/setup/log_writer.h"
#include "server/setup/logging.h"

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

// ---- the line of a request ------------------------------------------------------------------------

RequestLine Answered() {
  return {.generates = true,
          .id = "req-1",
          .key = "alice",
          .route = "/v1/completions",
          .model = "breeze",
          .prompt_tokens = 5,
          .output_tokens = 3,
          .ttft_ms = 1.25,
          .e2el_ms = 20.5,
          .status = "200",
          .outcome = RequestOutcome::kOk,
          .trace_id = "0af7651916cd43dd8448eb211c80319c"};
}

TEST(RequestLine, IsNamesAndValuesInTextAndFieldsInJson) {
  EXPECT_EQ(RequestLineText(Answered(), /*as_json=*/false),
            "event=request id=req-1 key=alice route=/v1/completions model=breeze prompt_tokens=5 "
            "output_tokens=3 ttft_ms=1.250 e2el_ms=20.500 status=200 outcome=ok "
            "trace_id=0af7651916cd43dd8448eb211c80319c");
  const auto json = nlohmann::json::parse("{" + RequestLineText(Answered(), /*as_json=*/true) + "}");
  EXPECT_EQ(json["event"], "request");
  EXPECT_EQ(json["prompt_tokens"], 5);
  EXPECT_EQ(json["ttft_ms"], 1.25);
  EXPECT_EQ(json["status"], "200");
  EXPECT_EQ(json.size(), 12u);
}

TEST(RequestLine, WhatIsNotKnownHasItsNameAllTheSame) {
  const RequestLine line = {.status = "404", .outcome = RequestOutcome::kRefused};
  EXPECT_EQ(
      RequestLineText(line, /*as_json=*/false),
      "event=request id=- key=- route=- model=- prompt_tokens=- output_tokens=- ttft_ms=- e2el_ms=0.000 "
      "status=404 outcome=refused trace_id=-");
  const auto json = nlohmann::json::parse("{" + RequestLineText(line, /*as_json=*/true) + "}");
  EXPECT_TRUE(json["key"].is_null() && json["prompt_tokens"].is_null() && json["ttft_ms"].is_null()) << json;
}

// What clients choose: an id, a path, a model, a prompt.
TEST(RequestLine, NothingFromOutsideEndsALineOrForgesAField) {
  const std::vector<std::string> hostile = {"a\nevent=request id=forged",
                                            "x status=200",
                                            "a\" status=\"200",
                                            "a\\\" b",
                                            "\x1b[2J\x1b]0;title\x07",
                                            "\xC2\x9B"
                                            "2J",
                                            "\r\n\t\v\f",
                                            std::string("nul\0nul", 7),
                                            "\xFF\xFE\x80",
                                            "\xE2\x80\xA8\xE2\x80\xA9",
                                            "\xE2\x80\xAE"
                                            "evil",
                                            "-",
                                            "a=b",
                                            "{\"a\":1}",
                                            std::string(1 << 20, 'x')};
  for (const std::string& text : hostile) {
    RequestLine line = Answered();
    line.id = line.key = line.route = line.model = line.trace_id = line.correlation_id = line.prompt = text;
    line.reason = line.error = line.message = text;
    const std::string words = RequestLineText(line, /*as_json=*/false);
    const std::string fields = "{" + RequestLineText(line, /*as_json=*/true) + "}";
    for (const std::string& printed : {words, fields}) {
      EXPECT_LT(printed.size(), 12u << 10);
      for (const char c : printed) EXPECT_TRUE(static_cast<unsigned char>(c) >= ' ' && c != 0x7f);
      for (const char* hidden : {"\xC2\x9B", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAE"}) {
        EXPECT_EQ(printed.find(hidden), std::string::npos);
      }
    }
    const auto json = nlohmann::json::parse(fields, nullptr, false);
    ASSERT_TRUE(json.is_object()) << fields;
    EXPECT_EQ(json["status"], "200");
    EXPECT_EQ(json["outcome"], "ok");
    EXPECT_EQ(json.size(), 17u);
    // Outside of quotes each name is there once.
    std::string bare;
    bool in_quotes = false;
    for (size_t i = 0; i < words.size(); ++i) {
      if (in_quotes && words[i] == '\\') {
        ++i;
      } else if (words[i] == '"') {
        in_quotes = !in_quotes;
      } else if (!in_quotes) {
        bare += words[i];
      }
    }
    EXPECT_FALSE(in_quotes) << words;
    EXPECT_EQ(std::count(bare.begin(), bare.end(), '='), 17) << bare;
    EXPECT_EQ(bare.find("status=200"), bare.rfind("status=")) << bare;
    EXPECT_EQ(bare.find("id=- "), std::string::npos) << "what a client calls - is told from nothing";
  }
}

TEST(RequestLine, OutcomesAreTheSameBehindEitherDoor) {
  using enum RequestOutcome;
  const auto of_call = [](StatusCode code, const std::string& reason, bool has_begun) {
    RpcError error;
    error.code = code;
    error.reason = reason;
    return EndOfCall(error, has_begun).outcome;
  };
  for (const auto& [code, reason, status] : std::vector<std::tuple<StatusCode, std::string, int>>{
           {StatusCode::kOk, "", 200},
           {StatusCode::kCancelled, "", 499},
           {StatusCode::kInvalidArgument, "", 400},
           {StatusCode::kUnauthenticated, "", 401},
           {StatusCode::kResourceExhausted, "QUEUE_FULL", 429},
           {StatusCode::kUnavailable, "DRAINING", 503},
           {StatusCode::kUnavailable, "STOPPED", 503},
           {StatusCode::kUnimplemented, "", 501},
           {StatusCode::kInternal, "", 500},
           {StatusCode::kDeadlineExceeded, "", 504}}) {
    std::string lower = reason;
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    for (const bool has_begun : {false, true}) {
      EXPECT_EQ(of_call(code, reason, has_begun), EndOfAnswer(status, lower, has_begun).outcome) << status;
    }
  }
  EXPECT_EQ(of_call(StatusCode::kResourceExhausted, "KEY_CONCURRENCY", false), kRefused);
  EXPECT_EQ(of_call(StatusCode::kResourceExhausted, "REQUEST_LIMIT", true), kError);
  EXPECT_EQ(of_call(StatusCode::kUnavailable, "STOPPED", false), kError);
  EXPECT_EQ(of_call(StatusCode::kCancelled, "", true), kCancelled);
}

// ---- traces ---------------------------------------------------------------------------------------

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, IsTakenAsItCame) {
  const TraceContext context = ReadTraceContext({kParent}, {"rojo=00f067aa0ba902b7 ,", " congo=t61 x"});
  EXPECT_EQ(context.parent, kParent);
  EXPECT_EQ(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(context.state, "rojo=00f067aa0ba902b7,congo=t61 x");
  EXPECT_EQ(ReadTraceContext({}, {"a=b"}).state, "") << "no state without a parent";
  EXPECT_EQ(TraceContext().trace_id(), "");
}

TEST(TraceContext, WhatIsMalformedIsAsIfItWereNotThere) {
  const std::string parent = kParent;
  std::vector<std::string> wrong = {"",           "00",        parent.substr(0, 54), parent + "-00",
                                    parent + " ", " " + parent};
  const auto with = [&parent](size_t at, const std::string& text) {
    std::string other = parent;
    return other.replace(at, text.size(), text);
  };
  wrong.push_back(with(0, "ff"));
  wrong.push_back(with(0, "0G"));
  wrong.push_back(with(2, "_"));
  wrong.push_back(with(3, "0AF7"));
  wrong.push_back(with(3, std::string(32, '0')));
  wrong.push_back(with(35, "_"));
  wrong.push_back(with(36, std::string(16, '0')));
  wrong.push_back(with(52, "0"));
  wrong.push_back(with(53, "0x"));
  wrong.push_back(with(0, "01") + "x");
  for (const std::string& text : wrong) {
    const TraceContext context = ReadTraceContext({text}, {"a=b"});
    EXPECT_EQ(context.parent + context.state, "") << text;
  }
  EXPECT_EQ(ReadTraceContext({kParent, kParent}, {}).parent, "") << "there may be one";
}

TEST(TraceContext, OfAVersionToComeTheKnownPartIsTaken) {
  const std::string rest = std::string(kParent).substr(2, 51);
  EXPECT_EQ(ReadTraceContext({"cc" + rest + "03-what-comes"}, {}).parent, "00" + rest + "01");
  EXPECT_EQ(ReadTraceContext({"cc" + rest + "fe"}, {}).parent, "00" + rest + "00");
}

TEST(TraceContext, AStateIsBoundedByWholeMembersAndNoneWithAFaultIsPassedOn) {
  const auto state_of = [](std::string_view state) { return ReadTraceContext({kParent}, {state}).state; };
  for (const char* wrong :
       {"a", "=b", "A=b", "a=", "a=b\nx", "a=\x7f", "a=b=c", "a@b@c=d", "_a=b", "a=\xC3\xA9"}) {
    EXPECT_EQ(state_of(wrong), "") << wrong;
  }
  EXPECT_EQ(state_of("0a@b-c*d/e_f=1"), "0a@b-c*d/e_f=1");
  const std::string is_long = "long=" + std::string(200, 'x');
  std::string many;
  for (int i = 0; i < 30; ++i) many += ",k" + std::to_string(i) + "=0123456789";
  const std::string kept = state_of(is_long + many);
  EXPECT_LE(kept.size(), kMaxTraceStateBytes);
  EXPECT_TRUE(kept.starts_with("k0=0123456789,") && kept.ends_with("=0123456789")) << kept;
  EXPECT_EQ(kept.find("long"), std::string::npos) << "members over 128 bytes go first";
  std::string short_ones;
  for (int i = 0; i < 40; ++i) short_ones += (i > 0 ? ",k" : "k") + std::to_string(i) + "=v";
  const std::string first = state_of(short_ones);
  EXPECT_EQ(std::count(first.begin(), first.end(), ',') + 1, 32);
}

}  // namespace
}  // namespace tramontane
