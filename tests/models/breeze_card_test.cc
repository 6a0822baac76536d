// The embedded model's card, recomputed: the problems and golden answers in models/breeze/evaluation, solved
// by this engine from the committed weights. The files hold what PyTorch answered, confirmed by transformers,
// in float32.
//
// Tolerances. A token's lead over the second is compared with the error of two logits, so a token must be the
// same where its lead exceeds twice the tolerance; from the first closer call on an answer is free to differ.
//
// exact: f32 arithmetic and f32 keys and values, against f32 in PyTorch. check_parity.py measures 3.7e-5
// between two such programs over 640 tokens; the limit is four times that. No lead in the files is below
// it, so every token of every answer is compared, and the numbers of right answers are equal.
//
// served: what a user gets. bf16 keys and values (relative rounding 2^-9, averaged over the 32 elements of a
// head and over the keys attended to, in 6 layers), and on some machines bf16 inputs of Linear (2^-9 again,
// 7 matrices a layer): logits of size 20 move by about 20 * 2^-9 * sqrt(6 * 8) / sqrt(32) = 0.05; the limit
// is four deviations of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "engine/engine_host.h"
#include "engine/threads/clock.h"
#include "kernels/backends/cpu_backend.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using nlohmann::json;

const std::string kBreeze = std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/";
constexpr int32_t kEos = 2;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

json ReadJson(const std::string& path) { return json::parse(ReadFile(path)); }

struct Arithmetic {
  std::string name;
  DType kv_dtype;
  bool exact;        // a variant that rounds no input of Linear
  double tolerance;  // of a logit
};

void PrintTo(const Arithmetic& arithmetic, std::ostream* out) { *out << arithmetic.name; }

std::string VariantFor(const Arithmetic& arithmetic) {
  const std::vector<std::string> variants = CpuVariants();
  if (!arithmetic.exact) return variants.front();
  return *std::find_if(variants.begin(), variants.end(), [](const auto& v) { return !RoundsInputs(v); });
}

// How many tokens of an answer must be the same: those before the first close call.
size_t CertainTokens(const json& row, double tolerance) {
  for (const json& call : row["close"]) {
    const bool in_answer = call[0].get<size_t>() < row["answer"].size();
    if (in_answer && call[1].get<double>() <= 2 * tolerance) return call[0].get<size_t>();
  }
  return row["answer"].size();
}

class BreezeCard : public ::testing::TestWithParam<Arithmetic> {
 protected:
  void SetUp() override {
    auto backend = MakeCpuBackend({.threads = 2, .variant = VariantFor(GetParam())});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = std::move(backend).value();
    EngineHostOptions options;
    options.memory_bytes = int64_t{256} << 20;
    options.limits.max_queued_requests = 1024;
    options.limits.context = 4096;
    auto host = EngineHost::Start(OpenModel(kBreeze + "weights", {.dtype = GetParam().kv_dtype}).value(),
                                  *backend_, options, clock_);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = std::move(host).value();
  }

  // Submits a row of problems.json or goldens.json as a greedy request.
  std::unique_ptr<StreamReader> Submit(const json& row) {
    Request request;
    request.id = "breeze-" + std::to_string(submitted_++);
    request.prompt = row["prompt"].get<std::vector<int32_t>>();
    request.sampling.temperature = 0;
    request.stopping.max_tokens = row["max_tokens"].get<int64_t>();
    for (const json& banned : row.value("banned", json::array())) {
      request.sampling.logit_bias.emplace_back(banned.get<int32_t>(), -100.0f);
    }
    return std::make_unique<StreamReader>(host_->engine(), std::move(request));
  }

  // The tokens of a finished stream, with </s> where the model ended.
  static std::vector<int32_t> AnswerOf(StreamReader& reader) {
    EXPECT_TRUE(reader.refused().ok()) << reader.refused();
    reader.WaitToEnd();
    EXPECT_TRUE(reader.status().ok()) << reader.status();
    std::vector<int32_t> ids = reader.choice().ids;
    const bool ended = reader.choice().end().reason == FinishReason::kStop;
    if (ended && (ids.empty() || ids.back() != kEos)) ids.push_back(kEos);
    return ids;
  }

