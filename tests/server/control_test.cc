// The server's life and what it tells about itself: health, reflection, information, draining, addresses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "server/core/model_info.h"
#include "server/core/proto_convert.h"
#include "tests/server/scripted_server.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr char kService[] = "tramontane.v1.Inference";
constexpr int kServing = 1;
constexpr int kNotServing = 2;
constexpr int64_t kMinuteNs = 60'000'000'000;

TEST(Life, NothingIsServedBeforeTheModelIsThere) {
  ScriptedServerOptions options;
  options.serve = false;
  ScriptedServer server(options);
  EXPECT_EQ(HealthOf(server.channel(), ""), kServing);  // the process lives
  EXPECT_EQ(HealthOf(server.channel(), kService), kNotServing);
  Stream early(server.stub(), RequestOfIds({1}, 1));
  const grpc::Status status = early.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("loading"));
  EXPECT_EQ(server.client().GetModel().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(server.client().Tokenize({}).status().code(), StatusCode::kUnavailable);

  server.Serve();
  EXPECT_EQ(HealthOf(server.channel(), kService), kServing);
  Stream stream(server.stub(), RequestOfIds({1}, 1));
  EXPECT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(HealthOf(server.channel(), "nobody"), -1);
}

TEST(Life, DrainingFinishesWhatRunsAndRefusesWhatComes) {
  ScriptedServer server;
  server.model().Hold();
  Stream running(server.stub(), RequestOfIds({1}, 50));
  running.WaitForInitialMetadata();
  EXPECT_FALSE(server.server().Drain(0));  // it still runs
  EXPECT_EQ(HealthOf(server.channel(), kService), kNotServing);
  EXPECT_EQ(HealthOf(server.channel(), ""), kServing);
  EXPECT_TRUE(server.client().GetServerInfo()->draining());

  Stream refused(server.stub(), RequestOfIds({1}, 1));
  const grpc::Status status = refused.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("stopping"));
  EXPECT_NE(refused.TrailingMetadata("grpc-retry-pushback-ms"), "");

  auto drained = std::async(std::launch::async, [&] { return server.server().Drain(kMinuteNs); });
  server.model().Release();
  EXPECT_TRUE(running.ReadAll().ok());
  EXPECT_EQ(running.token_ids().size(), 50u);
  EXPECT_TRUE(drained.get());
}

TEST(Life, AnEngineThatMakesNoStepIsUnhealthyUntilItDoes) {
  ScriptedServerOptions options;
  options.server.step_timeout = 0.001;
  options.serve = false;
  ScriptedServer server(options);
  const InferenceClient& client = server.server().client();
  EXPECT_EQ(client.health().reason, "LOADING");
  server.Serve();
  EXPECT_TRUE(client.health().ok() && client.ready()) << "idle";
  server.model().Hold();
  Stream running(server.stub(), RequestOfIds({1}, 3));
  while (client.health().reason != "STALLED") std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(client.health().message(), HasSubstr("step_timeout"));
  EXPECT_FALSE(client.ready());
  server.model().Release();
  EXPECT_TRUE(running.ReadAll().ok());
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 0; });
  while (!server.engine().idle()) std::this_thread::yield();
  EXPECT_TRUE(client.health().ok());
  EXPECT_TRUE(server.server().Drain(kMinuteNs));
  EXPECT_TRUE(client.health().ok()) << "draining is no fault";
  EXPECT_FALSE(client.ready());
}

TEST(Life, StoppingCancelsWhatStillRuns) {
  ScriptedServer server;
  server.model().SetStepTime(1000);
  Stream stream(server.stub(), RequestOfIds({1}, 30000));
  ASSERT_TRUE(stream.Next());
  EXPECT_FALSE(server.server().Drain(1'000'000));
  server.server().Stop();
  EXPECT_FALSE(stream.ReadAll().ok());
  EXPECT_LT(stream.token_ids().size(), 30000u);
}

TEST(Life, ATakenPortIsAnErrorThatNamesIt) {
  ScriptedServer server;
  ServerOptions options;
  options.grpc_address = server.address();
  const auto second = Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(server.address()));
  EXPECT_THAT(second.status().message(), HasSubstr("already in use"));
}

