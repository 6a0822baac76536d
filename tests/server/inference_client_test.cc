// What the gateway calls: in this process, and over gRPC. Both keep the same promises, and the one in this
// process shares every limit with gRPC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "server/remote/joined_events.h"
#include "server/remote/remote_client.h"
#include "tests/server/call_reader.h"
#include "tests/server/scripted_server.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMinuteMs = 60'000;
constexpr int64_t kMinuteNs = kMinuteMs * 1'000'000;

// ---- the promises of both -------------------------------------------------------------------------

enum class Path { kInProcess, kOverGrpc };

class Client : public ::testing::TestWithParam<Path> {
 protected:
  InferenceClient& client() {
    if (GetParam() == Path::kInProcess) return server_.server().client();
    if (remote_ == nullptr) {
      remote_ = std::make_unique<RemoteClient>(RemoteClientOptions{.backends = {server_.address()}});
      EXPECT_TRUE(remote_->WaitUntilReady(kMinuteMs));
    }
    return *remote_;
  }
  void WaitForNothingHeld() {
    server_.WaitForLoad(
        [](const v1::GetLoadResponse& load) { return load.open_streams() == 0 && load.held_pages() == 0; });
  }

  ScriptedServer server_;
  std::unique_ptr<RemoteClient> remote_;
};

INSTANTIATE_TEST_SUITE_P(Both, Client, ::testing::Values(Path::kInProcess, Path::kOverGrpc),
                         [](const auto& path) {
                           return path.param == Path::kInProcess ? "InProcess" : "OverGrpc";
                         });

TEST_P(Client, SaysWhatGrpcSays) {
  v1::GenerateRequest request = RequestOfIds({1, 2, 3}, 40);
  request.set_choices(3);
  request.mutable_sampling()->set_seed(7);
  request.mutable_output()->set_logprobs(2);
  request.mutable_output()->set_prompt_logprobs(1);
  Stream over_grpc(server_.stub(), request);
  ASSERT_TRUE(over_grpc.ReadAll().ok());

  CallReader call(client(), request);
  ASSERT_FALSE(call.refused()) << call.refusal().message();
  ASSERT_TRUE(call.ReadAll().ok());
  ASSERT_TRUE(call.events()[0].has_started());
  v1::Started started = call.events()[0].started();
  started.set_request_id(over_grpc.events()[0].started().request_id());  // drawn
  EXPECT_EQ(started.SerializeAsString(), over_grpc.events()[0].started().SerializeAsString());
  for (int32_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(call.text(choice), over_grpc.text(choice));
    EXPECT_EQ(call.token_ids(choice), over_grpc.token_ids(choice));
    EXPECT_EQ(call.logprobs(choice).size(), 40u);
    EXPECT_EQ(call.finished(choice).usage().completion_tokens(), 40);
  }
}

TEST_P(Client, SaysWhosePartARequestTakesAndWhen) {
  v1::GenerateRequest request = RequestOfIds({1, 2}, 1);
  request.set_priority(-7);
  const auto share = [&](const Caller& caller) {
    CallReader call(client(), request, {}, caller);
    EXPECT_TRUE(call.ReadAll().ok()) << call.outcome().message();
    return server_.model().last_share();
  };
  Caller caller = {.identity = "alice", .door = Caller::Door::kHttp, .weight = 3};
  EXPECT_EQ(share(caller).caller, "alice");
  EXPECT_EQ(share(caller).weight, 3);
  EXPECT_EQ(share(caller).priority, -7);
  if (GetParam() == Path::kOverGrpc) return;
  caller.is_exempt = true;
  EXPECT_EQ(share(caller).caller, "");
  EXPECT_EQ(share(Caller{.identity = "alice"}).caller, "") << "a program's own";
  v1::ScoreCandidatesRequest score;
  score.set_text("a");
  score.add_candidates()->set_text("b");
  score.set_priority(9);
  Await<v1::ScoreCandidatesResponse>([&](auto done) { client().Ask(caller, score, done); });
  EXPECT_EQ(server_.model().last_share().priority, 9);
}

