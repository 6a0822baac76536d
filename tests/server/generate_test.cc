// Streams of a real gRPC client against the real server, over a model that says a known text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "tests/server/scripted_server.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// The model says script[p] at position p, so after a prompt of n tokens it goes on at position n.
const std::vector<int32_t> kPrompt = {1, 10, 11, 12, 13};
constexpr int64_t kPromptTokens = 5;

bool Idle(const v1::GetLoadResponse& load) {
  return load.running_sequences() == 0 && load.held_pages() == 0 && load.open_streams() == 0;
}

TEST(Generate, StreamsStartedThenDeltasThenFinished) {
  ScriptedServer server;
  Stream stream(server.stub(), RequestOfIds(kPrompt, 40));
  ASSERT_TRUE(stream.ReadAll().ok());

  ASSERT_GE(stream.events().size(), 3u);
  EXPECT_TRUE(stream.events().front().has_started());
  EXPECT_TRUE(stream.events().back().has_finished());
  EXPECT_EQ(stream.deltas(), static_cast<int64_t>(stream.events().size()) - 2);
  const v1::Started& started = stream.events().front().started();
  EXPECT_EQ(started.model(), "scripted");
  EXPECT_EQ(started.prompt_tokens(), kPromptTokens);
  EXPECT_EQ(started.request_id(), stream.InitialMetadata("x-request-id"));

  EXPECT_THAT(stream.token_ids(), ElementsAreArray(server.IdsSaid(kPromptTokens, 40)));
  EXPECT_EQ(stream.text(), server.TextSaid(kPromptTokens, 40));
  int64_t completion_tokens = 0;
  for (const auto& event : stream.events()) {
    if (!event.has_delta()) continue;
    completion_tokens += event.delta().token_ids_size();
    EXPECT_EQ(event.delta().completion_tokens(), completion_tokens);
  }
  const v1::Finished& finished = stream.finished();
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_FALSE(finished.has_stop_token_id());
  EXPECT_FALSE(finished.has_stop());
  EXPECT_EQ(finished.usage().prompt_tokens(), kPromptTokens);
  EXPECT_EQ(finished.usage().completion_tokens(), 40);
}

constexpr size_t kDefaultMessageBytes = 4 << 20;  // that gRPC's clients take

TEST(Generate, ALongPromptsScoresComeInMessagesThatEveryClientTakes) {
  ScriptedServer server;
  constexpr int64_t kTokens = 13'000;
  v1::GenerateRequest request = RequestOfIds(std::vector<int32_t>(kTokens, 10), 3);
  request.mutable_output()->set_prompt_logprobs(20);
  request.mutable_output()->set_prompt_tokens(true);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  int64_t scores = 0, ids = 0, messages = 0;
  bool more = true;
  for (const v1::GenerateResponse& event : stream.events()) {
    EXPECT_LE(event.ByteSizeLong(), kDefaultMessageBytes);
    EXPECT_EQ(event.has_started(), more) << "the parts come first, one after the other";
    more = event.started().more();
    if (!event.has_started()) continue;
    ++messages;
    EXPECT_EQ(event.started().prompt_tokens(), kTokens);
    scores += event.started().prompt_logprobs_size();
    ids += event.started().prompt_size();
  }
  EXPECT_GT(messages, 1);
  EXPECT_EQ(scores, kTokens - 1);
  EXPECT_EQ(ids, kTokens);
}

TEST(Unary, AnAnswerBeyondWhatTheCallerTakesIsRefusedWithTheLimit) {
  ScriptedServer server;
  v1::DetokenizeRequest request;
  int32_t longest = 0;
  for (int32_t id = 0; id < server.tokenizer().vocab_size(); ++id) {
    if (server.tokenizer().PieceBytes(id).size() > server.tokenizer().PieceBytes(longest).size())
      longest = id;
  }
  const size_t piece_bytes = server.tokenizer().PieceBytes(longest).size();
  for (size_t bytes = 0; bytes <= kDefaultMessageBytes + piece_bytes; bytes += piece_bytes)
    request.add_token_ids(longest);
  v1::DetokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status refused = server.stub().Detokenize(&context, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("a message holds 4194304"));

  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments);
  grpc::ClientContext larger;
  larger.AddMetadata("x-max-message-bytes", "8000000");
  ASSERT_TRUE(v1::Inference::NewStub(channel)->Detokenize(&larger, request, &response).ok());
  EXPECT_GT(response.text().size(), kDefaultMessageBytes);
}

