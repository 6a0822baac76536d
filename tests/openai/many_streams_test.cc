// Thousands of streams at once over a model that takes no time.
#include <gtest/gtest.h>

#include <unistd.h>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "server/api/gateway.h"
#include "tests/support/fake_inference_client.h"
#include "tests/support/http_test_client.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using Json = nlohmann::json;

std::string ChatRequest(int64_t max_tokens) {
  const Json body = {{"model", "fake"},
                     {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                     {"max_tokens", max_tokens},
                     {"stream", true}};
  return HttpPost("/v1/chat/completions", body.dump());
}

// What a stream of chat chunks said, or what is wrong with it.
std::string TextOf(const HttpReply& reply) {
  if (reply.status != 200) return "status " + std::to_string(reply.status);
  std::string text;
  size_t at = 0;
  while (reply.body.compare(at, 6, "data: ") == 0) {
    const size_t end = reply.body.find("\n\n", at);
    if (end == std::string::npos) return "an event is cut";
    const std::string data = reply.body.substr(at + 6, end - at - 6);
    at = end + 2;
    if (data == "[DONE]") return at == reply.body.size() ? text : "something follows [DONE]";
    const Json chunk = Json::parse(data, nullptr, false);
    if (chunk.is_discarded() || chunk.contains("error")) return "a bad event: " + data;
    for (const Json& choice : chunk["choices"]) text += choice["delta"].value("content", "");
  }
  return "no [DONE]";
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size_pages = 0, resident_pages = 0;
  statm >> size_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

class ManyStreams : public ::testing::Test {
 protected:
  ManyStreams() {
    GatewayOptions options;
    options.address = "127.0.0.1:0";
    auto started = Gateway::Start(options, client_);
    EXPECT_TRUE(started.ok()) << started.status();
    gateway_ = std::move(*started);
  }

  const int64_t streams_ = ScaledCount(2000, 50);
  FakeInferenceClient client_;
  std::unique_ptr<Gateway> gateway_;
};

TEST_F(ManyStreams, NoneLosesOrReordersAnEvent) {
  constexpr int64_t kTokens = 30;
  FakeStepLoop loop(client_, 20'000);
  const SwarmResult result =
      RunSwarm({.address = gateway_->address(), .streams = streams_, .request = ChatRequest(kTokens)});
  const std::string expected = TokensText(kTokens);
  int64_t wrong = 0;
  for (const std::string& bytes : result.replies) {
    const std::string text = TextOf(ParseReply(bytes));
    if (text != expected && ++wrong == 1) ADD_FAILURE() << text;
  }
  EXPECT_EQ(wrong, 0) << "of " << streams_;
  EXPECT_EQ(client_.calls_made(), static_cast<size_t>(streams_));
}

// All that a stream takes while its client does not read: both ends of the connection, request, call, writer.
TEST_F(ManyStreams, ThoseThatNobodyReadsTakeBoundedMemory) {
  constexpr int64_t kTokens = 500;
  // Measured: 7,600. An answer that was kept event by event would take 500 * 300 bytes.
  constexpr int64_t kBytesPerStream = 30'000;
  const int64_t before = ResidentBytes();
  int64_t grown = 0;
  const auto let_all_speak = [&] {
    for (int64_t made = 0; made < streams_; made = static_cast<int64_t>(client_.calls_made())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto calls = client_.calls();
    for (const auto& call : calls) call->Put(StartedEvent(1));
    for (int64_t token = 0; token < kTokens; ++token) {
      for (const auto& call : calls) call->Put(DeltaEvent(0, "t" + std::to_string(token) + " ", token + 1));
    }
    grown = ResidentBytes() - before;
    for (const auto& call : calls) {
      call->Put(FinishedEvent(0, v1::FINISH_REASON_LENGTH, 1, kTokens));
      call->End();
    }
  };
  const SwarmResult result = RunSwarm({.address = gateway_->address(),
                                       .streams = streams_,
                                       .request = ChatRequest(kTokens),
                                       .before_reading = let_all_speak});
  for (const std::string& bytes : result.replies) ASSERT_EQ(TextOf(ParseReply(bytes)), TokensText(kTokens));
  std::printf("%lld bytes grown for each of %lld streams\n", static_cast<long long>(grown / streams_),
              static_cast<long long>(streams_));
  if (!kSanitized) {
    EXPECT_LT(grown / streams_, kBytesPerStream);
  }
}

}  // namespace
}  // namespace tramontane