TEST_P(Client, KeepsSessions) {
  v1::GenerateRequest request = RequestOfIds({1, 2, 3}, 5);
  request.set_session("s");
  CallReader first(client(), request);
  ASSERT_TRUE(first.ReadAll().ok());
  CallReader other(client(), request);  // it does not go on
  const RpcError differs = other.ReadAll();
  EXPECT_EQ(differs.code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(differs.reason, "SESSION_DIFFERS");
  EXPECT_EQ(differs.info.at("index"), "3");

  using List = v1::ListSessionsResponse;
  const auto list = Await<List>([&](auto done) { client().Ask(Caller(), v1::ListSessionsRequest(), done); });
  ASSERT_TRUE(list.error.ok()) << list.error.message();
  ASSERT_EQ(list.response.sessions_size(), 1);
  EXPECT_EQ(list.response.sessions(0).tokens(), 8);
  v1::DeleteSessionRequest name;
  name.set_name("s");
  const auto erase = [&] {
    return Await<v1::DeleteSessionResponse>([&](auto done) { client().Ask(Caller(), name, done); });
  };
  EXPECT_TRUE(erase().error.ok());
  EXPECT_EQ(erase().error.reason, "SESSION_NOT_FOUND");
}

TEST_P(Client, AReaderThatComesLateFindsOneDelta) {
  const v1::GenerateRequest request = RequestOfIds({1, 400, 401}, 300);
  CallReader call(client(), request);
  server_.WaitForLoad(
      [](const v1::GetLoadResponse& load) { return load.output_tokens() == 300 && load.held_pages() == 0; });
  WaitFor([this] { return remote_ == nullptr || remote_->backends()[0].open_calls == 0; });
  ASSERT_TRUE(call.ReadAll().ok());
  EXPECT_EQ(call.token_ids(), server_.IdsSaid(3, 300));
  EXPECT_EQ(call.text(), server_.TextSaid(3, 300));
  EXPECT_LE(call.deltas(), 2);  // the first may have come alone
}

TEST_P(Client, ACancelledCallEndsSoAndGivesItsPagesBack) {
  server_.model().SetStepTime(1000);
  CallReader call(client(), RequestOfIds({1}, 30000));
  ASSERT_TRUE(call.Next());
  call.Cancel();
  call.Cancel();
  EXPECT_EQ(call.ReadAll().code, StatusCode::kCancelled);
  EXPECT_LT(call.token_ids().size(), 30000u);
  call.DropCall();
  WaitForNothingHeld();
}

TEST_P(Client, ACallWhoseTimeIsOverEndsSo) {
  server_.model().SetStepTime(1000);
  InferenceCallOptions options;
  options.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  CallReader call(client(), RequestOfIds({1}, 30000), options);
  EXPECT_EQ(call.ReadAll().code, StatusCode::kDeadlineExceeded);
  EXPECT_LT(call.token_ids().size(), 30000u);
  call.DropCall();
  WaitForNothingHeld();
}

TEST_P(Client, ACallThatIsLetGoOfIsCancelled) {
  server_.model().SetStepTime(1000);
  CallReader call(client(), RequestOfIds({1}, 30000));
  ASSERT_TRUE(call.Next());
  call.DropCall();
  WaitForNothingHeld();
}

TEST_P(Client, AFaultOfTheRequestIsTheOutcomeInFull) {
  v1::GenerateRequest request = RequestOfIds({1}, 5);
  request.mutable_sampling()->set_top_p(1.5f);
  CallReader call(client(), request);
  ASSERT_FALSE(call.refused());
  const RpcError error = call.ReadAll();
  EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(error.field, "sampling.top_p");
  EXPECT_EQ(error.sentence, "is 1.5; it must be above 0 and at most 1");
  EXPECT_EQ(error.message(), "sampling.top_p is 1.5; it must be above 0 and at most 1");
  EXPECT_EQ(error.field_text(), error.message());
  EXPECT_EQ(error.reason, "INVALID_FIELD");
  EXPECT_TRUE(call.events().empty());

  request = RequestOfIds({1}, 5);
  request.set_model("nobody");
  CallReader unknown(client(), request);
  const RpcError missing = unknown.ReadAll();
  EXPECT_EQ(missing.code, StatusCode::kNotFound);
  EXPECT_EQ(missing.missing_model, "nobody");
}

TEST_P(Client, ShortCallsAnswer) {
  v1::TokenizeRequest text;
  text.set_text("the river");
  const auto tokens = Await<v1::TokenizeResponse>([&](auto done) { client().Ask(Caller(), text, done); });
  ASSERT_TRUE(tokens.error.ok());
  v1::DetokenizeRequest ids;
  *ids.mutable_token_ids() = tokens.response.token_ids();
  EXPECT_EQ(
      Await<v1::DetokenizeResponse>([&](auto done) { client().Ask(Caller(), ids, done); }).response.text(),
      "the river");
  EXPECT_EQ(Await<v1::GetModelResponse>([&](auto done) {
              client().Ask(Caller(), v1::GetModelRequest(), done);
            }).response.name(),
            "scripted");
  v1::GetModelRequest unknown;
  unknown.set_model("nobody");
  EXPECT_EQ(Await<v1::GetModelResponse>([&](auto done) { client().Ask(Caller(), unknown, done); }).error.code,
            StatusCode::kNotFound);
  v1::RenderChatRequest chat;
  chat.mutable_chat()->add_messages()->set_content("no role");
  EXPECT_EQ(Await<v1::RenderChatResponse>([&](auto done) { client().Ask(Caller(), chat, done); }).error.code,
            StatusCode::kInvalidArgument);
}

TEST_P(Client, ScoresAnswerAndAreRefusedByName) {
  v1::ScoreCandidatesRequest request;
  request.set_request_id("scored");
  for (const int32_t id : {10, 11, 12}) request.mutable_token_ids()->add_ids(id);
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{7, 8}, {9}}) {
    request.add_candidates()->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  }
  const auto ask = [&] {
    return Await<v1::ScoreCandidatesResponse>([&](auto done) { client().Ask(Caller(), request, done); });
  };
  for (int again = 0; again < 3; ++again) {  // its id is free again each time
    const auto scored = ask();
    ASSERT_TRUE(scored.error.ok()) << scored.error.message();
    ASSERT_EQ(scored.response.candidates_size(), 2);
    EXPECT_EQ(scored.response.candidates(0).token_ids(1), 8);
    EXPECT_EQ(scored.response.candidates(1).logprob_sum(), -0.5);
    EXPECT_EQ(scored.response.candidate_tokens(), 3);
    EXPECT_EQ(scored.response.usage().prompt_tokens(), 3);
    EXPECT_EQ(scored.response.request_id(), "scored");
  }
  request.add_candidates();
  const RpcError error = ask().error;
  EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(error.field, "candidates[2]");
}

