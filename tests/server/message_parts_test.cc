// Long events in several messages, and whole again where they are joined.
#include "server/grpc/message_parts.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/core/utf8.h"
#include "server/remote/joined_events.h"

namespace tramontane {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr size_t kMost = 2000;

std::vector<v1::GenerateResponse> Joined(const std::vector<v1::GenerateResponse>& parts) {
  JoinedEvents events;
  for (const v1::GenerateResponse& part : parts) {
    EXPECT_LE(part.ByteSizeLong(), kMost);
    EXPECT_TRUE(!FirstInvalidUtf8(part.delta().text()));
    events.Add(part);
  }
  return events.Take();
}

void ExpectWholeAgain(const v1::GenerateResponse& event, size_t least_parts) {
  const std::vector<v1::GenerateResponse> parts = PartsOf(event, kMost);
  EXPECT_GE(parts.size(), least_parts);
  const std::vector<v1::GenerateResponse> joined = Joined(parts);
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_TRUE(MessageDifferencer::Equals(joined[0], event));
}

void AddLogprob(int i, v1::TokenLogprob* logprob) {
  logprob->set_token_id(i);
  logprob->set_token_bytes(std::string(static_cast<size_t>(i % 50), 'x'));
  for (int top = 0; top < 3; ++top) logprob->add_top()->set_token_id(top);
}

TEST(MessageParts, AMessageBegunIsOne) {
  const size_t one = kDefaultMessageBytes;
  EXPECT_EQ(MessagesIn(0), 1);
  EXPECT_EQ(MessagesIn(one), 1);
  EXPECT_EQ(MessagesIn(one + 1), 2);
  EXPECT_EQ(MessagesIn(10 * one), 10);
}

TEST(MessageParts, AShortEventStaysOne) {
  v1::GenerateResponse event;
  event.mutable_delta()->set_text("a");
  const auto parts = PartsOf(event, kMost);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_TRUE(MessageDifferencer::Equals(parts[0], event));
}

TEST(MessageParts, TheListsOfAStartedGoOnInTheNext) {
  v1::GenerateResponse event;
  v1::Started& started = *event.mutable_started();
  started.set_request_id("r1");
  started.set_prompt_tokens(500);
  started.add_unenforced("chat.tools");
  started.add_ignored("chat.messages[1].thinking");
  for (int i = 0; i < 500; ++i) {
    AddLogprob(i, started.add_prompt_logprobs());
    started.add_prompt()->set_token_id(i);
  }
  ExpectWholeAgain(event, 3);
  const auto parts = PartsOf(event, kMost);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].started().more(), i + 1 < parts.size());
    EXPECT_EQ(parts[i].started().prompt_tokens(), 500);
    EXPECT_EQ(parts[i].started().request_id(), "r1");
    EXPECT_EQ(parts[i].started().unenforced_size(), i == 0 ? 1 : 0);
    EXPECT_EQ(parts[i].started().ignored_size(), i == 0 ? 1 : 0);
  }
}

TEST(MessageParts, TokensAndTextsOfADeltaGoOnInTheNext) {
  v1::GenerateResponse event;
  v1::Delta& delta = *event.mutable_delta();
  delta.set_choice(2);
  delta.set_completion_tokens(700);
  for (int i = 0; i < 300; ++i) {
    delta.add_token_ids(i);
    AddLogprob(i, delta.add_logprobs());
  }
  for (int i = 0; i < 2000; ++i) delta.mutable_text()->append("aé€");
  for (int i = 0; i < 1500; ++i) delta.mutable_reasoning()->append("é");
  delta.set_tool_calls_at(6000);
  for (const int at : {0, 6000, 6001, 11999, 12000}) delta.add_marks()->set_at(at);
  ExpectWholeAgain(event, 10);
  delta.set_tool_calls_at(0);
  ExpectWholeAgain(event, 10);
  const auto parts = PartsOf(event, kMost);
  EXPECT_EQ(parts[0].delta().completion_tokens(), 400 + parts[0].delta().token_ids_size());
}

TEST(MessageParts, AStartedIsTakenOnceItIsWhole) {
  JoinedEvents events;
  v1::GenerateResponse part;
  part.mutable_started()->set_more(true);
  part.mutable_started()->add_prompt_logprobs();
  events.Add(part);
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(events.bytes(), 0u) << "nobody could take it";
  part.mutable_started()->set_more(false);
  events.Add(part);
  const auto taken = events.Take();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].started().prompt_logprobs_size(), 2);
  EXPECT_FALSE(taken[0].started().more());
}

}  // namespace
}  // namespace tramontane