  // Expects the certain tokens of a row; false where one differs.
  bool ExpectSame(const json& row, const std::vector<int32_t>& ids, const std::string& what) {
    const auto expected = row["answer"].get<std::vector<int32_t>>();
    const size_t certain = CertainTokens(row, GetParam().tolerance);
    const bool whole = certain == expected.size();
    const bool same = whole ? ids == expected
                            : ids.size() >= certain &&
                                  std::equal(expected.begin(), expected.begin() + certain, ids.begin());
    EXPECT_TRUE(same) << what << ": expected " << Text(expected) << "\n  but got " << Text(ids);
    return same;
  }

  // Generated tokens as text, control tokens spelled out and </s> left away.
  std::string Text(const std::vector<int32_t>& ids) {
    std::string text;
    std::vector<int32_t> pending;
    const auto flush = [&] {
      text += host_->tokenizer().Decode(pending).value();
      pending.clear();
    };
    for (const int32_t id : ids) {
      if (id == kEos) continue;
      if (!host_->tokenizer().IsControl(id)) {
        pending.push_back(id);
        continue;
      }
      flush();
      text += host_->tokenizer().Piece(id);
    }
    flush();
    return text;
  }

  SteadyClock clock_;
  BackendPtr backend_;
  std::unique_ptr<EngineHost> host_;
  int32_t submitted_ = 0;
};

std::string Stripped(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \n") - begin + 1);
}

// The rule of evaluate.py: equal to one of the texts, or containing one within the first characters.
bool Accepts(const json& check, const std::string& answer) {
  const size_t within = check["within"].get<size_t>();
  const auto texts = check["texts"].get<std::vector<std::string>>();
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
    return within > 0 ? answer.substr(0, within).find(text) != std::string::npos : Stripped(answer) == text;
  });
}

// The row with an answer of at most so many tokens.
json CutTo(json row, size_t tokens) {
  if (row["answer"].size() > tokens) {
    row["answer"].erase(row["answer"].begin() + static_cast<ptrdiff_t>(tokens), row["answer"].end());
    row["max_tokens"] = tokens;
  }
  return row;
}

TEST_P(BreezeCard, GoldenAnswersAreTheSameAlsoBeyondTheWindow) {
  const json goldens = ReadJson(kBreeze + "evaluation/goldens.json")["goldens"];
  const auto tokens = static_cast<size_t>(ScaledCount(2000));
  std::vector<std::unique_ptr<StreamReader>> readers;
  for (const json& row : goldens) readers.push_back(Submit(CutTo(row, tokens)));
  size_t longest_prompt = 0, longest_answer = 0;
  for (size_t i = 0; i < goldens.size(); ++i) {
    const json row = CutTo(goldens[i], tokens);
    if (!ExpectSame(row, AnswerOf(*readers[i]), row["name"].get<std::string>())) continue;
    longest_prompt = std::max(longest_prompt, row["prompt"].size());
    longest_answer = std::max(longest_answer, CertainTokens(row, GetParam().tolerance));
  }
  EXPECT_GT(longest_prompt, 256u);
  if (GetParam().exact) {  // the other arithmetic meets a close call before
    EXPECT_GT(longest_answer, std::min<size_t>(4 * 256, tokens - 1));
  }
}

