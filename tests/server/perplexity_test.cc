// tramontane perplexity, beside what the server itself says of the same prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/program.h"
#include "tests/support/http_test_client.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kText =
    "A small fox lived near the harbour. Every morning the wind blew from the north, and the fox counted the "
    "boats: one, two, three. \xC2\xABToday\xC2\xBB, it said, \xE2\x80\x9CI will sail.\xE2\x80\x9D </s> "
    "[INST]\n";

Json Post(const Served& served, const std::string& path, const Json& body) {
  const HttpReply reply = Fetch(served.http, HttpPost(path, body.dump(), {"Host: localhost"}));
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body, nullptr, false);
}

constexpr const char* kBreeze = "models/breeze/weights";

std::string WriteText(const TempFolder& folder, const std::string& text) {
  const std::string file = folder.path() + "/text.txt";
  std::ofstream(file) << text;
  return file;
}

// -log p of each token of a prompt but the first, by an echoed completion.
std::vector<double> Scores(const Served& served, const std::vector<int>& prompt) {
  const Json answer = Post(served, "/v1/completions",
                           {{"prompt", prompt}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 0}});
  std::vector<double> scores;
  for (const Json& logprob : answer["choices"][0]["logprobs"]["token_logprobs"]) {
    if (!logprob.is_null()) scores.push_back(-logprob.get<double>());
  }
  return scores;
}

TEST(PerplexityTest, IsTheMeanOfWhatTheServerSaysOfEachChunk) {
  Served served;
  const std::vector<int> ids =
      Post(served, "/tokenize", {{"prompt", kText}, {"add_special_tokens", false}})["tokens"];
  constexpr size_t kChunk = 18;
  ASSERT_GT(ids.size(), 2 * kChunk);
  ASSERT_NE(ids.size() % kChunk, 0u) << "the last chunk is to be a short one";
  std::vector<double> scores;
  for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
    std::vector<int> prompt = {1};  // <s>
    for (size_t i = begin; i < std::min(begin + kChunk, ids.size()); ++i) prompt.push_back(ids[i]);
    const std::vector<double> chunk = Scores(served, prompt);
    ASSERT_EQ(chunk.size(), prompt.size() - 1);
    scores.insert(scores.end(), chunk.begin(), chunk.end());
  }
  ASSERT_EQ(scores.size(), ids.size());
  double sum = 0, squares = 0;
  for (const double score : scores) sum += score;
  const double mean = sum / static_cast<double>(scores.size());
  for (const double score : scores) squares += (score - mean) * (score - mean);
  const auto n = static_cast<double>(scores.size());

  TempFolder folder;
  Program program({"perplexity", "", WriteText(folder, kText), "--chunk", std::to_string(kChunk)});
  ASSERT_EQ(program.Wait(), 0) << program.err();
  const Json report = Json::parse(program.out(), nullptr, false);
  ASSERT_TRUE(report.is_object()) << program.out();
  EXPECT_EQ(report["model"], "breeze");
  EXPECT_EQ(report["text_tokens"], ids.size());
  EXPECT_EQ(report["scored_tokens"], ids.size());
  EXPECT_EQ(report["bos"], true);
  // Logprobs go through JSON as shortest decimals of a float: six digits are safe.
  EXPECT_NEAR(report["nll"].get<double>(), mean, 1e-6 * mean);
  EXPECT_NEAR(report["nll_standard_error"].get<double>(), std::sqrt(squares / (n - 1) / n), 1e-6 * mean);
  EXPECT_NEAR(report["perplexity"].get<double>(), std::exp(mean), 1e-5 * std::exp(mean));
}

Json Report(const std::vector<std::string>& arguments) {
  Program program(arguments);
  EXPECT_EQ(program.Wait(), 0) << program.err();
  return Json::parse(program.out(), nullptr, false);
}

