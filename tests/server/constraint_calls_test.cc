// Calls whose constraints take long to compile: who waits for them, and until when. Over a library that the
// test writes itself.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "models/grammar/constraint_compiler.h"
#include "server/core/inference_core.h"
#include "tests/server/call_reader.h"
#include "tests/server/scripted_server.h"
#include "tests/support/fake_grammar.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

// Any text.
std::shared_ptr<const Grammar> AnyText(int32_t vocab_size) {
  return std::make_shared<FakeGrammar>([vocab_size](const std::vector<int32_t>&) {
    std::vector<int32_t> all(static_cast<size_t>(vocab_size));
    for (int32_t token = 0; token < vocab_size; ++token) all[static_cast<size_t>(token)] = token;
    return all;
  });
}

// Compiles /slow.../ for as long as somebody waits for it, and everything else at once.
class SlowBackend final : public GrammarBackend {
 public:
  struct Counts {
    std::atomic<int32_t> begun{0};
    std::atomic<int32_t> given_up{0};
  };
  SlowBackend(int32_t vocab_size, Counts& counts) : vocab_size_(vocab_size), counts_(counts) {}

  StatusOr<std::shared_ptr<const Grammar>> Compile(const std::string& ebnf,
                                                   GrammarWork& work) const override {
    if (ebnf.find("[s][l][o][w]") == std::string::npos) return AnyText(vocab_size_);
    ++counts_.begun;
    while (work.wanted()) std::this_thread::yield();
    ++counts_.given_up;
    work.stopped = true;
    return Status(StatusCode::kAborted, "stopped");
  }

 private:
  const int32_t vocab_size_;
  Counts& counts_;
};

class ConstraintCalls : public ::testing::Test {
 protected:
  ConstraintCalls()
      : server_({.limits = {}, .server = {}, .serve = false}),
        compiler_(std::make_unique<SlowBackend>(server_.tokenizer().vocab_size(), counts_), {}) {
    ServedModel served = server_.served();
    served.constraints = &compiler_;
    server_.server().Serve(served);
  }
  ~ConstraintCalls() override { server_.server().Stop(); }

  std::unique_ptr<CallReader> Ask(const std::string& caller, const std::string& regex) {
    v1::GenerateRequest request = RequestOfIds({1, 2, 3}, 4);
    if (!regex.empty()) request.mutable_constraint()->set_regex(regex);
    return std::make_unique<CallReader>(server_.server().client(), std::move(request), InferenceCallOptions(),
                                        Caller{.identity = caller, .address = caller});
  }

  SlowBackend::Counts counts_;
  ScriptedServer server_;
  ConstraintCompiler compiler_;
};

TEST_F(ConstraintCalls, ACallThatIsCancelledStopsItsCompiling) {
  const auto call = Ask("a", "slow");
  WaitFor([this] { return counts_.begun == 1; });
  call->Cancel();
  EXPECT_EQ(call->ReadAll().code, StatusCode::kCancelled);
  EXPECT_EQ(counts_.given_up, 1);
}

TEST_F(ConstraintCalls, ACallerOverGrpcThatHangsUpStopsItsCompiling) {
  v1::GenerateRequest request = RequestOfIds({1, 2, 3}, 4);
  request.mutable_constraint()->set_regex("slow");
  Stream stream(server_.stub(), request);
  WaitFor([this] { return counts_.begun == 1; });
  stream.Cancel();
  WaitFor([this] { return counts_.given_up == 1; });
}

TEST_F(ConstraintCalls, OneCallerHoldsHalfOfTheCompilersAndNobodysInput) {
  const int32_t half = InferenceCoreOptions().compiler_threads / 2;
  std::vector<std::unique_ptr<CallReader>> calls;
  for (int i = 0; i < 3 * half; ++i) calls.push_back(Ask("a", "slow" + std::to_string(i)));
  WaitFor([&] { return counts_.begun == half; });
  EXPECT_TRUE(Ask("a", "")->ReadAll().ok()) << "what needs no compiling, of the same caller";
  EXPECT_TRUE(Ask("b", "[a-z]*")->ReadAll().ok()) << "and another caller's constraint";
  EXPECT_EQ(counts_.begun, half);
  for (const auto& call : calls) call->Cancel();
  for (const auto& call : calls) EXPECT_EQ(call->ReadAll().code, StatusCode::kCancelled);
}

}  // namespace
}  // namespace tramontane