TEST(Generate, TimingsAreInTheOrderOfEvents) {
  ScriptedServer server;
  Stream stream(server.stub(), RequestOfIds(kPrompt, 5));
  ASSERT_TRUE(stream.ReadAll().ok());
  const v1::Timings& times = stream.finished().timings();
  EXPECT_TRUE(times.has_tokenized_us() && times.has_admitted_us() && times.has_first_chunk_us());
  EXPECT_LE(0, times.tokenized_us());
  EXPECT_LE(times.tokenized_us(), times.admitted_us());
  EXPECT_LE(times.admitted_us(), times.first_chunk_us());
  EXPECT_LE(times.first_chunk_us(), times.last_chunk_us());
  EXPECT_LE(times.last_chunk_us(), times.first_token_us());
  EXPECT_LE(times.first_token_us(), times.finished_us());
}

TEST(Generate, TrailersCarryUsageAndTimes) {
  ScriptedServer server;
  Stream stream(server.stub(), RequestOfIds(kPrompt, 7));
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.TrailingMetadata("x-prompt-tokens"), "5");
  EXPECT_EQ(stream.TrailingMetadata("x-cached-tokens"), "0");
  EXPECT_EQ(stream.TrailingMetadata("x-completion-tokens"), "7");
  for (const char* key : {"x-queue-ms", "x-prefill-ms", "x-decode-ms"}) {
    EXPECT_GE(std::stod("0" + stream.TrailingMetadata(key)), 0.0) << key;
    EXPECT_NE(stream.TrailingMetadata(key), "") << key;
  }
}

TEST(Generate, AcceptanceIsToldBeforeTheFirstToken) {
  ScriptedServer server;
  server.model().Hold();
  Stream stream(server.stub(), RequestOfIds(kPrompt, 3),
                {{"x-request-id", "mine"}, {"x-correlation-id", "of-a-chain"}});
  stream.WaitForInitialMetadata();  // no step has run
  EXPECT_EQ(stream.InitialMetadata("x-request-id"), "mine");
  EXPECT_EQ(stream.InitialMetadata("x-correlation-id"), "of-a-chain");
  EXPECT_EQ(stream.InitialMetadata("x-served-model"), "scripted");
  EXPECT_EQ(stream.InitialMetadata("x-server-version"), TRAMONTANE_VERSION);
  EXPECT_EQ(server.client().GetLoad()->steps(), 0);
  server.model().Release();
  EXPECT_TRUE(stream.ReadAll().ok());
}

TEST(Generate, TheFieldNamesTheRequestBeforeTheMetadataDoes) {
  ScriptedServer server;
  v1::GenerateRequest request = RequestOfIds(kPrompt, 1);
  request.set_request_id("from-the-field");
  Stream stream(server.stub(), request, {{"x-request-id", "from-the-metadata"}});
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.InitialMetadata("x-request-id"), "from-the-field");
}

TEST(Generate, AnIdIsTakenUntilItsRequestEnds) {
  ScriptedServer server;
  server.model().Hold();
  v1::GenerateRequest request = RequestOfIds(kPrompt, 3);
  request.set_request_id("twin");
  Stream first(server.stub(), request);
  first.WaitForInitialMetadata();
  Stream second(server.stub(), request);
  const grpc::Status refused = second.ReadAll();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(second.InitialMetadata("x-request-id"), "twin");
  server.model().Release();
  ASSERT_TRUE(first.ReadAll().ok());
  Stream third(server.stub(), request);
  EXPECT_TRUE(third.ReadAll().ok());
}