// Through the whole server: what --linear int8 rounds is a row's own, so that prompts beside each other score
// what they score alone; and the command's number is theirs.
TEST(PerplexityTest, ProductsInEightBitsAreServedAndScoredAlike) {
  TempFolder folder;
  const std::string model = folder.path() + "/breeze.gguf";
  Program quantize({"quantize", kBreeze, model, "--format", "gguf:Q4_0"});
  ASSERT_EQ(quantize.Wait(), 0) << quantize.err();
  Served served({model, "--linear", "int8", "--prefix-cache", "off"});
  Served exact({model, "--linear", "exact"});
  std::vector<int> ids =
      Post(served, "/tokenize", {{"prompt", kText}, {"add_special_tokens", false}})["tokens"];
  ids.insert(ids.begin(), 1);  // <s>
  constexpr size_t kPrompts = 6;
  std::vector<std::vector<int>> prompts;
  std::vector<std::vector<double>> alone, together(kPrompts);
  for (size_t i = 0; i < kPrompts; ++i) {
    prompts.emplace_back(ids.begin(), ids.end() - static_cast<int64_t>(5 * i));
    alone.push_back(Scores(served, prompts.back()));
    ASSERT_EQ(alone.back().size(), prompts.back().size() - 1);
  }
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kPrompts; ++i)
    clients.emplace_back([&, i] { together[i] = Scores(served, prompts[i]); });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(together, alone);
  EXPECT_NE(Scores(exact, prompts[0]), alone[0]) << "nothing was rounded to 8 bits";

  Program program({"perplexity", model, WriteText(folder, kText), "--chunk", std::to_string(ids.size()),
                   "--linear", "int8"});
  ASSERT_EQ(program.Wait(), 0) << program.err();
  const Json report = Json::parse(program.out(), nullptr, false);
  double sum = 0;
  for (const double score : alone[0]) sum += score;
  const double mean = sum / static_cast<double>(alone[0].size());
  EXPECT_NEAR(report["nll"].get<double>(), mean, 1e-6 * mean);
}

TEST(PerplexityTest, AModelIsNoDistanceFromItself) {
  TempFolder folder;
  const Json report =
      Report({"perplexity", "", WriteText(folder, kText), "--chunk", "17", "--against", kBreeze});
  EXPECT_EQ(report["against"], "weights");
  EXPECT_EQ(report["kl"], 0.0);
  EXPECT_EQ(report["same_likeliest"], 1.0);
  // The engine's log-probabilities are floats; these are of the same logits.
  EXPECT_NEAR(report["against_nll"].get<double>(), report["nll"].get<double>(), 1e-5);
}

TEST(PerplexityTest, AnotherModelIsComparedWhereTokensAreScored) {
  TempFolder folder;
  const std::string text = WriteText(folder, kText);
  const std::string other = folder.path() + "/other";
  std::filesystem::copy(kBreeze, other);
  std::ifstream config_file(other + "/config.json");
  Json config = Json::parse(config_file);
  config["rope_theta"] = 9000.0;
  std::ofstream(other + "/config.json") << config;
  const Json report = Report({"perplexity", "", text, "--chunk", "17", "--against", other});
  const Json alone = Report({"perplexity", other, text, "--chunk", "17"});
  EXPECT_NEAR(report["against_nll"].get<double>(), alone["nll"].get<double>(), 1e-5);
  EXPECT_NE(report["nll"], alone["nll"]);
  EXPECT_GT(report["kl"].get<double>(), 0.0);
  EXPECT_LT(report["kl"].get<double>(), 1.0) << "angles a little off";
  EXPECT_GT(report["same_likeliest"].get<double>(), 0.5);
  EXPECT_LE(report["same_likeliest"].get<double>(), 1.0);
}

TEST(PerplexityTest, RefusesWhatItCannotScore) {
  TempFolder folder;
  const std::string text = WriteText(folder, kText);
  Program small({"perplexity", "", text, "--context", "257", "--chunk", "1"});
  EXPECT_EQ(small.Wait(), 1);
  EXPECT_THAT(small.err(), HasSubstr("--chunk is 1, the limits are 2 to 256"));
  Program large({"perplexity", "", text, "--context", "257", "--chunk", "257"});
  EXPECT_EQ(large.Wait(), 1);
  EXPECT_THAT(large.err(), HasSubstr("--chunk is 257, the limits are 2 to 256"));
  Program absent({"perplexity", "", folder.path() + "/none.txt"});
  EXPECT_EQ(absent.Wait(), 1);
  EXPECT_THAT(absent.err(), HasSubstr("none.txt: there is no such file"));
  Program nothing({"perplexity", "", WriteText(folder, "")});
  EXPECT_EQ(nothing.Wait(), 1);
  EXPECT_THAT(nothing.err(), HasSubstr("text.txt: 0 tokens of text"));
  Program broken({"perplexity", "", WriteText(folder, "caf\xE9")});
  EXPECT_EQ(broken.Wait(), 1);
  EXPECT_THAT(broken.err(), HasSubstr("text.txt: the text is not UTF-8 at byte 3"));
}

}  // namespace
}  // namespace tramontane