// ---- one door and the other -----------------------------------------------------------------------

TEST(BothDoors, ShareTheLimitOnStreams) {
  ScriptedServerOptions options;
  options.server.max_streams = 2;
  ScriptedServer server(options);
  server.model().Hold();
  Stream over_grpc(server.stub(), RequestOfIds({1}, 5));
  over_grpc.WaitForInitialMetadata();
  CallReader in_process(server.server().client(), RequestOfIds({1}, 5));
  ASSERT_FALSE(in_process.refused());

  CallReader third(server.server().client(), RequestOfIds({1}, 5));
  ASSERT_TRUE(third.refused());
  EXPECT_EQ(third.refusal().reason, "TOO_MANY_STREAMS");
  Stream fourth(server.stub(), RequestOfIds({1}, 5));
  EXPECT_EQ(fourth.ReadAll().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  server.model().Release();
  EXPECT_TRUE(over_grpc.ReadAll().ok());
  EXPECT_TRUE(in_process.ReadAll().ok());
}

TEST(BothDoors, ShareTheRequestIdsOfACaller) {
  ScriptedServer server;
  server.model().SetStepTime(1000);
  v1::GenerateRequest request = RequestOfIds({1}, 30000);
  request.set_request_id("mine");
  const Caller here{.identity = "127.0.0.1", .address = "127.0.0.1"};
  const Caller elsewhere{.identity = "127.0.0.2", .address = "127.0.0.2"};
  CallReader in_process(server.server().client(), request, {}, here);
  ASSERT_TRUE(in_process.Next());
  Stream twin(server.stub(), request);
  EXPECT_EQ(twin.ReadAll().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  CallReader of_another(server.server().client(), request, {}, elsewhere);
  ASSERT_TRUE(of_another.Next()) << "its ids are its own";

  v1::AbortRequest abort;
  abort.add_request_ids("mine");
  EXPECT_THAT(server.client().Abort(abort)->found(), ::testing::ElementsAre("mine"));
  EXPECT_EQ(in_process.ReadAll().code, StatusCode::kCancelled);
  EXPECT_TRUE(server.client().Abort(abort)->found().empty()) << "another caller's goes on";
  ASSERT_TRUE(of_another.Next());
  of_another.Cancel();
  EXPECT_EQ(of_another.ReadAll().code, StatusCode::kCancelled);
}

TEST(BothDoors, DrainTogether) {
  ScriptedServer server;
  EXPECT_TRUE(server.server().client().ready());
  server.model().Hold();
  CallReader running(server.server().client(), RequestOfIds({1}, 50));
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 1; });
  EXPECT_FALSE(server.server().Drain(0));  // it still runs
  EXPECT_FALSE(server.server().client().ready());
  CallReader refused(server.server().client(), RequestOfIds({1}, 50));
  ASSERT_TRUE(refused.refused());
  EXPECT_EQ(refused.refusal().reason, "DRAINING");
  CallReader continues(server.server().client(), RequestOfIds({1}, 50),
                       {.correlation_id = {}, .continues = true});
  EXPECT_FALSE(continues.refused()) << "its request was taken before";

  auto drained = std::async(std::launch::async, [&] { return server.server().Drain(kMinuteNs); });
  server.model().Release();
  EXPECT_TRUE(running.ReadAll().ok());
  EXPECT_TRUE(continues.ReadAll().ok());
  running.DropCall();
  continues.DropCall();
  EXPECT_TRUE(drained.get());
}

