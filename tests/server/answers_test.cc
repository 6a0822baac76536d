// From the ids that a model says to what a client reads: thinking, text and calls of every chat format,
// wherever the stream is cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_thread.h"
#include "engine/output/choice_text.h"
#include "engine/threads/clock.h"
#include "models/chat/answer_syntax.h"
#include "models/chat/mistral_chat.h"
#include "models/grammar/constraint_compiler.h"
#include "server/answers/answer_splitter.h"
#include "server/api/openai/chat.h"
#include "server/api/shared/json.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "tests/models/tekken_test_file.h"
#include "tests/models/tokenizer_json_test_file.h"
#include "tests/server/call_reader.h"
#include "tests/server/scripted_model.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// ---- ids --------------------------------------------------------------------------------------------

// A token for each byte, so that one may end within a character.
class ByteTekken {
 public:
  explicit ByteTekken(const std::string& version) : tokenizer_(SmallTekken(TekkenJson({}, version))) {}
  const Tokenizer& operator*() const { return *tokenizer_; }
  const ChatFormat& chat_format() const { return chat_format_; }
  // `answer` with control tokens where their names stand.
  std::vector<int32_t> Ids(std::string_view answer) const {
    std::vector<int32_t> ids;
    while (!answer.empty()) {
      const size_t end = answer.find(']');
      const auto control = answer[0] == '[' && end != std::string_view::npos
                               ? tokenizer_->ControlId(answer.substr(0, end + 1))
                               : std::nullopt;
      ids.push_back(control ? *control : kTestSpecialTokens + static_cast<uint8_t>(answer[0]));
      answer.remove_prefix(control ? end + 1 : 1);
    }
    return ids;
  }

 private:
  std::unique_ptr<const TekkenTokenizer> tokenizer_;
  MistralChatFormat chat_format_{*tokenizer_, tokenizer_->version().value()};
};

// ---- what a client reads ------------------------------------------------------------------------------

struct Read {
  std::string content, reasoning;
  std::vector<std::string> calls;  // names and arguments
  int64_t reasoning_tokens = 0;

  bool operator==(const Read&) const = default;
};

void PrintTo(const Read& read, std::ostream* out) {
  *out << "content '" << read.content << "' reasoning '" << read.reasoning << "' of " << read.reasoning_tokens
       << " tokens";
  for (const std::string& call : read.calls) *out << " calls " << call;
}

Read ReadWhole(const std::string& body) {
  const Json answer = Json::parse(body);
  const Json& message = answer["choices"][0]["message"];
  EXPECT_FALSE(FindFault(ChatCompletionAnswerShape(), answer, "")) << body;
  Read read;
  if (message["content"].is_string()) read.content = message["content"];
  read.reasoning = message.value("reasoning_content", "");
  EXPECT_EQ(message.value("reasoning", ""), read.reasoning) << "its other name";
  for (const Json& call : message.value("tool_calls", Json::array())) {
    read.calls.push_back(call["function"]["name"].get<std::string>() +
                         call["function"]["arguments"].get<std::string>());
  }
  read.reasoning_tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
  return read;
}

Read ReadStream(const std::string& stream) {
  Read read;
  for (size_t at = stream.find("data: {"); at != std::string::npos; at = stream.find("data: {", at + 1)) {
    const Json chunk = Json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6));
    if (chunk["choices"].empty()) {
      read.reasoning_tokens = chunk["usage"]["completion_tokens_details"]["reasoning_tokens"];
      continue;
    }
    const Json& delta = chunk["choices"][0]["delta"];
    read.content += delta.value("content", "");
    read.reasoning += delta.value("reasoning_content", "");
    EXPECT_EQ(delta.value("reasoning", ""), delta.value("reasoning_content", "")) << "its other name";
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      const Json& function = call["function"];
      if (call.contains("id")) read.calls.push_back(function["name"]);
      read.calls.back() += function["arguments"].get<std::string>();
    }
  }
  return read;
}

// The way of one choice: its text, joined until it is taken; its parts; its bytes.
class Way {
 public:
  Way(const Tokenizer& tokenizer, bool streamed, bool thinks = false)
      : syntax_(MistralAnswerSyntax(tokenizer, tokenizer.version().value())),
        request_(MakeRequest(syntax_)),
        text_(request_, &tokenizer),
        splitter_(syntax_, request_.output.marked_ids, thinks, tokenizer),
        streamed_(streamed) {
    GenerationRequest parsed;
    const std::string stream = R"(,"stream":true,"stream_options":{"include_usage":true})";
    const auto fault = ParseChatCompletion(
        R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}])" +
            (streamed ? stream : "") + "}",
        {.id = "r1"}, &parsed);
    EXPECT_FALSE(fault);
    writer_ = MakeChatWriter(parsed.answer, parsed.names);
    v1::GenerateResponse started;
    started.mutable_started()->set_model("m");
    out_ += writer_->OnEvents(0, {started});
  }

  void Say(int32_t id) {
    ChoiceText::Shown shown;
    text_.Append(id, ChoiceText::Spelling::kShown, &shown);
    Put({id}, std::move(shown));
  }
  void Take() {
    for (StreamDelta& delta : stream_.Take().deltas) {
      v1::GenerateResponse event;
      splitter_.Count(delta.token_ids);
      splitter_.Split(std::move(delta.text), delta.marks, event.mutable_delta());
      out_ += writer_->OnEvents(0, {event});
    }
  }
  Read Finish(v1::FinishReason reason = v1::FINISH_REASON_STOP) {
    ChoiceText::Shown rest;
    text_.Flush(&rest);
    Put({}, std::move(rest));
    Take();
    v1::GenerateResponse event;
    event.mutable_finished()->set_reason(reason);
    event.mutable_finished()->mutable_usage()->set_reasoning_tokens(splitter_.reasoning_tokens());
    out_ += writer_->OnEvents(0, {event});
    out_ += writer_->Finish();
    return streamed_ ? ReadStream(out_) : ReadWhole(out_);
  }

 private:
  static Request MakeRequest(const AnswerSyntax& syntax) {
    Request request;
    request.prompt = {1};
    request.output.marked_ids = MarkedIds(syntax, /*is_chat=*/true);
    return request;
  }
  void Put(std::vector<int32_t> ids, ChoiceText::Shown shown) {
    StreamDelta delta;
    delta.token_ids = std::move(ids);
    delta.text = std::move(shown.text);
    delta.marks = std::move(shown.marks);
    stream_.PutDelta(std::move(delta));
  }

  const AnswerSyntax syntax_;
  const Request request_;
  ChoiceText text_;
  TokenStream stream_{"r1", nullptr};
  AnswerSplitter splitter_;
  const bool streamed_;
  std::unique_ptr<ResponseWriter> writer_;
  std::string out_;
};

