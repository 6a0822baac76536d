// Whole answers as servers send them, cut at every byte: the record must be the same, and each of its stamps
// that of the read which completed what is stamped.
#include "bench/load/wire/answer_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test_seed.h"

namespace tramontane::load {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNotStamped = -1;

std::string Chunk(const std::string& body) {
  char size[20];
  std::snprintf(size, sizeof(size), "%zx", body.size());
  return std::string(size) + "\r\n" + body + "\r\n";
}

std::string Data(const std::string& json) { return "data: " + json + "\n\n"; }
std::string Text(const std::string& text) {
  return R"({"choices":[{"index":0,"text":")" + text + R"(","finish_reason":null}]})";
}

const std::string kStop = R"({"choices":[{"index":0,"text":"","finish_reason":"length"}]})";
const std::string kUsage = R"({"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":5}})";
const std::string kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const std::string kCloseHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

struct Transcript {
  std::string name;
  std::string bytes;
  bool closes = false;  // the server closes behind them
  Outcome outcome = Outcome::kOk;
  size_t content_events = 0;
  int32_t output_tokens = 0;
  TokenCountFrom from = TokenCountFrom::kEvents;
  bool reusable = false;
  int32_t status = 200;
};

std::vector<Transcript> Transcripts() {
  std::vector<Transcript> all;
  all.push_back({"chunked, one event a chunk",
                 kStreamHead + Chunk(Data(Text("a"))) + Chunk(Data(Text("b"))) + Chunk(Data(kStop)) +
                     Chunk(Data(kUsage)) + Chunk("data: [DONE]\n\n") + "0\r\n\r\n",
                 false, Outcome::kOk, 2, 5, TokenCountFrom::kUsage, true});
  const std::string stream = ": hello\r\n\r\n" + Data(Text("\u00e9\U0001f600")) +
                             "event: message\r\ndata: {\"choices\":\r\ndata: [{\"text\":\"x\"}]}\r\n\r\n" +
                             "data:" + kStop + "\r\r" + ": ping\n\n" + "data: [DONE]\n\n";
  std::string small_chunks;  // which cut code points, lines and ends of lines
  for (size_t at = 0; at < stream.size(); at += 7) small_chunks += Chunk(stream.substr(at, 7));
  all.push_back({"chunks that cut everything", kStreamHead + small_chunks + "0\r\nX-Trailer: 1\r\n\r\n",
                 false, Outcome::kOk, 2, 2, TokenCountFrom::kEvents, true});
  all.push_back(
      {"chunk extensions, an interim reply, lower case",
       "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200\r\ntransfer-encoding: CHUNKED\r\n\r\n" +
           std::string("2F;name=\"v\"\r\n") + Data(R"({"choices":[{"text":"abc"}],"pad":123})") + "\r\n" +
           Chunk(Data(kStop)) + "0\r\n\r\n",
       false, Outcome::kOk, 1, 1, TokenCountFrom::kEvents, true});
  all.push_back({"no length, closed behind [DONE]", kCloseHead + Data(Text("a")) + "data: [DONE]\n\n", true,
                 Outcome::kOk, 1, 1});
  all.push_back({"no length, closed behind a finish", kCloseHead + Data(Text("a")) + Data(kStop), true,
                 Outcome::kOk, 1, 1});
  all.push_back(
      {"HTTP/1.0", "HTTP/1.0 200 OK\n\n" + Data(Text("a")) + Data(kStop), true, Outcome::kOk, 1, 1});
  all.push_back({"closed before a finish", kCloseHead + Data(Text("a")) + Data(Text("b")), true,
                 Outcome::kClosedEarly, 2, 2});
  all.push_back({"closed inside an event", kCloseHead + Data(Text("a")) + "data: {\"choi", true,
                 Outcome::kClosedEarly, 1, 1});
  all.push_back({"closed inside a chunk, behind a finish",
                 kStreamHead + Chunk(Data(Text("a"))) + Chunk(Data(kStop)) + "1f\r\ndata", true, Outcome::kOk,
                 1, 1});
  all.push_back({"closed inside the head", "HTTP/1.1 200 OK\r\nContent-Ty", true, Outcome::kClosedEarly, 0, 0,
                 TokenCountFrom::kEvents, false, 0});
  all.push_back({"ended by a chunk, without a finish", kStreamHead + Chunk(Data(Text("a"))) + "0\r\n\r\n",
                 false, Outcome::kClosedEarly, 1, 1, TokenCountFrom::kEvents, true});
  all.push_back({"ids without usage",
                 kStreamHead + Chunk(Data(R"({"choices":[{"text":"","token_ids":[4,5]}]})")) +
                     Chunk(Data(R"({"choices":[{"text":"x","token_ids":[6]}]})")) + Chunk("data: [DONE]\n\n"),
                 false, Outcome::kOk, 2, 3, TokenCountFrom::kIds});
  all.push_back({"logprobs without usage",
                 kStreamHead + Chunk(Data(R"({"choices":[{"text":"xy","logprobs":{"tokens":["x","y"]}}]})")) +
                     Chunk("data: [DONE]\n\n"),
                 false, Outcome::kOk, 1, 2, TokenCountFrom::kLogprobs});
  all.push_back({"an error after tokens",
                 kStreamHead + Chunk(Data(Text("a"))) + Chunk(Data(R"({"error":{"message":"lost a page"}})")),
                 false, Outcome::kStreamError, 1, 1});
  all.push_back({"an event called error", kStreamHead + Chunk("event: error\ndata: overloaded\n\n"), false,
                 Outcome::kStreamError, 0, 0});
  all.push_back({"role, empty, finish, usage, [DONE]: nothing of content",
                 kStreamHead + Chunk(Data(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})")) +
                     Chunk(Data(kStop)) + Chunk(Data(R"({"choices":[],"usage":{"completion_tokens":0}})")) +
                     Chunk("data: [DONE]\n\n") + "0\r\n\r\n",
                 false, Outcome::kOk, 0, 0, TokenCountFrom::kUsage, true});
  const auto no_tokens = [&](const std::string& name, const std::string& events, Outcome outcome,
                             TokenCountFrom from = TokenCountFrom::kEvents) {
    all.push_back(
        {"no tokens: " + name, kStreamHead + Chunk(events) + "0\r\n\r\n", false, outcome, 0, 0, from, true});
  };
  const std::string done = "data: [DONE]\n\n";
  const std::string empty_chat = R"({"choices":[{"delta":{"content":""},"finish_reason":"stop"}]})";
  const std::string none = R"({"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}})";
  const std::string role = R"({"choices":[{"delta":{"role":"assistant","content":""}}]})";
  no_tokens("an empty chunk that finishes, usage", Data(empty_chat) + Data(none) + done, Outcome::kOk,
            TokenCountFrom::kUsage);
  no_tokens(
      "usage in the chunk that finishes",
      Data(R"({"choices":[{"text":"","finish_reason":"stop"}],"usage":{"completion_tokens":0}})") + done,
      Outcome::kOk, TokenCountFrom::kUsage);
  no_tokens("an empty chunk that finishes", Data(empty_chat) + done, Outcome::kOk);
  no_tokens("role, finish, no [DONE]", Data(role) + Data(kStop), Outcome::kOk);
  no_tokens("a call's name alone",
            Data(R"({"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":""}}]}}]})") +
                Data(R"({"choices":[{"delta":{},"finish_reason":"tool_calls"}]})") + done,
            Outcome::kOk);
  no_tokens("usage of none alone", Data(none) + done, Outcome::kOk, TokenCountFrom::kUsage);
  no_tokens("[DONE] alone", done, Outcome::kNoContent);
  no_tokens("role alone", Data(role) + done, Outcome::kNoContent);
  no_tokens("role alone, no [DONE]", Data(role), Outcome::kNoContent);
  no_tokens("finished by an error", Data(R"({"choices":[{"text":"","finish_reason":"error"}]})") + done,
            Outcome::kStreamError);
  no_tokens("finished by an abort",
            Data(role) + Data(R"({"choices":[{"delta":{},"finish_reason":"abort"}]})") + done,
            Outcome::kStreamError);
  no_tokens("llama.cpp's field of an error", "error: {\"code\":500,\"message\":\"full\"}\n\n" + done,
            Outcome::kStreamError);
  all.push_back({"no tokens, closed behind the finish", kCloseHead + Data(empty_chat), true, Outcome::kOk});
  all.push_back({"no tokens, closed before a finish", kCloseHead + Data(role), true, Outcome::kClosedEarly});
  all.push_back({"tokens that were not shown",
                 kStreamHead + Chunk(Data(role) + Data(kStop) + Data(kUsage) + done) + "0\r\n\r\n", false,
                 Outcome::kOk, 0, 5, TokenCountFrom::kUsage, true});
  all.push_back({"usage of tokens and no choice", kStreamHead + Chunk(Data(kUsage) + done) + "0\r\n\r\n",
                 false, Outcome::kNoContent, 0, 5, TokenCountFrom::kUsage, true});
  all.push_back({"a count of none beside content",
                 kStreamHead + Chunk(Data(none) + Data(Text("a")) + Data(kStop) + done) + "0\r\n\r\n", false,
                 Outcome::kOk, 1, 1, TokenCountFrom::kEvents, true});
  all.push_back({"an empty body", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, Outcome::kNoContent,
                 0, 0, TokenCountFrom::kEvents, true});
  all.push_back({"429",
                 "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\nContent-Length: 29\r\n\r\n"
                 R"({"error":{"message":"queue"}})",
                 false, Outcome::kHttpError, 0, 0, TokenCountFrom::kEvents, true, 429});
  all.push_back({"503 to the close", "HTTP/1.1 503 No\r\n\r\nbusy", true, Outcome::kHttpError, 0, 0,
                 TokenCountFrom::kEvents, false, 503});
  all.push_back({"204", "HTTP/1.1 204 No Content\r\n\r\n", false, Outcome::kHttpError, 0, 0,
                 TokenCountFrom::kEvents, true, 204});
  const auto garbage = [&](const std::string& name, const std::string& bytes, size_t content,
                           int32_t status) {
    all.push_back({name, bytes, false, Outcome::kGarbage, content, static_cast<int32_t>(content),
                   TokenCountFrom::kEvents, false, status});
  };
  garbage("not HTTP", "SSH-2.0-OpenSSH_9.2p1\r\n", 0, 0);
  garbage("HTTP/2", "HTTP/2 200\r\n\r\n", 0, 0);
  garbage("not a status", "HTTP/1.1 20x OK\r\n\r\n", 0, 0);
  garbage("not a header", "HTTP/1.1 200 OK\r\nno header\r\n\r\n", 0, 0);
  garbage("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 0, 0);
  garbage("a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 0, 0);
  garbage("not a chunk's size", kStreamHead + Chunk(Data(Text("a"))) + "xyz\r\n", 1, 200);
  garbage("a chunk longer than it says", kStreamHead + "2\r\n: x\r\n", 0, 200);
  garbage("not JSON", kStreamHead + Chunk(Data(Text("a"))) + Chunk(Data("{\"choices\":[")), 1, 200);
  garbage("not an event stream", "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 1}", 0, 200);
  garbage("HTML", kStreamHead + Chunk("<html>\n"), 0, 200);
  garbage("compressed", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 0, 200);
  return all;
}

struct Reading {
  RequestRecord record;
  bool complete = false;
  bool reusable = false;
};

// Reads `bytes` cut behind each of `cuts` (ascending). A read's stamp is the number of bytes before its end.
Reading ReadCut(const Transcript& transcript, const std::vector<size_t>& cuts) {
  Reading reading;
  static const AnswerRules rules;
  AnswerReader reader(&reading.record, rules);
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : transcript.bytes.size();
    reader.Read(std::string_view(transcript.bytes).substr(begin, end - begin), static_cast<int64_t>(end));
    begin = end;
  }
  if (transcript.closes) reader.Close(static_cast<int64_t>(transcript.bytes.size()), "closed");
  reading.complete = reader.complete();
  reading.reusable = reader.reusable();
  return reading;
}

