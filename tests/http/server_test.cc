// The transport alone: requests in, answers out, every bound at its edge.
#include "server/http/server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/http_test_client.h"

namespace tramontane {
namespace {

using ExchangePtr = std::shared_ptr<HttpExchange>;

HttpResponse Text(std::string body) {
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = std::move(body);
  return response;
}

// A value that one thread gives and another waits for.
template <typename T>
class Given {
 public:
  void Give(T value) {
    std::lock_guard lock(mutex_);
    value_ = std::move(value);
    is_there_ = true;
    changed_.notify_all();
  }
  T Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [this] { return is_there_; }));
    return std::move(value_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_there_ = false;
  T value_{};
};

// Counts what a listener is told.
class CountingListener : public HttpListener {
 public:
  void OnHangUp() override { hung_up.Give(true); }
  void OnWritten() override { ++written; }
  void OnSilence() override {
    if (silences.fetch_add(1) == 2) three_silences.Give(true);
  }

  Given<bool> hung_up;
  Given<bool> three_silences;
  std::atomic<int> written{0};
  std::atomic<int> silences{0};
};

class HttpServerTest : public ::testing::Test {
 protected:
  // Answers with method, path and body unless a test says otherwise.
  void StartServer(HttpServer::Handler handler = [](ExchangePtr exchange) {
    const HttpRequest& request = exchange->request();
    exchange->Respond(Text(request.method + " " + request.path + " " + request.body));
  }) {
    // On the handler threads, where a test may wait.
    const auto on_handler = [handler = std::move(handler)](const ExchangePtr& exchange) {
      exchange->RunOnHandler([handler, exchange] { handler(exchange); });
    };
    auto server = HttpServer::Start(options_, on_handler);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
  }
  const std::string& address() const { return server_->address(); }

  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

// ---- requests -----------------------------------------------------------------------------------

TEST_F(HttpServerTest, AnswersManyRequestsOnOneConnection) {
  StartServer();
  HttpTestClient client(address());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(client.Send(HttpPost("/v1/echo", std::to_string(i))));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST /v1/echo " + std::to_string(i));
    EXPECT_EQ(reply.Header("connection"), "keep-alive");
    EXPECT_EQ(reply.Header("content-type"), "text/plain");
    EXPECT_FALSE(reply.Header("date").empty());
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInTheirOrder) {
  StartServer([](ExchangePtr exchange) {
    // The earlier, the slower.
    const int64_t ms = exchange->request().body == "0" ? 30 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    exchange->Respond(Text(exchange->request().body));
  });
  HttpTestClient client(address());
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += HttpPost("/x", std::to_string(i));
  ASSERT_TRUE(client.Send(requests));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Read().body, std::to_string(i));
}

TEST_F(HttpServerTest, ReadsAheadNoMoreThanItsBoundAndLosesNothing) {
  Given<ExchangePtr> first;
  std::atomic<int> seen{0};
  StartServer([&](ExchangePtr exchange) {
    if (seen++ == 0) return first.Give(std::move(exchange));
    exchange->Respond(Text(std::to_string(exchange->request().body.size())));
  });
  HttpTestClient client(address());
  std::thread sender([&] {
    client.Send(HttpPost("/x", "first"));
    for (int i = 0; i < 20; ++i) client.Send(HttpPost("/x", std::string(500'000, 'a')));
  });
  first.Wait()->Respond(Text("done"));
  EXPECT_EQ(client.Read().body, "done");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.Read().body, "500000");
  sender.join();
}

TEST_F(HttpServerTest, SaysContinueToAClientThatWaitsForIt) {
  StartServer();
  HttpTestClient client(address());
  client.Send("POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send("body");
  EXPECT_EQ(client.Read().body, "POST /x body");
  client.Send(HttpPost("/x", "next"));
  EXPECT_EQ(client.Read().body, "POST /x next") << "no second 100 Continue";
}

TEST_F(HttpServerTest, ReadsAChunkedUpload) {
  StartServer();
  HttpTestClient client(address());
  client.Send("POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string expected = "POST /x ";
  for (int i = 0; i < 20; ++i) {
    client.Send("5\r\nabcde\r\n");
    expected += "abcde";
  }
  client.Send("0\r\n\r\n");
  EXPECT_EQ(client.Read().body, expected);
}

TEST_F(HttpServerTest, ReadsACompressedBody) {
  StartServer();
  const std::string bytes(  // {"prompt":"hi"}
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56\x2a\x28\xca\xcf\x2d\x28\x51\xb2\x52\xca\xc8\x54\xaa"
      "\x05"
      "\x00\x56\x05\x28\x18\x0f\x00\x00\x00",
      35);
  HttpTestClient client(address());
  for (const char* encoding : {"gzip", "GZip"}) {
    client.Send(HttpPost("/x", bytes, {std::string("Content-Encoding: ") + encoding}));
    EXPECT_EQ(client.Read().body, R"(POST /x {"prompt":"hi"})");
  }
  client.Send(HttpPost("/x", "plain", {"Content-Encoding: identity"}));
  EXPECT_EQ(client.Read().body, "POST /x plain");
  client.Send(HttpPost("/x", "plain", {"Content-Encoding: gzip"}));
  EXPECT_EQ(client.Read().status, 400);
  client.Send(HttpPost("/x", "plain", {"Content-Encoding: br"}));
  EXPECT_EQ(client.Read().status, 415);
  client.Send(HttpPost("/x", "next"));
  EXPECT_EQ(client.Read().body, "POST /x next") << "the connection goes on";
}

TEST_F(HttpServerTest, SendsNoBodyToHead) {
  StartServer();
  HttpTestClient client(address());
  client.Send("HEAD /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const HttpReply reply = client.Read(/*to_head=*/true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.Header("content-length"), "8");
  client.Send(HttpGet("/y"));
  EXPECT_EQ(client.Read().body, "GET /y ");
}

TEST_F(HttpServerTest, ReturnsARequestIdOrDrawsOne) {
  StartServer([](ExchangePtr exchange) { exchange->Respond(Text(exchange->request().request_id)); });
  HttpReply reply = Fetch(address(), HttpGet("/", {"X-Request-Id: mine-1"}));
  EXPECT_EQ(reply.Header("x-request-id"), "mine-1");
  EXPECT_EQ(reply.body, "mine-1");
  reply = Fetch(address(), HttpGet("/"));
  EXPECT_EQ(reply.Header("x-request-id").rfind("req-", 0), 0u);
  EXPECT_EQ(reply.body, reply.Header("x-request-id"));
  reply = Fetch(address(), HttpGet("/", {"X-Request-Id: " + std::string(129, 'a')}));
  EXPECT_EQ(reply.Header("x-request-id").rfind("req-", 0), 0u) << "too long to be repeated";
}

TEST_F(HttpServerTest, ClosesAfterTheAnswerWhereTheClientAsksForIt) {
  StartServer();
  HttpTestClient client(address());
  client.Send(HttpGet("/x", {"Connection: close"}));
  const std::string all = client.ReadToEnd();
  EXPECT_NE(all.find("connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(all.ends_with("GET /x "));
}

TEST_F(HttpServerTest, AnswersAClientOfHttp10) {
  StartServer();
  HttpTestClient client(address());
  client.Send("GET /x HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(client.ReadToEnd().ends_with("GET /x "));
}

TEST_F(HttpServerTest, AnExchangeThatIsLetGoAnswers500) {
  StartServer([](ExchangePtr) {});
  HttpTestClient client(address());
  client.Send(HttpGet("/x"));
  EXPECT_EQ(client.Read().status, 500);
  client.Send(HttpGet("/x"));
  EXPECT_EQ(client.Read().status, 500) << "the connection goes on";
}

// ---- streams ------------------------------------------------------------------------------------

TEST_F(HttpServerTest, EachWriteIsAChunkAndTheConnectionGoesOn) {
  StartServer([](ExchangePtr exchange) {
    exchange->StartStream(Text("one "));
    exchange->Write("two ");
    exchange->Write("");  // nothing: an empty chunk would be the end
    exchange->End("three");
  });
  HttpTestClient client(address());
  for (int i = 0; i < 3; ++i) {
    client.Send(HttpGet("/x"));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.body, "one two three");
    EXPECT_EQ(reply.chunks, 3);
  }
}

TEST_F(HttpServerTest, StreamsToAClientOfHttp10UntilItCloses) {
  StartServer([](ExchangePtr exchange) {
    exchange->StartStream(Text("one "));
    exchange->End("two");
  });
  HttpTestClient client(address());
  client.Send("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const std::string all = client.ReadToEnd();
  EXPECT_TRUE(all.ends_with("\r\n\r\none two")) << all;
}

TEST_F(HttpServerTest, AStreamThatIsLetGoEndsWithTheConnection) {
  StartServer([](ExchangePtr exchange) { exchange->StartStream(Text("begun")); });
  HttpTestClient client(address());
  client.Send(HttpGet("/x"));
  const std::string all = client.ReadToEnd();
  EXPECT_TRUE(all.ends_with("begun\r\n")) << "without the chunk that would say that it is whole: " << all;
}

TEST_F(HttpServerTest, WritesFromManyThreadsArriveWholeAndInTheOrderOfEach) {
  Given<ExchangePtr> given;
  StartServer([&](ExchangePtr exchange) {
    exchange->StartStream(Text(""));
    given.Give(std::move(exchange));
  });
  HttpTestClient client(address());
  client.Send(HttpGet("/x"));
  {
    const ExchangePtr exchange = given.Wait();
    std::vector<std::thread> threads;
    for (char name = 'a'; name < 'e'; ++name) {
      threads.emplace_back([exchange, name] {
        for (int i = 0; i < 100; ++i) exchange->Write(std::string(1, name) + std::to_string(i) + "\n");
      });
    }
    for (std::thread& thread : threads) thread.join();
    exchange->End("");
  }
  const std::string body = client.Read().body;
  for (char name = 'a'; name < 'e'; ++name) {
    size_t at = 0;
    for (int i = 0; i < 100; ++i) {
      at = body.find(std::string(1, name) + std::to_string(i) + "\n", at);
      ASSERT_NE(at, std::string::npos) << name << i;
    }
  }
}

TEST_F(HttpServerTest, ListenersHearOfSilence) {
  options_.limits.silence_ms = 30;
  const auto listener = std::make_shared<CountingListener>();
  Given<ExchangePtr> given;
  StartServer([&](ExchangePtr exchange) {
    exchange->Listen(listener);
    given.Give(std::move(exchange));
  });
  HttpTestClient client(address());
  client.Send(HttpGet("/x"));
  const ExchangePtr exchange = given.Wait();
  EXPECT_TRUE(listener->three_silences.Wait());
  exchange->Respond(Text("done"));
  EXPECT_EQ(client.Read().body, "done");
}

// ---- hang-ups -----------------------------------------------------------------------------------

struct WayToHangUp {
  const char* name;
  void (*hang_up)(HttpTestClient&);
};
const WayToHangUp kWays[] = {
    {"Close", [](HttpTestClient& client) { client.Close(); }},
    {"Reset", [](HttpTestClient& client) { client.Reset(); }},
    {"HalfClose", [](HttpTestClient& client) { client.ShutdownSend(); }},
};

class HangUp : public HttpServerTest, public ::testing::WithParamInterface<WayToHangUp> {};

TEST_P(HangUp, IsHeardWhileAnAnswerIsAwaited) {
  const auto listener = std::make_shared<CountingListener>();
  Given<ExchangePtr> given;
  StartServer([&](ExchangePtr exchange) {
    exchange->Listen(listener);
    given.Give(std::move(exchange));
  });
  HttpTestClient client(address());
  client.Send(HttpPost("/x", "{}"));
  const ExchangePtr exchange = given.Wait();
  GetParam().hang_up(client);
  EXPECT_TRUE(listener->hung_up.Wait());
  exchange->Respond(Text("nobody reads this"));
}

TEST_P(HangUp, IsHeardWhileAStreamIsSilent) {
  const auto listener = std::make_shared<CountingListener>();
  Given<ExchangePtr> given;
  StartServer([&](ExchangePtr exchange) {
    exchange->Listen(listener);
    exchange->StartStream(Text("begun"));
    given.Give(std::move(exchange));
  });
  HttpTestClient client(address());
  client.Send(HttpPost("/x", "{}"));
  const ExchangePtr exchange = given.Wait();
  client.ReadUntil("begun");
  GetParam().hang_up(client);
  EXPECT_TRUE(listener->hung_up.Wait());
  exchange->Write("nobody reads this");
  exchange->End("nor this");
}

TEST_P(HangUp, IsHeardByWhoBeginsToListenAfterIt) {
  Given<ExchangePtr> given;
  StartServer([&](ExchangePtr exchange) { given.Give(std::move(exchange)); });
  HttpTestClient client(address());
  client.Send(HttpPost("/x", "{}"));
  const ExchangePtr exchange = given.Wait();
  GetParam().hang_up(client);
  const auto listener = std::make_shared<CountingListener>();
  exchange->Listen(listener);
  EXPECT_TRUE(listener->hung_up.Wait());
}

TEST_P(HangUp, IsHeardBehindMoreInputThanIsReadAhead) {
  const auto listener = std::make_shared<CountingListener>();
  Given<ExchangePtr> given;
  options_.limits.silence_ms = 100;  // sweeps often
  StartServer([&](ExchangePtr exchange) {
    exchange->Listen(listener);
    given.Give(std::move(exchange));
  });
  HttpTestClient client(address());
  client.Send(HttpPost("/x", "{}") +
              "POST /y HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" +
              std::string(100'000, 'y'));
  const ExchangePtr exchange = given.Wait();
  GetParam().hang_up(client);
  EXPECT_TRUE(listener->hung_up.Wait());
}

INSTANTIATE_TEST_SUITE_P(Ways, HangUp, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return info.param.name; });

TEST_F(HttpServerTest, AHalfClosedClientGetsTheAnswersNobodyListensFor) {
  StartServer();
  HttpTestClient client(address());
  client.Send(HttpGet("/one") + HttpGet("/two"));
  client.ShutdownSend();
  EXPECT_EQ(client.Read().body, "GET /one ");
  EXPECT_EQ(client.Read().body, "GET /two ");
  EXPECT_EQ(client.ReadToEnd(), "") << "then the server closes too";
}

// ---- bounds -------------------------------------------------------------------------------------

TEST_F(HttpServerTest, RefusesWhatIsNoRequestAndCloses) {
  StartServer();
  HttpTestClient client(address());
  client.Send("nonsense\r\n\r\n");
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.Header("connection"), "close");
  EXPECT_EQ(reply.body.substr(0, 19), "not an HTTP request");
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST_F(HttpServerTest, AHeaderAtTheLimitIsReadAndOneByteMoreIs431) {
  options_.limits.max_header_bytes = 1000;
  StartServer();
  const std::string around = HttpGet("/x", {"A: "});
  const std::string most = HttpGet("/x", {"A: " + std::string(1000 - around.size(), 'a')});
  ASSERT_EQ(most.size(), 1000u);
  EXPECT_EQ(Fetch(address(), most).status, 200);
  EXPECT_EQ(Fetch(address(), HttpGet("/x", {"A: " + std::string(1001 - around.size(), 'a')})).status, 431);
}

TEST_F(HttpServerTest, ABodyAtTheLimitIsReadAndOneByteMoreIs413) {
  options_.limits.max_body_bytes = 1000;
  StartServer();
  EXPECT_EQ(Fetch(address(), HttpPost("/x", std::string(1000, 'a'))).status, 200);
  EXPECT_EQ(Fetch(address(), HttpPost("/x", std::string(1001, 'a'))).status, 413);
}

TEST_F(HttpServerTest, ATooLongBodyIsRefusedBeforeItIsSent) {
  options_.limits.max_body_bytes = 1000;
  StartServer();
  HttpTestClient client(address());
  client.Send("POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_EQ(client.Read().status, 413);
}

TEST_F(HttpServerTest, WhereNoConnectionWaitsOneMoreIsToldSo) {
  options_.limits.max_connections = 2;
  Given<ExchangePtr> given;
  std::atomic<int> seen{0};
  StartServer([&](ExchangePtr exchange) {
    if (seen++ == 0) return given.Give(std::move(exchange));
    exchange->Respond(Text("read"));
  });
  HttpTestClient first(address()), second(address());
  first.Send(HttpGet("/x"));
  const ExchangePtr exchange = given.Wait();
  second.Send("POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(second.Read().status, 100) << "half of its request is read";
  const HttpReply reply = Fetch(address(), HttpGet("/x"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("too_many_connections"), std::string::npos) << reply.body;
  EXPECT_EQ(reply.Header("connection"), "close");
  exchange->Respond(Text("done"));
  EXPECT_EQ(first.Read().body, "done");
  second.Send("body");
  EXPECT_EQ(second.Read().body, "read") << "nobody is closed whose request is under way";
}

TEST_F(HttpServerTest, TheConnectionThatWaitsLongestMakesRoomForANewOne) {
  options_.limits.max_connections = 2;
  StartServer();
  HttpTestClient first(address()), second(address());
  for (HttpTestClient* client : {&first, &second, &first}) {
    client->Send(HttpGet("/x"));
    EXPECT_EQ(client->Read().status, 200);
  }
  EXPECT_EQ(Fetch(address(), HttpGet("/x")).status, 200);
  EXPECT_EQ(second.ReadToEnd(), "") << "it has waited longest";
  first.Send(HttpGet("/x"));
  EXPECT_EQ(first.Read().status, 200);
}

TEST_F(HttpServerTest, RoomIsLookedForOnEveryThread) {
  options_.limits.max_connections = 4;
  options_.io_threads = 2;
  std::atomic<int> seen{0};
  Given<ExchangePtr> given[2];
  StartServer([&](ExchangePtr exchange) {
    const int at = seen++;
    if (exchange->request().path == "/busy") return given[at / 2].Give(std::move(exchange));
    exchange->Respond(Text("read"));
  });
  // Every second connection is on the other thread: all of one of them are busy.
  std::vector<std::unique_ptr<HttpTestClient>> clients;
  std::vector<ExchangePtr> busy;
  for (int i = 0; i < 4; ++i) {
    HttpTestClient& client = *clients.emplace_back(std::make_unique<HttpTestClient>(address()));
    client.Send(HttpGet(i % 2 == 0 ? "/busy" : "/idle"));
    if (i % 2 == 0) {
      busy.push_back(given[i / 2].Wait());
    } else {
      EXPECT_EQ(client.Read().status, 200);
    }
  }
  EXPECT_EQ(Fetch(address(), HttpGet("/x")).status, 200);
  EXPECT_EQ(clients[1]->ReadToEnd(), "") << "it has waited longest";
  for (const ExchangePtr& exchange : busy) exchange->Respond(Text("done"));
}

TEST_F(HttpServerTest, AnAddressThatHasMoreThanHalfMakesRoomFirst) {
  options_.limits.max_connections = 4;
  StartServer();
  std::vector<std::unique_ptr<HttpTestClient>> clients;
  const auto connect = [&](const std::string& from) -> HttpTestClient& {
    HttpTestClient::Options options;
    options.from = from;
    return *clients.emplace_back(std::make_unique<HttpTestClient>(address(), options));
  };
  const auto ask = [](HttpTestClient& client) {
    client.Send(HttpGet("/x"));
    return client.Read().status;
  };
  HttpTestClient& honest = connect("127.0.0.1");
  EXPECT_EQ(ask(honest), 200);
  std::vector<HttpTestClient*> greedy;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(*greedy.emplace_back(&connect("127.0.0.2"))), 200);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ask(*greedy.emplace_back(&connect("127.0.0.2"))), 200);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(greedy[i]->ReadToEnd(), "") << "its own make room for it";
  HttpTestClient& other = connect("127.0.0.3");
  EXPECT_EQ(ask(other), 200);
  EXPECT_EQ(greedy[4]->ReadToEnd(), "");
  EXPECT_EQ(ask(honest), 200) << "it has waited longest of all";
}

TEST_F(HttpServerTest, AnAddressThatSitsOnHalfSentRequestsMakesRoomForOthers) {
  options_.limits.max_connections = 4;
  options_.io_threads = 2;
  StartServer();
  HttpTestClient::Options from_elsewhere;
  from_elsewhere.from = "127.0.0.2";
  std::vector<std::unique_ptr<HttpTestClient>> greedy;
  for (int i = 0; i < 4; ++i) {
    HttpTestClient& client =
        *greedy.emplace_back(std::make_unique<HttpTestClient>(address(), from_elsewhere));
    client.Send("POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    EXPECT_EQ(client.Read().status, 100);
  }
  HttpTestClient own(address(), from_elsewhere);
  own.Send(HttpGet("/x"));
  EXPECT_EQ(own.Read().status, 503) << "none of its own waits";
  EXPECT_EQ(own.ReadToEnd(), "");
  own.Close();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Fetch(address(), HttpGet("/x")).status, 200);
    EXPECT_EQ(greedy[0]->ReadToEnd(), "");
  }
  greedy[3]->Send("body");
  EXPECT_EQ(greedy[3]->Read().body, "POST /x body") << "it has no more than half any more";
}

TEST_F(HttpServerTest, ProbesAreAnsweredWhereAllFilesAreTaken) {
  options_.limits.max_connections = 100;
  auto server = HttpServer::Start(options_, [](const ExchangePtr& exchange) {
    if (exchange->request().path == "/health") return exchange->Respond(Text("up"));
    exchange->RunOnHandler([exchange] { exchange->Respond(Text("read")); });
  });
  ASSERT_TRUE(server.ok()) << server.status();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Files of this process for the clients, and then none.
  std::vector<int> files;
  const auto take_all = [&files] {
    for (int file; (file = dup(0)) >= 0;) files.push_back(file);
  };
  rlimit few = before;
  const int probe = dup(0);
  few.rlim_cur = static_cast<rlim_t>(probe) + 40;
  close(probe);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  take_all();
  for (int i = 0; i < 40; ++i) {
    close(files.back());  // for the client's side
    files.pop_back();
    const bool is_probe = i % 2 == 0;
    const HttpReply reply = Fetch((*server)->address(), is_probe ? HttpGet("/health") : HttpPost("/x", "{}"));
    EXPECT_EQ(reply.status, is_probe ? 200 : 503) << i;
    take_all();
  }
  for (const int file : files) close(file);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(HttpServerTest, ARequestThatDoesNotEndInTimeIs408) {
  options_.limits.read_timeout_ms = 50;
  StartServer();
  HttpTestClient client(address());
  client.Send("POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(client.Read().status, 408);
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST_F(HttpServerTest, AConnectionThatSaysNothingIsClosed) {
  options_.limits.read_timeout_ms = 50;
  StartServer();
  HttpTestClient client(address());
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosed) {
  options_.limits.idle_timeout_ms = 50;
  StartServer();
  HttpTestClient client(address());
  client.Send(HttpGet("/x"));
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(client.ReadToEnd(), "");
}

// ---- starting and stopping ----------------------------------------------------------------------

TEST_F(HttpServerTest, ATakenAddressIsNamedWithTheCause) {
  StartServer();
  options_.address = address();
  const auto second = HttpServer::Start(options_, [](ExchangePtr) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(address()), std::string::npos) << second.status();
  EXPECT_NE(second.status().message().find("in use"), std::string::npos) << second.status();
}

TEST_F(HttpServerTest, WhatIsNoAddressIsSaidSo) {
  for (const char* address : {"", "8000", ":8000", "host:", "127.0.0.1"}) {
    options_.address = address;
    const auto server = HttpServer::Start(options_, [](ExchangePtr) {});
    ASSERT_FALSE(server.ok()) << address;
    EXPECT_EQ(server.status().code(), StatusCode::kInvalidArgument) << server.status();
  }
}

TEST_F(HttpServerTest, StoppingEndsOpenExchangesAndIsSafeForThem) {
  const auto listener = std::make_shared<CountingListener>();
  Given<ExchangePtr> given;
  StartServer([&](ExchangePtr exchange) {
    exchange->Listen(listener);
    given.Give(std::move(exchange));
  });
  HttpTestClient client(address());
  client.Send(HttpGet("/x"));
  const ExchangePtr exchange = given.Wait();
  server_->Stop();
  EXPECT_TRUE(listener->hung_up.Wait());
  EXPECT_EQ(client.ReadToEnd(), "");
  exchange->Respond(Text("too late"));
  const auto late = std::make_shared<CountingListener>();
  exchange->Listen(late);
  EXPECT_TRUE(late->hung_up.Wait());
  server_.reset();
  exchange->Post([] { FAIL() << "there is no thread any more"; });
}

TEST_F(HttpServerTest, ManyThreadsServeManyClients) {
  options_.io_threads = 3;
  options_.handler_threads = 2;
  StartServer();
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      HttpTestClient client(address());
      for (int i = 0; i < 50; ++i) {
        const std::string body = std::to_string(c * 1000 + i);
        client.Send(HttpPost("/x", body));
        if (client.Read().body == "POST /x " + body) ++good;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 8 * 50);
}

}  // namespace
}  // namespace tramontane