TEST(Generate, ChoicesAreInterleavedAndEachFinishes) {
  ScriptedServer server;
  v1::GenerateRequest request = RequestOfIds(kPrompt, 20);
  request.set_choices(4);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  for (int32_t choice = 0; choice < 4; ++choice) {
    EXPECT_THAT(stream.token_ids(choice), ElementsAreArray(server.IdsSaid(kPromptTokens, 20))) << choice;
    EXPECT_EQ(stream.finished(choice).usage().completion_tokens(), 20);
  }
  EXPECT_EQ(stream.TrailingMetadata("x-completion-tokens"), "80");
}

TEST(Generate, PartsThatWereNotAskedForAreNotSent) {
  ScriptedServer server;
  v1::GenerateRequest request = RequestOfIds(kPrompt, 10);
  request.mutable_output()->set_token_ids(false);
  Stream text_only(server.stub(), request);
  ASSERT_TRUE(text_only.ReadAll().ok());
  EXPECT_EQ(text_only.text(), server.TextSaid(kPromptTokens, 10));
  EXPECT_TRUE(text_only.token_ids().empty());

  request.mutable_output()->set_token_ids(true);
  request.mutable_output()->set_text(false);
  Stream ids_only(server.stub(), request);
  ASSERT_TRUE(ids_only.ReadAll().ok());
  EXPECT_EQ(ids_only.text(), "");
  EXPECT_EQ(ids_only.token_ids().size(), 10u);
}

TEST(Generate, LogprobsGoWithTheirTokens) {
  ScriptedServer server;
  v1::GenerateRequest request = RequestOfIds(kPrompt, 6);
  request.mutable_output()->set_logprobs(2);
  request.mutable_output()->set_prompt_logprobs(0);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());

  const v1::Started& started = stream.events().front().started();
  ASSERT_EQ(started.prompt_logprobs_size(), kPromptTokens - 1);
  for (int i = 0; i + 1 < kPromptTokens; ++i) {
    EXPECT_EQ(started.prompt_logprobs(i).token_id(), kPrompt[static_cast<size_t>(i) + 1]);
    EXPECT_EQ(started.prompt_logprobs(i).top_size(), 0);
  }
  for (const auto& event : stream.events()) {
    if (!event.has_delta()) continue;
    const v1::Delta& delta = event.delta();
    ASSERT_EQ(delta.logprobs_size(), delta.token_ids_size());
    for (int i = 0; i < delta.logprobs_size(); ++i) {
      EXPECT_EQ(delta.logprobs(i).token_id(), delta.token_ids(i));
      EXPECT_EQ(delta.logprobs(i).logprob(), -0.5f);
      EXPECT_EQ(delta.logprobs(i).rank(), 1);
      EXPECT_EQ(delta.logprobs(i).token_bytes(), server.tokenizer().PieceBytes(delta.token_ids(i)));
      EXPECT_EQ(delta.logprobs(i).top_size(), 2);
    }
  }
}

TEST(Generate, ThePromptComesBackTokenByTokenWhereAskedFor) {
  ScriptedServer server;
  v1::GenerateRequest request;
  request.set_text("Once upon a time, 北風");
  request.mutable_stopping()->set_max_tokens(1);
  request.mutable_output()->set_prompt_tokens(true);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  const v1::Started& started = stream.events().front().started();
  ASSERT_EQ(started.prompt_size(), started.prompt_tokens());
  EXPECT_EQ(started.prompt(0).token_id(), 1);
  EXPECT_EQ(started.prompt(0).token_bytes(), "");
  std::string text;
  for (const v1::PromptToken& token : started.prompt()) text += token.token_bytes();
  EXPECT_EQ(text, request.text());

  request.mutable_output()->set_prompt_tokens(false);
  Stream without(server.stub(), request);
  ASSERT_TRUE(without.ReadAll().ok());
  EXPECT_EQ(without.events().front().started().prompt_size(), 0);
}