std::vector<size_t> EveryByte(const Transcript& transcript) {
  std::vector<size_t> cuts;
  for (size_t at = 1; at < transcript.bytes.size(); ++at) cuts.push_back(at);
  return cuts;
}

// The end of the read that brought the byte before `end`.
int64_t ReadOf(int64_t end, const std::vector<size_t>& cuts, size_t size) {
  for (const size_t cut : cuts) {
    if (static_cast<int64_t>(cut) >= end) return static_cast<int64_t>(cut);
  }
  return static_cast<int64_t>(size);
}

void ExpectSame(const Transcript& transcript, const Reading& by_bytes, const std::vector<size_t>& cuts) {
  const Reading cut = ReadCut(transcript, cuts);
  const auto stamp = [&](const std::optional<int64_t>& end) {
    return end ? ReadOf(*end, cuts, transcript.bytes.size()) : kNotStamped;
  };
  const RequestRecord& want = by_bytes.record;
  const RequestRecord& got = cut.record;
  ASSERT_EQ(cut.complete, by_bytes.complete);
  ASSERT_EQ(cut.reusable, by_bytes.reusable);
  ASSERT_EQ(got.outcome, want.outcome);
  ASSERT_EQ(got.error.empty(), want.error.empty());
  ASSERT_EQ(got.status, want.status);
  ASSERT_EQ(got.output_tokens, want.output_tokens);
  ASSERT_EQ(got.output_tokens_from, want.output_tokens_from);
  ASSERT_EQ(got.input_tokens, want.input_tokens);
  ASSERT_EQ(got.retry_after_s, want.retry_after_s);
  ASSERT_EQ(got.headers_ns.value_or(kNotStamped), stamp(want.headers_ns));
  ASSERT_EQ(got.first_any_ns.value_or(kNotStamped), stamp(want.first_any_ns));
  ASSERT_EQ(got.done_ns.value_or(kNotStamped), stamp(want.done_ns));
  ASSERT_EQ(got.content_ns.size(), want.content_ns.size());
  for (size_t i = 0; i < got.content_ns.size(); ++i) ASSERT_EQ(got.content_ns[i], stamp(want.content_ns[i]));
}