// Whole, and streamed with two cuts at every place, and with a cut behind each id: always the same.
Read Everyway(const ByteTekken& tekken, const std::string& answer, bool thinks = false) {
  const std::vector<int32_t> ids = tekken.Ids(answer);
  Way at_once(*tekken, /*streamed=*/false, thinks);
  for (const int32_t id : ids) at_once.Say(id);
  const Read whole = at_once.Finish();
  for (size_t first = 0; first <= ids.size(); ++first) {
    for (size_t second = first; second <= ids.size(); ++second) {
      Way way(*tekken, /*streamed=*/true, thinks);
      const bool everywhere = second == first;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (everywhere || i == first || i == second) way.Take();
        way.Say(ids[i]);
      }
      const Read streamed = way.Finish();
      if (streamed == whole) continue;
      ADD_FAILURE() << answer << " cut at " << first << " and " << second << ": "
                    << testing::PrintToString(streamed) << ", whole " << testing::PrintToString(whole);
      return whole;
    }
  }
  return whole;
}

// ---- calls --------------------------------------------------------------------------------------------

TEST(Answers, V7CallsInOneList) {
  const Read read =
      Everyway(ByteTekken("v7"), R"(So:[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g"}])");
  EXPECT_EQ(read.content, "So:");
  EXPECT_THAT(read.calls, ElementsAre(R"(f{"a": 1})", "g{}"));
}

TEST(Answers, V11CallsOneByOneWithIdsOrWithout) {
  const Read read = Everyway(ByteTekken("v11"),
                             R"(é:[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": "]é"}[TOOL_CALLS]g[ARGS]{})");
  EXPECT_EQ(read.content, "é:");
  EXPECT_THAT(read.calls, ElementsAre(R"(f{"a": "]é"})", "g{}"));
}

TEST(Answers, V13AndV15CallOneByOneWithoutIds) {
  for (const char* version : {"v13", "v15"}) {
    const Read read =
        Everyway(ByteTekken(version), R"(é[TOOL_CALLS]f[ARGS]{"a": {}}[TOOL_CALLS]f[ARGS] {"a": 2})");
    EXPECT_EQ(read.content, "é") << version;
    EXPECT_THAT(read.calls, ElementsAre(R"(f{"a": {}})", R"(f{"a": 2})")) << version;
  }
}

TEST(Answers, CallSyntaxIsNeverContentAndWordsAre) {
  const ByteTekken tekken("v13");
  const auto content = [&](const std::string& answer) {
    const Read read = Everyway(tekken, answer);
    EXPECT_THAT(read.calls, IsEmpty()) << answer;
    return read.content;
  };
  EXPECT_EQ(content("a[TOOL_CALLS]f"), "a");
  EXPECT_EQ(content("[TOOL_CALLS]"), "");
  EXPECT_EQ(content("[TOOL_CALLS]no name[ARGS]{}"), "");
  EXPECT_EQ(content("[TOOL_CALLS][ARGS]{}"), "");
  EXPECT_EQ(content("[TOOL_CALLS]f{}[ARGS]"), "");
  EXPECT_EQ(content("[TOOL_CALLS]I can't."), "I can't.");
  EXPECT_EQ(content("[ARGS]{}"), "{}") << "of no call";
}

TEST(Answers, AMarkedCallWithoutArgumentsHasNone) {
  for (const char* version : {"v11", "v13"}) {
    const Read read =
        Everyway(ByteTekken(version), "[TOOL_CALLS]f[ARGS] [TOOL_CALLS]g[ARGS]{\"a\": 1}[TOOL_CALLS]h[ARGS]");
    EXPECT_EQ(read.content, "") << version;
    EXPECT_THAT(read.calls, ElementsAre("f{}", R"(g{"a": 1})", "h{}")) << version;
  }
  EXPECT_THAT(Everyway(ByteTekken("v11"), "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]").calls, ElementsAre("f{}"));
}

