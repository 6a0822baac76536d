// What is refused, with which status, naming what; and that a refused call costs nobody else anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/core/answer_bound.h"
#include "tests/server/call_reader.h"
#include "tests/server/scripted_server.h"

namespace tramontane {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr char kGenerate[] = "/tramontane.v1.Inference/Generate";

template <typename Detail>
std::optional<Detail> DetailOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  EXPECT_EQ(details.code(), status.error_code());
  EXPECT_EQ(details.message(), status.error_message());
  for (const google::protobuf::Any& any : details.details()) {
    Detail detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

// Gives the field of an enumeration a number that names nothing.
void SetUnnamed(google::protobuf::Message* message, const char* field, int number) {
  message->GetReflection()->SetEnumValue(message, message->GetDescriptor()->FindFieldByName(field), number);
}

class Refusals : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new ScriptedServer(); }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }

  static void ExpectRefused(const grpc::Status& status, const std::string& field,
                            grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(field.substr(0, field.find('['))));
    const auto bad_request = DetailOf<google::rpc::BadRequest>(status);
    ASSERT_TRUE(bad_request) << status.error_message();
    ASSERT_EQ(bad_request->field_violations_size(), 1);
    EXPECT_EQ(bad_request->field_violations(0).field(), field);
    EXPECT_NE(bad_request->field_violations(0).description(), "");
    const auto info = DetailOf<google::rpc::ErrorInfo>(status);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->domain(), "tramontane");
    EXPECT_NE(info->reason(), "");
  }
  static grpc::Status Send(const v1::GenerateRequest& request) {
    Stream stream(server_->stub(), request);
    return stream.ReadAll();
  }
  // The server is as good as new.
  static void ExpectStillServing() {
    const grpc::Status status = Send(RequestOfIds({1, 2}, 2));
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  static ScriptedServer* server_;
};
ScriptedServer* Refusals::server_ = nullptr;