TEST(Life, AnAddressThatIsNoneIsRefused) {
  for (const char* address : {"", "nowhere", ":1", "127.0.0.1:"}) {
    ServerOptions options;
    options.grpc_address = address;
    EXPECT_EQ(Server::Start(options).status().code(), StatusCode::kInvalidArgument) << address;
  }
  ServerOptions options;
  options.grpc_address = "192.0.2.1:0";  // an address for documentation: not this machine's
  const auto elsewhere = Server::Start(options);
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_THAT(elsewhere.status().message(), HasSubstr("192.0.2.1:0"));
}

TEST(Life, ReflectionListsTheService) {
  ScriptedServer server;
  std::string response;
  // ServerReflectionRequest.list_services is field 7.
  const grpc::Status status =
      CallWithBytes(server.channel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                    std::string("\x3a\x00", 2), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response, HasSubstr(kService));
  EXPECT_THAT(response, HasSubstr("grpc.health.v1.Health"));
}

TEST(Information, OfTheModel) {
  ScriptedServer server;
  const StatusOr<v1::GetModelResponse> model = server.client().GetModel();
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->name(), "scripted");
  EXPECT_THAT(model->names(), ElementsAre("scripted", "also-scripted"));
  EXPECT_EQ(model->context(), 32768);
  EXPECT_EQ(model->model_context(), 65536);
  EXPECT_EQ(model->vocab_size(), server.tokenizer().vocab_size());
  EXPECT_EQ(model->bos_token_id(), 1);
  EXPECT_THAT(model->eos_token_ids(), ElementsAre(2));
  EXPECT_EQ(model->tokenizer_version(), "v3");
  EXPECT_EQ(model->chat_format(), "v3");
  EXPECT_EQ(model->tokenizer(), "sentencepiece");
  EXPECT_EQ(model->architecture(), "ScriptedForTests");
  EXPECT_EQ(model->weight_format(), "bf16");
  ASSERT_EQ(model->windows_size(), 2);
  EXPECT_EQ(model->windows(0).window(), 64);
  EXPECT_EQ(model->windows(0).layers(), 2);
  EXPECT_EQ(model->windows(1).window(), 0);
  EXPECT_EQ(model->windows(1).layers(), 1);
  EXPECT_EQ(model->default_temperature(), 1.0f);
  EXPECT_EQ(model->default_top_p(), 1.0f);
  EXPECT_EQ(model->bos_piece(), "<s>");
  EXPECT_EQ(model->eos_piece(), "</s>");
}

TEST(Information, TheModelsDefaultsAreTheRequestsWhereItSaysNothing) {
  ScriptedServer server;
  ServedModel served = server.served();
  served.config.defaults = {
      .temperature = 0.5f, .top_p = 0.25f, .top_k = -1, .min_p = 0.125f, .repetition_penalty = 1.5f};
  const ProtoConverter converter(served);
  v1::GetModelResponse model;
  ASSERT_TRUE(GetModel(served, {}, &model).ok());
  EXPECT_EQ(model.default_temperature(), 0.5f);
  EXPECT_EQ(model.default_top_p(), 0.25f);
  EXPECT_EQ(model.default_top_k(), -1);
  EXPECT_EQ(model.default_min_p(), 0.125f);
  EXPECT_EQ(model.default_repetition_penalty(), 1.5f);

  v1::GenerateRequest request = RequestOfIds({1}, 1);
  Request silent;
  ASSERT_TRUE(converter.requests.Generate(request, &silent).ok());
  EXPECT_EQ(silent.sampling.temperature, 0.5f);
  EXPECT_EQ(silent.sampling.top_p, 0.25f);
  EXPECT_EQ(silent.sampling.top_k, -1);
  EXPECT_EQ(silent.sampling.min_p, 0.125f);
  EXPECT_EQ(silent.sampling.repetition_penalty, 1.5f);

  request.mutable_sampling()->set_min_p(0);
  request.mutable_sampling()->set_repetition_penalty(1);
  Request said;
  ASSERT_TRUE(converter.requests.Generate(request, &said).ok());
  EXPECT_EQ(said.sampling.min_p, 0.0f);
  EXPECT_EQ(said.sampling.repetition_penalty, 1.0f);
}