TEST(Generate, MaxTokensOfNoneAndOne) {
  ScriptedServer server;
  v1::GenerateRequest scoring = RequestOfIds(kPrompt, 0);
  scoring.mutable_output()->set_prompt_logprobs(0);
  Stream none(server.stub(), scoring);
  ASSERT_TRUE(none.ReadAll().ok());
  EXPECT_TRUE(none.token_ids().empty());
  EXPECT_EQ(none.events().front().started().prompt_logprobs_size(), kPromptTokens - 1);
  EXPECT_EQ(none.finished().reason(), v1::FINISH_REASON_LENGTH);

  Stream one(server.stub(), RequestOfIds(kPrompt, 1));
  ASSERT_TRUE(one.ReadAll().ok());
  EXPECT_THAT(one.token_ids(), ElementsAreArray(server.IdsSaid(kPromptTokens, 1)));
}

TEST(Generate, StopTextEndsTextAndIds) {
  ScriptedServer server;
  const std::string all = server.TextSaid(kPromptTokens, 60);
  const std::string stop = " sang";
  ASSERT_NE(all.find(stop), std::string::npos) << all;
  v1::GenerateRequest request = RequestOfIds(kPrompt, 200);
  request.mutable_stopping()->add_stop("never said");
  request.mutable_stopping()->add_stop(stop);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.text(), all.substr(0, all.find(stop)));
  EXPECT_EQ(stream.finished().reason(), v1::FINISH_REASON_STOP_SEQUENCE);
  EXPECT_EQ(stream.finished().stop(), stop);
  EXPECT_EQ(stream.finished().usage().completion_tokens(), static_cast<int64_t>(stream.token_ids().size()));

  request.mutable_stopping()->set_include_stop(true);
  Stream with_stop(server.stub(), request);
  ASSERT_TRUE(with_stop.ReadAll().ok());
  EXPECT_EQ(with_stop.text(), all.substr(0, all.find(stop) + stop.size()));
}

TEST(Generate, StopTokenIdIsReported) {
  ScriptedServer server;
  const int32_t stop = server.model().TokenAt(kPromptTokens + 4);
  v1::GenerateRequest request = RequestOfIds(kPrompt, 200);
  request.mutable_stopping()->add_stop_token_ids(stop);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.finished().reason(), v1::FINISH_REASON_STOP_SEQUENCE);
  EXPECT_EQ(stream.finished().stop_token_id(), stop);
  EXPECT_EQ(stream.token_ids().back(), stop);
}

TEST(Generate, TimeLimitEndsWithWhatThereIs) {
  ScriptedServer server;
  server.model().SetStepTime(1000);
  v1::GenerateRequest request = RequestOfIds(kPrompt, 30000);
  request.mutable_stopping()->set_time_limit_ms(100);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.finished().reason(), v1::FINISH_REASON_TIME_LIMIT);
  EXPECT_LT(stream.token_ids().size(), 30000u);
  EXPECT_EQ(stream.finished().usage().completion_tokens(), static_cast<int64_t>(stream.token_ids().size()));
}

// The stalled reader takes nothing until the engine has long finished its 8,000 tokens: no flow control
// reaches the engine, another stream runs from start to end meanwhile, and what was not taken arrives joined
// and whole.
TEST(Generate, AStalledReaderGetsJoinedDeltasAndHoldsUpNobody) {
  ScriptedServer server;
  const int64_t tokens = 8000;
  // A client that buffers no more than 64 KiB for a stream, instead of what it deems good for the connection.
  grpc::ChannelArguments small_window;
  small_window.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  small_window.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
  const auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), small_window));
  v1::GenerateRequest request = RequestOfIds(kPrompt, tokens);
  request.mutable_output()->set_logprobs(20);  // large messages: the window fills early
  Stream stalled(*stub, request);
  stalled.WaitForInitialMetadata();
  Stream lively(server.stub(), RequestOfIds(kPrompt, 100));
  ASSERT_TRUE(lively.ReadAll().ok());
  EXPECT_THAT(lively.token_ids(), ElementsAreArray(server.IdsSaid(kPromptTokens, 100)));
  server.WaitForLoad([&](const v1::GetLoadResponse& load) {
    return load.finished_requests() == 2 && load.running_sequences() == 0 && load.open_streams() == 1;
  });

  ASSERT_TRUE(stalled.ReadAll().ok());
  EXPECT_TRUE(stalled.token_ids() == server.IdsSaid(kPromptTokens, tokens));
  EXPECT_TRUE(stalled.text() == server.TextSaid(kPromptTokens, tokens));
  EXPECT_LT(stalled.deltas(), tokens / 2);
  for (const auto& event : stalled.events()) EXPECT_LE(event.ByteSizeLong(), 1u << 20);
}

