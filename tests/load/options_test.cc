// The command line: what each flag sets, and how a wrong one is named.
#include "bench/load/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/temp_folder.h"

namespace tramontane::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

struct Parse {
  ParsedOptions parsed;
  std::string out, err;

  explicit Parse(const std::vector<std::string>& arguments, const char* key = nullptr) {
    std::vector<const char*> argv = {"tramontane_bench"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out_stream, err_stream;
    const OptionSources sources = {[key](const char* name) {
                                     EXPECT_STREQ(name, "TRAMONTANE_API_KEY");
                                     return key;
                                   },
                                   [] { return uint64_t{77}; }};
    parsed = ParseOptions(static_cast<int>(argv.size()), argv.data(), sources, out_stream, err_stream);
    out = out_stream.str();
    err = err_stream.str();
  }
};

const std::string kTarget = "http://127.0.0.1:8000";

// With a target and a rate, which every run needs.
BenchOptions With(std::vector<std::string> arguments, const char* key = nullptr) {
  arguments.insert(arguments.begin(), {"--target", kTarget, "--rate", "5"});
  const Parse parse(arguments, key);
  EXPECT_FALSE(parse.parsed.exit_status) << parse.err;
  return parse.parsed.options;
}

BenchOptions WithoutRate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--target", kTarget});
  const Parse parse(arguments);
  EXPECT_FALSE(parse.parsed.exit_status) << parse.err;
  return parse.parsed.options;
}

TEST(BenchOptionsTest, AFlagThatIsFalseIsNotGiven) {
  EXPECT_TRUE(With({"--insecure"}).target.insecure);
  EXPECT_FALSE(With({"--insecure=false"}).target.insecure);
  EXPECT_TRUE(With({"--insecure=false", "--insecure"}).target.insecure);
  EXPECT_EQ(Parse({"--insecure=perhaps"}).parsed.exit_status, 2);
}

TEST(BenchOptionsTest, TheTarget) {
  EXPECT_EQ(With({}).target.url, kTarget);
  EXPECT_EQ(With({}).target.endpoint, Endpoint::kCompletions);
  EXPECT_EQ(With({"--endpoint", "chat"}).target.endpoint, Endpoint::kChat);
  EXPECT_EQ(With({}).target.model, "");
  EXPECT_EQ(With({"--model", "breeze"}).target.model, "breeze");
  EXPECT_THAT(With({"--header", "X-One: 1", "--header", "X-Two:a:b"}).target.headers,
              ElementsAre(Pair("X-One", "1"), Pair("X-Two", "a:b")));
  const TargetOptions tls =
      With({"--ca", "ca.pem", "--cert", "c.pem", "--key", "k.pem", "--insecure"}).target;
  EXPECT_EQ(tls.ca_file, "ca.pem");
  EXPECT_EQ(tls.cert_file, "c.pem");
  EXPECT_EQ(tls.key_file, "k.pem");
  EXPECT_TRUE(tls.insecure);
  EXPECT_FALSE(With({}).target.insecure);
  EXPECT_EQ(With({"--extra-body", R"({"a": 1})"}).target.extra_body, R"({"a": 1})");
  EXPECT_TRUE(With({}).target.ignore_eos);
  EXPECT_FALSE(With({"--no-ignore-eos"}).target.ignore_eos);
}

TEST(BenchOptionsTest, TheKeyComesFromTheEnvironmentOrAFileAndNoFlagHoldsIt) {
  TempFolder folder;
  folder.Write("key", "sk-of-the-file\n");
  EXPECT_EQ(With({}).target.api_key, "");
  EXPECT_EQ(With({}, "sk-environment").target.api_key, "sk-environment");
  const BenchOptions options = With({"--api-key-file", folder.PathOf("key")}, "sk-environment");
  EXPECT_EQ(options.target.api_key, "sk-of-the-file");
  EXPECT_THAT(options.command_line, Not(HasSubstr("sk-")));
  EXPECT_EQ(Parse({"--target", kTarget, "--rate", "1", "--api-key", "sk-1"}).parsed.exit_status, 2);
  EXPECT_EQ(Parse({"--target", kTarget, "--rate", "1", "--api-key-file", "/nowhere"}).parsed.exit_status, 2);
}

