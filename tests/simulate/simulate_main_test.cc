// The whole command: what it says of its flags, and that each of them changes what is simulated.
#include "bench/simulate/simulate_main.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace tramontane::simulate {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

// 8 layers of 512 numbers, 8 heads of 64 on 2 of keys and values, feed-forward of 1,024, 1,000 words:
//
//   parameters    2 * 1,000 * 512 + 8 * (512 * 64 * (2 * 8 + 2 * 2) + 3 * 512 * 1,024 + 2 * 512) + 512
//                 = 18,858,496, of which 17 * 512 = 8,704 are norms
//   weights       18,849,792 of 2 bytes and 8,704 of 4: 37,734,400 bytes
//   a page        16 tokens * 8 layers * 2 * 2 * 64 * 2 bytes = 65,536 bytes
constexpr char kConfig[] = R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral",
  "vocab_size": 1000, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
  "num_key_value_heads": 2, "intermediate_size": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "max_position_embeddings": 4096, "sliding_window": null, "tie_word_embeddings": false,
  "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2)";

// A decode step reads 36 MB: 3.6 ms, and 0.1 besides; 512 tokens of a prompt are 19.6 GFLOP: 196 ms.
constexpr char kDevice[] = R"({"name": "small", "memory_bytes": 1e9, "bytes_per_s": 1e10, "flops_per_s": 1e11,
  "step_overhead_us": 100)";

struct Simulate {
  TempFolder folder;
  std::string out, err;

  Simulate() {
    folder.Write("config.json", std::string(kConfig) + "}");
    folder.Write("device.json", std::string(kDevice) + "}");
  }

