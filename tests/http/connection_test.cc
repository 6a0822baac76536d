// Connections with a clock, clients and handler threads that the test moves: what they hold, and for how long
// they wait.
#include "server/http/connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/http/server.h"
#include "tests/support/connection_stage.h"
#include "tests/support/gzip_writer.h"
#include "tests/support/http_test_client.h"

namespace tramontane {
namespace {

using ExchangePtr = std::shared_ptr<HttpExchange>;

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kHeader = 1000;  // of a request of these tests, at most
constexpr char kChunkedPost[] = "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

HttpResponse Text(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

std::string Announce(int64_t bytes) {
  return "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n";
}

int StatusOf(const StagePeer& peer) { return ParseReply(peer.received()).status; }

class CountingListener : public HttpListener {
 public:
  void OnHangUp() override { ++hang_ups; }
  void OnWritten() override { ++writes; }
  void OnSilence() override { ++silences; }

  int hang_ups = 0;
  int writes = 0;
  int silences = 0;
};

// GET requests are answered on the connection's thread, with "at once"; of others `work` is made on a handler
// thread, by default the answer "read".
class ConnectionTest : public ::testing::Test {
 protected:
  void TearDown() override {
    stage().CloseAll();
    exchanges_.clear();  // or they would keep their connections
    stage_ = nullptr;
  }

  ConnectionStage& stage() {
    if (stage_ == nullptr) {
      const auto handler = [this](const ExchangePtr& exchange) {
        if (exchange->request().method == "GET") return exchange->Respond(Text("at once"));
        exchange->RunOnHandler([this, exchange] {
          ++worked_;
          work_(exchange);
        });
      };
      stage_ = std::make_unique<ConnectionStage>(limits_, handler, unread_answers_);
    }
    return *stage_;
  }
  // The exchange stays open.
  void KeepExchanges() {
    work_ = [this](const ExchangePtr& exchange) { exchanges_.push_back(exchange); };
  }

  HttpLimits limits_;
  ByteBudget* unread_answers_ = nullptr;  // the connections' own
  int worked_ = 0;
  std::vector<ExchangePtr> exchanges_;
  std::function<void(const ExchangePtr&)> work_ = [](const ExchangePtr& exchange) {
    exchange->Respond(Text("read"));
  };

 private:
  std::unique_ptr<ConnectionStage> stage_;
};

// ---- what is held ----------------------------------------------------------------------------------

TEST_F(ConnectionTest, BytesThatAreOnlyAnnouncedAreNotHeld) {
  for (int i = 0; i < 100; ++i) stage().Connect().Send(Announce(32 * kMiB));
  stage().Run();
  EXPECT_LT(stage().held_bytes(), 100 * kKiB);
  StagePeer& other = stage().Connect();
  other.Send(HttpPost("/x", std::string(kMiB, 'a')));
  stage().Run();
  EXPECT_EQ(StatusOf(other), 200);
}

// Sends `bytes` again and again until the connection is refused or has read 100 MiB. What it held at most.
int64_t MostHeld(ConnectionStage& stage, StagePeer& peer, const std::string& bytes) {
  int64_t most = 0;
  for (int64_t sent = 0; sent < 100 * kMiB && !peer.server_has_ended();
       sent += static_cast<int64_t>(bytes.size())) {
    peer.Send(bytes);
    stage.Run();
    most = std::max(most, stage.held_bytes());
  }
  return most;
}

TEST_F(ConnectionTest, AChunksLineThatNeverEndsIsRefusedAndLetGo) {
  for (const char* begin : {"1;", "1;a=\"", "0\r\nA: ", "0\r\nA: b\r\nC: ", "1\r\nx\r\n0\r\nA: "}) {
    for (const size_t step : {1000u, 65536u}) {
      StagePeer& peer = stage().Connect();
      peer.Send(std::string(kChunkedPost) + begin);
      EXPECT_LE(MostHeld(stage(), peer, std::string(step, 'a')), 128 * kKiB) << begin;
      EXPECT_EQ(StatusOf(peer), 431) << begin;
      EXPECT_EQ(stage().held_bytes(), 0) << begin;
    }
  }
}

TEST_F(ConnectionTest, ABodyInTheSmallestChunksHoldsItsOwnBytes) {
  constexpr int64_t kBody = 100'000;
  KeepExchanges();
  StagePeer& peer = stage().Connect();
  peer.Send(kChunkedPost);
  std::string chunks;
  for (int64_t i = 0; i < kBody; ++i) chunks += "1;a=b\r\nx\r\n";
  peer.Send(chunks);
  stage().Run();
  EXPECT_GE(stage().held_bytes(), kBody);
  EXPECT_LE(stage().held_bytes(), kBody + 1000);
  peer.Send("0\r\n\r\n");
  stage().Run();
  EXPECT_EQ(worked_, 1);
}

TEST_F(ConnectionTest, ABodyIsFreedWhenItIsParsedNotWhenItIsAnswered) {
  int64_t held_meanwhile = 0;
  work_ = [&](const ExchangePtr& exchange) {
    held_meanwhile = stage().held_bytes();
    exchanges_.push_back(exchange);
  };
  StagePeer& peer = stage().Connect();
  peer.Send(HttpPost("/x", std::string(kMiB, 'a')));
  stage().Run();
  EXPECT_GE(held_meanwhile, kMiB);
  EXPECT_LE(held_meanwhile, kMiB + kHeader);
  EXPECT_LE(stage().held_bytes(), kHeader);
  ASSERT_EQ(exchanges_.size(), 1u);
  EXPECT_EQ(exchanges_[0]->request().body.capacity(), std::string().capacity());
  exchanges_[0]->Respond(Text("done"));
  stage().Run();
  EXPECT_EQ(ParseReply(peer.received()).body, "done");
}

TEST_F(ConnectionTest, BodiesTogetherHaveABound) {
  limits_.max_held_body_bytes = 100'000;
  stage().handlers_run = false;
  StagePeer& first = stage().Connect();
  first.Send(HttpPost("/x", std::string(87'000, 'a')));
  stage().Run();
  const int64_t held_by_first = stage().held_bytes();
  EXPECT_GE(held_by_first, 87'000) << "all but what is nobody's";
  StagePeer& second = stage().Connect();
  second.Send(HttpPost("/x", std::string(40'000, 'a')));
  stage().Run();
  const HttpReply refused = ParseReply(second.received());
  EXPECT_EQ(refused.status, 503) << "with its header it is one too many";
  EXPECT_NE(refused.body.find("too_many_body_bytes"), std::string::npos) << refused.body;
  EXPECT_EQ(refused.Header("retry-after"), "1");
  EXPECT_EQ(stage().held_bytes(), held_by_first);
  StagePeer& probe = stage().Connect();
  probe.Send(HttpGet("/health", {"A: " + std::string(5000, 'a')}));
  stage().Run();
  EXPECT_EQ(StatusOf(probe), 200) << "a short request without a body needs no room";
  stage().handlers_run = true;
  stage().Run();
  EXPECT_EQ(StatusOf(first), 200);
  StagePeer& third = stage().Connect();
  third.Send(HttpPost("/x", std::string(80'000, 'a')));
  stage().Run();
  EXPECT_EQ(StatusOf(third), 200) << "all of it came back";
}

TEST_F(ConnectionTest, WhatIsDecompressedIsHeldLikeWhatIsSent) {
  const std::string request = HttpPost("/x", Gzipped(std::string(600'000, ' ')), {"Content-Encoding: gzip"});
  limits_.max_held_body_bytes = kMiB;
  int64_t held_meanwhile = 0;
  work_ = [&](const ExchangePtr& exchange) {
    held_meanwhile = stage().held_bytes();
    exchange->Respond(Text("read"));
  };
  StagePeer& first = stage().Connect();
  first.Send(request);
  stage().Run();
  EXPECT_EQ(StatusOf(first), 200);
  EXPECT_GE(held_meanwhile, 600'000);
  EXPECT_LE(held_meanwhile, 600'000 + kHeader);
  EXPECT_EQ(stage().held_bytes(), 0);

  StagePeer& large = stage().Connect();
  large.Send(Announce(600'000) + std::string(500'000, 'a'));
  stage().Run();
  StagePeer& second = stage().Connect();
  second.Send(request);
  stage().Run();
  EXPECT_EQ(StatusOf(second), 503);
  EXPECT_NE(second.received().find("too_many_body_bytes"), std::string::npos) << second.received();
  EXPECT_EQ(worked_, 1);
}

TEST_F(ConnectionTest, WhoHangsUpInHisBodyLeavesNothing) {
  for (const auto hang_up : {&StagePeer::Reset, &StagePeer::ShutdownSend}) {
    StagePeer& peer = stage().Connect();
    peer.Send(Announce(kMiB) + std::string(500'000, 'a'));
    stage().Run();
    EXPECT_GE(stage().held_bytes(), 500'000);
    (peer.*hang_up)();
    stage().Run();
    EXPECT_EQ(stage().held_bytes(), 0);
    EXPECT_EQ(stage().open_connections(), 0);
  }
}

TEST_F(ConnectionTest, ABodyWhoseSenderIsGoneIsNotParsed) {
  stage().handlers_run = false;
  StagePeer& peer = stage().Connect();
  peer.Send(HttpPost("/x", std::string(kMiB, 'a')));
  stage().Run();
  EXPECT_GE(stage().held_bytes(), kMiB) << "it waits for a handler thread";
  peer.Reset();
  stage().Run();
  EXPECT_GE(stage().held_bytes(), kMiB) << "and is there as long as it waits";
  stage().handlers_run = true;
  stage().Run();
  EXPECT_EQ(worked_, 0);
  EXPECT_EQ(stage().held_bytes(), 0);
}

TEST_F(ConnectionTest, ARefusedRequestIsLetGoBeforeItsRefusalIsRead) {
  limits_.max_body_bytes = kMiB;
  StagePeer& peer = stage().Connect(/*room=*/0);
  peer.Send(kChunkedPost + ("FFFFF\r\n" + std::string(0xfffff, 'a')) + "\r\n2\r\naa");
  stage().Run();
  EXPECT_EQ(peer.received(), "");
  EXPECT_LE(stage().held_bytes(), static_cast<int64_t>(kReadAheadBytes));
}

TEST_F(ConnectionTest, AHeaderIsHeldUntilItsAnswerHasEndedAndALongOneNeedsRoom) {
  limits_.max_held_body_bytes = 100'000;
  KeepExchanges();
  const std::string request = HttpPost("/x", "{}", {"A: " + std::string(30'000, 'a')});
  for (int i = 0; i < 2; ++i) stage().Connect().Send(request);
  stage().Run();
  EXPECT_EQ(worked_, 2);
  EXPECT_GE(stage().held_bytes(), 60'000) << "they are not answered";
  StagePeer& long_header = stage().Connect();
  long_header.Send(HttpGet("/x", {"A: " + std::string(30'000, 'a')}));
  StagePeer& half_header = stage().Connect();
  half_header.Send("GET /x HTTP/1.1\r\nA: " + std::string(30'000, 'a'));
  StagePeer& short_header = stage().Connect();
  short_header.Send(HttpGet("/x"));
  stage().Run();
  EXPECT_EQ(StatusOf(long_header), 503);
  EXPECT_EQ(StatusOf(half_header), 503);
  EXPECT_EQ(StatusOf(short_header), 200);
  exchanges_[0]->Respond(Text("done"));
  exchanges_.erase(exchanges_.begin());
  stage().Run();
  EXPECT_LT(stage().held_bytes(), 40'000);
}

// ---- shares ----------------------------------------------------------------------------------------

TEST_F(ConnectionTest, AnAddressThatHoldsAllItMayLeavesRoomForAnother) {
  limits_.max_held_body_bytes = kMiB;
  for (int i = 0; i < 20; ++i) stage().Connect().Send(Announce(100'000) + std::string(90'000, 'a'));
  stage().Run();
  StagePeer& same = stage().Connect();
  same.Send(HttpPost("/x", std::string(90'000, 'a')));
  StagePeer& other = stage().ConnectFrom("192.0.2.7");
  other.Send(HttpPost("/x", std::string(90'000, 'a')));
  stage().Run();
  EXPECT_EQ(StatusOf(same), 503);
  EXPECT_EQ(StatusOf(other), 200);
}

TEST_F(ConnectionTest, WhatAnAddressSendsInMassesLetsAnothersPass) {
  std::string order;
  work_ = [&order](const ExchangePtr& exchange) {
    order += exchange->request().path;
    exchange->Respond(Text("read"));
  };
  const auto from_a_network = [&](const std::string& address, const std::string& path) {
    stage().ConnectFrom(address).Send(HttpPost(path, "{}"));
  };
  stage().handlers_run = false;
  for (int i = 0; i < 10; ++i) from_a_network("2001:db8:1:2::" + std::to_string(i), "/a");
  from_a_network("2001:db8:1:3::1", "/b");
  stage().Run();
  stage().handlers_run = true;
  stage().Run();
  EXPECT_LE(order.find("/b"), 2u) << order;
}

TEST_F(ConnectionTest, AGzipIsAsLongAsWhatComesOutOfIt) {
  std::string order;
  work_ = [&order](const ExchangePtr& exchange) {
    order += exchange->request().path;
    exchange->Respond(Text("read"));
  };
  stage().handlers_run = stage().long_work_runs = false;
  const std::string gzip = Gzipped(std::string(100'000, ' '));
  ASSERT_LT(gzip.size(), 1000u);
  stage().Connect().Send(HttpPost("/gzip", gzip, {"Content-Encoding: GZIP"}));
  stage().Connect().Send(HttpPost("/long", std::string(100'000, ' ')));
  stage().Connect().Send(HttpPost("/short", "{}"));
  stage().Run();
  stage().handlers_run = true;
  stage().Run();
  EXPECT_EQ(order, "/short");
  stage().long_work_runs = true;
  stage().Run();
  EXPECT_EQ(order, "/short/gzip/long");
}

// ---- answers that nobody takes ---------------------------------------------------------------------

class UnreadAnswerTest : public ConnectionTest {
 protected:
  UnreadAnswerTest() { unread_answers_ = &budget_; }
  // A client that takes nothing of an answer of so many bytes.
  StagePeer& Ask(int64_t bytes, size_t room = 0, const std::string& address = "127.0.0.1") {
    work_ = [bytes](const ExchangePtr& exchange) {
      exchange->Respond(Text(std::string(static_cast<size_t>(bytes), 'x')));
    };
    StagePeer& peer = stage().Connect(room, address);
    peer.Send(HttpPost("/x", "{}"));
    stage().Run();
    return peer;
  }

  ByteBudget budget_{10 * kMiB};
};

TEST_F(UnreadAnswerTest, AreHeldUntilTheyAreTakenAndThenLetGo) {
  StagePeer& peer = Ask(4 * kMiB, 100'000);
  EXPECT_GE(budget_.bytes(), 4 * kMiB - 200'000);
  peer.MakeRoom(3 * kMiB);
  stage().Run();
  EXPECT_LE(budget_.bytes(), 2 * kMiB) << "what is taken is given back at once";
  peer.MakeRoom(2 * kMiB);
  stage().Run();
  EXPECT_EQ(budget_.bytes(), 0);
  const std::string body = ParseReply(peer.received()).body;
  EXPECT_EQ(body, std::string(4 * kMiB, 'x'));
}

TEST_F(UnreadAnswerTest, OneThatFindsNoRoomIsRefusedByNameAndNothingOfItHeld) {
  for (int i = 0; i < 3; ++i) Ask(3 * kMiB - 1000);
  const int64_t held = budget_.bytes();
  EXPECT_LE(held, 9 * kMiB);
  StagePeer& refused = Ask(3 * kMiB, SIZE_MAX / 2);
  const HttpReply reply = ParseReply(refused.received());
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("too_many_unread_answer_bytes"), std::string::npos) << reply.body;
  EXPECT_EQ(reply.Header("retry-after"), "1");
  EXPECT_EQ(budget_.bytes(), held);
  StagePeer& small = Ask(1000, SIZE_MAX / 2);
  EXPECT_EQ(StatusOf(small), 200) << "what is taken at once needs no room";
  EXPECT_EQ(StatusOf(Ask(kMiB, SIZE_MAX / 2, "192.0.2.7")), 200) << "another's share";
}

TEST_F(UnreadAnswerTest, AreFreedByTheClockHoweverTheirClientsDawdle) {
  StagePeer& silent = Ask(4 * kMiB);
  stage().Advance(limits_.write_timeout_ms + 1000);
  EXPECT_TRUE(silent.server_has_closed());
  EXPECT_EQ(budget_.bytes(), 0);
  StagePeer& crumbs = Ask(8 * kMiB);
  int64_t waited_ms = 0;
  for (; waited_ms < 1000 * limits_.write_timeout_ms && !crumbs.server_has_closed(); waited_ms += 30'000) {
    crumbs.MakeRoom(kLeastTakenBytes / 2);
    stage().Advance(30'000);
  }
  EXPECT_LE(waited_ms, 3 * limits_.write_timeout_ms) << "of a long one a part of it has to be taken";
  EXPECT_EQ(budget_.bytes(), 0);
}

TEST_F(UnreadAnswerTest, AStreamThatFindsNoRoomEnds) {
  for (int i = 0; i < 3; ++i) Ask(3 * kMiB - 1000);
  KeepExchanges();
  const auto listener = std::make_shared<CountingListener>();
  StagePeer& peer = stage().Connect(/*room=*/1000);
  peer.Send(HttpPost("/x", "{}"));
  stage().Run();
  exchanges_[0]->Listen(listener);
  exchanges_[0]->StartStream(Text("begun"));
  exchanges_[0]->Write(std::string(static_cast<size_t>(3 * kMiB), 'y'));
  stage().Run();
  EXPECT_TRUE(peer.server_has_closed());
  EXPECT_EQ(listener->hang_ups, 1);
}

TEST_F(UnreadAnswerTest, SmallOnesInMassesAreHeldToo) {
  for (int i = 0; i < 300; ++i) Ask(60'000);
  EXPECT_LE(budget_.bytes(), budget_.max_bytes() * 7 / 8);
  EXPECT_LT(stage().open_connections(), 200) << "who takes nothing where there is no room is let go";
}

// ---- reading ahead ---------------------------------------------------------------------------------

TEST_F(ConnectionTest, WhatIsReadAheadHasABoundAndTheRestStaysWhereItIs) {
  KeepExchanges();
  StagePeer& peer = stage().Connect();
  peer.Send(HttpPost("/x", "first"));
  stage().Run();
  const std::string second = HttpPost("/x", std::string(kMiB, 'a'));
  peer.Send(second.substr(0, 1));  // so that a whole read more would be too much
  stage().Run();
  peer.Send(second.substr(1));
  for (int i = 1; i < 20; ++i) peer.Send(second);
  stage().Advance(5000);
  EXPECT_LE(stage().held_bytes(), static_cast<int64_t>(kReadAheadBytes) + kHeader);
  EXPECT_GE(peer.unread_bytes(), 20 * kMiB - kReadAheadBytes);
  for (size_t i = 0; i < 21; ++i) {
    ASSERT_EQ(exchanges_.size(), i + 1);
    exchanges_[i]->Respond(Text("done"));
    stage().Run();
  }
  EXPECT_EQ(peer.unread_bytes(), 0u) << "nothing is lost";
}

TEST_F(ConnectionTest, NothingIsReadAheadWhereThereIsNoRoomAndAllOfItLater) {
  limits_.max_held_body_bytes = 200'000;
  KeepExchanges();
  StagePeer& large = stage().Connect();
  large.Send(Announce(190'000) + std::string(160'000, 'a'));
  StagePeer& peer = stage().Connect();
  peer.Send(HttpPost("/x", "first"));
  stage().Run();
  const std::string second = HttpPost("/x", "second");
  peer.Send(second);
  stage().Advance(2000);
  EXPECT_EQ(peer.unread_bytes(), second.size());
  exchanges_[0]->Respond(Text("done"));
  stage().Run();
  EXPECT_EQ(exchanges_.size(), 2u);
}

// ---- clocks ----------------------------------------------------------------------------------------

TEST_F(ConnectionTest, BytesThatTrickleInDoNotRenewTheTimeToRead) {
  for (const std::string& begin :
       {std::string("POST /x HTTP/1.1\r\nA: "), Announce(1000), std::string(kChunkedPost) + "FFFF\r\n"}) {
    StagePeer& peer = stage().Connect();
    peer.Send(begin);
    int64_t waited_ms = 0;
    for (; waited_ms < 10 * limits_.read_timeout_ms && !peer.server_has_ended(); waited_ms += 1000) {
      peer.Send("a");
      stage().Advance(1000);
    }
    EXPECT_EQ(StatusOf(peer), 408) << begin;
    EXPECT_GE(waited_ms, limits_.read_timeout_ms);
    EXPECT_LE(waited_ms, limits_.read_timeout_ms + 2000);
  }
}

TEST_F(ConnectionTest, AReaderThatStopsIsWaitedForAsLongAsTheLimitSays) {
  const auto listener = std::make_shared<CountingListener>();
  work_ = [&](const ExchangePtr& exchange) {
    exchange->Listen(listener);
    exchange->StartStream(Text(std::string(kMiB, 'x')));
    exchanges_.push_back(exchange);
  };
  StagePeer& peer = stage().Connect(/*room=*/1000);
  peer.Send(HttpPost("/x", "{}"));
  stage().Advance(limits_.write_timeout_ms - 1000);
  EXPECT_FALSE(peer.server_has_closed());
  EXPECT_EQ(listener->hang_ups, 0);
  stage().Advance(2000);
  EXPECT_TRUE(peer.server_has_closed());
  EXPECT_EQ(listener->hang_ups, 1);
  EXPECT_EQ(listener->writes, 0) << "never all of it";
}

TEST_F(ConnectionTest, AReaderOfAByteNowAndThenIsOneThatHasStopped) {
  work_ = [](const ExchangePtr& exchange) { exchange->Respond(Text(std::string(kMiB, 'x'))); };
  StagePeer& peer = stage().Connect(/*room=*/1000);
  peer.Send(HttpPost("/x", "{}"));
  int64_t waited_ms = 0;
  for (; waited_ms < 10 * limits_.write_timeout_ms && !peer.server_has_closed(); waited_ms += 1000) {
    peer.MakeRoom(1);
    stage().Advance(1000);
  }
  EXPECT_LE(waited_ms, limits_.write_timeout_ms + 2000);
}

TEST_F(ConnectionTest, AReaderThatIsSlowAndReadsGetsEverything) {
  work_ = [](const ExchangePtr& exchange) { exchange->Respond(Text(std::string(kMiB, 'x'))); };
  StagePeer& peer = stage().Connect(/*room=*/1000);
  peer.Send(HttpPost("/x", "{}"));
  for (int i = 0; i < 20; ++i) {
    stage().Advance(limits_.write_timeout_ms - 1000);
    peer.MakeRoom(kLeastTakenBytes);
  }
  stage().Run();
  EXPECT_EQ(ParseReply(peer.received()).body.size(), static_cast<size_t>(kMiB));
}

TEST_F(ConnectionTest, SilenceIsToldBeforeTheFirstWriteAndAfterIt) {
  const auto listener = std::make_shared<CountingListener>();
  work_ = [&](const ExchangePtr& exchange) {
    exchange->Listen(listener);
    exchanges_.push_back(exchange);
  };
  stage().Connect().Send(HttpPost("/x", "{}"));
  stage().Advance(limits_.silence_ms - 1000);
  EXPECT_EQ(listener->silences, 0);
  stage().Advance(2000);
  EXPECT_EQ(listener->silences, 1);
  exchanges_[0]->StartStream(Text("begun"));
  stage().Advance(limits_.silence_ms - 1000);
  EXPECT_EQ(listener->silences, 1) << "something was said";
  stage().Advance(2000);
  EXPECT_EQ(listener->silences, 2);
}

TEST_F(ConnectionTest, WhileTheServerDrainsANewConnectionStillHasItsTime) {
  StagePeer& old = stage().Connect();
  old.Send(HttpGet("/x"));
  stage().Run();
  stage().state().closing = true;
  StagePeer& fresh = stage().Connect();
  stage().Advance(3000);
  EXPECT_TRUE(old.server_has_closed()) << "it has had its answer";
  ASSERT_FALSE(fresh.server_has_closed());
  fresh.Send(HttpGet("/health"));
  stage().Run();
  EXPECT_EQ(StatusOf(fresh), 200);
  EXPECT_EQ(ParseReply(fresh.received()).Header("connection"), "close");
}

// ---- one connection too many -----------------------------------------------------------------------

TEST_F(ConnectionTest, OneTooManyIsToldWhatTheIoThreadKnowsAndNothingElse) {
  StagePeer& probe = stage().ConnectOverLimit();
  probe.Send(HttpGet("/health"));
  StagePeer& other = stage().ConnectOverLimit();
  other.Send(HttpPost("/x", "{}"));
  stage().Run();
  EXPECT_EQ(ParseReply(probe.received()).body, "at once");
  EXPECT_EQ(ParseReply(probe.received()).Header("connection"), "close");
  const HttpReply refused = ParseReply(other.received());
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("too_many_connections"), std::string::npos) << refused.body;
  EXPECT_EQ(refused.Header("retry-after"), "1");
  EXPECT_EQ(worked_, 0);
}

TEST_F(ConnectionTest, OneTooManyThatAsksNothingDoesNotStay) {
  StagePeer& silent = stage().ConnectOverLimit();
  StagePeer& slow = stage().ConnectOverLimit();
  slow.Send("GET /x");
  stage().Advance(kLingerMs + 1000);
  for (const StagePeer* peer : {&silent, &slow}) EXPECT_EQ(StatusOf(*peer), 503);
  stage().Advance(kLingerMs + 1000);
  EXPECT_EQ(stage().open_connections(), 0);
}

TEST_F(ConnectionTest, TheOneThatWaitsLongestMakesRoomAndNobodyElse) {
  const auto make_room = [this] { return stage().thread().CloseFirst(ConnectionThread::Line::kIdle); };
  EXPECT_FALSE(make_room());
  StagePeer& first = stage().Connect();
  StagePeer& second = stage().Connect();
  StagePeer& busy = stage().Connect();
  busy.Send("GET /x");
  first.Send(HttpGet("/x"));
  stage().Run();
  EXPECT_TRUE(make_room());
  EXPECT_TRUE(second.server_has_closed());
  EXPECT_FALSE(first.server_has_closed());
  EXPECT_TRUE(make_room());
  EXPECT_TRUE(first.server_has_closed());
  EXPECT_FALSE(make_room());
  EXPECT_FALSE(busy.server_has_closed());
}

TEST_F(ConnectionTest, OfOneClientTheOneThatWaitsLongestMakesRoomInEitherLine) {
  using enum ConnectionThread::Line;
  KeepExchanges();
  const auto make_room = [this](ConnectionThread::Line line) {
    return stage().thread().CloseFirst(line, "10.0.0.1");
  };
  std::vector<StagePeer*> honest, greedy;
  for (int i = 0; i < 5; ++i) {
    honest.push_back(&stage().ConnectFrom("10.0.0.2"));
    greedy.push_back(&stage().ConnectFrom("10.0.0.1"));
  }
  for (const auto& peers : {honest, greedy}) {
    peers[1]->Send("GET /x HTTP/1.1\r\nhost: loc");
    peers[2]->Send(HttpPost("/x", "body").substr(0, 60));
    peers[3]->Send(HttpPost("/x", "body"));
  }
  stage().Run();
  for (const auto& [line, first, second] : {std::tuple(kIdle, 0, 4), std::tuple(kReading, 1, 2)}) {
    EXPECT_TRUE(make_room(line));
    EXPECT_TRUE(greedy[first]->server_has_closed());
    EXPECT_FALSE(greedy[second]->server_has_closed());
    EXPECT_TRUE(make_room(line));
    EXPECT_TRUE(greedy[second]->server_has_closed());
    EXPECT_FALSE(make_room(line));
  }
  EXPECT_FALSE(greedy[3]->server_has_closed()) << "its request is whole";
  StagePeer& next = stage().ConnectFrom("10.0.0.1");
  EXPECT_TRUE(make_room(kIdle)) << "one that came after the last look";
  EXPECT_TRUE(next.server_has_closed());
  for (const StagePeer* peer : honest) EXPECT_FALSE(peer->server_has_closed());
  EXPECT_TRUE(stage().thread().CloseFirst(kIdle, "10.0.0.2")) << "another client is looked for anew";
  EXPECT_TRUE(honest[0]->server_has_closed());
}

TEST(ConnectionSharesTest, OneClientHasMoreThanHalfOrNobodyHas) {
  ConnectionShares shares(4);
  for (const char* client : {"a", "b", "a"}) shares.Add(client);
  EXPECT_EQ(shares.greedy(), "");
  shares.Add("a");
  EXPECT_EQ(shares.greedy(), "a");
  shares.Remove("b");
  EXPECT_EQ(shares.greedy(), "a");
  shares.Remove("a");
  EXPECT_EQ(shares.greedy(), "");
  EXPECT_EQ(shares.all(), 2);
}

TEST_F(ConnectionTest, OneTooManyMakesRoomForTheNextUntilItsRequestIsThere) {
  const auto make_room = [this] { return stage().thread().CloseFirst(ConnectionThread::Line::kOverLimit); };
  KeepExchanges();
  stage().Connect();
  StagePeer& silent = stage().ConnectOverLimit();
  StagePeer& slow = stage().ConnectOverLimit();
  slow.Send("GET /x");
  stage().Run();
  EXPECT_TRUE(make_room());
  EXPECT_TRUE(silent.server_has_closed());
  EXPECT_TRUE(make_room());
  EXPECT_TRUE(slow.server_has_closed());
  EXPECT_FALSE(make_room()) << "the others stand in another line";
  stage().Run();
  EXPECT_EQ(stage().open_connections(), 1);
}

}  // namespace
}  // namespace tramontane