TEST(Information, OfTheServer) {
  ScriptedServerOptions options;
  options.server.max_queued_work = 77;
  ScriptedServer server(options);
  const StatusOr<v1::GetServerInfoResponse> info = server.client().GetServerInfo();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->version(), TRAMONTANE_VERSION);
  EXPECT_EQ(info->device(), "none");
  EXPECT_FALSE(info->draining());
  EXPECT_EQ(info->limits().context(), 32768);
  EXPECT_EQ(info->limits().max_queued_work(), 77);
  EXPECT_EQ(info->limits().max_message_bytes(), 8 << 20);
  EXPECT_EQ(info->limits().max_top_logprobs(), 20);
  EXPECT_EQ(info->limits().max_candidates(), 1024);
  EXPECT_EQ(info->limits().max_sequences(), server.engine().limits().max_sequences);
}

TEST(Information, LoadCountsWhatHappened) {
  ScriptedServer server;
  Stream stream(server.stub(), RequestOfIds({1, 2, 3}, 8));
  ASSERT_TRUE(stream.ReadAll().ok());
  server.WaitForLoad(
      [](const v1::GetLoadResponse& load) { return load.open_streams() == 0 && load.held_pages() == 0; });
  const StatusOr<v1::GetLoadResponse> load = server.client().GetLoad();
  EXPECT_EQ(load->finished_requests(), 1);
  EXPECT_EQ(load->prompt_tokens(), 3);
  EXPECT_EQ(load->output_tokens(), 8);
  EXPECT_EQ(load->prefill_steps(), 1);
  EXPECT_EQ(load->decode_steps(), 7);
  EXPECT_EQ(load->free_pages() + load->held_pages() + load->cached_pages(), load->total_pages());
}

TEST(Text, TokensAndBack) {
  ScriptedServer server;
  const std::string text = "Élan, 北風 and\ttabs\n{\"a\": 1} [INST]";
  v1::TokenizeRequest request;
  request.set_text(text);
  StatusOr<v1::TokenizeResponse> tokens = server.client().Tokenize(request);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->token_ids(0), 1);
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens->token_ids();
  EXPECT_EQ(server.client().Detokenize(back)->text(), text);
  back.set_skip_special_tokens(false);
  EXPECT_THAT(server.client().Detokenize(back)->text(), ::testing::StartsWith("<s>"));

  EXPECT_EQ(tokens->pieces_size(), 0);
  request.set_pieces(true);
  tokens = server.client().Tokenize(request);
  ASSERT_EQ(tokens->pieces_size(), tokens->token_ids_size());
  EXPECT_EQ(tokens->pieces(0), "<s>");
  for (int i = 0; i < tokens->pieces_size(); ++i) {
    EXPECT_EQ(tokens->pieces(i), server.tokenizer().Piece(tokens->token_ids(i)));
  }

  request.set_add_bos(false);
  const StatusOr<v1::TokenizeResponse> without = server.client().Tokenize(request);
  EXPECT_EQ(without->token_ids_size() + 1, tokens->token_ids_size());
  EXPECT_THAT(without->token_ids(),
              ElementsAreArray(tokens->token_ids().begin() + 1, tokens->token_ids().end()));
}

TEST(Text, AChatRendersToTheIdsThatGenerateAndTokenizeUse) {
  ScriptedServer server;
  v1::RenderChatRequest render;
  v1::ChatMessage* message = render.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("What time is it? [/INST]");
  v1::Tool* tool = render.mutable_chat()->add_tools();
  tool->set_name("clock");
  tool->set_description("tells the time");
  const StatusOr<v1::RenderChatResponse> rendered = server.client().RenderChat(render);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_THAT(rendered->text(), ::testing::StartsWith("<s>[AVAILABLE_TOOLS]"));
  EXPECT_THAT(rendered->text(), ::testing::EndsWith("[/INST]"));
  const int32_t inst_end = *server.tokenizer().ControlId("[/INST]");
  EXPECT_EQ(std::count(rendered->token_ids().begin(), rendered->token_ids().end(), inst_end), 1);

  v1::TokenizeRequest tokenize;
  *tokenize.mutable_chat() = render.chat();
  EXPECT_THAT(server.client().Tokenize(tokenize)->token_ids(), ElementsAreArray(rendered->token_ids()));

  v1::GenerateRequest generate;
  *generate.mutable_chat() = render.chat();
  generate.mutable_stopping()->set_max_tokens(1);
  Stream stream(server.stub(), generate);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.finished().usage().prompt_tokens(), rendered->token_ids_size());
}

}  // namespace
}  // namespace tramontane