  int Run(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"tramontane_simulate"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out_stream, err_stream;
    const int status =
        RunSimulate(static_cast<int>(argv.size()), argv.data(), {.out = out_stream, .err = err_stream});
    out = out_stream.str();
    err = err_stream.str();
    return status;
  }
  // The small model on the small device, with all three files.
  int RunWith(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "--model", folder.path(),         "--device", folder.PathOf("device.json"),
        "--json",  folder.PathOf("json"), "--jsonl",  folder.PathOf("jsonl"),
        "--html",  folder.PathOf("html")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }
  // Two requests a second, 40 of them: prompts of 600 tokens, answers of 30. The small device keeps up.
  Json Result(std::vector<std::string> more) {
    const std::vector<std::string> load = {"--rate",          "2",   "--requests",      "40",
                                           "--prompt-tokens", "600", "--output-tokens", "30"};
    more.insert(more.begin(), load.begin(), load.end());
    EXPECT_EQ(RunWith(more), 0) << err;
    return Json::parse(File("json"));
  }
  std::string File(const std::string& name) const {
    std::ifstream file(folder.PathOf(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
};

TEST(SimulateMainTest, SaysWhatWasSimulated) {
  Simulate simulate;
  const Json json = simulate.Result({});
  EXPECT_EQ(json["backend"], "simulated");
  EXPECT_EQ(json["target"], "simulated:small");
  EXPECT_EQ(json["completed"], 40);
  EXPECT_EQ(json["total_input_tokens"], 40 * 600);
  EXPECT_EQ(json["total_output_tokens"], 40 * 30);
  EXPECT_EQ(json["about"]["parameters"], "18858496");
  EXPECT_EQ(json["about"]["weight bytes"], "37734400");
  EXPECT_EQ(json["about"]["page bytes"], "65536");
  EXPECT_EQ(json["about"]["memory bytes"], "900000000") << "90 % of the device's";
  EXPECT_EQ(json["about"]["context"], "4096");
  EXPECT_EQ(json["about"]["lane policy"], "fair");
  EXPECT_EQ(json["target_counts"]["preemptions"], 0);
  EXPECT_GE(json["target_counts"]["prefill steps"], 2 * 40) << "600 tokens are two chunks of at most 512";
  EXPECT_EQ(json["client_bound"], false);
  EXPECT_THAT(simulate.out, HasSubstr("Target's preemptions:"));
  EXPECT_THAT(simulate.out, HasSubstr("weight bytes:"));
}

TEST(SimulateMainTest, ASeedFixesEveryByteOfEveryOutput) {
  Simulate first, second;
  const std::vector<std::string> arguments = {
      "--rate", "5", "--requests", "100", "--prompt-tokens", "lognormal:300:1", "--seed", "7"};
  ASSERT_EQ(first.RunWith(arguments), 0) << first.err;
  const std::string json = first.File("json"), lines = first.File("jsonl"), page = first.File("html");
  const std::string table = first.out;
  ASSERT_EQ(first.RunWith(arguments), 0);
  EXPECT_EQ(first.File("json"), json);
  EXPECT_EQ(first.File("jsonl"), lines);
  EXPECT_EQ(first.File("html"), page);
  EXPECT_EQ(first.out, table);
  EXPECT_TRUE(Json::parse(json)["date"].is_null());
  EXPECT_TRUE(Json::parse(json)["client_cpu"].is_null());
  std::vector<std::string> others = arguments;
  others.back() = "8";
  ASSERT_EQ(second.RunWith(others), 0);
  EXPECT_NE(second.File("jsonl"), lines);
}

// What a flag is to change, as a key of the result and its value without and with the flag.
struct FlagCase {
  std::vector<std::string> flag;
  const char* where;  // JSON pointer
  std::string changed;
};

TEST(SimulateMainTest, EachSettingChangesWhatIsSimulated) {
  const std::string as_it_is = Simulate().Result({})["p99_itl_ms"].dump();
  const FlagCase told[] = {
      {{"--memory", "200MB"}, "/about/memory bytes", "\"200000000\""},
      {{"--kv-dtype", "f32"}, "/about/page bytes", "\"131072\""},
      {{"--page-size", "32"}, "/about/page bytes", "\"131072\""},
      {{"--context", "2000"}, "/about/context", "\"2000\""},
      {{"--lane-policy", "decode-first"}, "/about/lane policy", "\"decode-first\""},
  };
  for (const FlagCase& flag : told) {
    Simulate simulate;
    const Json json = simulate.Result(flag.flag);
    EXPECT_EQ(json.at(Json::json_pointer(flag.where)).dump(), flag.changed) << flag.flag[0];
  }
  // These change how steps are made, so what is measured.
  const std::vector<std::string> measured[] = {{"--max-sequences", "1"},
                                               {"--max-step-tokens", "64"},
                                               {"--decode-gap-ms", "400"},
                                               {"--lane-policy", "prefill-first"}};
  for (const std::vector<std::string>& flag : measured) {
    Simulate simulate;
    EXPECT_NE(simulate.Result(flag)["p99_itl_ms"].dump(), as_it_is) << flag[0];
  }
}

// Steps are not cut (the gap is wide), so each more of them between two decode steps is 196 ms more.
TEST(SimulateMainTest, MorePrefillStepsBetweenDecodeStepsMakeLongerGaps) {
  const auto gap = [](const std::string& steps) {
    Simulate simulate;
    EXPECT_EQ(
        simulate.RunWith({"--rate", "6", "--requests", "30", "--prompt-tokens", "1500", "--output-tokens",
                          "40", "--decode-gap-ms", "100000", "--max-prefill-steps", steps}),
        0)
        << simulate.err;
    return Json::parse(simulate.File("json"))["p99_itl_ms"].get<double>();
  };
  EXPECT_GT(gap("3"), 2 * gap("1"));
}

// With one place a short prompt waits until the long one in front of it is done.
TEST(SimulateMainTest, PlacesLetShortPromptsPassLongOnes) {
  const auto median = [](const std::string& places) {
    Simulate simulate;
    EXPECT_EQ(simulate.RunWith({"--rate", "2", "--requests", "60", "--prompt-tokens", "lognormal:400:1.2",
                                "--max-context", "4000", "--output-tokens", "5", "--max-step-tokens", "512",
                                "--max-partial-prefills", places}),
              0)
        << simulate.err;
    return Json::parse(simulate.File("json"))["median_ttft_ms"].get<double>();
  };
  EXPECT_LT(median("4"), median("1"));
}

// 200 ms of prefill and 30 decode steps for each request: at 3 a second lanes compete.
TEST(SimulateMainTest, PoliciesDifferAsTheirBoundsSay) {
  const auto result = [](const std::string& policy) {
    Simulate simulate;
    EXPECT_EQ(simulate.RunWith({"--rate", "3", "--requests", "60", "--prompt-tokens", "500",
                                "--output-tokens", "30", "--max-step-tokens", "512", "--lane-policy", policy,
                                "--percentiles", "50,100"}),
              0)
        << simulate.err;
    return Json::parse(simulate.File("json"));
  };
  const Json fair = result("fair"), prefill = result("prefill-first"), decode = result("decode-first");
  // Of gaps: decode-first has none but its own step's, 3.9 ms at 40 sequences; prefill-first lets a prompt
  // pass.
  EXPECT_LT(decode["p100_itl_ms"], 5.0);
  EXPECT_GT(prefill["p100_itl_ms"], fair["p100_itl_ms"]);
  EXPECT_GT(fair["p100_itl_ms"], decode["p100_itl_ms"]);
  // Of first tokens it is the other way round.
  EXPECT_LT(prefill["p99_ttft_ms"], fair["p99_ttft_ms"]);
  EXPECT_GT(decode["p99_ttft_ms"], prefill["p99_ttft_ms"]);
}

// Mistral 7B on an H200: alone 100 tokens are there after 3.9 ms. Behind a prompt of 30,000 and beside a
// stream they wait for at most one gap of 50 ms until their first chunk, which is their last:
// engine/schedule/README.md, N = K = 1.
TEST(SimulateMainTest, AShortPromptIsInsideItsBoundWhileALongOnePrefills) {
  Simulate simulate;
  simulate.folder.Write("long.jsonl",
                        R"({"index": 0, "intended_ns": 0, "input_tokens": 100, "output_tokens": 2000}
{"index": 1, "intended_ns": 2000000000, "input_tokens": 30000, "output_tokens": 5}
{"index": 2, "intended_ns": 2300000000, "input_tokens": 100, "output_tokens": 5}
)");
  ASSERT_EQ(simulate.Run({"--model", std::string(TRAMONTANE_SOURCE_DIR) + "/bench/simulate/mistral-7b",
                          "--device", "h200", "--trace", simulate.folder.PathOf("long.jsonl"), "--jsonl",
                          simulate.folder.PathOf("jsonl")}),
            0)
      << simulate.err;
  std::istringstream lines(simulate.File("jsonl"));
  std::vector<double> ttft_ms;
  for (std::string line; std::getline(lines, line);) ttft_ms.push_back(Json::parse(line)["ttft_ms"]);
  ASSERT_EQ(ttft_ms.size(), 3u);
  EXPECT_NEAR(ttft_ms[0], 3.9, 0.1);
  EXPECT_GT(ttft_ms[1], 1000) << "it prefills all the while";
  EXPECT_LT(ttft_ms[2], 50 + 20) << "the wait, and the step that it shares with the long one";
}

TEST(SimulateMainTest, WhatTheDoorRefusesIsANamedFailure) {
  Simulate simulate;
  EXPECT_EQ(simulate.RunWith({"--concurrency", "3", "--requests", "50", "--prompt-tokens", "5000"}), 1);
  EXPECT_EQ(Json::parse(simulate.File("json"))["failures"]["http_400"], 50);
  EXPECT_EQ(simulate.RunWith({"--rate", "inf", "--requests", "50", "--max-queued-requests", "10"}), 0);
  EXPECT_EQ(Json::parse(simulate.File("json"))["failures"]["http_429"], 40);
}

TEST(SimulateMainTest, ALoadEndsOnTimeAndTheNextRunBeginsAnew) {
  Simulate simulate;
  const std::vector<std::string> load = {"--sweep",         "1000,1000", "--requests", "200",
                                         "--output-tokens", "5",         "--drain",    "5"};
  ASSERT_EQ(simulate.RunWith(load), 0) << simulate.err;
  const Json runs = Json::parse(simulate.File("json"))["runs"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_GT(runs[0]["failures"]["unfinished"], 0);
  EXPECT_EQ(runs[0]["p99_ttft_ms"], runs[1]["p99_ttft_ms"]);
  EXPECT_EQ(runs[0]["failures"], runs[1]["failures"]);
  EXPECT_EQ(
      simulate.RunWith({"--rate", "100", "--requests", "200", "--timeout", "0.5", "--output-tokens", "3"}),
      0);
  EXPECT_GT(Json::parse(simulate.File("json"))["failures"]["timeout"], 0);
}

TEST(SimulateMainTest, TracesMixesAndSearchesRunAsInBench) {
  Simulate simulate;
  simulate.folder.Write("trace.csv", R"(TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
)");
  EXPECT_EQ(simulate.RunWith({"--trace", simulate.folder.PathOf("trace.csv"), "--rate-scale", "2"}), 0);
  Json json = Json::parse(simulate.File("json"));
  EXPECT_EQ(json["total_input_tokens"], 374 + 396);
  EXPECT_EQ(json["total_output_tokens"], 44 + 109);
  EXPECT_EQ(simulate.RunWith({"--find-rate", "--slo", "ttft_p99<1000", "--requests", "60", "--rate", "4",
                              "--prompt-tokens", "200", "--output-tokens", "20", "--prefix-cache", "off"}),
            0)
      << simulate.err;
  json = Json::parse(simulate.File("json"));
  EXPECT_GT(json["find_rate"]["rate"], 0.5);
  EXPECT_EQ(simulate.Run({"--rate", "3", "--dry-run", "--jsonl", simulate.folder.PathOf("plan")}), 0);
  EXPECT_THAT(simulate.File("plan"), HasSubstr("intended_ns"));
}

TEST(SimulateMainTest, AFaultIsNamedWithFlagValueAndLimit) {
  Simulate simulate;
  const std::string model = simulate.folder.path(), device = simulate.folder.PathOf("device.json");
  simulate.folder.Write("flat.json", R"({"name": "flat", "bytes_per_s": 1, "flops_per_s": 1,
                                         "step_overhead_us": 1})");
  TempFolder empty, quantised, wrong;
  quantised.Write("config.json", std::string(kConfig) + R"(, "quantization_config": {"quant_method": "gptq",
      "bits": 4, "group_size": 128, "desc_act": false, "sym": true}})");
  wrong.Write("config.json", std::string(kConfig) + R"(, "num_key_value_heads": 3})");
  const struct {
    std::vector<std::string> arguments;
    std::vector<std::string> said;
  } cases[] = {
      {{"--device", device}, {"--model is missing"}},
      {{"--model", model}, {"--device is missing"}},
      {{"--model", model, "--device", "h2000"}, {"--device is h2000", "h200 or a file"}},
      {{"--model", model, "--device", simulate.folder.PathOf("flat.json")},
       {"--memory is missing", "flat has no memory_bytes"}},
      {{"--model", empty.path(), "--device", device}, {empty.path(), "neither config.json nor params.json"}},
      {{"--model", quantised.path(), "--device", device}, {quantised.path(), "quantised"}},
      {{"--model", wrong.path(), "--device", device}, {wrong.PathOf("config.json"), "num_key_value_heads"}},
      {{"--model", model, "--device", device, "--memory", "30MB"},
       {"30000000 bytes is too little", "weights take 37734400", "at least"}},
      {{"--model", model, "--device", device, "--memory", "much"}, {"--memory is \"much\"", "KiB"}},
      {{"--model", model, "--device", device, "--max-sequences", "0"},
       {"--max-sequences is 0, the least is 1"}},
      {{"--model", model, "--device", device, "--lane-policy", "best"},
       {"--lane-policy is \"best\"", "fair"}},
      {{"--model", model, "--device", device, "--target", "http://a:1"}, {"--target"}},
      {{"--model", model, "--device", device, "--ab", "http://a:1"}, {"--ab"}},
      {{"--model", model, "--device", device, "--nonce", "1"}, {"--nonce"}},
      {{"--model", model, "--device", device, "--trace", "t"}, {"exclude"}},
  };
  for (const auto& fault : cases) {
    std::vector<std::string> arguments = fault.arguments;
    arguments.insert(arguments.end(), {"--rate", "1"});
    EXPECT_EQ(simulate.Run(arguments), 2) << testing::PrintToString(fault.arguments);
    for (const std::string& said : fault.said) EXPECT_THAT(simulate.err, HasSubstr(said));
    EXPECT_THAT(simulate.err, Not(HasSubstr("tramontane bench")));
  }
}

// Other than the fit itself, which fit_test holds to known terms.
TEST(SimulateMainTest, FitStandsAloneAndPrintsADevice) {
  Simulate simulate;
  simulate.folder.Write("gpu_check.json", R"({"facts": {"device": "card"}, "tables": [
      {"name": "Mistral 7B", "rows": [
        {"name": "decode, 1 x 1k", "seconds": 0.011, "amount": 1e9, "unit": "bytes", "bound_per_second": 1e11},
        {"name": "decode, 8 x 1k", "seconds": 0.021, "amount": 2e9, "unit": "bytes", "bound_per_second": 1e11},
        {"name": "prefill, 2k", "seconds": 0.201, "amount": 1e11, "unit": "FLOP", "bound_per_second": 1e12}]},
      {"name": "Prefill attention", "rows": [
        {"name": "1 x 512", "seconds": 0.4, "amount": 1e11, "unit": "FLOP", "bound_per_second": 1e12}]}]})");
  ASSERT_EQ(simulate.Run({"--fit", simulate.folder.PathOf("gpu_check.json")}), 0) << simulate.err;
  const Json device = Json::parse(simulate.out);
  EXPECT_EQ(device["name"], "card");
  simulate.folder.Write("fitted.json", simulate.out);
  EXPECT_EQ(
      simulate.Run({"--model", simulate.folder.path(), "--device", simulate.folder.PathOf("fitted.json"),
                    "--memory", "1GB", "--rate", "1", "--requests", "3"}),
      0)
      << simulate.err;
  EXPECT_EQ(simulate.Run({"--fit", simulate.folder.PathOf("gpu_check.json"), "--rate", "1"}), 2);
  EXPECT_THAT(simulate.err, HasSubstr("--fit stands alone"));
  EXPECT_EQ(simulate.Run({"--fit", "/nowhere"}), 2);
  EXPECT_THAT(simulate.err, HasSubstr("/nowhere"));
}

TEST(SimulateMainTest, HelpTellsItsOwnFlagsAndThoseOfLoads) {
  Simulate simulate;
  EXPECT_EQ(simulate.Run({"--help"}), 0);
  for (const char* flag :
       {"--device", "--memory", "--lane-policy", "--decode-gap-ms", "--rate", "--find-rate"})
    EXPECT_THAT(simulate.out, HasSubstr(flag));
  for (const char* flag : {"--target", "--check", "--tokenizer", "--explain"})
    EXPECT_THAT(simulate.out, Not(HasSubstr(flag)));
}

}  // namespace
}  // namespace tramontane::simulate