// What a message takes before anything of ours has seen it.
TEST(MessageMemory, AMessageThatWouldTakeMoreThanAllMayEndsItsCallAndNoOther) {
  ScriptedServerOptions options;
  options.server.grpc_memory_bytes = 4 << 20;
  ScriptedServer server(options);
  const grpc::Status status = CallWithBytes(server.channel(), kTokenize, std::string(7 << 20, 'x'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  Stream stream(server.stub(), RequestOfIds({1, 2}, 2));
  EXPECT_TRUE(stream.ReadAll().ok());
}

struct FieldCase {
  const char* field;
  std::function<void(v1::GenerateRequest*)> spoil;
};

TEST_F(Refusals, EveryFieldIsNamed) {
  const std::vector<FieldCase> cases = {
      {"prompt", [](auto* r) { r->clear_prompt(); }},
      {"text", [](auto* r) { r->set_text(""), r->set_add_bos(false); }},
      {"token_ids.ids", [](auto* r) { r->mutable_token_ids()->clear_ids(); }},
      {"token_ids.ids[2]", [](auto* r) { r->mutable_token_ids()->add_ids(-1); }},
      {"token_ids.ids[2]",
       [](auto* r) { r->mutable_token_ids()->add_ids(server_->tokenizer().vocab_size()); }},
      {"chat.messages", [](auto* r) { r->mutable_chat(); }},
      {"chat.messages[0].role", [](auto* r) { r->mutable_chat()->add_messages()->set_content("Hi"); }},
      {"chat.messages[0].role", [](auto* r) { SetUnnamed(r->mutable_chat()->add_messages(), "role", 9); }},
      {"chat.messages[0]", [](auto* r) { r->mutable_chat()->add_messages()->set_role(v1::ROLE_USER); }},
      {"chat.tools[0].parameters",
       [](auto* r) {
         auto* message = r->mutable_chat()->add_messages();
         message->set_role(v1::ROLE_USER);
         message->set_content("Hi");
         auto* tool = r->mutable_chat()->add_tools();
         tool->set_name("clock");
         tool->set_parameters_json("{\"type\"");
       }},
      {"add_bos", [](auto* r) { r->set_add_bos(true); }},
      {"cache_salt", [](auto* r) { r->set_cache_salt(std::string(257, 'x')); }},
      {"priority", [](auto* r) { r->set_priority(1001); }},
      {"priority", [](auto* r) { r->set_priority(INT32_MIN); }},
      {"session", [](auto* r) { r->set_session(std::string(65, 'x')); }},
      {"session", [](auto* r) { r->set_session(".x"); }},
      {"session", [](auto* r) { r->set_session("a/b"); }},
      {"choices",
       [](auto* r) {
         r->set_session("s");
         r->set_choices(2);
       }},
      {"context_policy.type", [](auto* r) { r->mutable_context_policy(); }},
      {"context_policy.type", [](auto* r) { SetUnnamed(r->mutable_context_policy(), "type", 5); }},
      {"context_policy.n_ctx",
       [](auto* r) {
         r->mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_SINKS);
         r->mutable_context_policy()->set_n_ctx(0);
       }},
      {"context_policy.n_ctx",
       [](auto* r) {
         r->mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_SINKS);
         r->mutable_context_policy()->set_n_ctx(int64_t{1} << 40);
       }},
      {"context_policy.n_keep",
       [](auto* r) {
         r->mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_SHIFT);
         r->mutable_context_policy()->set_n_ctx(16);
         r->mutable_context_policy()->set_n_keep(-1);
       }},
      {"context_policy.n_ctx",
       [](auto* r) {
         r->mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_NONE);
         r->mutable_context_policy()->set_n_ctx(16);
       }},
      {"context_policy.n_keep",
       [](auto* r) {
         r->mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_NONE);
         r->mutable_context_policy()->set_n_keep(4);
       }},
      {"context_policy.n_discard",
       [](auto* r) {
         r->mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_NONE);
         r->mutable_context_policy()->set_n_discard(1);
       }},
      {"context_policy.n_discard",
       [](auto* r) {
         r->mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_SINKS);
         r->mutable_context_policy()->set_n_discard(1);
       }},
      {"context_policy.n_discard",
       [](auto* r) {
         r->mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_REEVALUATE);
         r->mutable_context_policy()->set_n_discard(0);
       }},
      {"choices", [](auto* r) { r->set_choices(0); }},
      {"choices", [](auto* r) { r->set_choices(17); }},
      {"request_id", [](auto* r) { r->set_request_id("two words"); }},
      {"request_id", [](auto* r) { r->set_request_id(std::string(129, 'x')); }},
      {"request_id", [](auto* r) { r->set_request_id("h\xc3\xa9"); }},
      {"sampling.temperature", [](auto* r) { r->mutable_sampling()->set_temperature(-0.1f); }},
      {"sampling.temperature", [](auto* r) { r->mutable_sampling()->set_temperature(kNan); }},
      {"sampling.temperature", [](auto* r) { r->mutable_sampling()->set_temperature(kInfinity); }},
      {"sampling.top_p", [](auto* r) { r->mutable_sampling()->set_top_p(0); }},
      {"sampling.top_p", [](auto* r) { r->mutable_sampling()->set_top_p(1.01f); }},
      {"sampling.top_p", [](auto* r) { r->mutable_sampling()->set_top_p(kNan); }},
      {"sampling.top_k", [](auto* r) { r->mutable_sampling()->set_top_k(-2); }},
      {"sampling.min_p", [](auto* r) { r->mutable_sampling()->set_min_p(-0.5f); }},
      {"sampling.min_p", [](auto* r) { r->mutable_sampling()->set_min_p(kNan); }},
      {"sampling.repetition_penalty", [](auto* r) { r->mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.repetition_penalty", [](auto* r) { r->mutable_sampling()->set_repetition_penalty(kNan); }},
      {"sampling.presence_penalty", [](auto* r) { r->mutable_sampling()->set_presence_penalty(2.5f); }},
      {"sampling.presence_penalty", [](auto* r) { r->mutable_sampling()->set_presence_penalty(kNan); }},
      {"sampling.frequency_penalty", [](auto* r) { r->mutable_sampling()->set_frequency_penalty(-2.5f); }},
      {"sampling.logit_bias", [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[-1] = 1; }},
      {"sampling.logit_bias", [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[1 << 20] = 1; }},
      {"sampling.logit_bias", [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[5] = kNan; }},
      {"sampling.logit_bias", [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[5] = 101; }},
      {"sampling.logit_bias",
       [](auto* r) {
         for (int i = 0; i < 1025; ++i) (*r->mutable_sampling()->mutable_logit_bias())[i] = 1;
       }},
      {"stopping.max_tokens", [](auto* r) { r->mutable_stopping()->set_max_tokens(-1); }},
      {"stopping.max_tokens", [](auto* r) { r->mutable_stopping()->set_max_tokens(1 << 30); }},
      {"stopping.min_tokens", [](auto* r) { r->mutable_stopping()->set_min_tokens(-1); }},
      {"stopping.min_tokens", [](auto* r) { r->mutable_stopping()->set_min_tokens(11); }},
      {"stopping.stop", [](auto* r) { r->mutable_stopping()->add_stop(""); }},
      {"stopping.stop", [](auto* r) { r->mutable_stopping()->add_stop(std::string(257, 'x')); }},
      {"stopping.stop",
       [](auto* r) {
         for (int i = 0; i < 17; ++i) r->mutable_stopping()->add_stop("x");
       }},
      {"stopping.stop_token_ids", [](auto* r) { r->mutable_stopping()->add_stop_token_ids(-1); }},
      {"stopping.stop_token_ids", [](auto* r) { r->mutable_stopping()->add_stop_token_ids(1 << 20); }},
      {"stopping.stop_token_ids",
       [](auto* r) {
         for (int i = 0; i < 65; ++i) r->mutable_stopping()->add_stop_token_ids(3);
       }},
      {"stopping.time_limit_ms", [](auto* r) { r->mutable_stopping()->set_time_limit_ms(-1); }},
      {"stopping.time_limit_ms", [](auto* r) { r->mutable_stopping()->set_time_limit_ms(INT64_MAX); }},
      {"output.logprobs", [](auto* r) { r->mutable_output()->set_logprobs(-1); }},
      {"output.logprobs", [](auto* r) { r->mutable_output()->set_logprobs(21); }},
      {"output.prompt_logprobs", [](auto* r) { r->mutable_output()->set_prompt_logprobs(-1); }},
      {"output.prompt_logprobs", [](auto* r) { r->mutable_output()->set_prompt_logprobs(21); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i) + ": " + cases[i].field);
    v1::GenerateRequest request = RequestOfIds({1, 2}, 10);
    cases[i].spoil(&request);
    ExpectRefused(Send(request), cases[i].field);
  }
  ExpectStillServing();
}