TEST(BenchOptionsTest, TheCommandLineIsKeptWithoutValuesOfHeaders) {
  const BenchOptions options = With({"--header", "Authorization: Bearer secret", "--header=Cookie: secret2",
                                     "--goodput", "ttft:200 tpot:3"});
  EXPECT_EQ(options.command_line,
            "tramontane bench --target http://127.0.0.1:8000 --rate 5 --header 'Authorization: ...' "
            "'--header=Cookie: ...' --goodput 'ttft:200 tpot:3'");
}

TEST(BenchOptionsTest, TheLoad) {
  ASSERT_TRUE(With({}).arrivals);
  EXPECT_EQ(With({}).arrivals->rate, 5);
  EXPECT_EQ(With({}).arrivals->process, ArrivalProcess::kPoisson);
  EXPECT_FALSE(With({}).closed_loop());
  EXPECT_TRUE(std::isinf(WithoutRate({"--rate", "inf"}).arrivals->rate));
  EXPECT_EQ(With({"--arrival", "constant"}).arrivals->process, ArrivalProcess::kConstant);
  const auto gamma = *With({"--arrival", "gamma", "--burstiness", "0.25"}).arrivals;
  EXPECT_EQ(gamma.process, ArrivalProcess::kGamma);
  EXPECT_EQ(gamma.burstiness, 0.25);
  const BenchOptions closed = WithoutRate({"--concurrency", "8"});
  EXPECT_EQ(closed.concurrency, 8);
  EXPECT_TRUE(closed.closed_loop());
  EXPECT_FALSE(With({"--concurrency", "8"}).closed_loop());
  EXPECT_EQ(WithoutRate({"--trace", "t.csv"}).trace_path, "t.csv");
  EXPECT_FALSE(WithoutRate({"--trace", "t.csv"}).requests);  // all of it
  EXPECT_EQ(With({}).requests, kDefaultRequests);
  EXPECT_EQ(With({"--requests", "7"}).requests, 7);
  EXPECT_EQ(With({"--duration", "2.5"}).duration_s, 2.5);
  EXPECT_FALSE(With({"--duration", "2.5"}).requests);
  EXPECT_EQ(With({}).drain_s, 30);
  EXPECT_EQ(With({"--drain", "3"}).drain_s, 3);
  EXPECT_EQ(With({}).timeout_s, 600);
  EXPECT_EQ(With({"--timeout", "4"}).timeout_s, 4);
}

TEST(BenchOptionsTest, ARampTakesTheDurationOrTheTimeOfItsRequests) {
  const auto timed = *WithoutRate({"--ramp", "1:9", "--duration", "20"}).arrivals;
  EXPECT_EQ(timed.rate, 1);
  EXPECT_EQ(timed.ramp_to_rate, 9);
  EXPECT_EQ(timed.ramp_seconds, 20);
  EXPECT_EQ(WithoutRate({"--ramp", "1:9", "--requests", "50"}).arrivals->ramp_seconds, 10);
}

TEST(BenchOptionsTest, TheWork) {
  Random random(1, RandomUse::kInputTokens);
  EXPECT_EQ(With({"--prompt-tokens", "33"}).classes[0].prompt_tokens.Draw(random), 33);
  EXPECT_EQ(With({"--output-tokens", "uniform:4:4"}).classes[0].output_tokens.Draw(random), 4);
  EXPECT_EQ(With({}).token_ids.begin, 1300);
  EXPECT_EQ(With({}).token_ids.end, 2000);
  EXPECT_EQ(With({"--token-ids", "5:90"}).token_ids.end, 90);
  EXPECT_EQ(With({"--tokenizer", "model"}).tokenizer_path, "model");
  EXPECT_EQ(With({}).seed, 0u);
  EXPECT_EQ(With({"--seed", "12"}).seed, 12u);
  EXPECT_EQ(With({}).nonce, 77u);  // drawn
  EXPECT_EQ(With({"--nonce", "13"}).nonce, 13u);
  EXPECT_EQ(With({"--shared-prefix", "100:3"}).classes[0].shared_prefix.tokens, 100);
  EXPECT_EQ(With({"--turns", "6"}).classes[0].turns, 6);
  TempFolder folder;
  folder.Write("mix.json", R"([{"name": "a"}, {"name": "b", "prompt_tokens": 3}])");
  const auto classes = With({"--mix", folder.PathOf("mix.json"), "--prompt-tokens", "9"}).classes;
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_EQ(classes[0].prompt_tokens.Draw(random), 9);
  EXPECT_EQ(classes[1].prompt_tokens.Draw(random), 3);
  const BenchOptions trace = WithoutRate({"--trace", "t", "--rate-scale", "2", "--spread", "3"});
  EXPECT_EQ(trace.rate_scale, 2);
  EXPECT_EQ(trace.spread_s, 3);
  EXPECT_EQ(With({"--length-scale", "0.5"}).length_scale, 0.5);
  EXPECT_EQ(With({"--max-context", "4096"}).max_context, 4096);
}