// A stream has what was told of a call before it was cut; a whole answer has whole calls.
TEST(Answers, ACallThatIsCutStaysInAStream) {
  const ByteTekken tekken("v13");
  const auto read = [&](bool streamed, const std::string& answer, v1::FinishReason reason) {
    Way way(*tekken, streamed);
    for (const int32_t id : tekken.Ids(answer)) {
      way.Say(id);
      way.Take();
    }
    return way.Finish(reason);
  };
  for (const v1::FinishReason reason : {v1::FINISH_REASON_LENGTH, v1::FINISH_REASON_STOP_SEQUENCE}) {
    EXPECT_EQ(read(true, "[TOOL_CALLS]f[ARGS]", reason), (Read{"", "", {"f"}, 0}));
    EXPECT_EQ(read(false, "[TOOL_CALLS]f[ARGS]", reason), Read());
  }
  for (const char* cut : {R"(a[TOOL_CALLS]f[ARGS]{"é": )", R"(a[TOOL_CALLS]f[ARGS]{"é": }x)"}) {
    EXPECT_EQ(read(true, cut, v1::FINISH_REASON_STOP), (Read{"a", "", {R"(f{"é": )"}, 0})) << cut;
    EXPECT_EQ(read(false, cut, v1::FINISH_REASON_STOP), (Read{"a", "", {}, 0})) << cut;
  }
  constexpr char kAnother[] = R"([TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]g[ARGS]{} z[TOOL_CALLS]h[ARGS]{})";
  EXPECT_EQ(read(true, kAnother, v1::FINISH_REASON_STOP), (Read{" z", "", {R"(f{"a": ")", "g{}", "h{}"}, 0}));
  EXPECT_EQ(read(false, kAnother, v1::FINISH_REASON_STOP), (Read{" z", "", {"g{}", "h{}"}, 0}));
}

TEST(Answers, WordsBehindTheMarkOfACallAreNotHeldBackForLong) {
  const ByteTekken tekken("v13");
  Way way(*tekken, /*streamed=*/true);
  for (const int32_t id : tekken.Ids("[TOOL_CALLS]" + std::string(1000, 'x'))) way.Say(id);
  EXPECT_EQ(way.Finish().content, std::string(1000, 'x'));
}

// ---- thinking -----------------------------------------------------------------------------------------

TEST(Answers, ThinkingIsNeverContent) {
  for (const char* version : {"v13", "v15"}) {
    const Read read = Everyway(ByteTekken(version), "[THINK]hm é[/THINK]Yes.[TOOL_CALLS]f[ARGS]{}");
    EXPECT_EQ(read.reasoning, "hm é") << version;
    EXPECT_EQ(read.content, "Yes.") << version;
    EXPECT_THAT(read.calls, ElementsAre("f{}")) << version;
    EXPECT_EQ(read.reasoning_tokens, 5) << version << ": a token a byte";
  }
}

TEST(Answers, ThinkingThatIsNestedOrDoesNotEndLosesNothing) {
  const ByteTekken tekken("v15");
  EXPECT_EQ(Everyway(tekken, "[THINK]a[THINK]b[/THINK]c[/THINK]d"), (Read{"cd", "ab", {}, 2}));
  EXPECT_EQ(Everyway(tekken, "[THINK]ab"), (Read{"", "ab", {}, 2}));
  EXPECT_EQ(Everyway(tekken, "a[/THINK]b"), (Read{"ab", "", {}, 0}));
  EXPECT_EQ(Everyway(tekken, "a[THINK]b[/THINK]c[THINK]d[/THINK]"), (Read{"ac", "bd", {}, 2}));
  EXPECT_EQ(Everyway(tekken, "[THINK]a[TOOL_CALLS]f[ARGS]{}"), (Read{"", "a", {"f{}"}, 1}));
  EXPECT_EQ(Everyway(tekken, R"([TOOL_CALLS]f[ARGS]{"a":[THINK]b[ARGS][/THINK]1})"),
            (Read{"", "b", {R"(f{"a":1})"}, 2}));
}

TEST(Answers, AThoughtOfThePromptGoesOn) {
  EXPECT_EQ(Everyway(ByteTekken("v15"), "a[/THINK]b", /*thinks=*/true), (Read{"b", "a", {}, 1}));
}

TEST(Answers, FormatsWithoutThinkingHaveNone) {
  EXPECT_EQ(Everyway(ByteTekken("v11"), "[THINK]a[/THINK]b"), (Read{"ab", "", {}, 0}));
}

// ---- over a served model ------------------------------------------------------------------------------

v1::Chat Hi() {
  v1::Chat chat;
  chat.add_messages()->set_role(v1::ROLE_USER);
  chat.mutable_messages(0)->set_content("Hi");
  return chat;
}

v1::ChatMessage& AddAssistant(v1::Chat* chat) {
  v1::ChatMessage& message = *chat->add_messages();
  message.set_role(v1::ROLE_ASSISTANT);
  return message;
}

// An engine over a model that says `answer`, and then the end, behind `chat`.
class World {
 public:
  explicit World(const std::string& version, const v1::Chat& chat = Hi(), const std::string& answer = "")
      : tekken_(version),
        model_(Script(tekken_, chat, answer)),
        constraints_(
            ConstraintCompiler::Create(*tekken_, (*tekken_).vocab_size(), {(*tekken_).eos_id()}, {})),
        engine_(Limits(),
                {(*tekken_).vocab_size(),
                 {(*tekken_).eos_id()},
                 MakeKvLayout({0}, {.kv_heads = 1, .head_dim = 8, .page_size = Limits().page_size})},
                model_, &*tekken_, clock_),
        thread_(engine_),
        core_({.workers = {.threads = 1}}) {
    spdlog::set_level(spdlog::level::warn);
    ServedModel served = Served(tekken_);
    served.engine = &engine_;
    served.clock = &clock_;
    served.constraints = constraints_.get();
    core_.Serve(served);
  }

  EngineClient& client() { return client_; }
  bool has_constraints() const { return constraints_ != nullptr; }
  EngineLoad load() const { return engine_.Load(); }
  Request Converted(const v1::Chat& chat) const {
    v1::GenerateRequest proto;
    *proto.mutable_chat() = chat;
    Request request;
    EXPECT_TRUE(core_.serving()->converter.requests.Generate(proto, &request).ok());
    return request;
  }

  // The text of the prompt, or what is wrong with the chat.
  std::string Rendered(const v1::Chat& chat) {
    v1::RenderChatRequest request;
    *request.mutable_chat() = chat;
    const auto answer =
        Await<v1::RenderChatResponse>([&](auto done) { client_.Ask(Caller(), request, std::move(done)); });
    return answer.error.ok() ? answer.response.text() : answer.error.message();
  }

 private:
  static EngineLimits Limits() {
    EngineLimits limits;
    limits.context = 512;
    limits.page_size = 16;
    limits.pool_pages = 64;
    return limits;
  }
  static ServedModel Served(const ByteTekken& tekken) {
    ServedModel served;
    served.names = {"scripted"};
    served.config.architecture = "ScriptedForTests";
    served.config.vocab_size = (*tekken).vocab_size();
    served.config.context = Limits().context;
    served.config.layers = 1;
    served.config.window = {0};
    served.config.eos_ids = {(*tekken).eos_id()};
    served.tokenizer = &*tekken;
    served.chat_format = &tekken.chat_format();
    return served;
  }
  static std::vector<int32_t> Script(const ByteTekken& tekken, const v1::Chat& chat,
                                     const std::string& answer) {
    const ServedModel served = Served(tekken);
    v1::RenderChatRequest request;
    *request.mutable_chat() = chat;
    v1::RenderChatResponse prompt;
    const RpcError error = ProtoConverter(served).texts.RenderChat(request, &prompt);
    EXPECT_TRUE(error.ok()) << error.message();
    std::vector<int32_t> script(static_cast<size_t>(Limits().context), (*tekken).eos_id());
    const std::vector<int32_t> ids = tekken.Ids(answer);
    std::copy(ids.begin(), ids.end(), script.begin() + prompt.token_ids_size());
    return script;
  }

  SteadyClock clock_;
  const ByteTekken tekken_;
  ScriptedModel model_;
  const std::unique_ptr<ConstraintCompiler> constraints_;  // null in a build without
  Engine engine_;
  EngineThread thread_;
  InferenceCore core_;
  EngineClient client_{core_};
};

struct Heard {
  std::string text, reasoning;
  std::vector<std::pair<v1::MarkKind, size_t>> marks;  // and bytes of the text
  std::vector<size_t> calls_at;
  v1::Finished finished;
};

Heard Ask(World& world, const v1::GenerateRequest& request) {
  CallReader call(world.client(), request);
  const RpcError outcome = call.ReadAll();
  EXPECT_TRUE(outcome.ok()) << outcome.message();
  Heard heard;
  for (const v1::GenerateResponse& event : call.events()) {
    const v1::Delta& delta = event.delta();
    for (const v1::Mark& mark : delta.marks()) {
      heard.marks.emplace_back(mark.kind(), heard.text.size() + static_cast<size_t>(mark.at()));
    }
    if (delta.has_tool_calls_at()) {
      heard.calls_at.push_back(heard.text.size() + static_cast<size_t>(delta.tool_calls_at()));
    }
    heard.text += delta.text();
    heard.reasoning += delta.reasoning();
    if (event.has_finished()) heard.finished = event.finished();
  }
  return heard;
}

constexpr char kThoughtAndTwoCalls[] =
    R"([THINK]hm[/THINK]Yes.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{})";

TEST(ServedAnswers, ThinkingAndTextAreFieldsAndCallsAreMarked) {
  World world("v15", Hi(), kThoughtAndTwoCalls);
  v1::GenerateRequest request;
  *request.mutable_chat() = Hi();
  const Heard heard = Ask(world, request);
  EXPECT_EQ(heard.reasoning, "hm");
  EXPECT_EQ(heard.text, R"(Yes.f{"a": 1}g{})");
  EXPECT_THAT(heard.calls_at, ElementsAre(4)) << "the first only";
  EXPECT_THAT(heard.marks,
              ElementsAre(std::pair(v1::MARK_KIND_CALL, 4u), std::pair(v1::MARK_KIND_ARGUMENTS, 5u),
                          std::pair(v1::MARK_KIND_CALL, 13u), std::pair(v1::MARK_KIND_ARGUMENTS, 14u)));
  EXPECT_EQ(heard.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(heard.finished.usage().reasoning_tokens(), 2);
}

TEST(ServedAnswers, ATextWithASuffixIsAPromptToFillInTheMiddle) {
  World world("v13");
  const ByteTekken tekken("v13");
  v1::GenerateRequest request;
  request.set_text("ab");
  request.set_suffix("c");
  request.mutable_stopping()->set_max_tokens(1);
  request.mutable_output()->set_prompt_tokens(true);
  CallReader call(world.client(), request);
  ASSERT_TRUE(call.ReadAll().ok());
  std::vector<int32_t> ids;
  for (const v1::PromptToken& token : call.events()[0].started().prompt()) ids.push_back(token.token_id());
  std::vector<int32_t> expected = tekken.Ids("[SUFFIX]c[PREFIX]ab");
  expected.insert(expected.begin(), (*tekken).bos_id());
  EXPECT_EQ(ids, expected);

  v1::TokenizeRequest tokenize;
  tokenize.set_text("ab");
  tokenize.set_suffix("c");
  const auto tokens = Await<v1::TokenizeResponse>(
      [&](auto done) { world.client().Ask(Caller(), tokenize, std::move(done)); });
  EXPECT_THAT(tokens.response.token_ids(), ElementsAreArray(expected));
  const auto model = Await<v1::GetModelResponse>(
      [&](auto done) { world.client().Ask(Caller(), v1::GetModelRequest(), std::move(done)); });
  EXPECT_TRUE(model.response.fill_in_middle());
}

TEST(ServedAnswers, ControlTokensAreReadFromTextWhereThatIsAskedFor) {
  World world("v13");
  const ByteTekken tekken("v13");
  v1::TokenizeRequest request;
  request.set_text("[INST]a[/INST]");
  request.set_add_bos(false);
  const auto ids = [&] {
    return Await<v1::TokenizeResponse>(
        [&](auto done) { world.client().Ask(Caller(), request, std::move(done)); });
  };
  EXPECT_EQ(ids().response.token_ids_size(), 14) << "a token a byte";
  request.set_parse_special_tokens(true);
  EXPECT_THAT(ids().response.token_ids(), ElementsAreArray(tekken.Ids("[INST]a[/INST]")));
  request.set_suffix("b");
  EXPECT_EQ(ids().error.field, "parse_special_tokens");

  v1::GenerateRequest generate;
  generate.set_text("[INST]a[/INST]");
  generate.set_parse_special_tokens(true);
  generate.mutable_stopping()->set_max_tokens(1);
  CallReader call(world.client(), generate);
  ASSERT_TRUE(call.ReadAll().ok());
  EXPECT_EQ(call.events()[0].started().prompt_tokens(), 4);
  *generate.mutable_chat() = Hi();
  CallReader chat(world.client(), generate);
  EXPECT_EQ(chat.ReadAll().field, "parse_special_tokens");
}

TEST(ServedAnswers, ASchemaIsShownToModelsThatReadIt) {
  World v13("v13"), v15("v15");
  v1::Chat chat = Hi();
  const std::string without = v13.Rendered(chat);
  chat.set_answer_schema_json(R"({"type":"object"})");
  EXPECT_EQ(v13.Rendered(chat), without);
  EXPECT_THAT(v15.Rendered(chat), HasSubstr(R"([MODEL_SETTINGS]{"json_schema": {"type": "object"}, )"));
  chat.set_answer_schema_json("[");
  EXPECT_THAT(v15.Rendered(chat), HasSubstr("answer_schema_json"));
}

TEST(ServedAnswers, ATextBeginsWithBosOnlyWhereTheTokenizerAddsIt) {
  TokenizerConfigFile config;
  config.bos_token = "<s>";  // what it is, and not that a text begins with it
  const auto tokenizer = SmallHuggingFace(ByteLevelJson({}), config);
  const MistralChatFormat chat_format(*tokenizer, TokenizerVersion::kV1);
  ServedModel served;
  served.names = {"small"};
  served.chat_format = &chat_format;
  served.config.context = 100;
  served.config.vocab_size = tokenizer->vocab_size();
  served.tokenizer = tokenizer.get();
  v1::TokenizeRequest request;
  request.set_text("a");
  v1::TokenizeResponse response;
  ASSERT_TRUE(ProtoConverter(served).texts.Tokenize(request, &response).ok());
  EXPECT_THAT(response.token_ids(), ElementsAre(kFirstTestByte + 'a'));
}

TEST(ServedAnswers, ASuffixGoesWithTextAlone) {
  World world("v13");
  v1::GenerateRequest request;
  request.set_suffix("c");
  *request.mutable_chat() = Hi();
  CallReader chat(world.client(), request);
  EXPECT_EQ(chat.ReadAll().field, "suffix");
  request.mutable_token_ids()->add_ids(3);
  CallReader ids(world.client(), request);
  EXPECT_EQ(ids.ReadAll().message(), "suffix: goes with text prompts only");
}

TEST(ServedAnswers, BehindOtherPromptsAllIsText) {
  World world("v15", Hi(), kThoughtAndTwoCalls);
  v1::RenderChatRequest render;
  *render.mutable_chat() = Hi();
  const auto prompt = Await<v1::RenderChatResponse>(
      [&](auto done) { world.client().Ask(Caller(), render, std::move(done)); });
  v1::GenerateRequest request;
  *request.mutable_token_ids()->mutable_ids() = prompt.response.token_ids();
  const Heard heard = Ask(world, request);
  EXPECT_EQ(heard.reasoning, "");
  EXPECT_EQ(heard.text, R"(hmYes.f{"a": 1}g{})");
  EXPECT_THAT(heard.calls_at, ElementsAre(6));
  EXPECT_EQ(heard.finished.usage().reasoning_tokens(), 0);
}

TEST(ServedAnswers, AThoughtThatIsOpenGoesOn) {
  v1::Chat chat = Hi();
  v1::ChatMessage& message = AddAssistant(&chat);
  message.set_prefix(true);
  v1::Thinking& thinking = *message.add_parts()->mutable_thinking();
  thinking.set_text("h");
  thinking.set_open(true);
  World world("v13", chat, "m[/THINK]Yes");
  v1::GenerateRequest request;
  *request.mutable_chat() = chat;
  const Heard heard = Ask(world, request);
  EXPECT_EQ(heard.reasoning, "m");
  EXPECT_EQ(heard.text, "Yes");
}

TEST(ServedAnswers, ACallThatMustBeMadeIsHeldToItsFormat) {
  v1::Chat chat = Hi();
  chat.add_tools()->set_name("f");
  chat.add_tools()->set_name("g");
  chat.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  v1::GenerateRequest request;
  *request.mutable_chat() = chat;
  World calls("v13", chat, R"([TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]f[ARGS]{})");
  if (!calls.has_constraints()) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
  const Heard heard = Ask(calls, request);
  EXPECT_EQ(heard.text, "g{}f{}");
  EXPECT_EQ(heard.finished.reason(), v1::FINISH_REASON_STOP);
  World talks("v13", chat, "Hello");  // it looks at no mask
  EXPECT_EQ(CallReader(talks.client(), request).ReadAll().code, StatusCode::kInternal);
}

TEST(ServedAnswers, UnderAutoTextIsFreeAndACallIsHeldToItsFormat) {
  v1::Chat chat = Hi();
  chat.add_tools()->set_name("f");
  v1::GenerateRequest request;
  *request.mutable_chat() = chat;
  World talks("v13", chat, "Hello [ARGS]");
  if (!talks.has_constraints()) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
  EXPECT_EQ(Ask(talks, request).text, "Hello ");
  EXPECT_EQ(talks.load().constrained_tokens, 0);
  World calls("v13", chat, "So.[TOOL_CALLS]f[ARGS]{}");
  const Heard heard = Ask(calls, request);
  EXPECT_EQ(heard.text, "So.f{}");
  EXPECT_EQ(heard.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(calls.load().constrained_tokens, 5) << "from the call's first id on, to the end";
  World errs("v13", chat, "So.[TOOL_CALLS]g[ARGS]{}");  // it looks at no mask
  EXPECT_EQ(CallReader(errs.client(), request).ReadAll().code, StatusCode::kInternal);
}

TEST(ServedAnswers, AThoughtHasTheTokensOfItsBudget) {
  const auto ask = [](const char* version, const char* answer, int32_t budget) {
    v1::GenerateRequest request;
    *request.mutable_chat() = Hi();
    World world(version, request.chat(), answer);
    request.mutable_chat()->set_thinking_token_budget(budget);
    return CallReader(world.client(), request).ReadAll();  // the model looks at no mask
  };
  constexpr char kThinks[] = "[THINK]abc[/THINK]Hi";
  EXPECT_TRUE(ask("v13", kThinks, 3).ok());
  EXPECT_TRUE(ask("v13", kThinks, -1).ok());
  EXPECT_EQ(ask("v13", kThinks, 2).code, StatusCode::kInternal) << "the fourth token is no end of a thought";
  EXPECT_TRUE(ask("v7", "Hi", 0).ok()) << "a model that does not think";
  const RpcError error = ask("v7", "Hi", -2);
  EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(error.field, "chat.thinking_token_budget");
}

TEST(ServedAnswers, AChatThatMayNotCallBansTheIdThatWould) {
  const auto banned = [](const v1::Chat& chat) {
    const World world("v13", chat);
    return world.Converted(chat).sampling.banned;
  };
  v1::Chat chat = Hi();
  EXPECT_EQ(banned(chat).size(), 1u);
  chat.add_tools()->set_name("f");
  EXPECT_TRUE(banned(chat).empty());
  chat.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_NONE);
  EXPECT_EQ(banned(chat), std::vector<int32_t>{*(*ByteTekken("v13")).ControlId("[TOOL_CALLS]")});
}

// ---- stop texts and thoughts --------------------------------------------------------------------------

struct Stopped {
  std::string reasoning, text, stop;
  bool operator==(const Stopped&) const = default;
};
void PrintTo(const Stopped& stopped, std::ostream* out) {
  *out << "'" << stopped.reasoning << "', '" << stopped.text << "' by '" << stopped.stop << "'";
}

// What a chat's answer is where the model says `answer`; twice, as two choices of one request.
Stopped AskWithStops(const std::string& version, const std::string& answer,
                     const std::vector<std::string>& stops,
                     const std::function<void(v1::GenerateRequest*)>& change = {}) {
  v1::GenerateRequest request;
  *request.mutable_chat() = Hi();
  request.set_choices(2);
  for (const std::string& stop : stops) request.mutable_stopping()->add_stop(stop);
  if (change) change(&request);
  World world(version, request.chat(), answer);
  CallReader call(world.client(), request);
  EXPECT_TRUE(call.ReadAll().ok());
  Stopped stopped[2];
  for (const v1::GenerateResponse& event : call.events()) {
    Stopped& said = stopped[event.has_finished() ? event.finished().choice() : event.delta().choice()];
    said.reasoning += event.delta().reasoning();
    said.text += event.delta().text();
    said.stop += event.finished().stop();
  }
  EXPECT_EQ(stopped[0], stopped[1]);
  return stopped[0];
}

TEST(StopTexts, LookAtTheAnswerAlone) {
  for (const char* version : {"v13", "v15"}) {
    const auto ask = [&](const std::string& answer, const std::vector<std::string>& stops) {
      return AskWithStops(version, answer, stops);
    };
    const std::string thought = "[THINK]let me stop; now[/THINK]";
    EXPECT_EQ(ask(thought + "Go.", {" me"}), (Stopped{"let me stop; now", "Go.", ""}));
    EXPECT_EQ(ask(thought + "Go with me.", {" me"}), (Stopped{"let me stop; now", "Go with", " me"}));
    EXPECT_EQ(ask(thought + "Go.", {"nowGo", "w", "[THINK]"}), (Stopped{"let me stop; now", "Go.", ""}))
        << "the border";
    EXPECT_EQ(ask("Go[THINK]a[/THINK]Go.", {"GoGo", "oa"}), (Stopped{"a", "GoGo.", ""}))
        << "neither are neighbours";
    EXPECT_EQ(ask("ab[THINK]x", {"bc"}), (Stopped{"x", "ab", ""})) << "what was held back is shown";
    EXPECT_EQ(ask("[THINK]x[TOOL_CALLS]f[ARGS]{}", {"f"}), (Stopped{"x", "", "f"}))
        << "a call ends a thought";
    EXPECT_EQ(ask("a[/THINK]b", {"ab"}), (Stopped{"", "", "ab"})) << "of no thought";
  }
  EXPECT_EQ(AskWithStops("v11", "[THINK]a me", {" me"}), (Stopped{"", "a", " me"}))
      << "a format without thoughts";
}

TEST(StopTexts, OfAThoughtThatThePromptBeganWaitForItsEnd) {
  const auto open = [](v1::GenerateRequest* request) {
    v1::ChatMessage& message = AddAssistant(request->mutable_chat());
    message.set_prefix(true);
    message.add_parts()->mutable_thinking()->set_text("h");
    message.mutable_parts(0)->mutable_thinking()->set_open(true);
  };
  EXPECT_EQ(AskWithStops("v13", "m. x[/THINK]Yes. No", {"."}, open), (Stopped{"m. x", "Yes", "."}));
}

TEST(StopTexts, KeepTheirOwnTextAndTheirTokensInTheAnswer) {
  const auto include = [](v1::GenerateRequest* request) {
    request->mutable_stopping()->set_include_stop(true);
  };
  EXPECT_EQ(AskWithStops("v13", "[THINK]a.[/THINK]b.c", {"."}, include), (Stopped{"a.", "b.", "."}));
  const auto late = [](v1::GenerateRequest* request) { request->mutable_stopping()->set_min_tokens(6); };
  EXPECT_EQ(AskWithStops("v13", "[THINK]a[/THINK].b.c", {"."}, late), (Stopped{"a", ".b", "."}));
}

// What is shown of `said`, a token a byte, and what stopped it.
std::pair<std::string, std::string> Shown(const std::string& said, const std::string& stop,
                                          bool open = false) {
  const ByteTekken tekken("v3");
  Request request;
  request.prompt = {1};
  request.stopping.stop = {stop};
  request.output.thoughts = {.in_text = true, .open = open};
  ChoiceText text(request, &*tekken);
  ChoiceText::Shown shown;
  for (const char c : said) {
    const int32_t id = kTestSpecialTokens + static_cast<uint8_t>(c);
    if (const std::string* by = text.Append(id, ChoiceText::Spelling::kShown, &shown))
      return {shown.text, *by};
  }
  const std::string* by = text.Flush(&shown);
  return {shown.text, by == nullptr ? "" : *by};
}

TEST(StopTexts, OfThoughtsWhoseMarksAreTextWaitForTheAnswerToo) {
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(Shown("<think>a. b</think>\n\nYes. No", "."), Pair("<think>a. b</think>\n\nYes", "."));
  EXPECT_EQ(Shown("<think>a</think>\n\nYes", "\n"), Pair("<think>a</think>\n\nYes", "")) << "not its lines";
  EXPECT_EQ(Shown("\n<think>a</think>Yes", "\n"), Pair("\n<think>a</think>Yes", ""));
  EXPECT_EQ(Shown("<think>a</think>Yes", "<"), Pair("<think>a</think>Yes", ""));
  EXPECT_EQ(Shown("<think>a</think>Yes", "</think>Y"), Pair("<think>a</think>Yes", "")) << "the border";
  EXPECT_EQ(Shown("a.</think>b.c", ".", /*open=*/true), Pair("a.</think>b", "."));
  EXPECT_EQ(Shown("Yes. No", "."), Pair("Yes", "."));
  EXPECT_EQ(Shown("\nYes", "\n"), Pair("", "\n"));
  EXPECT_EQ(Shown("<b>", "<"), Pair("", "<"));
  EXPECT_EQ(Shown("<th", "<t"), Pair("", "<t")) << "once it cannot be a thought any more";
}

// ---- forms and thoughts -------------------------------------------------------------------------------

v1::GenerateRequest HeldToJson() {
  v1::GenerateRequest request;
  *request.mutable_chat() = Hi();
  request.mutable_constraint()->set_json_schema(R"({"type": "object", "properties": {}})");
  return request;
}

TEST(HeldAnswers, AThoughtComesFirstAndTheFormBehindIt) {
  World world("v13", Hi(), "[THINK]so [1] it is[/THINK]{}");
  if (!world.has_constraints()) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
  v1::GenerateRequest request = HeldToJson();
  const Heard heard = Ask(world, request);
  EXPECT_EQ(heard.reasoning, "so [1] it is");
  EXPECT_EQ(heard.text, "{}");
  EXPECT_EQ(heard.finished.reason(), v1::FINISH_REASON_STOP);
  // The model looks at no mask, so what may not come is a fault.
  request.mutable_constraint()->set_from_first_token(true);
  EXPECT_EQ(CallReader(world.client(), request).ReadAll().code, StatusCode::kInternal);
}

TEST(HeldAnswers, WhereNoThoughtIsWantedTheFormBeginsAtOnce) {
  v1::GenerateRequest request = HeldToJson();
  request.mutable_chat()->set_reasoning_effort("none");
  World world("v15", request.chat(), "[THINK]a[/THINK]{}");
  if (!world.has_constraints()) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
  EXPECT_EQ(CallReader(world.client(), request).ReadAll().code, StatusCode::kInternal);
  request = HeldToJson();
  request.mutable_chat()->set_chat_template_kwargs_json(R"({"enable_thinking": false})");
  World switched_off("v13", request.chat(), "[THINK]a[/THINK]{}");
  EXPECT_EQ(CallReader(switched_off.client(), request).ReadAll().code, StatusCode::kInternal);
}

TEST(HeldAnswers, AThoughtOfThePromptGoesOnAndAnAnswerThatHasBegunHasNone) {
  v1::GenerateRequest request = HeldToJson();
  v1::ChatMessage& message = AddAssistant(request.mutable_chat());
  message.set_prefix(true);
  v1::Thinking& thinking = *message.add_parts()->mutable_thinking();
  thinking.set_text("h");
  thinking.set_open(true);
  World open("v13", request.chat(), "m[/THINK]{}");
  if (!open.has_constraints()) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
  const Heard heard = Ask(open, request);
  EXPECT_EQ(heard.reasoning, "m");
  EXPECT_EQ(heard.text, "{}");
  request.mutable_constraint()->set_from_first_token(true);
  World held("v13", request.chat(), "{}");
  const Heard at_once = Ask(held, request);
  EXPECT_EQ(at_once.reasoning, "");
  EXPECT_EQ(at_once.text, "{}");
  request = HeldToJson();
  AddAssistant(request.mutable_chat()).set_content("As JSON: ");
  request.mutable_chat()->mutable_messages(1)->set_prefix(true);
  World begun("v13", request.chat(), "[THINK]a[/THINK]{}");
  EXPECT_EQ(CallReader(begun.client(), request).ReadAll().code, StatusCode::kInternal);
}

TEST(HeldAnswers, AThoughtMayComeBeforeACallThatMustBeMade) {
  v1::Chat chat = Hi();
  chat.add_tools()->set_name("f");
  chat.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  v1::GenerateRequest request;
  *request.mutable_chat() = chat;
  World world("v13", chat, "[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{}");
  if (!world.has_constraints()) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)";
  const Heard heard = Ask(world, request);
  EXPECT_EQ(heard.reasoning, "hm");
  EXPECT_EQ(heard.text, "f{}");
}

// ---- what a chat may hold -----------------------------------------------------------------------------

TEST(ServedChats, PartsReachTheFormat) {
  v1::Chat chat = Hi();
  v1::ChatMessage& message = AddAssistant(&chat);
  message.add_parts()->mutable_thinking()->set_text("hm");
  message.add_parts()->set_text("Yes");
  chat.add_messages()->set_role(v1::ROLE_USER);
  for (const char* text : {"a", "", "b"}) chat.mutable_messages(2)->add_parts()->set_text(text);
  EXPECT_EQ(World("v13").Rendered(chat), "<s>[INST]Hi[/INST][THINK]hm[/THINK]Yes</s>[INST]a\n\nb[/INST]");
  EXPECT_THAT(World("v15").Rendered(chat), HasSubstr("[INST]ab[/INST]"));
  World without("v11");
  EXPECT_EQ(without.Rendered(chat), "<s>[INST]Hi[/INST]Yes</s>[INST]a\n\nb[/INST]") << "it has no thoughts";
  v1::GenerateRequest request;
  *request.mutable_chat() = chat;
  request.mutable_stopping()->set_max_tokens(1);
  CallReader told(without.client(), request);
  EXPECT_TRUE(told.ReadAll().ok());
  EXPECT_THAT(told.events().at(0).started().ignored(), ElementsAre("chat.messages[1].thinking"));
  message.set_content("Yes");
  EXPECT_EQ(World("v13").Rendered(chat),
            "chat.messages[1].parts: is given beside content; give one of the two");
  message.clear_content();
  message.add_parts();
  EXPECT_THAT(World("v13").Rendered(chat), StartsWith("chat.messages[1].parts[2]: is empty"));
}

TEST(ServedChats, TheReasoningEffortIsAskedForWhereThereIsOne) {
  v1::Chat chat = Hi();
  chat.set_reasoning_effort("high");
  EXPECT_THAT(World("v15").Rendered(chat), HasSubstr(R"({"reasoning_effort": "high"})"));
  EXPECT_EQ(World("v13").Rendered(chat), "chat.reasoning_effort: the model has no such setting");
  chat.set_reasoning_effort("some");
  EXPECT_EQ(World("v15").Rendered(chat), "chat.reasoning_effort: 'some' is not one of none, high");
  chat.set_reasoning_effort("none");
  EXPECT_EQ(World("v13").Rendered(chat), "chat.reasoning_effort: the model has no such setting");
  EXPECT_THAT(World("v15").Rendered(chat), HasSubstr(R"({"reasoning_effort": "none"})"));
}

TEST(ServedChats, TheModelSaysItsTokenizer) {
  World world("v13");
  const auto model = Await<v1::GetModelResponse>(
      [&](auto done) { world.client().Ask(Caller(), v1::GetModelRequest(), std::move(done)); });
  EXPECT_EQ(model.response.tokenizer(), "tekken");
  EXPECT_EQ(model.response.tokenizer_version(), "v13");
  EXPECT_EQ(model.response.chat_format(), "v13");
}

}  // namespace
}  // namespace tramontane