TEST(AnswerReader, TellsEachKindOfAnswer) {
  for (const Transcript& transcript : Transcripts()) {
    SCOPED_TRACE(transcript.name);
    const Reading reading = ReadCut(transcript, {});
    EXPECT_TRUE(reading.complete);
    EXPECT_EQ(OutcomeName(reading.record.outcome, reading.record.status),
              OutcomeName(transcript.outcome, transcript.status))
        << reading.record.error;
    EXPECT_EQ(reading.record.content_ns.size(), transcript.content_events);
    EXPECT_EQ(reading.record.output_tokens, transcript.output_tokens);
    EXPECT_EQ(reading.record.output_tokens_from, transcript.from);
    EXPECT_EQ(reading.record.status, transcript.status);
    EXPECT_EQ(reading.reusable, transcript.reusable);
    EXPECT_EQ(reading.record.error.empty(), transcript.outcome == Outcome::kOk) << reading.record.error;
  }
}

TEST(AnswerReader, AnyCutInTwoGivesTheSameRecord) {
  for (const Transcript& transcript : Transcripts()) {
    SCOPED_TRACE(transcript.name);
    const Reading by_bytes = ReadCut(transcript, EveryByte(transcript));
    for (size_t cut = 0; cut <= transcript.bytes.size(); ++cut) {
      SCOPED_TRACE("cut at " + std::to_string(cut));
      ExpectSame(transcript, by_bytes, {cut});
    }
  }
}