// All at once, so that the accuracy is that of a busy server.
TEST_P(BreezeCard, AccuracyIsThatOfTheCommittedProblems) {
  const json tasks = ReadJson(kBreeze + "evaluation/problems.json")["tasks"];
  const size_t limit = static_cast<size_t>(ScaledCount(24));
  std::vector<std::unique_ptr<StreamReader>> readers;
  for (const json& task : tasks) {
    const size_t count = std::min(limit, task["problems"].size());
    for (size_t i = 0; i < count; ++i) readers.push_back(Submit(task["problems"][i]));
  }
  size_t next = 0;
  for (const json& task : tasks) {
    const std::string name = task["task"].get<std::string>();
    const size_t count = std::min(limit, task["problems"].size());
    int right = 0, expected = 0, doubtful = 0;
    for (size_t i = 0; i < count; ++i) {
      const json& problem = task["problems"][i];
      const std::vector<int32_t> ids = AnswerOf(*readers[next++]);
      ExpectSame(problem, ids, name + ", problem " + std::to_string(i));
      right += Accepts(problem["check"], Text(ids)) ? 1 : 0;
      expected += problem["right"].get<bool>() ? 1 : 0;
      doubtful += CertainTokens(problem, GetParam().tolerance) < problem["answer"].size() ? 1 : 0;
    }
    // Only an answer with a close call may be right here and wrong there.
    if (GetParam().exact) {
      EXPECT_EQ(doubtful, 0) << name;
    }
    EXPECT_LE(std::abs(right - expected), doubtful)
        << name << ": " << right << " right, expected " << expected;
    std::printf("%-40s %2d of %2zu right, expected %2d, %d with a close call\n", name.c_str(), right, count,
                expected, doubtful);
  }
}

INSTANTIATE_TEST_SUITE_P(Arithmetics, BreezeCard,
                         ::testing::Values(Arithmetic{"exact", DType::kF32, true, 1.5e-4},
                                           Arithmetic{"served", DType::kBf16, false, 0.2}),
                         [](const auto& info) { return info.param.name; });

// ---- the files themselves -----------------------------------------------------------------------

TEST(BreezeCardFiles, CardQuotesTheMeasuredAccuracies) {
  const json accuracy = ReadJson(kBreeze + "evaluation/accuracy.json");
  std::istringstream card(ReadFile(kBreeze + "MODEL_CARD.md"));
  static const std::regex row(R"(\| (.+) \| (\d\.\d\d) \| (\d+) \|)");
  size_t rows = 0;
  for (std::string line; std::getline(card, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    ++rows;
    ASSERT_TRUE(accuracy.contains(match[1].str())) << match[1];
    const json& measured = accuracy[match[1].str()];
    EXPECT_NEAR(std::stod(match[2]), measured["accuracy"].get<double>(), 0.00501) << match[1];
    EXPECT_EQ(std::stoi(match[3]), measured["count"].get<int>()) << match[1];
  }
  EXPECT_EQ(rows, accuracy.size());
}

// The committed problems are some of the card's, so they cannot hold more misses than the card admits.
TEST(BreezeCardFiles, CommittedProblemsMissNoMoreThanTheCard) {
  const json accuracy = ReadJson(kBreeze + "evaluation/accuracy.json");
  const json tasks = ReadJson(kBreeze + "evaluation/problems.json")["tasks"];
  EXPECT_GE(tasks.size(), 10u);
  for (const json& task : tasks) {
    const json& measured = accuracy[task["task"].get<std::string>()];
    const double count = measured["count"].get<double>();
    const auto missed = static_cast<double>(task["problems"].size()) - task["right"].get<double>();
    EXPECT_LE(missed, std::round(count * (1 - measured["accuracy"].get<double>()))) << task["task"];
  }
}

TEST(BreezeCardFiles, CardAndAnswersAreOfTheCommittedWeights) {
  const std::string command = "sha256sum " + kBreeze + "weights/model.safetensors";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  ASSERT_TRUE(pipe);
  std::array<char, 65> digest{};
  ASSERT_EQ(std::fread(digest.data(), 1, 64, pipe.get()), 64u);
  EXPECT_THAT(ReadFile(kBreeze + "MODEL_CARD.md"), ::testing::HasSubstr(digest.data()));
  for (const char* file : {"goldens.json", "problems.json"}) {
    EXPECT_EQ(ReadJson(kBreeze + "evaluation/" + file)["weights_sha256"].get<std::string>(), digest.data())
        << file;
  }
}

}  // namespace
}  // namespace tramontane
