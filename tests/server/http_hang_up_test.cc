// A client that hangs up, seen from the engine's pages: over HTTP in the server's process and through the
// separate gateway, for streams and for whole answers.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "server/api/gateway.h"
#include "server/remote/remote_client.h"
#include "tests/server/scripted_server.h"
#include "tests/support/http_test_client.h"
#include "tests/support/metrics_text.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

constexpr int64_t kMinuteMs = 60'000;

struct HangUpCase {
  const char* name;
  bool separate_gateway;
  bool stream;
};

class HttpHangUp : public ::testing::TestWithParam<HangUpCase> {
 protected:
  static ScriptedServerOptions WithHttp() {
    ScriptedServerOptions options;
    options.server.http_address = "127.0.0.1:0";
    return options;
  }

  void SetUp() override {
    QuietLogs();
    if (!GetParam().separate_gateway) return;
    remote_ = std::make_unique<RemoteClient>(RemoteClientOptions{.backends = {server_.address()}});
    ASSERT_TRUE(remote_->WaitUntilReady(kMinuteMs));
    GatewayOptions options;
    options.address = "127.0.0.1:0";
    auto gateway = Gateway::Start(options, *remote_);
    ASSERT_TRUE(gateway.ok()) << gateway.status();
    gateway_ = std::move(*gateway);
  }
  std::string address() { return gateway_ ? gateway_->address() : server_.server().http_address(); }

  ScriptedServer server_{WithHttp()};
  std::unique_ptr<RemoteClient> remote_;
  std::unique_ptr<Gateway> gateway_;
};

INSTANTIATE_TEST_SUITE_P(Of, HttpHangUp,
                         ::testing::Values(HangUpCase{"WholeInProcess", false, false},
                                           HangUpCase{"StreamInProcess", false, true},
                                           HangUpCase{"WholeThroughGateway", true, false},
                                           HangUpCase{"StreamThroughGateway", true, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(HttpHangUp, GivesItsPagesBackWithinOneStep) {
  server_.model().Hold();
  HttpTestClient client(address());
  const std::string stream = GetParam().stream ? "true" : "false";
  client.Send(
      HttpPost("/v1/completions", R"({"prompt": [5, 6, 7], "max_tokens": 20000, "stream": )" + stream + "}"));
  server_.model().AllowSteps(3);
  if (GetParam().stream) {
    EXPECT_NE(client.ReadUntil("data: {").find("200 OK"), std::string::npos);
  }
  int64_t steps = 0;
  const auto pages_are_back = [&](const v1::GetLoadResponse& load) {
    steps = load.steps();
    return load.held_pages() == 0 && load.running_sequences() == 0;
  };
  server_.WaitForLoad([](const v1::GetLoadResponse& load) { return load.steps() == 3; });

  client.Close();
  if (GetParam().separate_gateway) {
    // Nothing tells when the server has heard of it: its steps go on meanwhile, but not to the end.
    server_.model().SetStepTime(1000);
    server_.model().Release();
    server_.WaitForLoad(pages_are_back);
    EXPECT_LT(steps, 20'000);
  } else {
    // The server has heard of it; its engine waits in the middle of the fourth step, if it has begun that.
    server_.WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 0; });
    server_.model().AllowSteps(1);
    server_.WaitForLoad(pages_are_back);
    EXPECT_LE(steps, 4);
    server_.model().Release();
  }
  if (!GetParam().stream && !GetParam().separate_gateway) {  // a hang-up is no fault of the server's
    const auto answers = [this](const std::string& status) {
      return SeriesOf(Fetch(address(), HttpGet("/metrics")).body)
          .at(R"(http_requests_total{handler="/v1/completions",method="POST",status=")" + status + "\"}");
    };
    WaitFor([&] { return answers("4xx") == 1; });
    EXPECT_EQ(answers("5xx"), 0);
  }
  EXPECT_EQ(Fetch(address(), HttpPost("/v1/completions", R"({"prompt": [5], "max_tokens": 2})")).status, 200);
}

}  // namespace
}  // namespace tramontane