TEST(AnswerReader, AnyCutsGiveTheSameRecord) {
  std::mt19937_64 random(TestSeed());
  for (const Transcript& transcript : Transcripts()) {
    SCOPED_TRACE(transcript.name);
    const Reading by_bytes = ReadCut(transcript, EveryByte(transcript));
    for (int i = 0; i < 100; ++i) {
      std::vector<size_t> cuts(1 + random() % 8);
      for (size_t& cut : cuts) cut = random() % (transcript.bytes.size() + 1);
      std::sort(cuts.begin(), cuts.end());
      ExpectSame(transcript, by_bytes, cuts);
    }
  }
}

// "data: x\r\n\r\n" is complete with the CR of its blank line; "\n\n" with the second LF.
TEST(AnswerReader, AnEventBelongsToTheReadOfItsBlankLine) {
  for (const std::string line_end : {"\n", "\r\n", "\r"}) {
    const std::string event = "data: " + Text("a") + line_end;
    const Transcript transcript{"", kCloseHead + event + line_end + "data: [DONE]" + line_end + line_end,
                                true};
    const Reading reading = ReadCut(transcript, EveryByte(transcript));
    ASSERT_EQ(reading.record.content_ns.size(), 1u);
    EXPECT_EQ(reading.record.content_ns[0], static_cast<int64_t>((kCloseHead + event).size() + 1));
    EXPECT_EQ(reading.record.headers_ns, static_cast<int64_t>(kCloseHead.size()));
  }
}

