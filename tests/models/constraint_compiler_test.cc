// What is compiled when, and what is kept, over a library that the test writes itself.

#include "models/grammar/constraint_compiler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace tramontane {
namespace {

class SizedGrammar final : public Grammar {
 public:
  explicit SizedGrammar(int64_t bytes) : bytes_(bytes) {}
  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart) const override { return nullptr; }
  int64_t memory_bytes() const override { return bytes_; }

 private:
  const int64_t bytes_;
};

constexpr int64_t kGrammarBytes = 10'000;

// Calls `on_compile`, which may say how it ends, and counts.
class FakeBackend final : public GrammarBackend {
 public:
  using Compiled = StatusOr<std::shared_ptr<const Grammar>>;
  using OnCompile = std::function<Status(GrammarWork& work)>;
  FakeBackend(std::atomic<int32_t>& calls, OnCompile on_compile)
      : calls_(calls), on_compile_(std::move(on_compile)) {}

  Compiled Compile(const std::string&, GrammarWork& work) const override {
    ++calls_;
    if (on_compile_) TM_RETURN_IF_ERROR(on_compile_(work));
    return std::shared_ptr<const Grammar>(std::make_shared<SizedGrammar>(kGrammarBytes));
  }

 private:
  std::atomic<int32_t>& calls_;
  const OnCompile on_compile_;
};

class ConstraintCompilerTest : public ::testing::Test {
 protected:
  ConstraintCompiler& Make(FakeBackend::OnCompile on_compile = {}) {
    compiler_ = std::make_unique<ConstraintCompiler>(
        std::make_unique<FakeBackend>(calls_, std::move(on_compile)), limits_);
    return *compiler_;
  }
  static ConstraintSpec Regex(const std::string& text) { return {ConstraintSpec::Kind::kRegex, text, {}}; }

  std::atomic<int32_t> calls_{0};
  ConstraintLimits limits_;
  std::unique_ptr<ConstraintCompiler> compiler_;
};

TEST_F(ConstraintCompilerTest, TheLeastRecentlyUsedEntryGoesAndTheOthersStay) {
  limits_.max_cache_bytes = 3 * kGrammarBytes + 100;
  ConstraintCompiler& compiler = Make();
  const auto is_kept = [&](const std::string& text) {
    const int32_t before = calls_;
    EXPECT_TRUE(compiler.Compile(Regex(text)).ok());
    return calls_ == before;
  };
  for (const char* text : {"a", "b", "c"}) EXPECT_FALSE(is_kept(text));
  EXPECT_TRUE(is_kept("a")) << "used again, after b";
  EXPECT_FALSE(is_kept("d"));
  EXPECT_EQ(compiler.stats().cached, 3);
  EXPECT_TRUE(is_kept("c"));
  EXPECT_TRUE(is_kept("a"));
  EXPECT_TRUE(is_kept("d"));
  EXPECT_FALSE(is_kept("b")) << "that one went";
}

TEST_F(ConstraintCompilerTest, WhatIsTranslatedIsKeptAndCompiledOnceItIsWanted) {
  ConstraintCompiler& compiler = Make();
  EXPECT_EQ(compiler.Translate(Regex("(")).status().code(), StatusCode::kInvalidArgument);
  const auto translated = *compiler.Translate(Regex("ab"));
  EXPECT_EQ(compiler.Translate(Regex("ab")).value(), translated) << "the same, not made again";
  EXPECT_EQ(compiler.FindCompiled(*translated), nullptr);
  EXPECT_EQ(calls_, 0);
  EXPECT_EQ(compiler.stats().cached, 0);

  const auto grammar = *compiler.CompileTranslated(translated);
  EXPECT_EQ(compiler.FindCompiled(*translated), grammar);
  EXPECT_EQ(compiler.Compile(Regex("ab")).value(), grammar);
  EXPECT_EQ(compiler.Translate(Regex("ab")).value(), translated) << "kept beside its grammar";
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(compiler.stats().cached, 1);
  const auto bytes = static_cast<int64_t>(translated->key.size() + translated->ebnf.size());
  EXPECT_EQ(compiler.stats().cached_bytes, kGrammarBytes + bytes) << "counted once";
}