TEST(Generate, AbortFreesPagesWithinOneStep) {
  ScriptedServer server;
  server.model().Hold();
  v1::GenerateRequest request = RequestOfIds(kPrompt, 1000);
  request.set_request_id("to-abort");
  Stream stream(server.stub(), request);
  server.model().AllowSteps(3);
  ASSERT_TRUE(stream.Next());  // Started
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.steps() == 3; });
  EXPECT_GT(server.client().GetLoad()->held_pages(), 0);

  v1::AbortRequest abort;
  abort.add_request_ids("unknown");
  abort.add_request_ids("to-abort");
  const StatusOr<v1::AbortResponse> aborted = server.client().Abort(abort);
  ASSERT_TRUE(aborted.ok());
  EXPECT_THAT(aborted->found(), ElementsAreArray({"to-abort"}));
  server.model().AllowSteps(1);  // the step that was waiting; the one after it would have to wait
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.held_pages() == 0; });
  EXPECT_EQ(server.client().GetLoad()->steps(), 4);
  EXPECT_EQ(stream.ReadAll().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(stream.finished().reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_TRUE(server.client().Abort(abort)->found().empty());
}

TEST(Generate, ACallerThatLeavesEndsItsRequest) {
  ScriptedServer server;
  server.model().SetStepTime(1000);
  Stream stream(server.stub(), RequestOfIds(kPrompt, 30000));
  ASSERT_TRUE(stream.Next());
  stream.Cancel();
  EXPECT_EQ(stream.ReadAll().error_code(), grpc::StatusCode::CANCELLED);
  server.WaitForLoad(Idle);
  EXPECT_LT(server.client().GetLoad()->output_tokens(), 30000);
  EXPECT_EQ(server.client().GetLoad()->cancelled_requests(), 1);
}

TEST(Generate, ACallerThatHangsUpEndsItsRequest) {
  ScriptedServer server;
  server.model().SetStepTime(1000);
  {
    const auto stub = v1::Inference::NewStub(grpc::CreateCustomChannel(
        server.address(), grpc::InsecureChannelCredentials(), grpc::ChannelArguments()));
    Stream stream(*stub, RequestOfIds(kPrompt, 30000));
    ASSERT_TRUE(stream.Next());
  }
  server.WaitForLoad(Idle);
  EXPECT_LT(server.client().GetLoad()->output_tokens(), 30000);
}

TEST(Generate, TheDeadlineHoldsInTheQueueAndWhileRunning) {
  ScriptedServer server;
  server.model().SetStepTime(1000);
  const auto timeout = std::chrono::milliseconds(150);
  Stream late(server.stub(), RequestOfIds(kPrompt, 30000), timeout);
  EXPECT_EQ(late.ReadAll().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server.WaitForLoad(Idle);
  EXPECT_LT(server.client().GetLoad()->output_tokens(), 30000);

  ScriptedServerOptions options;
  options.limits.max_sequences = 1;
  options.limits.max_choices = 1;
  ScriptedServer narrow(options);
  narrow.model().Hold();
  Stream running(narrow.stub(), RequestOfIds(kPrompt, 20000));
  running.WaitForInitialMetadata();
  Stream queued(narrow.stub(), RequestOfIds(kPrompt, 3), timeout);
  EXPECT_EQ(queued.ReadAll().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  narrow.WaitForLoad([&](const v1::GetLoadResponse& load) {
    narrow.model().AllowSteps(1);  // the late one leaves while the other still has the only place
    return load.waiting_requests() == 0;
  });
  narrow.model().Release();
  EXPECT_TRUE(running.ReadAll().ok());
  narrow.WaitForLoad(Idle);
  EXPECT_EQ(narrow.client().GetLoad()->output_tokens(), 20000);  // the late one computed nothing
}

TEST(Generate, ARowWithoutFiniteLogitsEndsItsRequestAlone) {
  ScriptedServer server;
  server.model().FailAt(kPromptTokens + 3);
  Stream failing(server.stub(), RequestOfIds(kPrompt, 50));
  const grpc::Status status = failing.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(failing.finished().reason(), v1::FINISH_REASON_ERROR);
  EXPECT_NE(failing.finished().error_message(), "");
  EXPECT_EQ(failing.token_ids().size(), 3u);
  EXPECT_EQ(server.client().GetLoad()->failed_rows(), 1);

  Stream fine(server.stub(), RequestOfIds(kPrompt, 3));
  EXPECT_TRUE(fine.ReadAll().ok());
}

TEST(Generate, TwoHundredStreamsAtOnce) {
  ScriptedServer server;
  std::vector<std::future<bool>> calls;
  for (int64_t i = 0; i < 200; ++i) {
    calls.push_back(std::async(std::launch::async, [&server, i] {
      const int64_t tokens = 20 + i % 50;
      Stream stream(server.stub(), RequestOfIds(kPrompt, tokens));
      return stream.ReadAll().ok() && stream.token_ids() == server.IdsSaid(kPromptTokens, tokens);
    }));
  }
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_TRUE(calls[i].get()) << "stream " << i;
  server.WaitForLoad(Idle);
}

// A 4 MB text keeps one worker busy for as long as it takes; meanwhile a running stream and a new one both go
// on, in order of events: each must have moved before the text is done.
TEST(Generate, StreamsKeepFlowingWhileFourMegabytesAreTokenised) {
  ScriptedServer server;
  Stream running(server.stub(), RequestOfIds(kPrompt, 30000));
  ASSERT_TRUE(running.Next());

  v1::TokenizeRequest big;
  while (big.text().size() < (4u << 20))
    big.mutable_text()->append("The wind sang to the river and the hills. ");
  auto tokenised = std::async(std::launch::async, [&] { return server.client().Tokenize(big); });
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.queued_work() == 1; });
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(running.Next());
  Stream fresh(server.stub(), RequestOfIds(kPrompt, 5));
  ASSERT_TRUE(fresh.ReadAll().ok());
  EXPECT_EQ(tokenised.wait_for(std::chrono::seconds(0)), std::future_status::timeout)
      << "the text was done before the streams moved";

  const StatusOr<v1::TokenizeResponse> response = tokenised.get();
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_GT(response->token_ids_size(), 400'000);
  running.Cancel();
}

TEST(Generate, CancelWhileWaitingForAWorkerNeverReachesTheEngine) {
  ScriptedServerOptions options;
  options.server.worker_threads = 1;
  ScriptedServer server(options);
  v1::TokenizeRequest big;
  while (big.text().size() < (4u << 20))
    big.mutable_text()->append("The wind sang to the river and the hills. ");
  auto tokenised = std::async(std::launch::async, [&] { return server.client().Tokenize(big); });
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.queued_work() == 1; });
  Stream stream(server.stub(), RequestOfIds(kPrompt, 5));
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 1; });
  stream.Cancel();
  EXPECT_EQ(stream.ReadAll().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(tokenised.get().ok());
  server.WaitForLoad(Idle);
  EXPECT_EQ(server.client().GetLoad()->finished_requests(), 0);
}

}  // namespace
}  // namespace tramontane