TEST(BothDoors, WhatAStopEndsIsUnavailable) {
  ScriptedServer server;
  server.model().SetStepTime(1000);
  Stream over_grpc(server.stub(), RequestOfIds({1}, 30000));
  ASSERT_TRUE(over_grpc.Next());
  CallReader in_process(server.server().client(), RequestOfIds({1}, 30000));
  ASSERT_TRUE(in_process.Next());

  auto stopped = std::async(std::launch::async, [&] { server.server().Stop(); });
  const RpcError end = in_process.ReadAll();
  in_process.DropCall();
  EXPECT_EQ(end.code, StatusCode::kUnavailable);
  EXPECT_EQ(end.reason, "STOPPED");
  const grpc::Status status = over_grpc.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), end.message());
  stopped.get();
}

TEST(BothDoors, WhatAStopFindsWaitingForAWorkerIsUnavailable) {
  ScriptedServerOptions options;
  options.server.worker_threads = 1;
  ScriptedServer server(options);
  std::promise<void> entered, released;
  server.server().client().Ask(Caller(), v1::TokenizeRequest(),
                               [&](const RpcError&, const v1::TokenizeResponse&) {
                                 entered.set_value();
                                 released.get_future().wait();
                               });
  entered.get_future().wait();
  CallReader waiting(server.server().client(), RequestOfIds({1}, 5));
  auto stopped = std::async(std::launch::async, [&] { server.server().Stop(); });
  while (server.server().client().ready()) std::this_thread::yield();
  CallReader late(server.server().client(), RequestOfIds({1}, 5));
  EXPECT_EQ(late.refusal().reason, "DRAINING");
  released.set_value();
  EXPECT_EQ(waiting.ReadAll().code, StatusCode::kUnavailable);
  waiting.DropCall();
  stopped.get();
}

// What a server stops for is destroyed next: tokenizer, compiler, engine.
TEST(InProcess, AStopWaitsForTheWorkerInTheMidstOfItsWork) {
  ScriptedServer server;
  std::promise<void> entered, stop_returned;
  std::future<void> returned = stop_returned.get_future();
  bool returned_early = false;
  v1::TokenizeRequest request;
  request.set_text("some text");
  server.server().client().Ask(Caller(), request, [&](const RpcError&, const v1::TokenizeResponse& tokens) {
    entered.set_value();
    returned_early = returned.wait_for(std::chrono::milliseconds(200)) == std::future_status::ready;
    const std::vector<int32_t> ids(tokens.token_ids().begin(), tokens.token_ids().end());
    EXPECT_TRUE(server.tokenizer().Decode(ids).ok());
  });
  entered.get_future().wait();
  server.server().Stop();
  stop_returned.set_value();
  EXPECT_FALSE(returned_early);
}