TEST(BenchOptionsTest, WindowLimitsAndOutput) {
  const BenchOptions options = With({"--warmup-requests", "10", "--warmup", "2", "--goodput", "ttft:5",
                                     "--slo", "chat", "--json", "a", "--jsonl", "b", "--html", "c"});
  EXPECT_EQ(options.warmup_requests, 10);
  EXPECT_EQ(options.warmup_s, 2);
  EXPECT_EQ(options.goodput.size(), 1u);
  EXPECT_EQ(options.slo.size(), 3u);
  EXPECT_EQ(options.json_path, "a");
  EXPECT_EQ(options.jsonl_path, "b");
  EXPECT_EQ(options.html_path, "c");
  EXPECT_THAT(With({}).percentiles, ElementsAre(50, 90, 95, 99, 99.9));
  EXPECT_THAT(With({"--percentiles", "75,99.9"}).percentiles, ElementsAre(75, 90, 99, 99.9));
  EXPECT_TRUE(With({"--find-rate", "--slo", "chat"}).find_rate);
  EXPECT_EQ(WithoutRate({"--find-rate", "--slo", "chat"}).arrivals->rate, 1);
  EXPECT_THAT(WithoutRate({"--sweep", "1,2.5"}).sweep, ElementsAre(1, 2.5));
  EXPECT_EQ(With({"--ab", "http://b:1"}).ab_url, "http://b:1");
  const Parse dry({"--rate", "1", "--dry-run", "--jsonl", "x"});
  EXPECT_FALSE(dry.parsed.exit_status);  // needs no target
  EXPECT_TRUE(dry.parsed.options.dry_run);
}

