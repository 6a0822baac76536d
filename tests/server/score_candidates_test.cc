// ScoreCandidates over gRPC: what is answered, what is refused and how, and how a call ends before its time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/server/scripted_server.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;

v1::ScoreCandidatesRequest RequestOf(int64_t prompt_tokens,
                                     const std::vector<std::vector<int32_t>>& candidates) {
  v1::ScoreCandidatesRequest request;
  for (int64_t i = 0; i < prompt_tokens; ++i)
    request.mutable_token_ids()->add_ids(static_cast<int32_t>(10 + i % 50));
  for (const std::vector<int32_t>& candidate : candidates) {
    v1::TokenIds* ids = request.add_candidates()->mutable_token_ids();
    ids->mutable_ids()->Assign(candidate.begin(), candidate.end());
  }
  return request;
}

TEST(ScoreCandidates, AnswersInOrderWithUsage) {
  ScriptedServer server;
  v1::ScoreCandidatesRequest request = RequestOf(40, {{7, 8}, {9}, {11, 12, 13}});
  request.set_request_id("mine");
  const StatusOr<v1::ScoreCandidatesResponse> scored = server.client().ScoreCandidates(request);
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_EQ(scored->request_id(), "mine");
  ASSERT_EQ(scored->candidates_size(), 3);
  EXPECT_THAT(scored->candidates(0).token_ids(), ElementsAre(7, 8));
  EXPECT_THAT(scored->candidates(1).token_ids(), ElementsAre(9));
  EXPECT_THAT(scored->candidates(2).token_ids(), ElementsAre(11, 12, 13));
  EXPECT_THAT(scored->candidates(2).logprobs(), ElementsAre(-0.5f, -0.5f, -0.5f));
  EXPECT_THAT(scored->candidates(2).ranks(), ElementsAre(1, 1, 1));
  EXPECT_EQ(scored->candidates(2).logprob_sum(), -1.5);
  EXPECT_EQ(scored->candidate_tokens(), 6);
  EXPECT_EQ(scored->usage().prompt_tokens(), 40);
  EXPECT_EQ(scored->usage().cached_tokens(), 0);
  EXPECT_EQ(scored->usage().completion_tokens(), 0);
  request.set_request_id("");
  const StatusOr<v1::ScoreCandidatesResponse> again = server.client().ScoreCandidates(request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->usage().cached_tokens(), 32) << "whole pages in front of the prompt's last token";
  EXPECT_NE(again->request_id(), "");
}

// Behind text the space that the vocabulary puts in front is the candidate's own; behind a control token
// there is none to be had.
TEST(ScoreCandidates, TextsGoOnWithThePrompt) {
  ScriptedServer server;
  const auto ids = [&](const std::string& text) { return *server.tokenizer().Encode(text); };
  v1::ScoreCandidatesRequest request;
  request.set_text("The answer is");
  request.add_candidates()->set_text(" yes");
  request.add_candidates()->set_text("no");
  const StatusOr<v1::ScoreCandidatesResponse> scored = server.client().ScoreCandidates(request);
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_THAT(scored->candidates(0).token_ids(), testing::ElementsAreArray(ids("yes")));
  EXPECT_THAT(scored->candidates(1).token_ids(), testing::ElementsAreArray(ids("no")));
  v1::ScoreCandidatesRequest chat;
  v1::ChatMessage* message = chat.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("Yes or no?");
  chat.add_candidates()->set_text(" yes");
  const StatusOr<v1::ScoreCandidatesResponse> answer = server.client().ScoreCandidates(chat);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->candidates(0).token_ids(), testing::ElementsAreArray(ids(" yes")));
}

TEST(ScoreCandidates, BadInputIsRefusedByName) {
  ScriptedServer server;
  const auto expect = [&](const v1::ScoreCandidatesRequest& request, const std::string& field,
                          const std::string& why) {
    const Status status = server.client().ScoreCandidates(request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(status.field(), field) << status;
    EXPECT_THAT(status.message(), testing::HasSubstr(why));
  };
  expect(RequestOf(5, {}), "candidates", "is empty: there must be at least one");
  expect(RequestOf(0, {{5}}), "prompt", "is missing");
  expect(RequestOf(5, {{5}, {}}), "candidates[1]", "is empty: a candidate has at least one token");
  expect(RequestOf(5, {{5}, {6, -1}}), "candidates[1].token_ids.ids[1]",
         "is -1; the vocabulary has the ids 0 to ");
  expect(RequestOf(5, std::vector<std::vector<int32_t>>(1025, {5})), "candidates",
         "has 1025 entries; at most 1024 are allowed");
  expect(RequestOf(32760, {{5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15, 16, 17}}), "candidates",
         "the context holds 32768");
  v1::ScoreCandidatesRequest request = RequestOf(5, {{5}});
  request.add_candidates();
  expect(request, "candidates[1]", "is missing: exactly one of text and token_ids is needed");
  request = RequestOf(5, {{5}});
  request.add_candidates()->set_text("");
  expect(request, "candidates[1]", "is empty");
  request = RequestOf(5, {{5}});
  request.set_add_bos(true);
  expect(request, "add_bos", "goes with text prompts only");
  request = RequestOf(5, {{5}});
  request.set_cache_salt(std::string(257, 'x'));
  expect(request, "cache_salt", "at most 256");
  request = RequestOf(5, {{5}});
  request.mutable_chat()->add_messages()->set_role(v1::ROLE_USER);
  request.mutable_chat()->mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  expect(request, "chat.tool_choice", "nothing is generated");
  request = RequestOf(5, {{5}});
  request.set_model("other");
  EXPECT_EQ(server.client().ScoreCandidates(request).status().code(), StatusCode::kNotFound);
}

TEST(ScoreCandidates, ACancelledCallAndAnAbortedOneGiveTheirPagesBack) {
  for (const bool by_id : {false, true}) {
    ScriptedServerOptions options;
    options.limits.max_step_tokens = 8;
    ScriptedServer server(options);
    server.model().SetStepTime(2000);
    grpc::ClientContext context;
    v1::ScoreCandidatesRequest request = RequestOf(30000, {{5, 6}, {7, 8}});
    request.set_request_id("long");
    auto call = std::async(std::launch::async, [&] {
      v1::ScoreCandidatesResponse response;
      return server.stub().ScoreCandidates(&context, request, &response).error_code();
    });
    server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.running_sequences() == 1; });
    if (by_id) {
      v1::AbortRequest abort;
      abort.add_request_ids("long");
      EXPECT_EQ(server.client().Abort(abort)->found_size(), 1);
    } else {
      context.TryCancel();
    }
    EXPECT_EQ(call.get(), grpc::StatusCode::CANCELLED);
    server.WaitForLoad([](const v1::GetLoadResponse& load) {
      return load.open_streams() == 0 && load.held_pages() == 0 && load.cancelled_requests() == 1;
    });
  }
}

TEST(ScoreCandidates, AFaultIsTheCallsStatus) {
  ScriptedServer server;
  server.model().FailAt(41);
  const StatusOr<v1::ScoreCandidatesResponse> scored =
      server.client().ScoreCandidates(RequestOf(40, {{5, 6}, {7}}));
  EXPECT_EQ(scored.status().code(), StatusCode::kInternal) << scored.status();
  server.model().FailAt(-1);
  const StatusOr<v1::ScoreCandidatesResponse> again =
      server.client().ScoreCandidates(RequestOf(40, {{5, 6}, {7}}));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->usage().cached_tokens(), 0) << "what the faulty one computed is not found";
}

}  // namespace
}  // namespace tramontane