TEST(InProcess, NothingIsServedBeforeTheModelIsThere) {
  ScriptedServerOptions options;
  options.serve = false;
  ScriptedServer server(options);
  InferenceClient& client = server.server().client();
  EXPECT_FALSE(client.ready());
  CallReader early(client, RequestOfIds({1}, 1));
  ASSERT_TRUE(early.refused());
  EXPECT_EQ(early.refusal().reason, "LOADING");
  EXPECT_EQ(Await<v1::GetModelResponse>([&](auto done) {
              client.Ask(Caller(), v1::GetModelRequest(), done);
            }).error.reason,
            "LOADING");
  EXPECT_EQ(Await<v1::TokenizeResponse>([&](auto done) {
              client.Ask(Caller(), v1::TokenizeRequest(), done);
            }).error.reason,
            "LOADING");
}

TEST(InProcess, ACallCancelledBeforeAWorkerHasItNeverReachesTheEngine) {
  ScriptedServerOptions options;
  options.server.worker_threads = 1;
  ScriptedServer server(options);
  // The worker is busy with a long text; then the call's turn comes.
  v1::TokenizeRequest longest;
  longest.set_text(std::string(1 << 20, 'x'));
  server.server().client().Ask(Caller(), longest, [](const RpcError&, const v1::TokenizeResponse&) {});
  CallReader call(server.server().client(), RequestOfIds({1}, 5));
  call.Cancel();
  EXPECT_EQ(call.ReadAll().code, StatusCode::kCancelled);
  EXPECT_EQ(server.engine().Load().prompt_tokens, 0);
}

// About 400 bytes a token, so that 2,000 of them are more than the client holds.
v1::GenerateRequest Bulky() {
  v1::GenerateRequest request = RequestOfIds({1}, 2000);
  request.mutable_output()->set_logprobs(20);
  return request;
}

class OverGrpc : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(client_.WaitUntilReady(kMinuteMs)); }
  // The engine has said everything; the call is not at its end, for its client does not read on.
  void WaitUntilSaid() {
    server_.WaitForLoad([](const v1::GetLoadResponse& load) {
      return load.output_tokens() == 2000 && load.held_pages() == 0;
    });
    EXPECT_EQ(client_.backends()[0].open_calls, 1);
  }

  ScriptedServer server_;
  RemoteClient client_{{.backends = {server_.address()}}};
};

TEST_F(OverGrpc, AReaderThatTakesNothingStopsTheReadingAndLosesNothing) {
  CallReader call(client_, Bulky());
  WaitUntilSaid();
  ASSERT_TRUE(call.ReadAll().ok());
  EXPECT_EQ(call.token_ids(), server_.IdsSaid(1, 2000));
  EXPECT_EQ(call.logprobs().size(), 2000u);
}

TEST_F(OverGrpc, AStartedInPartsAndAnAnswerOfManyMegabytesAreWhole) {
  v1::GenerateRequest request = RequestOfIds(std::vector<int32_t>(6000, 10), 3);
  request.mutable_output()->set_prompt_logprobs(20);
  CallReader call(client_, request);
  ASSERT_TRUE(call.ReadAll().ok());
  ASSERT_TRUE(call.events()[0].has_started());
  EXPECT_GT(call.events()[0].ByteSizeLong(), size_t{1} << 20) << "meant to come in parts";
  EXPECT_EQ(call.events()[0].started().prompt_logprobs_size(), 5999);
  EXPECT_FALSE(call.events()[1].has_started());

  v1::DetokenizeRequest ids;
  const int32_t said = server_.IdsSaid(0, 1)[0];
  for (int i = 0; i < 2'000'000; ++i) ids.add_token_ids(said);
  const auto text =
      Await<v1::DetokenizeResponse>([&](auto done) { client_.Ask(Caller(), ids, std::move(done)); });
  EXPECT_TRUE(text.error.ok()) << text.error.message();
  EXPECT_GT(text.response.text().size(), size_t{4} << 20);
}