TEST_F(ConstraintCompilerTest, WhatACallerKnowsByANameIsTranslatedOnce) {
  ConstraintCompiler& compiler = Make();
  int32_t made = 0;
  const auto make = [&]() -> StatusOr<TranslatedConstraint> {
    if (++made == 1) return InvalidArgument("not yet");
    return compiler.TranslateNow(Regex("ab"));
  };
  EXPECT_FALSE(compiler.TranslateOnce("mine", make).ok());
  const auto translated = *compiler.TranslateOnce("mine", make);
  EXPECT_EQ(*compiler.TranslateOnce("mine", make), translated);
  EXPECT_EQ(made, 2) << "what is refused is not kept";
  EXPECT_EQ(translated->ebnf, (*compiler.Translate(Regex("ab")))->ebnf);
}

TEST_F(ConstraintCompilerTest, WhatTookTooLongIsRefusedByNameAndAgainWithoutCompiling) {
  limits_.max_compile_ns = 7'000'000;
  ConstraintCompiler& compiler = Make([this](GrammarWork& work) {
    EXPECT_EQ(work.most_ns, 7'000'000);
    work.stopped = calls_ == 1;
    return work.stopped ? Status(StatusCode::kAborted, "stopped") : Status::Ok();
  });
  const Status status = compiler.Compile(Regex("a")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("7 ms to compile (max_compile_ms)"), std::string::npos) << status;
  EXPECT_EQ(compiler.Compile(Regex("a")).status(), status);
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(compiler.stats().compiled, 0);
  EXPECT_TRUE(compiler.Compile(Regex("b")).ok());
}

TEST_F(ConstraintCompilerTest, CompilingEndsOnceNobodyWaits) {
  bool there = true;
  ConstraintCompiler& compiler = Make([&there](GrammarWork& work) {
    EXPECT_TRUE(work.wanted());
    there = false;
    work.stopped = !work.wanted();
    return Status(StatusCode::kAborted, "stopped");
  });
  EXPECT_EQ(compiler.Compile(Regex("a"), [&there] { return there; }).status().code(), StatusCode::kCancelled);
}

// Two ask for the same; the first hangs up in the middle.
TEST_F(ConstraintCompilerTest, WhoWaitsForAnothersTurnTakesItOnceThatIsGivenUp) {
  std::promise<void> begun, go;
  ConstraintCompiler& compiler = Make([&](GrammarWork& work) -> Status {
    if (calls_ > 1) return {};
    begun.set_value();
    go.get_future().wait();
    work.stopped = true;
    return Status(StatusCode::kAborted, "stopped");
  });
  std::atomic<bool> first_is_there{true};
  std::thread first([&] {
    const auto grammar = compiler.Compile(Regex("a"), [&] { return first_is_there.load(); });
    EXPECT_EQ(grammar.status().code(), StatusCode::kCancelled);
  });
  begun.get_future().wait();
  EXPECT_EQ(compiler.Compile(Regex("a"), [] { return false; }).status().code(), StatusCode::kCancelled)
      << "one that waits may hang up as well";
  std::thread second([&] { EXPECT_TRUE(compiler.Compile(Regex("a")).ok()); });
  first_is_there = false;
  go.set_value();
  first.join();
  second.join();
  EXPECT_EQ(calls_, 2);
}

TEST_F(ConstraintCompilerTest, AThrowInTheMiddleLetsTheNextOneIn) {
  ConstraintCompiler& compiler = Make([this](GrammarWork&) -> Status {
    if (calls_ == 1) throw std::bad_alloc();
    return {};
  });
  EXPECT_THROW((void)compiler.Compile(Regex("a")), std::bad_alloc);
  EXPECT_TRUE(compiler.Compile(Regex("a")).ok());
}

}  // namespace
}  // namespace tramontane