TEST_F(Refusals, APromptBeyondTheContextSaysHowLongItIs) {
  const int64_t context = server_->engine().limits().context;
  grpc::Status status = Send(RequestOfIds(std::vector<int32_t>(static_cast<size_t>(context) + 1, 5), 0));
  ExpectRefused(status, "token_ids.ids");
  auto info = DetailOf<google::rpc::ErrorInfo>(status);
  EXPECT_EQ(info->reason(), "CONTEXT_LENGTH_EXCEEDED");
  EXPECT_EQ(info->metadata().at("prompt_tokens"), std::to_string(context + 1));
  EXPECT_EQ(info->metadata().at("context"), std::to_string(context));

  // A prompt of the whole context can be scored, but leaves no room for a token.
  std::vector<int32_t> whole(static_cast<size_t>(context), 5);
  v1::GenerateRequest request = RequestOfIds(whole, 0);
  EXPECT_TRUE(Send(request).ok());
  request.mutable_stopping()->clear_max_tokens();
  ExpectRefused(Send(request), "token_ids.ids");

  // So is output that does not fit behind its prompt.
  status = Send(RequestOfIds({1, 2, 3}, context - 2));
  ExpectRefused(status, "stopping.max_tokens");
  info = DetailOf<google::rpc::ErrorInfo>(status);
  EXPECT_EQ(info->reason(), "CONTEXT_LENGTH_EXCEEDED");
  EXPECT_EQ(info->metadata().at("prompt_tokens"), "3");
  EXPECT_EQ(info->metadata().at("context"), std::to_string(context));

  v1::GenerateRequest text;
  text.set_text(std::string(6u << 20, 'x'));  // refused by its bytes alone
  status = Send(text);
  ExpectRefused(status, "text");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->reason(), "CONTEXT_LENGTH_EXCEEDED");
}