TEST_F(OverGrpc, ACallThatReadsNoFurtherCanBeCancelled) {
  CallReader call(client_, Bulky());
  WaitUntilSaid();
  call.Cancel();
  call.ReadAll();  // ends
  WaitFor([this] { return client_.backends()[0].open_calls == 0; });
}

v1::GenerateResponse DeltaOf(int32_t choice, const std::string& text, int32_t tool_calls_at = -1) {
  v1::GenerateResponse event;
  event.mutable_delta()->set_choice(choice);
  event.mutable_delta()->set_text(text);
  event.mutable_delta()->add_token_ids(7);
  if (tool_calls_at >= 0) event.mutable_delta()->set_tool_calls_at(tool_calls_at);
  return event;
}

TEST(JoinedDeltas, MoveThePlaceOfTheToolCallsBehindWhatCameBefore) {
  JoinedEvents events;
  events.Add(DeltaOf(0, "I look"));
  events.Add(DeltaOf(1, "other"));
  events.Add(DeltaOf(0, " up.[{", 4));
  events.Add(DeltaOf(0, "}]"));
  events.Add(DeltaOf(1, "[", 0));
  const std::vector<v1::GenerateResponse> taken = events.Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].delta().text(), "I look up.[{}]");
  EXPECT_EQ(taken[0].delta().tool_calls_at(), 10);
  EXPECT_EQ(taken[0].delta().token_ids_size(), 3);
  EXPECT_EQ(taken[1].delta().text(), "other[");
  EXPECT_EQ(taken[1].delta().tool_calls_at(), 5);
  EXPECT_TRUE(events.empty());
}

TEST(JoinedDeltas, MoveMarksAndJoinReasoning) {
  v1::GenerateResponse thought = DeltaOf(0, "");
  thought.mutable_delta()->set_reasoning("h");
  v1::GenerateResponse call = DeltaOf(0, "é:f", 3);
  call.mutable_delta()->set_reasoning("m");
  call.mutable_delta()->add_marks()->set_at(3);
  v1::GenerateResponse arguments = DeltaOf(0, "{}");
  arguments.mutable_delta()->add_marks()->set_kind(v1::MARK_KIND_ARGUMENTS);
  JoinedEvents events;
  events.Add(thought);
  events.Add(call);
  events.Add(arguments);
  const std::vector<v1::GenerateResponse> taken = events.Take();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].delta().reasoning(), "hm");
  EXPECT_EQ(taken[0].delta().text(), "é:f{}");
  ASSERT_EQ(taken[0].delta().marks_size(), 2);
  EXPECT_EQ(taken[0].delta().marks(0).at(), 3);
  EXPECT_EQ(taken[0].delta().marks(1).at(), 4);
  EXPECT_EQ(taken[0].delta().marks(1).kind(), v1::MARK_KIND_ARGUMENTS);
}

// ---- several servers ------------------------------------------------------------------------------

class Servers : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& server : servers_) server->model().Hold();
    client_ = std::make_unique<RemoteClient>(
        RemoteClientOptions{.backends = {a().address(), b().address()}, .poll_interval_ms = 50});
    WaitFor([this] { return client_->backends()[0].up && client_->backends()[1].up; });
  }
  ScriptedServer& a() { return *servers_[0]; }
  ScriptedServer& b() { return *servers_[1]; }

  const std::array<std::unique_ptr<ScriptedServer>, 2> servers_ = {std::make_unique<ScriptedServer>(),
                                                                   std::make_unique<ScriptedServer>()};
  std::unique_ptr<RemoteClient> client_;
};

TEST_F(Servers, CallsGoWhereTheLeastIsOpen) {
  std::vector<std::unique_ptr<CallReader>> calls;
  for (int i = 0; i < 10; ++i) {
    calls.push_back(std::make_unique<CallReader>(*client_, RequestOfIds({1}, 5)));
  }
  EXPECT_EQ(client_->backends()[0].open_calls, 5);
  EXPECT_EQ(client_->backends()[1].open_calls, 5);
  a().model().Release();
  b().model().Release();
  for (const auto& call : calls) EXPECT_TRUE(call->ReadAll().ok());
  WaitFor([this] { return client_->backends()[0].open_calls + client_->backends()[1].open_calls == 0; });
}