TEST(BenchOptionsTest, AWrongFlagIsNamedWithValueAndLimit) {
  const struct {
    std::vector<std::string> arguments;
    std::vector<std::string> said;
  } cases[] = {
      {{}, {"at least one of --rate, --trace and --concurrency"}},
      {{"--requests", "3"}, {"at least one of --rate, --trace and --concurrency"}},
      {{"--rate", "1", "--model", "\xff"}, {"--model is not UTF-8"}},
      {{"--rate", "1", "--extra-body", "{\"a\":" + std::string(100'000, '[') + "}"},
       {"--extra-body is nested"}},
      {{"--rate", "x"}, {"--rate", "\"x\"", "from 1e-06 to 1e+06"}},
      {{"--rate", "0"}, {"--rate", "\"0\""}},
      {{"--rate", "-5"}, {"--rate", "\"-5\""}},
      {{"--rate", "nan"}, {"--rate", "\"nan\""}},
      {{"--concurrency", "0"}, {"--concurrency", "\"0\"", "from 1 to 1e+05"}},
      {{"--concurrency", "1.5"}, {"--concurrency", "\"1.5\"", "whole number"}},
      {{"--rate", "1", "--requests", "0"}, {"--requests", "from 1 to 1e+08"}},
      {{"--rate", "1", "--duration", "0"}, {"--duration"}},
      {{"--rate", "1", "--drain", "-1"}, {"--drain", "\"-1\""}},
      {{"--rate", "1", "--timeout", "0"}, {"--timeout"}},
      {{"--rate", "1", "--arrival", "bursts"}, {"--arrival", "\"bursts\"", "poisson, gamma or constant"}},
      {{"--rate", "1", "--burstiness", "2"}, {"--burstiness needs --arrival gamma"}},
      {{"--ramp", "3"}, {"--ramp", "\"3\"", "R0:R1"}},
      {{"--ramp", "1:0"}, {"--ramp", "\"0\""}},
      {{"--ramp", "1:2", "--rate", "3"}, {"--ramp and --rate exclude"}},
      {{"--rate", "1", "--trace", "t"}, {"--rate and --trace exclude"}},
      {{"--rate", "1", "--endpoint", "embed"}, {"--endpoint", "\"embed\"", "completions or chat"}},
      {{"--rate", "1", "--header", "x"}, {"--header", "'NAME: VALUE'"}},
      {{"--rate", "1", "--extra-body", "[1]"}, {"--extra-body", "\"[1]\"", "JSON object"}},
      {{"--rate", "1", "--ab", "http://h:1", "--slo", "chat"}, {"--ab and --slo exclude each other"}},
      {{"--rate", "1", "--prompt-tokens", "0"}, {"--prompt-tokens", "\"0\"", "from 1 to"}},
      {{"--rate", "1", "--prompt-tokens", "normal:3:4"}, {"--prompt-tokens", "lognormal:MEDIAN:SIGMA"}},
      {{"--rate", "1", "--output-tokens", "uniform:5:3"}, {"--output-tokens", "A at most B"}},
      {{"--rate", "1", "--token-ids", "5:6"}, {"--token-ids", "5:6", "at least A + 2"}},
      {{"--rate", "1", "--seed", "-1"}, {"--seed"}},
      {{"--rate", "1", "--nonce", "x"}, {"--nonce"}},
      {{"--rate", "1", "--shared-prefix", "5"}, {"--shared-prefix", "N:P"}},
      {{"--rate", "1", "--turns", "0"}, {"--turns", "from 1 to 1000"}},
      {{"--rate", "1", "--mix", "/nowhere"}, {"/nowhere"}},
      {{"--rate", "1", "--rate-scale", "2"}, {"--rate-scale needs --trace"}},
      {{"--rate", "1", "--spread", "2"}, {"--spread needs --trace"}},
      {{"--trace", "t", "--prompt-tokens", "2"}, {"--trace and --prompt-tokens exclude"}},
      {{"--rate", "1", "--length-scale", "0"}, {"--length-scale"}},
      {{"--rate", "1", "--max-context", "1"}, {"--max-context", "from 2"}},
      {{"--rate", "1", "--warmup", "-1"}, {"--warmup"}},
      {{"--rate", "1", "--warmup-requests", "x"}, {"--warmup-requests"}},
      {{"--rate", "1", "--percentiles", "50,101"}, {"--percentiles", "\"101\"", "0 to 100"}},
      {{"--rate", "1", "--goodput", "ttft"}, {"--goodput"}},
      {{"--rate", "1", "--slo", "fast"}, {"--slo", "\"fast\""}},
      {{"--rate", "1", "--find-rate"}, {"--find-rate needs --slo"}},
      {{"--find-rate", "--slo", "chat", "--sweep", "1"}, {"--find-rate and --sweep exclude"}},
      {{"--rate", "inf", "--find-rate", "--slo", "chat"}, {"--rate", "inf"}},
      {{"--sweep", "1,x"}, {"--sweep", "\"x\""}},
      {{"--rate", "1", "--dry-run"}, {"--dry-run needs --jsonl"}},
      {{"--rate", "1", "--ab", "b:1"}, {"--ab", "http://, https://"}},
      {{"--rate", "1", "--colour", "b"}, {"--colour"}},
      {{"--rate"}, {"--rate"}},
      {{"--rate", "1", "--rate", "2"}, {"--rate"}},
  };
  for (const auto& wrong : cases) {
    std::vector<std::string> arguments = wrong.arguments;
    arguments.insert(arguments.begin(), {"--target", kTarget});
    const Parse parse(arguments);
    EXPECT_EQ(parse.parsed.exit_status, 2) << testing::PrintToString(wrong.arguments);
    for (const std::string& said : wrong.said) EXPECT_THAT(parse.err, HasSubstr(said));
    EXPECT_EQ(parse.out, "");
  }
  EXPECT_THAT(Parse({"--rate", "1"}).err, HasSubstr("--target is missing"));
  EXPECT_EQ(Parse({"--rate", "1"}).parsed.exit_status, 2);
  EXPECT_THAT(Parse({"--rate", "1", "--target", "ftp://x"}).err, HasSubstr("--target is \"ftp://x\""));
}

TEST(BenchOptionsTest, HelpIsNoFault) {
  const Parse help({"--help"});
  EXPECT_EQ(help.parsed.exit_status, 0);
  EXPECT_THAT(help.out, HasSubstr("--find-rate"));
  EXPECT_EQ(help.err, "");
}

TEST(BenchOptionsTest, AHeaderThatIsNoneIsNotShown) {
  for (const char* header : {"Bearer sk-secret", "Authorization: sk-secret\nX: y"}) {
    const Parse parse({"--target", kTarget, "--rate", "5", "--header", header});
    EXPECT_EQ(parse.parsed.exit_status, 2);
    EXPECT_THAT(parse.err, HasSubstr("'NAME: VALUE' in one line"));
    EXPECT_THAT(parse.err, Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace tramontane::load
