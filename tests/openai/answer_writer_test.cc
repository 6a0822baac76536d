// The events of calls as those of choices, before any dialect prints them.
#include "server/api/shared/answer_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/api/openai/chat.h"
#include "server/api/openai/request_shapes.h"
#include "tests/openai/answer_events.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;

const char* EndName(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::kStop:
      return "stop";
    case AnswerEnd::kStopSequence:
      return "stop sequence";
    case AnswerEnd::kToolCalls:
      return "tool calls";
    case AnswerEnd::kLimit:
      return "limit";
  }
  return "";
}

// A dialect that writes down what it is told.
class Recorder final : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  std::string Finish() override { return ""; }
  std::string Fail(const ApiError&) override { return ""; }

  std::vector<std::string> told;
  bool releases_on_failure = false;
  const AnswerUsage& used() const { return usage(); }

 private:
  void OnStarted(size_t call, const v1::Started&, std::string*) override {
    told.push_back("started " + std::to_string(call) + " of " + model());
  }
  void OnText(size_t choice, std::string_view text, const v1::Delta* delta, std::string*) override {
    told.push_back(std::to_string(choice) + (delta == nullptr ? " held: " : ": ") + std::string(text));
  }
  void OnCallBegins(size_t choice, const CallBegins& call, std::string*) override {
    told.push_back(std::to_string(choice) + " calls " + std::to_string(call.number) + " " + call.name);
  }
  void OnCallArguments(size_t choice, std::string_view bytes, std::string*) override {
    told.push_back(std::to_string(choice) + " with " + std::string(bytes));
  }
  void OnCallEnds(size_t choice, bool is_whole, std::string*) override {
    told.push_back(std::to_string(choice) + (is_whole ? " is whole" : " is cut"));
  }
  void OnFinished(size_t choice, AnswerEnd end, const v1::Finished&, std::string*) override {
    told.push_back(std::to_string(choice) + " ends: " + EndName(end));
  }
  ApiError OnFailed(size_t choice, const v1::Finished& finished, std::string* out) override {
    if (releases_on_failure) Release(choice, AnswerReader::End::kCutOff, out);
    told.push_back(std::to_string(choice) + " fails");
    return {.status = 500, .message = finished.error_message()};
  }
};

constexpr char kTwoCalls[] = R"(So: [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}])";
constexpr char kCutCall[] = R"([{"name": "f", "argu)";

AnswerOptions WithTools() {
  AnswerOptions options;
  options.tools = true;
  return options;
}

Recorder Writer(AnswerOptions options, size_t calls = 1) {
  return Recorder(std::move(options), std::vector<FieldNames>(calls, FieldNames(StandardShapes().chat)));
}

TEST(AnswerWriter, WithoutToolsTextIsToldAsItComes) {
  Recorder writer = Writer({});
  writer.OnEvents(0, {Started(), Said("a"), Said(kCutCall, 0)});
  writer.OnEvents(0, {Finished(v1::FINISH_REASON_STOP)});
  EXPECT_THAT(writer.told,
              ElementsAre("started 0 of m", "0: a", std::string("0: ") + kCutCall, "0 ends: stop"));
}

TEST(AnswerWriter, CallsAreNumberedBehindTheTextBeforeThem) {
  Recorder writer = Writer(WithTools());
  writer.OnEvents(0, {Started(), Said(kTwoCalls, 4), Finished(v1::FINISH_REASON_STOP)});
  EXPECT_THAT(writer.told, ElementsAre("started 0 of m", "0: So: ", "0 calls 0 f", "0 with {}", "0 is whole",
                                       "0 calls 1 g", "0 with {}", "0 is whole", "0 ends: tool calls"));
}