TEST_F(Servers, CallsOfOthersCount) {
  std::vector<std::unique_ptr<Stream>> others;
  for (int i = 0; i < 4; ++i) others.push_back(std::make_unique<Stream>(a().stub(), RequestOfIds({1}, 5)));
  WaitFor([this] { return client_->backends()[0].others_calls == 4; });
  std::vector<std::unique_ptr<CallReader>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::make_unique<CallReader>(*client_, RequestOfIds({1}, 5)));
  }
  EXPECT_EQ(client_->backends()[1].started_calls, 4);
  a().model().Release();
  b().model().Release();
  for (const auto& other : others) EXPECT_TRUE(other->ReadAll().ok());
  for (const auto& call : calls) EXPECT_TRUE(call->ReadAll().ok());
}

TEST_F(Servers, OwnCallsAreNotCountedAgainAsThoseOfOthers) {
  std::vector<std::unique_ptr<CallReader>> own;
  for (int i = 0; i < 6; ++i) own.push_back(std::make_unique<CallReader>(*client_, RequestOfIds({1}, 5)));
  for (ScriptedServer* server : {&a(), &b()}) {
    server->WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 3; });
  }
  // A stranger's call on each: once both are counted, both servers were asked while ours were open.
  Stream on_a(a().stub(), RequestOfIds({1}, 5)), on_b(b().stub(), RequestOfIds({1}, 5));
  const auto others = [this](size_t i) { return client_->backends()[i].others_calls; };
  WaitFor([&] { return others(0) > 0 && others(1) > 0; });
  EXPECT_EQ(others(0), 1);
  EXPECT_EQ(others(1), 1);
  for (const auto& server : servers_) server->model().Release();
  EXPECT_TRUE(on_a.ReadAll().ok() && on_b.ReadAll().ok());
  for (const auto& call : own) EXPECT_TRUE(call->ReadAll().ok());
}

TEST_F(Servers, EqualOnesTakeTurns) {
  for (const auto& server : servers_) server->model().Release();
  // Asks for loads once, so that nothing but the turn decides.
  RemoteClient client({.backends = {a().address(), b().address()}, .poll_interval_ms = kMinuteMs});
  WaitFor([&] { return client.backends()[0].up && client.backends()[1].up; });
  for (int i = 0; i < 6; ++i) {
    CallReader call(client, RequestOfIds({1}, 2));
    EXPECT_TRUE(call.ReadAll().ok());
    WaitFor([&] { return client.backends()[0].open_calls + client.backends()[1].open_calls == 0; });
  }
  EXPECT_EQ(client.backends()[0].started_calls, 3);
  EXPECT_EQ(client.backends()[1].started_calls, 3);
}

TEST_F(Servers, EveryRequestOfASessionGoesToTheSameOne) {
  for (const auto& server : servers_) server->model().Release();
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    v1::GenerateRequest request = RequestOfIds({1}, 2);
    request.set_session(name);
    CallReader first(*client_, request);
    ASSERT_TRUE(first.ReadAll().ok());
    CallReader second(*client_, request);
    EXPECT_EQ(second.ReadAll().reason, "SESSION_DIFFERS") << "it was there before";
  }
  EXPECT_GT(client_->backends()[0].started_calls, 0);
  EXPECT_GT(client_->backends()[1].started_calls, 0);
  const auto list = Await<v1::ListSessionsResponse>(
      [&](auto done) { client_->Ask(Caller(), v1::ListSessionsRequest(), done); });
  EXPECT_EQ(list.error.code, StatusCode::kUnimplemented);
  EXPECT_THAT(list.error.message(), HasSubstr("2 servers, each of which lists its own"));
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    v1::DeleteSessionRequest request;
    request.set_name(name);
    const auto deleted =
        Await<v1::DeleteSessionResponse>([&](auto done) { client_->Ask(Caller(), request, done); });
    EXPECT_TRUE(deleted.error.ok()) << deleted.error.message();
  }
}