std::vector<int32_t> SomeIds(size_t count) { return std::vector<int32_t>(count, 300); }

void ExpectAnswerTooLarge(const grpc::Status& status, const std::string& says) {
  EXPECT_THAT(status.error_message(), HasSubstr(says));
  EXPECT_THAT(status.error_message(), HasSubstr("at most 268435456 are allowed (max_answer_bytes)"));
  const auto info = DetailOf<google::rpc::ErrorInfo>(status);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->reason(), "ANSWER_TOO_LARGE");
  EXPECT_EQ(info->metadata().at("max_answer_bytes"), "268435456");
  EXPECT_GT(std::stoll(info->metadata().at("answer_bytes")), 268435456);
}

TEST_F(Refusals, AnAnswerBeyondItsBoundIsRefusedBeforeItIsComputed) {
  const int64_t steps = server_->engine().Load().steps;
  v1::GenerateRequest prompt = RequestOfIds(SomeIds(30'000), 1);
  prompt.set_choices(16);
  prompt.mutable_output()->set_prompt_logprobs(20);
  grpc::Status status = Send(prompt);
  ExpectRefused(status, "output.prompt_logprobs");
  ExpectAnswerTooLarge(status, "is 20 for a prompt of 30000 tokens in each of 16 choices");

  v1::GenerateRequest output = RequestOfIds({300}, 30'000);
  output.set_choices(16);
  output.mutable_output()->set_logprobs(20);
  status = Send(output);
  ExpectRefused(status, "output.logprobs");
  ExpectAnswerTooLarge(status, "is 20 for 30000 tokens in each of 16 choices");
  output.mutable_stopping()->clear_max_tokens();
  output.mutable_stopping()->set_min_tokens(30'000);
  ExpectRefused(Send(output), "output.logprobs");

  v1::ScoreCandidatesRequest scores;
  scores.mutable_token_ids()->add_ids(300);
  for (int i = 0; i < 64; ++i) {
    auto* ids = scores.add_candidates()->mutable_token_ids()->mutable_ids();
    ids->Resize(30'000, 100);  // one byte each
  }
  Status unary = server_->client().ScoreCandidates(scores).status();
  EXPECT_EQ(unary.field(), "candidates");
  EXPECT_THAT(unary.message(), AllOf(HasSubstr("has 64 entries"), HasSubstr("max_answer_bytes")));

  v1::TokenizeRequest pieces;
  pieces.set_pieces(true);
  for (int i = 0; i < 1'000'000; ++i) *pieces.mutable_text() += "\u4e00";  // three tokens each
  unary = server_->client().Tokenize(pieces).status();
  EXPECT_EQ(unary.field(), "pieces");
  EXPECT_THAT(unary.message(), AllOf(HasSubstr("is true for 300"), HasSubstr("max_answer_bytes")));
  EXPECT_EQ(server_->engine().Load().steps, steps);
}

TEST(AnswerBound, LeavesRoomForEvaluationsOfWholeContexts) {
  Request request;
  EngineLimits limits;
  limits.context = 128 << 10;
  request.prompt.resize(32 << 10);
  request.output.prompt_logprobs = kMaxTopLogprobs;
  EXPECT_TRUE(CheckAnswerBytes(request, limits, 0, kDefaultMaxAnswerBytes).ok());
  request.prompt.resize(128 << 10);
  request.output.prompt_logprobs = 5;
  EXPECT_TRUE(CheckAnswerBytes(request, limits, 0, kDefaultMaxAnswerBytes).ok());
  request.output.prompt_logprobs = kMaxTopLogprobs;
  EXPECT_FALSE(CheckAnswerBytes(request, limits, 0, kDefaultMaxAnswerBytes).ok());
  EXPECT_TRUE(CheckAnswerBytes(request, limits, 0, 0).ok()) << "no bound";
}

TEST(AnswerBound, WithoutMaxTokensScoredOutputEndsWhereItsAnswerIsFull) {
  ScriptedServerOptions options;
  options.max_answer_bytes = 80 * 21 * 10;  // ten tokens with twenty beside each
  ScriptedServer server(options);
  v1::GenerateRequest request = RequestOfIds({300}, 1);
  request.mutable_stopping()->clear_max_tokens();
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_logprobs(20);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(stream.finished().usage().completion_tokens(), 10);
  request.mutable_stopping()->set_max_tokens(11);
  Stream refused(server.stub(), request);
  EXPECT_THAT(refused.ReadAll().error_message(), HasSubstr("max_answer_bytes"));
}

TEST_F(Refusals, TheAnswersToOneRequestsPromptsCountTogether) {
  InferenceCallOptions options;
  options.answer_bytes = std::make_shared<std::atomic<int64_t>>(kDefaultMaxAnswerBytes - 1000);
  v1::GenerateRequest request = RequestOfIds({1, 2, 3, 4, 5}, 1);
  request.mutable_output()->set_prompt_logprobs(0);
  for (const bool fits : {false, true}) {
    if (fits) *options.answer_bytes -= 1000;
    CallReader call(server_->server().client(), request, options);
    const RpcError outcome = call.ReadAll();
    EXPECT_EQ(outcome.ok(), fits);
    if (fits) continue;
    EXPECT_THAT(outcome.message(), HasSubstr("its other prompts take 268434456 of these"));
  }
  EXPECT_EQ(*options.answer_bytes, kDefaultMaxAnswerBytes - 2000 + 5 * 208)
      << "what was refused takes nothing";
}

// A chat that is far too long is refused by its bytes too: the length told is theirs, not a tokeniser's.
TEST_F(Refusals, AChatFarBeyondTheContextIsRefusedByItsBytes) {
  const auto length_told = [](const v1::GenerateRequest& request, const std::string& field) {
    const grpc::Status status = Send(request);
    ExpectRefused(status, field);
    return DetailOf<google::rpc::ErrorInfo>(status)->metadata().at("prompt_tokens");
  };
  v1::GenerateRequest text, chat;
  text.set_text(std::string(6u << 20, 'x'));
  v1::ChatMessage* message = chat.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content(text.text());
  EXPECT_EQ(length_told(chat, "chat"), length_told(text, "text"));
}

TEST_F(Refusals, AnUnknownModelIsNotFound) {
  v1::GenerateRequest request = RequestOfIds({1}, 1);
  request.set_model("also-scripted");
  EXPECT_TRUE(Send(request).ok());
  request.set_model("gpt\n5");
  const grpc::Status status = Send(request);
  ExpectRefused(status, "model", grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status)->resource_name(), "gpt\n5");
  v1::GetModelRequest get_model;
  get_model.set_model("nobody");
  EXPECT_EQ(server_->client().GetModel(get_model).status().code(), StatusCode::kNotFound);
}

// (The scripted server has none.)
TEST_F(Refusals, AConstraintIsUnimplementedWhereThereIsNoStructuredOutput) {
  v1::GenerateRequest request = RequestOfIds({1}, 1);
  request.mutable_constraint()->set_regex("a");
  ExpectRefused(Send(request), "constraint", grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(server_->client().GetServerInfo()->limits().max_constraint_bytes(), 0);
  ExpectStillServing();
}

TEST_F(Refusals, MetadataThatCannotNameARequestIsRefusedByItsKey) {
  for (const char* key : {"x-request-id", "x-correlation-id"}) {
    Stream stream(server_->stub(), RequestOfIds({1}, 1), {{key, "two words"}});
    ExpectRefused(stream.ReadAll(), key);
    EXPECT_NE(stream.InitialMetadata(key), "two words");
  }
  ExpectStillServing();
}

TEST_F(Refusals, TextThatIsNotUtf8IsNamedByItsPath) {
  // The generated client would check the text; bytes do not. Field 3 of GenerateRequest is the text.
  grpc::Status status = CallWithBytes(server_->channel(), kGenerate,
                                      std::string("\x1a\x04") +
                                          "ab\xff"
                                          "c");
  ExpectRefused(status, "text");
  EXPECT_THAT(status.error_message(), HasSubstr("byte 2"));
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->reason(), "INVALID_UTF8");

  // chat (5) { messages (1) { content (2): "ok" }, messages { content: bad } }
  const std::string good = std::string("\x0a\x04\x12\x02") + "ok";
  const std::string bad = std::string("\x0a\x04\x12\x02") + "o\xc3";
  status = CallWithBytes(server_->channel(), kGenerate, std::string("\x2a\x0c") + good + bad);
  ExpectRefused(status, "chat.messages[1].content");
  ExpectStillServing();
}

TEST_F(Refusals, BytesThatAreNoMessageAreRefusedWithAReason) {
  const std::vector<std::string> broken = {
      std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),  // a tag without an end
      std::string("\x1a\x7f") + "short",                            // a text longer than the message
      std::string("\x0b\x0b\x0b"),                                  // groups that never end
      std::string(1000, '\x80'),
  };
  for (size_t i = 0; i < broken.size(); ++i) {
    SCOPED_TRACE(i);
    for (const char* method : {kGenerate, kTokenize, "/tramontane.v1.Inference/Abort"}) {
      const grpc::Status status = CallWithBytes(server_->channel(), method, broken[i]);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
          << method << " " << status.error_message();
      EXPECT_THAT(status.error_message(), HasSubstr("tramontane.v1.")) << method;
      const auto info = DetailOf<google::rpc::ErrorInfo>(status);
      ASSERT_TRUE(info);
      EXPECT_EQ(info->reason(), "MALFORMED_MESSAGE");
    }
  }
  // token_ids (4) { ids (1): cut inside }
  EXPECT_EQ(CallWithBytes(server_->channel(), kGenerate, std::string("\x22\x03\x0a\x7f\x01", 5)).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  ExpectStillServing();
}

TEST_F(Refusals, MillionsOfTinyFieldsAreRefusedBeforeTheyTakeMemory) {
  std::string messages;  // messages (1), empty, two bytes each
  for (int i = 0; i < 2'000'000; ++i) messages += std::string("\x0a\x00", 2);
  std::string chat("\x2a");  // chat (5)
  for (size_t size = messages.size(); size > 0; size >>= 7) {
    chat += static_cast<char>((size & 0x7f) | (size > 0x7f ? 0x80 : 0));
  }
  const grpc::Status status = CallWithBytes(server_->channel(), kGenerate, chat + messages);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("fields"));
  ExpectStillServing();
}

TEST_F(Refusals, HugeMetadataAndMessagesAreRefused) {
  Stream stream(server_->stub(), RequestOfIds({1}, 1), {{"x-big", std::string(100'000, 'x')}});
  EXPECT_EQ(stream.ReadAll().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const grpc::Status status = CallWithBytes(server_->channel(), kTokenize, std::string((64u << 20) + 1, 'x'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::AbortRequest abort;
  abort.add_request_ids(std::string(2u << 20, 'x'));
  EXPECT_EQ(server_->client().Abort(abort).status().code(), StatusCode::kInvalidArgument);
  ExpectStillServing();
}

TEST_F(Refusals, AnUnknownMethodIsUnimplemented) {
  EXPECT_EQ(CallWithBytes(server_->channel(), "/tramontane.v1.Inference/Nope", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(CallWithBytes(server_->channel(), "/nobody.v1.Knows/This", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  ExpectStillServing();
}

TEST_F(Refusals, UnaryCallsNameTheirFields) {
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(4);
  detokenize.add_token_ids(-4);
  EXPECT_EQ(server_->client().Detokenize(detokenize).status().field(), "token_ids[1]");
  EXPECT_EQ(server_->client().Tokenize({}).status().field(), "input");
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string((6u << 20) + 1, 'x'));
  EXPECT_EQ(server_->client().Tokenize(tokenize).status().field(), "text");
  EXPECT_EQ(server_->client().RenderChat({}).status().field(), "chat");
  v1::AbortRequest abort;
  for (int i = 0; i < 1025; ++i) abort.add_request_ids("x");
  EXPECT_EQ(server_->client().Abort(abort).status().field(), "request_ids");
}

TEST(Busy, AFullQueueIsRefusedAtOnceWithATimeToRetry) {
  ScriptedServerOptions options;
  options.limits.max_sequences = 1;
  options.limits.max_choices = 1;
  options.limits.max_queued_requests = 1;
  ScriptedServer server(options);
  server.model().Hold();
  Stream running(server.stub(), RequestOfIds({1}, 2));
  server.model().AllowSteps(1);
  ASSERT_TRUE(running.Next());  // it runs, so it no longer waits
  Stream waiting(server.stub(), RequestOfIds({1}, 2));
  waiting.WaitForInitialMetadata();

  Stream refused(server.stub(), RequestOfIds({1}, 2), {{"x-request-id", "mine"}});
  const grpc::Status status = refused.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.InitialMetadata("x-request-id"), "mine");
  EXPECT_THAT(status.error_message(), HasSubstr("queue is full"));
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->reason(), "QUEUE_FULL");
  const auto retry = DetailOf<google::rpc::RetryInfo>(status);
  ASSERT_TRUE(retry);
  EXPECT_GT(retry->retry_delay().seconds() * 1'000'000'000 + retry->retry_delay().nanos(), 0);
  EXPECT_GT(std::stoll("0" + refused.TrailingMetadata("grpc-retry-pushback-ms")), 0);
  Stream unread(server.stub(), RequestOfIds({-1}, 2));
  EXPECT_EQ(unread.ReadAll().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "its prompt is no prompt, and nobody looked";
  v1::ScoreCandidatesRequest score;
  EXPECT_EQ(server.client().ScoreCandidates(score).status().code(), StatusCode::kResourceExhausted);
  server.model().Release();
  EXPECT_TRUE(running.ReadAll().ok());
  EXPECT_TRUE(waiting.ReadAll().ok());
}

// What gRPC holds between the two ends comes first: only then does a client that reads nothing fall behind.
TEST(Busy, AClientTooFarBehindAnEndlessTextLosesIt) {
  ScriptedServerOptions options;
  options.limits.context = 256;
  options.limits.max_unread_tokens = 1000;
  ScriptedServer server(options);
  v1::GenerateRequest request = RequestOfIds({1}, 1 << 25);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_logprobs(20);
  request.mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_SINKS);
  request.mutable_context_policy()->set_n_ctx(32);
  Stream unread(server.stub(), request);
  ASSERT_TRUE(unread.Next());
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.running_sequences() == 0; });
  const grpc::Status status = unread.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(),
            "the reader of choice 0 is more than 1000 tokens behind, which is the limit (max_unread_tokens)");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->reason(), "REQUEST_LIMIT");
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(status)) << "it would fall behind again";
}

TEST(Busy, TooManyStreamsAreRefused) {
  ScriptedServerOptions options;
  options.server.max_streams = 2;
  ScriptedServer server(options);
  server.model().Hold();
  Stream first(server.stub(), RequestOfIds({1}, 2));
  Stream second(server.stub(), RequestOfIds({1}, 2));
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 2; });
  Stream third(server.stub(), RequestOfIds({1}, 2));
  const grpc::Status status = third.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("max_streams"));
  EXPECT_NE(third.TrailingMetadata("grpc-retry-pushback-ms"), "");
  server.model().Release();
  EXPECT_TRUE(first.ReadAll().ok());
  EXPECT_TRUE(second.ReadAll().ok());
}

TEST(Busy, InputBeyondTheWorkersQueueIsRefused) {
  ScriptedServerOptions options;
  options.server.worker_threads = 1;
  options.server.max_queued_work = 1;
  ScriptedServer server(options);
  v1::TokenizeRequest big;
  while (big.text().size() < (4u << 20))
    big.mutable_text()->append("The wind sang to the river and the hills. ");
  std::vector<std::future<bool>> calls;
  for (int64_t pending = 1; pending <= 2; ++pending) {  // one runs, one waits
    calls.push_back(std::async(std::launch::async, [&] { return server.client().Tokenize(big).ok(); }));
    server.WaitForLoad([&](const v1::GetLoadResponse& load) { return load.queued_work() == pending; });
  }
  Stream stream(server.stub(), RequestOfIds({1}, 2));
  const grpc::Status status = stream.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("max_queued_work"));
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->reason(), "INPUT_QUEUE_FULL");
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status));
  for (auto& call : calls) EXPECT_TRUE(call.get());
}

}  // namespace
}  // namespace tramontane