TEST(AnswerReader, EventsOfOneReadShareItsStamp) {
  const Transcript transcript{"", kStreamHead + Chunk(Data(Text("a")) + Data(Text("b")) + Data(Text("c")))};
  const Reading reading = ReadCut(transcript, {kStreamHead.size()});
  const auto end = static_cast<int64_t>(transcript.bytes.size());
  EXPECT_THAT(reading.record.content_ns, ::testing::ElementsAre(end, end, end));
  EXPECT_FALSE(reading.complete);
}

TEST(AnswerReader, RetryAfterIsReadInItsThreeForms) {
  const auto read = [](const std::string& header) {
    const Transcript transcript{"", "HTTP/1.1 429 No\r\n" + header + "\r\nContent-Length: 0\r\n\r\n"};
    return ReadCut(transcript, {}).record.retry_after_s;
  };
  EXPECT_EQ(read("Retry-After: 3"), 3.0);
  EXPECT_EQ(read("retry-after: 0.25"), 0.25);
  EXPECT_EQ(read("retry-after-ms: 1500"), 1.5);
  EXPECT_EQ(read("Retry-After: Sun, 06 Nov 1994 08:49:37 GMT"), 0.0);
  EXPECT_EQ(read("Retry-After: soon"), std::nullopt);
  EXPECT_EQ(read("X: y"), std::nullopt);
}

TEST(AnswerReader, AHeadHasABound) {
  RequestRecord record;
  const AnswerRules rules;
  AnswerReader reader(&record, rules);
  reader.Read("HTTP/1.1 200 OK\r\n", 1);
  for (int i = 0; i < 100 && !reader.complete(); ++i) reader.Read("X: " + std::string(1000, 'x') + "\r\n", 2);
  EXPECT_EQ(record.outcome, Outcome::kGarbage);
  EXPECT_THAT(record.error, HasSubstr("65536"));
}

TEST(AnswerReader, InterimRepliesWithoutEndAreBoundedToo) {
  RequestRecord record;
  const AnswerRules rules;
  AnswerReader reader(&record, rules);
  for (int i = 0; i < 4000 && !reader.complete(); ++i) reader.Read("HTTP/1.1 100 Continue\r\n\r\n", i);
  EXPECT_EQ(record.outcome, Outcome::kGarbage);
}

TEST(AnswerReader, ATokenizerCountsWhereTheServerTellsNothing) {
  RequestRecord record;
  AnswerRules rules;
  rules.count_tokens = [](const std::string& text) { return static_cast<int32_t>(text.size()) * 10; };
  AnswerReader reader(&record, rules);
  reader.Read(kStreamHead + Chunk(Data(Text("ab"))) + Chunk(Data(Text("c"))) + Chunk("data: [DONE]\n\n"), 1);
  EXPECT_TRUE(reader.complete());
  EXPECT_EQ(record.output_tokens, 30);
  EXPECT_EQ(record.output_tokens_from, TokenCountFrom::kTokenizer);

  // Tokenizers that add a first token count one in nothing.
  RequestRecord empty;
  rules.count_tokens = [](const std::string&) { return 1; };
  AnswerReader of_nothing(&empty, rules);
  of_nothing.Read(kStreamHead + Chunk(Data(kStop)) + Chunk("data: [DONE]\n\n"), 1);
  EXPECT_EQ(empty.outcome, Outcome::kOk);
  EXPECT_EQ(empty.output_tokens, 0);
}

