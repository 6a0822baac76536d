#include "engine/output/token_stream.h"

#include <gtest/gtest.h>

#include <thread>

namespace tramontane {
namespace {

StreamDelta Delta(int32_t choice, int32_t token, const std::string& text, int64_t completion_tokens) {
  StreamDelta delta;
  delta.choice = choice;
  delta.token_ids = {token};
  delta.text = text;
  delta.logprobs = {TokenInfo{.token = token}};
  delta.completion_tokens = completion_tokens;
  return delta;
}

TEST(TokenStream, JoinsWhatASlowReaderHasNotTaken) {
  TokenStream stream("r", nullptr);
  stream.PutDelta(Delta(1, 10, "on", 1));
  stream.PutDelta(Delta(0, 20, "left", 1));
  stream.PutDelta(Delta(1, 11, "ce", 2));
  const StreamUpdate update = stream.Take();
  ASSERT_EQ(update.deltas.size(), 2u) << "at most one delta per choice, by choice";
  EXPECT_EQ(update.deltas[0].choice, 0);
  EXPECT_EQ(update.deltas[1].text, "once");
  EXPECT_EQ(update.deltas[1].token_ids, (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(update.deltas[1].logprobs.size(), 2u);
  EXPECT_EQ(update.deltas[1].completion_tokens, 2);
  EXPECT_TRUE(stream.Take().empty());
}

TEST(TokenStream, SaysOnceWhichStepGaveTheFirstIdsAndTheFirstText) {
  TokenStream stream("r", nullptr);
  const auto put = [&stream](int32_t choice, const std::string& text, int64_t at_ns) {
    Timings timings;
    timings.finished_ns = at_ns;
    Usage usage;
    usage.prefill_chunks = choice + 1;
    stream.PutDelta(Delta(choice, 10, text, 1), timings, usage);
  };
  put(1, "", 100);  // its text is held back
  put(0, "", 200);
  const StreamUpdate first = stream.Take();
  ASSERT_TRUE(first.first_ids.has_value());
  EXPECT_EQ(first.first_ids->timings.finished_ns, 100);
  EXPECT_EQ(first.first_ids->usage.prefill_chunks, 2);
  EXPECT_FALSE(first.first_text.has_value());
  put(0, "a", 300);
  put(1, "b", 400);
  const StreamUpdate second = stream.Take();
  EXPECT_FALSE(second.first_ids.has_value());
  ASSERT_TRUE(second.first_text.has_value());
  EXPECT_EQ(second.first_text->timings.finished_ns, 300);
  put(0, "c", 500);
  EXPECT_FALSE(stream.Take().first_text.has_value());
}

TEST(TokenStream, CallsItsReaderOnlyWhenItWasEmpty) {
  int calls = 0;
  TokenStream stream("r", [&] { ++calls; });
  StreamStarted started;
  started.prompt_tokens = 3;
  stream.PutStarted(started);
  stream.PutDelta(Delta(0, 1, "a", 1));
  stream.PutDelta(Delta(0, 2, "b", 2));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(stream.Take().started->prompt_tokens, 3);
  stream.PutFinished({});
  stream.PutDone(Status::Ok());
  EXPECT_EQ(calls, 2);
  const StreamUpdate end = stream.Take();
  EXPECT_TRUE(end.done);
  EXPECT_EQ(end.finished.size(), 1u);
}

TEST(TokenStream, LosesNoByteBetweenTwoThreads) {
  constexpr int kDeltas = 20'000;
  TokenStream stream("r", nullptr);
  std::string text;
  std::thread writer([&] {
    for (int i = 0; i < kDeltas; ++i) stream.PutDelta(Delta(0, i, std::string(1, char('a' + i % 26)), i + 1));
    stream.PutDone(Status::Ok());
  });
  for (bool done = false; !done;) {
    StreamUpdate update = stream.Take();
    for (const StreamDelta& delta : update.deltas) text += delta.text;
    done = update.done;
  }
  writer.join();
  ASSERT_EQ(text.size(), size_t{kDeltas});
  for (int i = 0; i < kDeltas; ++i) ASSERT_EQ(text[i], char('a' + i % 26)) << i;
}

}  // namespace
}  // namespace tramontane