TEST_F(Servers, ADrainingServerGetsNothingNewAndFinishesWhatItHas) {
  std::array<std::optional<CallReader>, 2> running;
  for (auto& call : running) call.emplace(*client_, RequestOfIds({1}, 50));
  a().WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 1; });
  EXPECT_FALSE(a().server().Drain(0));
  WaitFor([this] { return !client_->backends()[0].up; });
  EXPECT_TRUE(client_->ready());
  const int64_t before = client_->backends()[0].started_calls;
  a().model().Release();
  b().model().Release();
  for (int i = 0; i < 4; ++i) {
    CallReader call(*client_, RequestOfIds({1}, 5));
    EXPECT_TRUE(call.ReadAll().ok());
  }
  for (auto& call : running) EXPECT_TRUE(call->ReadAll().ok());
  EXPECT_EQ(client_->backends()[0].started_calls, before);
}

TEST_F(Servers, ACallGoesWhereThereIsRoom) {
  ScriptedServerOptions options;
  options.server.max_streams = 1;
  ScriptedServer full(options);
  full.model().Hold();
  Stream fills(full.stub(), RequestOfIds({1}, 5));
  std::vector<std::unique_ptr<Stream>> others;  // so that the full one looks like the better one
  for (int i = 0; i < 3; ++i) others.push_back(std::make_unique<Stream>(b().stub(), RequestOfIds({1}, 5)));
  RemoteClient client({.backends = {full.address(), b().address()}, .poll_interval_ms = 50});
  WaitFor([&] { return client.backends()[0].others_calls == 1 && client.backends()[1].others_calls == 3; });

  CallReader call(client, RequestOfIds({1}, 5));
  b().model().Release();
  EXPECT_TRUE(call.ReadAll().ok());
  EXPECT_EQ(client.backends()[0].started_calls, 0) << "it has told that it is full";
  EXPECT_EQ(client.backends()[1].started_calls, 1);

  // With nowhere else to go, the refusal is the outcome.
  RemoteClient alone({.backends = {full.address()}});
  ASSERT_TRUE(alone.WaitUntilReady(kMinuteMs));
  CallReader refused(alone, RequestOfIds({1}, 5));
  const RpcError outcome = refused.ReadAll();
  EXPECT_EQ(outcome.reason, "TOO_MANY_STREAMS");
  EXPECT_GT(outcome.retry_after_ms, 0);
  full.model().Release();
}

TEST_F(Servers, AStreamThatHasBegunIsNotMoved) {
  for (const auto& server : servers_) server->model().SetStepTime(1000);
  for (const auto& server : servers_) server->model().Release();
  CallReader call(*client_, RequestOfIds({1}, 30000));
  ASSERT_TRUE(call.Next());
  const bool on_a = client_->backends()[0].open_calls == 1;
  (on_a ? a() : b()).server().Stop();
  EXPECT_FALSE(call.ReadAll().ok());
  EXPECT_EQ(client_->backends()[0].started_calls + client_->backends()[1].started_calls, 1);
}

TEST_F(Servers, WithNoServerUpTheCallIsRefusedAndNamesNone) {
  EXPECT_TRUE(client_->health().ok());
  a().server().Stop();
  b().server().Stop();
  WaitFor([this] { return !client_->ready(); });
  EXPECT_EQ(client_->health().reason, "NO_BACKEND");
  CallReader call(*client_, RequestOfIds({1}, 5));
  ASSERT_TRUE(call.refused());
  EXPECT_EQ(call.refusal().code, StatusCode::kUnavailable);
  EXPECT_EQ(call.refusal().reason, "NO_BACKEND");
  EXPECT_EQ(call.refusal().message(), "no server behind the gateway can take the request");
  v1::GenerateRequest of_session = RequestOfIds({1}, 5);
  of_session.set_session("s");
  EXPECT_EQ(CallReader(*client_, of_session).refusal().message(),
            "the server that keeps the session is down");
  EXPECT_EQ(Await<v1::GetModelResponse>([&](auto done) {
              client_->Ask(Caller(), v1::GetModelRequest(), done);
            }).error.reason,
            "NO_BACKEND");
}

}  // namespace
}  // namespace tramontane