TEST(AnswerReader, ASecretThatAServerRepeatsIsInNoRecord) {
  RequestRecord record;
  AnswerRules rules;
  rules.secret = "sk-0123456789";
  AnswerReader reader(&record, rules);
  const std::string body =
      R"({"error":{"message":")" + std::string(70, '-') + R"(Incorrect key sk-0123456789"}})";
  reader.Read("HTTP/1.1 401 No\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body, 1);
  EXPECT_EQ(record.outcome, Outcome::kHttpError);
  EXPECT_THAT(record.error, Not(HasSubstr("sk-0")));
}

TEST(AnswerReader, NothingChangesARecordThatIsComplete) {
  RequestRecord record;
  const AnswerRules rules;
  AnswerReader reader(&record, rules);
  reader.Read(kStreamHead + Chunk(Data(Text("a"))) + Chunk("data: [DONE]\n\n"), 1);
  ASSERT_TRUE(reader.complete());
  reader.Read(Chunk(Data(Text("b"))) + "0\r\n\r\n", 2);
  EXPECT_EQ(record.content_ns.size(), 1u);
  EXPECT_TRUE(reader.reusable());
  reader.Read("HTTP/1.1 200 OK\r\n", 3);
  EXPECT_FALSE(reader.reusable());
}

TEST(AnswerReader, NoTimeToTryAgainIsBeyondNumbers) {
  for (const char* header : {"Retry-After-Ms: infinity", "Retry-After-Ms: inf", "Retry-After-Ms: nan",
                             "Retry-After: inf", "Retry-After: -nan", "Retry-After: 1e999"}) {
    const Transcript transcript{
        "", "HTTP/1.1 429 No\r\n" + std::string(header) + "\r\nContent-Length: 0\r\n\r\n"};
    EXPECT_EQ(ReadCut(transcript, {}).record.retry_after_s, std::nullopt) << header;
  }
}

// The standard gives out an event for "data" alone, and servers send it to keep a stream alive.
TEST(AnswerReader, AnEventOfEmptyDataIsNothing) {
  const Transcript transcript{
      "", kCloseHead + "data\n\n" + Data(Text("a")) + "data:\n\ndata: \n\n" + "data: [DONE]\n\n", true};
  const RequestRecord record = ReadCut(transcript, {}).record;
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
  EXPECT_EQ(record.content_ns.size(), 1u);
}

TEST(AnswerReader, AnEmptyFinishReasonIsNone) {
  const Transcript transcript{"", kCloseHead + Data(R"({"choices":[{"text":"a","finish_reason":""}]})"),
                              true};
  EXPECT_EQ(ReadCut(transcript, {}).record.outcome, Outcome::kClosedEarly);
}

TEST(AnswerReader, TimingIsKeptWhereItIsAskedForAndShort) {
  const auto timing_of = [](const std::string& timing, bool wants_timing) {
    RequestRecord record;
    AnswerRules rules;
    rules.wants_timing = wants_timing;
    rules.secret = "sk-secret/1";
    AnswerReader reader(&record, rules);
    reader.Read(kStreamHead + Chunk(Data(R"({"choices":[],"timing":)" + timing + "}")), 1);
    return record.timing_json;
  };
  EXPECT_EQ(timing_of(R"({"queue_ms":1.5})", true), R"({"queue_ms":1.5})");
  EXPECT_EQ(timing_of(R"({"queue_ms":1.5})", false), "");
  EXPECT_EQ(timing_of(R"({"a":"\u0073k-secret\/1"})", true), R"({"a":"***"})");
  EXPECT_EQ(timing_of(R"({"a":")" + std::string(kMaxTimingBytes, 'x') + R"("})", true), "");
}

TEST(AnswerReader, ContentEventsHaveABound) {
  RequestRecord record;
  const AnswerRules rules;
  AnswerReader reader(&record, rules);
  std::string events;
  for (int i = 0; i < 1024; ++i) events += Data(R"({"choices":[{"text":"a"}]})");
  reader.Read(kCloseHead, 1);
  for (size_t i = 0; i < kMaxContentEvents / 1024; ++i) reader.Read(events, 2);
  ASSERT_FALSE(reader.complete());
  reader.Read(events, 3);
  EXPECT_EQ(record.outcome, Outcome::kGarbage);
  EXPECT_THAT(record.error, HasSubstr("1048576 content events"));
}

TEST(AnswerReader, AnErrorOfAnyLengthIsShort) {
  RequestRecord record;
  const AnswerRules rules;
  AnswerReader reader(&record, rules);
  reader.Read(kCloseHead + Data(R"({"error":{"message":")" + std::string(500'000, 'x') + R"("}})"), 1);
  EXPECT_EQ(record.outcome, Outcome::kStreamError);
  EXPECT_LE(record.error.size(), kMaxServerTextBytes + 3);
}

// Wherever messages and reads are cut, no part of a key is left that would be worth anything.
TEST(AnswerReader, NoCutLeavesAPartOfASecret) {
  const std::string key = "sk-0aB/c4567890zyxwvutsr";
  const std::string escaped = R"(\u0073\u006B-0aB\/c4567890zyxwvutsr)";
  const std::string kOk = "HTTP/1.1 200 OK\r\n", kBad = "HTTP/1.1 401 No\r\nContent-Length: ";
  AnswerRules rules;
  rules.secret = key;
  for (const std::string& said : {key, escaped}) {
    for (size_t before = 0; before < 260; before += 3) {
      const std::string text = std::string(before, '-') + said;
      const std::string json = R"({"error":{"message":")" + text + R"("}})";
      const std::string other_json = R"({"why":")" + text + R"("})";
      for (const std::string& answer :
           {text + "\r\n", "HTTP/1.1 " + text + "\r\n", kOk + text + "\r\n",
            kOk + "Content-Length: " + text + "\r\n", kOk + "Transfer-Encoding: " + text + "\r\n",
            kOk + "Content-Encoding: " + text + "\r\n\r\n", kStreamHead + text + "\r\n",
            kStreamHead + Chunk("<" + text + "\n"), kStreamHead + Chunk(Data(text)),
            kStreamHead + Chunk(Data(json)), kStreamHead + Chunk("event: error\n" + Data(text)),
            kBad + std::to_string(json.size()) + "\r\n\r\n" + json,
            kBad + std::to_string(other_json.size()) + "\r\n\r\n" + other_json}) {
        const size_t step = before % 30 == 0 ? 1 : answer.size();
        for (size_t cut = step; cut <= answer.size(); cut += step) {
          RequestRecord record;
          AnswerReader reader(&record, rules);
          reader.Read(answer.substr(0, cut), 1);
          reader.Read(answer.substr(cut), 2);
          ASSERT_TRUE(reader.complete()) << answer;
          ASSERT_NE(record.error, "");
          for (const char* part : {"sk-0", "SK-0", "6B-0", "B/c4", "zyxw"}) {
            ASSERT_THAT(record.error, Not(HasSubstr(part))) << answer << " cut at " << cut;
          }
        }
      }
    }
  }
}

TEST(AnswerReader, WhatAServerSaysMovesNoCursor) {
  const AnswerRules rules;
  for (const std::string& answer :
       {std::string("SSH\x1b[2J\r\n"), kStreamHead + Chunk("\x9b\xc2\x9b\x07 x\n"),
        kStreamHead + Chunk(Data(R"({"error":"a\u001b]0;x\u0007\u009b2J\u202ex\nb"})"))}) {
    RequestRecord record;
    AnswerReader reader(&record, rules);
    reader.Read(answer, 1);
    ASSERT_TRUE(reader.complete());
    EXPECT_THAT(record.error, Not(HasSubstr("\xc2\x9b")));
    EXPECT_THAT(record.error, Not(HasSubstr("\u202e")));
    for (const char c : record.error) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << record.error;
  }
}

}  // namespace
}  // namespace tramontane::load