TEST(AnswerWriter, CallsAreToldAsTheyComeAndTheirNumbersGoOn) {
  Recorder writer = Writer(WithTools());
  writer.OnEvents(0, {Started(), Said(R"([{"name": "f", "arguments": {"a)", 0)});
  writer.OnEvents(0, {Said(R"(": 1}}, {"name": "g")"), Said("}] Done.")});
  EXPECT_THAT(writer.told,
              ElementsAre("started 0 of m", "0: ", "0 calls 0 f", "0 with {\"a", "0: ", "0 with \": 1}",
                          "0 is whole", "0 calls 1 g", "0: ", "0 with {}", "0 is whole", "0 held:  Done."));
}

// Words behind the mark of a call may yet be its name.
v1::GenerateResponse SaidForACall(const std::string& text) {
  v1::GenerateResponse event = Said(text, 0);
  event.mutable_delta()->add_marks()->set_kind(v1::MARK_KIND_CALL);
  return event;
}

TEST(AnswerWriter, WhatWasHeldBackIsToldBeforeTheEnd) {
  Recorder writer = Writer(WithTools());
  writer.OnEvents(0, {Started(), SaidForACall("Not so"), Finished(v1::FINISH_REASON_LENGTH)});
  EXPECT_THAT(writer.told, ElementsAre("started 0 of m", "0: ", "0 held: Not so", "0 ends: limit"));
}

TEST(AnswerWriter, WhereOnlyCallsCanBeThereIsNoText) {
  AnswerOptions options = WithTools();
  options.only_tool_calls = true;
  Recorder writer = Writer(options);
  writer.OnEvents(0, {Started(), Said("Not so", 0), Finished(v1::FINISH_REASON_LENGTH)});
  EXPECT_THAT(writer.told, ElementsAre("started 0 of m", "0: ", "0 ends: limit"));
}

TEST(AnswerWriter, OfACallCutOffItsBeginningIsToldAndNoText) {
  Recorder writer = Writer(WithTools());
  writer.OnEvents(0, {Started(), Said(kCutCall, 0), Finished(v1::FINISH_REASON_LENGTH)});
  EXPECT_THAT(writer.told, ElementsAre("started 0 of m", "0: ", "0 calls 0 f", "0 is cut", "0 ends: limit"));
}

TEST(AnswerWriter, AStreamHoldsNothingOfItsCalls) {
  AnswerOptions options = WithTools();
  options.stream = true;
  Recorder writer = Writer(options);
  writer.OnEvents(0, {Started(), Said(R"([{"name": "f", "arguments": {"a": ")", 0)});
  writer.OnEvents(0, {Said(std::string(1 << 16, 'x'))});
  EXPECT_EQ(writer.held_bytes(), 0);
  Recorder reordered = Writer(options);
  reordered.OnEvents(0, {Started(), Said(R"([{"arguments": {"a": ")", 0), Said(std::string(1 << 16, 'x'))});
  EXPECT_GT(reordered.held_bytes(), 1 << 16) << "its name is not known";
}

TEST(AnswerWriter, AnEndIsCallsUnlessTheAnswerWasCutOff) {
  const std::vector<std::pair<v1::FinishReason, std::string>> ends = {
      {v1::FINISH_REASON_STOP, "tool calls"},
      {v1::FINISH_REASON_STOP_SEQUENCE, "tool calls"},
      {v1::FINISH_REASON_LENGTH, "limit"},
      {v1::FINISH_REASON_TIME_LIMIT, "limit"}};
  for (const auto& [reason, name] : ends) {
    Recorder writer = Writer(WithTools());
    writer.OnEvents(0, {Started(), Said(kTwoCalls, 4), Finished(reason)});
    EXPECT_EQ(writer.told.back(), "0 ends: " + name);
  }
}

TEST(AnswerWriter, AStopWithinACallHasCutTheAnswerOff) {
  AnswerOptions forced = WithTools();
  forced.only_tool_calls = true;
  const auto end = [](const AnswerOptions& options, const std::string& said) {
    Recorder writer = Writer(options);
    writer.OnEvents(0, {Started(), Said(said, 0), Finished(v1::FINISH_REASON_STOP_SEQUENCE)});
    return writer.told.back();
  };
  const std::string whole = R"([{"name": "f", "arguments": {}})";
  EXPECT_EQ(end(forced, kCutCall), "0 ends: limit");
  EXPECT_EQ(end(forced, ""), "0 ends: limit");
  EXPECT_EQ(end(forced, "["), "0 ends: limit");
  EXPECT_EQ(end(forced, whole + R"(, {"na)"), "0 ends: limit") << "the second";
  EXPECT_EQ(end(forced, whole), "0 ends: tool calls");
  EXPECT_EQ(end(WithTools(), kCutCall), "0 ends: limit");
  EXPECT_EQ(end(WithTools(), "Not so"), "0 ends: stop sequence") << "text";
}

TEST(AnswerWriter, WhatAChoiceFailedOfIsToldInTheWordsOfTheRequest) {
  for (const bool stream : {false, true}) {
    AnswerOptions options;
    options.stream = stream;
    std::vector<FieldNames> names(1, FieldNames(StandardShapes().chat));
    names[0].Rename("constraint", "response_format");
    const auto fault = [&](const char* field, const std::string& message,
                           StatusCode code = StatusCode::kInvalidArgument) {
      const auto writer = MakeChatWriter(options, names);
      v1::GenerateResponse event = Finished(v1::FINISH_REASON_ERROR);
      event.mutable_finished()->set_error_message(message);
      event.mutable_finished()->set_error_field(field);
      event.mutable_finished()->set_error_code(static_cast<int32_t>(code));
      writer->OnEvents(0, {Started(), event});
      return *writer->Fault();
    };
    const ApiError early = fault("stopping.min_tokens", "stopping.min_tokens is 50, but");
    EXPECT_EQ(early.param, "min_tokens");
    EXPECT_EQ(early.message, "choice 0 has failed: min_tokens is 50, but");
    EXPECT_EQ(early.status, 400);
    EXPECT_EQ(fault("constraint", "constraint allows no token").message,
              "choice 0 has failed: response_format allows no token");
    EXPECT_EQ(fault("", "why").message, "choice 0 has failed: why");
    const ApiError limit = fault("", "why", StatusCode::kResourceExhausted);
    EXPECT_EQ(limit.code, "request_limit") << "the queue it has passed";
    EXPECT_TRUE(limit.retry_is_vain);
  }
}

TEST(AnswerWriter, ACancelledChoiceHasNoEnd) {
  Recorder writer = Writer({});
  writer.OnEvents(0, {Started(), Finished(v1::FINISH_REASON_CANCELLED)});
  EXPECT_THAT(writer.told, ElementsAre("started 0 of m"));
  EXPECT_FALSE(writer.Fault());
}

TEST(AnswerWriter, OfAFailedChoiceTheDialectSaysWhetherItsRestIsTold) {
  for (const bool releases : {false, true}) {
    Recorder writer = Writer(WithTools());
    writer.releases_on_failure = releases;
    writer.OnEvents(0, {Started(), SaidForACall("Not so"), Finished(v1::FINISH_REASON_ERROR)});
    EXPECT_EQ(writer.told.back(), "0 fails");
    EXPECT_EQ(writer.told.size(), releases ? 4u : 3u);
    EXPECT_EQ(writer.Fault()->message, "why");
  }
}

TEST(AnswerWriter, ChoicesAreNumberedThroughAndTokensAddedUp) {
  AnswerOptions options;
  options.choices = 2;
  Recorder writer = Writer(options, 2);
  writer.OnEvents(1, {Started("m", 4), Said("d", -1, 1), Finished(v1::FINISH_REASON_STOP, 1)});
  writer.OnEvents(0, {Started("m", 3), Said("a")});
  EXPECT_THAT(writer.told, ElementsAre("started 1 of m", "3: d", "3 ends: stop", "started 0 of m", "0: a"));
  EXPECT_EQ(writer.used().prompt_tokens, 7);
  EXPECT_EQ(writer.used().completion_tokens, 3) << "two of the choice that has ended, one of the other";
}

}  // namespace
}  // namespace tramontane
