// The binary itself, as a user starts it: what it prints where, how it ends, and how it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/program.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

TEST(CommandLineTest, ServePrintsExactlyOneReadyLineAndDrainsOnSigterm) {
  Served served;
  for (const std::string& address : {served.address, served.http}) {
    EXPECT_THAT(address, ContainsRegex("^127\\.0\\.0\\.1:[1-9][0-9]*$"));
  }
  Program generate({"generate", "What is the KV cache?", "--address", served.address, "--temperature", "0"});
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  EXPECT_THAT(generate.out(), HasSubstr("keys and values"));
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0) << served.program.err();
  EXPECT_EQ(std::count(served.program.out().begin(), served.program.out().end(), '\n'), 1)
      << served.program.out();
}

TEST(CommandLineTest, WhatRunsFinishesWhileDraining) {
  Served served({"--drain-timeout", "250"});  // longer than the answer takes, under a sanitizer too
  const std::string tokens = std::to_string(ScaledCount(3000));
  Program generate({"generate", "Tell me a story", "--address", served.address, "--max-tokens", tokens,
                    "--ignore-eos", "--seed", "1", "--stats"});
  EXPECT_TRUE(generate.HasBegun());
  served.program.Signal(SIGINT);
  EXPECT_EQ(served.program.Wait(), 0);
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  EXPECT_THAT(generate.err(), HasSubstr(tokens + " tokens"));
}

TEST(CommandLineTest, DrainingIsBoundedByItsTimeout) {
  Served served({"--drain-timeout", "0"});
  Program generate(
      {"generate", "Tell me a story", "--address", served.address, "--max-tokens", "30000", "--ignore-eos"});
  EXPECT_TRUE(generate.HasBegun());
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  EXPECT_EQ(generate.Wait(), 1);
  EXPECT_THAT(generate.err(), HasSubstr("UNAVAILABLE"));
}

TEST(CommandLineTest, ASecondSignalEndsTheServerAtOnce) {
  Served served({"--drain-timeout", "3600"});
  Program generate(
      {"generate", "Tell me a story", "--address", served.address, "--max-tokens", "32000", "--ignore-eos"});
  EXPECT_TRUE(generate.HasBegun());
  served.program.Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // two signals sent together may arrive as one
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 1);
  generate.Wait();
}

TEST(CommandLineTest, ATakenPortIsNamed) {
  Served served;
  Program second({"serve", "--grpc-address", served.address, "--http-address", "off"});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_EQ(second.out(), "");
  EXPECT_THAT(second.err(), HasSubstr("grpc_address: cannot listen on " + served.address));
  Program third({"serve", "--grpc-address", "127.0.0.1:0", "--http-address", served.http});
  EXPECT_EQ(third.Wait(), 1);
  EXPECT_EQ(third.out(), "");
  EXPECT_THAT(third.err(), HasSubstr("http_address: "));
  EXPECT_THAT(third.err(), HasSubstr(served.http));
  EXPECT_THAT(third.err(), HasSubstr("already in use"));
}

TEST(CommandLineTest, HttpCanBeOff) {
  Served served({"--http-address", "off"});
  EXPECT_EQ(served.http, "");
  EXPECT_NE(served.address, "");
}

TEST(CommandLineTest, TheGatewayServesWhatAServerElsewhereDoes) {
  Served served({"--http-address", "off", "--served-model-name", "one", "--served-model-name", "two"});
  Program gateway({"gateway", "--backend", served.address, "--http-address", "127.0.0.1:0"});
  EXPECT_THAT(gateway.FirstLine(), ContainsRegex(R"(^ready \{"http":"127\.0\.0\.1:[1-9][0-9]*"\}$)"));
  gateway.Signal(SIGTERM);
  EXPECT_EQ(gateway.Wait(), 0) << gateway.err();
  EXPECT_THAT(gateway.err(), HasSubstr(served.address + " is up"));
  Program nowhere({"gateway"});
  EXPECT_NE(nowhere.Wait(), 0);
  EXPECT_THAT(nowhere.err(), HasSubstr("--backend"));
}

// A copy of the binary, so that beside it lies what the test puts there.
TEST(CommandLineTest, BenchAndSimulateBecomeTheProgramsBesideTheBinary) {
  TempFolder folder;
  const std::string binary = folder.PathOf("tramontane");
  std::filesystem::copy_file(TramontaneBinary(), binary);
  for (const std::string name : {"bench", "simulate"}) {
    const std::string program = "tramontane_" + name;
    Program without({name, "--rate", "1"}, {.binary = binary});
    EXPECT_EQ(without.Wait(), 1);
    EXPECT_THAT(without.err(), HasSubstr(name + ": " + folder.PathOf(program)));
    EXPECT_THAT(without.err(), HasSubstr("./run --build-only builds it"));
    folder.Write(program, "#!/bin/sh\necho \"$@\"\nexit 3\n");
    std::filesystem::permissions(folder.PathOf(program), std::filesystem::perms::owner_all);
    Program with({name, "--help", "--slo", "a b", "x", "--", "-h"}, {.binary = binary});
    EXPECT_EQ(with.Wait(), 3);
    EXPECT_EQ(with.out(), "--help --slo a b x -- -h\n");
  }
}

TEST(CommandLineTest, EveryProblemOfTheSettingsIsReportedAtOnce) {
  TempFolder folder;
  const std::string file = folder.path() + "/config.json";
  std::ofstream(file) << R"({"max_sequence": 3, "page_size": 0})";
  Program serve({"serve", "--config", file, "--kv-dtype", "int3", "--threads", "-1"});
  EXPECT_EQ(serve.Wait(), 2);
  EXPECT_THAT(serve.err(), HasSubstr(R"("max_sequence" is unknown; did you mean "max_sequences"?)"));
  EXPECT_THAT(serve.err(), HasSubstr(R"("page_size" is 0, the least is 1)"));
  EXPECT_THAT(serve.err(), HasSubstr(R"(--kv-dtype is "int3")"));
  EXPECT_THAT(serve.err(), HasSubstr("--threads is -1, the least is 0"));
}

TEST(CommandLineTest, QuantizeWritesAGgufFileThatIsAModel) {
  TempFolder folder;
  const std::string breeze = std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights";
  const std::string out = folder.path() + "/small.gguf";
  Program quantize({"quantize", breeze, out, "--format", "gguf:Q4_0"});
  EXPECT_EQ(quantize.Wait(), 0) << quantize.err();
  EXPECT_THAT(quantize.out(), HasSubstr("42 matrices in q4_0, 15 tensors as they are"));
  Program inspect({"inspect", out});
  EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
  EXPECT_THAT(inspect.out(), HasSubstr("vocabulary of GGUF llama, 2048 ids"));
  EXPECT_THAT(inspect.out(), HasSubstr("window        256 on all 6 layers"));
  Program again({"quantize", breeze, out, "--format", "gguf:Q4_0"});
  EXPECT_EQ(again.Wait(), 1);
  EXPECT_THAT(again.err(), HasSubstr("is there; it is left as it is"));
}

TEST(CommandLineTest, QuantizeWritesAFolderOfAGgufFileWithItsTokenizer) {
  TempFolder folder;
  const std::string gguf = folder.path() + "/breeze.gguf", out = folder.path() + "/out";
  Program make({"quantize", std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights", gguf, "--format",
                "gguf:Q8_0"});
  EXPECT_EQ(make.Wait(), 0) << make.err();
  Program quantize({"quantize", gguf, out, "--type", "int8"});
  EXPECT_EQ(quantize.Wait(), 0) << quantize.err();
  EXPECT_THAT(quantize.out(), HasSubstr("42 matrices in int8 in groups of 64, 15 tensors as they are"));
  Program inspect({"inspect", out});
  EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
  EXPECT_THAT(inspect.out(), HasSubstr("MistralForCausalLM, Hugging Face layout"));
  EXPECT_THAT(inspect.out(), HasSubstr("tokenizer.model (SentencePiece)"));
  EXPECT_THAT(inspect.out(), HasSubstr("window        256 on all 6 layers"));
}

TEST(CommandLineTest, AGgufFormatSaysTheNumbersAndWhatSharesAScale) {
  for (const auto& [option, value] : {std::pair("--type", "int4"), {"--group", "64"}}) {
    Program quantize({"quantize", "a", "b", "--format", "gguf:Q8_0", option, value});
    EXPECT_EQ(quantize.Wait(), 1);
    EXPECT_THAT(quantize.err(), HasSubstr(std::string(option) + " does not go with --format gguf:Q8_0"));
  }
  Program neither({"quantize", "a", "b"});
  EXPECT_EQ(neither.Wait(), 1);
  EXPECT_THAT(neither.err(), HasSubstr("one of --type and --format is required"));
}

TEST(CommandLineTest, FlagsOverrideTheFileInPrintConfig) {
  TempFolder folder;
  const std::string file = folder.path() + "/config.json";
  std::ofstream(file)
      << R"({"max_sequences": 3, "page_size": 8, "any_model": true, "protect_metrics": true})";
  Program serve({"serve", "--config", file, "--page-size", "32", "--any-model=false", "--print-config"});
  EXPECT_EQ(serve.Wait(), 0) << serve.err();
  const auto json = nlohmann::json::parse(serve.out(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << serve.out();
  EXPECT_EQ(json["max_sequences"], 3);
  EXPECT_EQ(json["page_size"], 32);
  EXPECT_EQ(json["any_model"], false);
  EXPECT_EQ(json["protect_metrics"], true);
}

TEST(CommandLineTest, AWrongCommandLineEndsWithStatusTwoAndSaysWhatWasMeant) {
  const TempFolder folder;
  const std::string nearest = "--max-seqences is unknown; did you mean --max-sequences?\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"serve", "--max-seqences", "8"}, nearest},
      {{"serve", "--max-seqences=8"}, nearest},
      {{"serve", "--max-sequences"}, "--max-sequences: 1 required N missing"},
      {{"serve", "--config", folder.path()}, "\": a folder, not a file of settings"},
      {{"serve", "--http-address", "http://127.0.0.1:1"}, "it must be HOST:PORT, the port a whole number"},
      {{"gateway", "--backend", "http://127.0.0.1:1"},
       "--backend is \"http://127.0.0.1:1\", it must be HOST:PORT"},
      {{"gateway", "--backend", "127.0.0.1:1,127.0.0.1:1"}, "--backend is \"127.0.0.1:1\" twice"},
      {{"serve", "--any-model=maybe"}, "--any-model is \"maybe\", it must be true or false"},
      {{"serve", "--debug"}, "--debug is no more: use admin_address"},
      {{"generate", "hi", "--temprature", "0"}, "--temprature is unknown; did you mean --temperature?\n"},
      {{"keys", "new", "me", "--helq"}, "--helq is unknown; did you mean --help?\n"},
      {{"serv", "--max-sequences", "8"}, "serv is unknown; did you mean serve?\n"},
      {{"kv", "shwo", "file"}, "shwo is unknown; did you mean show?\n"},
      {{"qqqq"}, "qqqq is unknown\n"},
      {{}, "A subcommand is required"}};
  for (const auto& [arguments, said] : wrong) {
    Program program(arguments);
    EXPECT_EQ(program.Wait(), 2) << said;
    EXPECT_THAT(program.err(), HasSubstr(said));
    EXPECT_EQ(program.out(), "");
  }
  Program version({"--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.out(), ContainsRegex("^tramontane [0-9.]+\n$"));
}

TEST(CommandLineTest, HelpHasEverySettingInItsGroupWithItsDefault) {
  Program help({"serve", "--help"}), print({"serve", "--print-config"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_EQ(print.Wait(), 0);
  for (const char* group : {"model", "network", "security", "limits", "cache", "scheduling", "logging"}) {
    EXPECT_THAT(help.out(), HasSubstr("\n" + std::string(group) + ":\n"));
  }
  const auto settings = nlohmann::ordered_json::parse(print.out(), nullptr, false);
  ASSERT_GT(settings.size(), 70u) << print.out();
  for (const auto& [key, value] : settings.items()) {
    if (key == "model") continue;  // MODEL_DIR
    std::string flag = "\n  --" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const size_t at = help.out().find(flag);
    ASSERT_NE(at, std::string::npos) << flag;
    EXPECT_THAT(help.out().substr(at, help.out().find("\n  --", at + 1) - at), HasSubstr("[default:"))
        << flag;
  }
  EXPECT_EQ(help.out().find("--debug"), std::string::npos) << "it is no more";
  for (const char* command : {"gateway", "generate", "inspect", "perplexity", "quantize", "tune", "health"}) {
    Program program({command, "--help"});
    EXPECT_EQ(program.Wait(), 0) << command;
    EXPECT_THAT(program.out(), HasSubstr(" [default: ")) << command;
  }
}

TEST(CommandLineTest, SettingsReachTheEngineAndTheServer) {
  Served served({"--max-prefill-steps",    "3",      "--max-partial-prefills", "5",
                 "--max-queued-requests",  "77",     "--max-queued-work",      "78",
                 "--max-streams",          "79",     "--max-compile-ms",       "80",
                 "--grammar-cache-bytes",  "300MiB", "--lane-policy",          "decode-first",
                 "--decode-gap-ms",        "125",    "--max-unread-tokens",    "70000",
                 "--grpc-max-connections", "0",      "--priority-ageing",      "2.5"});
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  for (const char* limit :
       {"limit: max_prefill_steps = 3:", "limit: max_partial_prefills = 5:",
        "limit: max_queued_requests = 77:", "limit: max_queued_work = 78:", "limit: max_streams = 79:",
        "limit: max_answer_bytes = 268435456:", "limit: lane_policy = decode-first:",
        "limit: decode_gap_ns = 125000000:", "limit: max_unread_tokens = 70000:",
        "limit: max_unread_bytes = 268435456:", "limit: priority_ageing_ns = 2500000000:",
        "memory beside the plan: no bound, because there is none of grpc_max_connections; the others "}) {
    EXPECT_THAT(served.program.err(), HasSubstr(limit));
  }
  const bool has_constraints = served.program.err().find("structured output: yes") != std::string::npos;
  for (const char* said : {"limit: max_compile_ms = 80:", "grammar_cache_bytes 300.0 MiB"}) {
    EXPECT_EQ(served.program.err().find(said) != std::string::npos, has_constraints) << said;
  }
}

TEST(CommandLineTest, TheCpuHasNothingToTune) {
  const TempFolder folder;
  const std::string cache = folder.PathOf("tuning");
  Program tune({"tune", "--tuning-cache", cache, "--device", "cpu"});
  EXPECT_EQ(tune.Wait(), 1);
  EXPECT_THAT(tune.err(),
              ContainsRegex("the model would run on cpu .*, which has no kernels to choose by time"));
  Program nowhere({"tune", "--device", "cpu"});
  EXPECT_EQ(nowhere.Wait(), 2);
  EXPECT_THAT(nowhere.err(), HasSubstr("--tuning-cache is missing"));
  Served served({"--tuning-cache", cache, "--device", "cpu"});
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  EXPECT_THAT(served.program.err(), HasSubstr("has nothing to choose by time"));
  EXPECT_FALSE(std::filesystem::exists(cache));
}

TEST(CommandLineTest, LogsCanBeJsonLines) {
  Served served({"--log-format", "json"});
  Program generate({"generate", "a secret", "--address", served.address, "--max-tokens", "3"});
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  std::istringstream lines(served.program.err());
  int count = 0, requests = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(json.is_object() && json.contains("level")) << line;
    const bool is_request = json.value("event", "") == "request";
    EXPECT_NE(json.contains("message"), is_request) << line;
    EXPECT_EQ(line.find("secret"), std::string::npos) << line;
    if (!is_request) continue;
    ++requests;
    EXPECT_EQ(json["output_tokens"], 3);
    EXPECT_EQ(json["route"], "/tramontane.v1.Inference/Generate");
    EXPECT_EQ(json["outcome"], "ok");
    EXPECT_EQ(json["level"], "info");
  }
  EXPECT_GT(count, 3);
  EXPECT_EQ(requests, 1);
}

TEST(CommandLineTest, RequestsAreLoggedUnlessThatIsOffAndPromptsWhereThatIsOn) {
  const auto log_of = [](const std::vector<std::string>& flags) {
    Served served(flags);
    Program generate({"generate", "a secret", "--address", served.address, "--max-tokens", "3"});
    EXPECT_EQ(generate.Wait(), 0) << generate.err();
    served.program.Signal(SIGTERM);
    EXPECT_EQ(served.program.Wait(), 0);
    return served.program.err();
  };
  EXPECT_EQ(log_of({"--log-requests", "off"}).find("event=request"), std::string::npos);
  EXPECT_THAT(log_of({"--log-prompts"}),
              AllOf(HasSubstr("log_prompts: what is asked of this server is in its log"),
                    ContainsRegex("info: event=request .* prompt=\"USER: a secret\\\\n\"\n")));
}

TEST(CommandLineTest, GenerateInProcessEqualsGenerateOverTheWire) {
  Served served;
  const std::vector<std::string> prompt = {
      "generate", "Tell me a story about a fox", "--seed", "7", "--max-tokens", "60"};
  auto remote_arguments = prompt, local_arguments = prompt;
  remote_arguments.insert(remote_arguments.end(), {"--address", served.address});
  local_arguments.insert(local_arguments.end(), {"--local", "models/breeze/weights"});
  Program remote(remote_arguments), local(local_arguments);
  EXPECT_EQ(remote.Wait(), 0) << remote.err();
  EXPECT_EQ(local.Wait(), 0) << local.err();
  EXPECT_NE(remote.out(), "");
  EXPECT_EQ(remote.out(), local.out());
}

TEST(CommandLineTest, TheChatFormatIsTheOneAskedForInEveryCommand) {
  Program inspect({"inspect", "--chat-format", "v2"});
  EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
  EXPECT_THAT(inspect.out(), HasSubstr("chat format   v2, --chat-format asks for it"));
  Served served({"--chat-format", "v2"});
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  EXPECT_THAT(served.program.err(), HasSubstr("chat format: v2 (--chat-format asks for it)"));
  EXPECT_THAT(served.program.err(), HasSubstr("answers end at 2 </s> (generation_config.json)"));
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"inspect"},
        {"serve", "--grpc-address", "127.0.0.1:0", "--http-address", "off"},
        {"generate", "Hi", "--local", ""}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--chat-format", "v9"});
    Program refused(arguments);
    EXPECT_EQ(refused.Wait(), 1) << command[0];
    EXPECT_THAT(refused.err(), HasSubstr("chat_format is 'v9', which is neither a file nor one of v1, v2,"));
  }
}

TEST(CommandLineTest, TheViewOfTheKvCacheNamesWhatItCannotShow) {
  struct Case {
    std::vector<std::string> flags;
    std::string error;
  };
  for (const Case& refused : std::vector<Case>{
           {{}, "--seqlens is missing"},
           {{"--seqlens", "4,0"}, "--seqlens[1] is \"0\", allowed are 1 to 256"},
           {{"--seqlens", "4,x3"}, "--seqlens[1] is \"x3\""},
           {{"--seqlens", "4,"}, "--seqlens[1] is \"\""},
           {{"--seqlens", "99999999999"}, "--seqlens[0] is \"99999999999\""},
           {{"--seqlens", "1,1,1,1,1,1,1,1,1"}, "the number of --seqlens is 9, allowed are 1 to 8"},
           {{"--seqlens", "200,57"}, "the sum of --seqlens is 257, allowed are 1 to 256"},
           {{"--seqlens", "4", "--window", "-1"}, "--window is -1, allowed are 0 to 256"},
           {{"--seqlens", "4", "--window", "257"}, "--window is 257"},
           {{"--seqlens", "4", "--chunk", "-1"}, "--chunk is -1, allowed are 1 to 256"},
           {{"--seqlens", "4", "--steps", "101"}, "--steps is 101, allowed are 0 to 100"},
           {{"--seqlens", "4", "--page-size", "257"}, "--page-size"},
           {{"--seqlens", "4,2", "--shared-prefix", "3"}, "--shared-prefix is 3, allowed are 0 to 2"},
           {{"--seqlens", "4", "--context-policy", "sinks"}, "--n-ctx is 0, allowed are 1 to 512"},
           {{"--seqlens", "4", "--context-policy", "shift", "--n-ctx", "8", "--n-keep", "8"},
            "--n-keep is 8, allowed are 0 to 7"},
           {{"--seqlens", "4", "--context-policy", "shift", "--n-ctx", "8", "--n-discard", "5"},
            "--n-discard is 5, allowed are 1 to 4"},
           {{"--seqlens", "4", "--context-policy", "sinks", "--n-ctx", "8", "--n-discard", "1"},
            "--n-discard is 1; sinks lets tokens go one by one"}}) {
    std::vector<std::string> arguments = {"inspect", "--kv"};
    arguments.insert(arguments.end(), refused.flags.begin(), refused.flags.end());
    Program inspect(arguments);
    EXPECT_GT(inspect.Wait(), 0) << refused.error;
    EXPECT_EQ(inspect.out(), "");
    EXPECT_THAT(inspect.err(), HasSubstr(refused.error));
  }
  Program nowhere({"inspect", "--kv", "--seqlens", "4", "--svg", "/nowhere/a.svg"});
  EXPECT_EQ(nowhere.Wait(), 1);
  EXPECT_THAT(nowhere.err(), HasSubstr("--svg is \"/nowhere/a.svg\", which cannot be written"));
  Program group({"inspect", "--kv", "--kv-dtype", "int4", "--kv-group", "32"});
  EXPECT_EQ(group.Wait(), 1);
  EXPECT_THAT(group.err(), HasSubstr("kv_group is 32, it must divide head_dim, 16"));
  Program alone({"inspect", "--window", "3"});
  EXPECT_GT(alone.Wait(), 0);
  EXPECT_THAT(alone.err(), HasSubstr("--window requires --kv"));
  Program both({"inspect", "--kv", "--tensors"});
  EXPECT_GT(both.Wait(), 0);
  EXPECT_THAT(both.err(), HasSubstr("excludes"));
}

// Bytes of the pieces that a page's listing names, in its order; nothing where one does not begin at the end
// of the one before it.
std::optional<int64_t> BytesOfPieces(const std::string& listing) {
  static const std::regex kPiece(
      R"(^ +(\d+)  [KV] head \d+ token \d+(?:, scales)? +((?:[0-9a-f]{2} )+) *= .*$)");
  int64_t bytes = 0;
  std::istringstream lines(listing);
  for (std::string line; std::getline(lines, line);) {
    std::smatch piece;
    if (!std::regex_match(line, piece, kPiece)) continue;
    if (std::stoll(piece[1]) != bytes) return std::nullopt;
    bytes += piece.length(2) / 3;
  }
  return bytes;
}

TEST(CommandLineTest, EveryByteOfAPageIsListedOnce) {
  const std::regex size(R"(; (\d+) bytes\n)");
  for (const char* dtype : {"f32", "bf16", "fp8", "int8", "int4"}) {
    for (const char* layout : {"hnd", "nhd"}) {
      for (const char* tokens : {"1", "3"}) {
        Program inspect(
            {"inspect", "--kv", "--kv-dtype", dtype, "--kv-layout", layout, "--page-size", tokens});
        EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
        std::smatch said;
        ASSERT_TRUE(std::regex_search(inspect.out(), said, size)) << inspect.out();
        const std::optional<int64_t> listed = BytesOfPieces(inspect.out());
        EXPECT_TRUE(listed.has_value()) << inspect.out();
        EXPECT_EQ(listed.value_or(0), std::stoll(said[1])) << inspect.out();
      }
    }
  }
}

TEST(CommandLineTest, FilesOfTheModelAreChosenWithLocalAlone) {
  Program elsewhere({"generate", "Hi", "--tokenizer", "/nowhere"});
  EXPECT_EQ(elsewhere.Wait(), 2);
  EXPECT_THAT(elsewhere.err(), HasSubstr("--tokenizer goes with --local"));
  Program tokenizer({"generate", "Hi", "--local", "", "--tokenizer", "/nowhere"});
  EXPECT_EQ(tokenizer.Wait(), 1);
  EXPECT_THAT(tokenizer.err(), HasSubstr("/nowhere"));
  Program native({"generate", "Hi", "--local", "", "--model-format", "native"});
  EXPECT_EQ(native.Wait(), 1);
  EXPECT_THAT(native.err(), HasSubstr("model_format is native"));
}

TEST(CommandLineTest, GenerateWithoutAServerSaysSo) {
  Program generate({"generate", "hello", "--address", "127.0.0.1:1"});
  EXPECT_EQ(generate.Wait(), 1);
  EXPECT_THAT(generate.err(), HasSubstr("Is a server running at 127.0.0.1:1?"));
}

TEST(CommandLineTest, InspectNeedsNoWeights) {
  TempFolder folder;
  std::filesystem::copy("models/breeze/weights/config.json", folder.path() + "/config.json");
  Program inspect({"inspect", folder.path(), "--memory", "1GiB"});
  EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
  EXPECT_THAT(inspect.out(), ContainsRegex("parameters +5,278,976"));
  EXPECT_THAT(inspect.out(), ContainsRegex("weights +10,564,608 bytes"));
  EXPECT_THAT(inspect.out(), ContainsRegex("window +256 on all 6 layers"));
}

// Held by PyPI's `gguf`: tests/golden/make_gguf_goldens.py.
TEST(CommandLineTest, InspectListsTheTensorsOfAnyFile) {
  std::ifstream file("tests/golden/gguf_types/tensors.json");
  const auto golden = nlohmann::json::parse(file);
  for (const auto& [name, want] : golden.items()) {
    const bool is_file = name == "types.gguf";
    Program inspect(
        {"inspect", (is_file ? "tests/golden/gguf_types/" : "tests/golden/") + name, "--tensors"});
    EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
    std::istringstream lines(inspect.out());
    std::string line;
    size_t count = 0;
    for (; std::getline(lines, line); ++count) {
      ASSERT_LT(count, want.size()) << line;
      EXPECT_EQ(nlohmann::json::parse(line), want[count]) << name;
    }
    EXPECT_EQ(count, want.size()) << name;
  }
  EXPECT_EQ(golden.size(), 3u);
}

TEST(CommandLineTest, TensorsWithoutAValueAreListedByTypeAndShape) {
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.AddRaw("ids", "I64", {2}, std::string(16, '\1'));
  writer.AddRaw("bytes", "U8", {0}, "");
  writer.Add("weights", {2}, {0.5f, std::numeric_limits<float>::infinity()});
  folder.Write("model.safetensors", writer.File());
  folder.Write("config.json", "{}");
  Program inspect({"inspect", folder.path(), "--tensors"});
  EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
  EXPECT_THAT(inspect.out(),
              HasSubstr(R"({"name":"ids","type":"I64","shape":[2],"f32_sha256":null,"head":null})"));
  EXPECT_THAT(inspect.out(), HasSubstr(R"("head":[0.5,null]})"));
  EXPECT_THAT(inspect.out(), HasSubstr(R"("shape":[0],"f32_sha256":"e3b0c442)"));  // of no bytes
}

// Every code of each type of one byte, and more numbers than are read at a time. Hashes of PyPI's ml_dtypes
// 0.5 (fp8) and numpy: `sha256(numpy.arange(256, dtype="u1").view(TYPE).astype("f4").tobytes())`, and of
// arange(70000) as int16 and uint16.
TEST(CommandLineTest, NumbersOfOneByteOrTwoAreHashed) {
  struct Narrow {
    const char* type;
    int64_t bytes;
    int64_t numbers;
    const char* hash;
    const char* head;
  };
  constexpr Narrow kTypes[] = {
      {"F8_E4M3", 1, 256, "fbfd40716d3eddc590ca82a86c34208d486f88eb69e6a04dbfc62b158dec4d2f",
       "[0.0,0.001953125,0.00390625,0.005859375,0.0078125,0.009765625,0.01171875,0.013671875]"},
      {"F8_E5M2", 1, 256, "e119e01810d2e0b12e435d3b12fc0a09a0d185442237494c1731ed1aedd7e4b5",
       "[0.0,1.52587890625e-05,3.0517578125e-05,4.57763671875e-05,6.103515625e-05,7.62939453125e-05,9."
       "1552734375e-05,0.0001068115234375]"},
      {"F8_E8M0", 1, 256, "2fb2732a956043772ccd2c1664ae5d2558c62f9c06780c04d95f1ff0050f2f2f",
       "[5.877471754111438e-39,1.1754943508222875e-38,2.350988701644575e-38,4.70197740328915e-38,9."
       "4039548065783e-38,1.88079096131566e-37,3.76158192263132e-37,7.52316384526264e-37]"},
      {"I8", 1, 256, "d4b395f3f1dd71c698c5b272ddd914d793a23b01c8160d0b946ef67c6850333c",
       "[0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0]"},
      {"U8", 1, 256, "04441b72253f49384e853fb46a81657e5e28187f02187a47713eb9cd482f9a17",
       "[0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0]"},
      {"I16", 2, 70000, "e9f1e3f203e6ea4f62256f68c669a17a822c1e1d567e5164ed86aae7534b8c65",
       "[0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0]"},
      {"U16", 2, 70000, "be859cae738a37011f081a21c320d6a3b7a2c58998d40e1e5a25a449ba0ad836",
       "[0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0]"},
  };
  const TempFolder folder;
  SafetensorsWriter writer;
  for (const Narrow& narrow : kTypes) {
    std::string data;
    for (int64_t i = 0; i < narrow.numbers; ++i) {
      for (int64_t byte = 0; byte < narrow.bytes; ++byte) data += static_cast<char>(i >> (8 * byte));
    }
    writer.AddRaw(narrow.type, narrow.type, {narrow.numbers / 16, 16}, data);
  }
  folder.Write("model.safetensors", writer.File());
  folder.Write("config.json", "{}");
  Program inspect({"inspect", folder.path(), "--tensors"});
  EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
  for (const Narrow& narrow : kTypes) {
    EXPECT_THAT(inspect.out(), HasSubstr(std::string(R"("type":")") + narrow.type + R"(","shape":[)" +
                                         std::to_string(narrow.numbers / 16) + R"(,16],"f32_sha256":")" +
                                         narrow.hash + R"(","head":)" + narrow.head + "}"));
  }
}

TEST(CommandLineTest, AFileThatIsNoGgufIsRefused) {
  const TempFolder folder;
  folder.Write("x.gguf", "<!DOCTYPE html>");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"inspect", "--tensors"},
                                                  {"inspect"},
                                                  {"serve", "--grpc-address", "127.0.0.1:0"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.begin() + 1, folder.PathOf("x.gguf"));
    Program refused(arguments);
    EXPECT_EQ(refused.Wait(), 1) << command[0];
    EXPECT_EQ(refused.out(), "");
    EXPECT_THAT(refused.err(), AllOf(HasSubstr("x.gguf: not a GGUF file"), HasSubstr("magic")));
  }
}

TEST(CommandLineTest, ExactKeysAndValuesPickNoVariantThatRounds) {
  Served served({"--kv-dtype", "f32"});
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  EXPECT_THAT(served.program.err(), HasSubstr("on cpu ("));
  EXPECT_THAT(served.program.err(), testing::Not(HasSubstr("_bf16")));
}

// Where there is a GPU both commands use it; elsewhere the one that asks for it by name ends with what is
// missing, and the one that does not says once why it goes on without.
TEST(CommandLineTest, WithoutAGpuTheServerSaysWhatIsMissing) {
  Program inspect({"inspect", "--device", "cuda"});
  const bool has_gpu = inspect.Wait() == 0;
  if (!has_gpu) {
    EXPECT_THAT(inspect.err(), ContainsRegex("UNAVAILABLE: (there is no|the CUDA library cannot be opened)"));
  }
  Served served;
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0);
  const std::string& log = served.program.err();
  const size_t said = log.find("running on the CPU: ");
  EXPECT_EQ(said == std::string::npos, has_gpu) << log;
  EXPECT_EQ(log.find("running on the CPU: ", said + 1), std::string::npos) << log;
  EXPECT_THAT(log, HasSubstr(has_gpu ? "on cuda (" : "on cpu ("));
}

TEST(CommandLineTest, ExactKeysAndValuesNeedTheCpu) {
  Program program({"inspect", "--device", "cuda", "--kv-dtype", "f32"});
  EXPECT_EQ(program.Wait(), 1);
  EXPECT_THAT(program.err(), HasSubstr("kv_dtype is f32"));
}

TEST(CommandLineTest, RowsInFp8NeedAGpu) {
  Program cpu({"inspect", "--device", "cpu", "--linear", "fp8"});
  EXPECT_EQ(cpu.Wait(), 1);
  EXPECT_THAT(cpu.err(), HasSubstr("INVALID_ARGUMENT: linear is fp8, which only CUDA has\n"));
  Program any({"inspect", "--linear", "fp8"});
  if (any.Wait() == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(any.err(), ContainsRegex("linear is fp8, which only CUDA has; (there is no|the CUDA library)"));
}

// Of breeze: 2 kv heads of 32 numbers.
TEST(CommandLineTest, InspectCountsTheBytesOfQuantisedPages) {
  Program int8({"inspect", "--device", "cpu", "--kv-dtype", "int8"});
  EXPECT_EQ(int8.Wait(), 0);
  EXPECT_THAT(int8.out(), HasSubstr("int8 in groups of 32 with f16 scales"));
  Program int4({"inspect", "--device", "cpu", "--kv-dtype", "int4", "--kv-group", "8"});
  EXPECT_EQ(int4.Wait(), 0);
  EXPECT_THAT(int4.out(), HasSubstr("int4 in groups of 8 with f16 scales"));
  Program wide({"inspect", "--device", "cpu", "--kv-dtype", "int4", "--kv-group", "64"});
  EXPECT_EQ(wide.Wait(), 1);
  EXPECT_THAT(wide.err(), HasSubstr("kv_group is 64, it must divide head_dim, 32"));
  Program plain({"inspect", "--device", "cpu", "--kv-group", "32"});
  EXPECT_EQ(plain.Wait(), 1);
  EXPECT_THAT(plain.err(), HasSubstr("kv_group is 32, and kv_dtype bf16 has no groups"));
}

TEST(CommandLineTest, AMissingFolderIsNamed) {
  for (const char* command : {"serve", "inspect"}) {
    Program program({command, "/no/such/model"});
    EXPECT_EQ(program.Wait(), 1);
    EXPECT_THAT(program.err(), HasSubstr("/no/such/model"));
  }
}

// The last line of the server's log is what inspect says, behind the command's name or the time.
TEST(CommandLineTest, ARefusedTokenizerIsRefusedByInspectInTheSameWords) {
  const TempFolder folder;
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy("models/breeze/weights/" + std::string(name), folder.PathOf(name));
  }
  folder.Write("tekken.json", R"({"config": {"pattern": "("}})");
  std::vector<std::string> said;
  for (const char* command : {"serve", "inspect"}) {
    Program program({command, folder.path()});
    EXPECT_EQ(program.Wait(), 1);
    const size_t at = program.err().find(folder.PathOf("tekken.json"));
    ASSERT_NE(at, std::string::npos) << program.err();
    said.push_back(program.err().substr(at));
  }
  EXPECT_EQ(said[0], said[1]);
  EXPECT_EQ(std::count(said[0].begin(), said[0].end(), '\n'), 1) << said[0];
}

// As a port is: gRPC would take it from the one that has it.
TEST(CommandLineTest, ASocketThatAServerListensOnIsNotTakenFromIt) {
  const TempFolder folder;
  const std::string address = "unix:" + folder.PathOf("grpc");
  const auto serve = [](const std::string& where) {
    return std::vector<std::string>{"serve", "--http-address", "off", "--grpc-address", where};
  };
  Program killed(serve(address));
  EXPECT_THAT(killed.FirstLine(), HasSubstr("ready"));
  killed.Signal(SIGKILL);
  killed.Wait();
  Program first(serve(address));
  EXPECT_THAT(first.FirstLine(), HasSubstr("ready")) << "a socket that was left behind is nobody's";
  folder.Write("file", "text");
  const std::string long_name(120, 'x');
  for (const auto& [where, why] : {std::pair<std::string, std::string>{address, "Address already in use"},
                                   {"unix:" + folder.PathOf("file"), "what is there is no socket"},
                                   {"unix:" + folder.PathOf("absent/grpc"), "No such file or directory"},
                                   {"unix:/" + long_name, "the path has 121 bytes, the most is 107"}}) {
    Program second(serve(where));
    EXPECT_EQ(second.Wait(), 1);
    EXPECT_THAT(second.err(), HasSubstr("grpc_address: cannot listen on " + where + ": " + why));
  }
  Program generate({"generate", "Hi", "--address", address, "--max-tokens", "2"});
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait(), 0);
}

TEST(CommandLineTest, StandardOutputThatIsFullIsAnError) {
  if (access("/dev/full", W_OK) != 0)
    GTEST_SKIP() << "no /dev/full here: what happens on a full disk is not shown";
  const std::string command = TramontaneBinary() + " serve --print-config > /dev/full 2> /dev/null";
  EXPECT_NE(std::system(command.c_str()), 0);
  const TempFolder folder;
  const std::string said = folder.PathOf("said");
  const std::string generate = TramontaneBinary() + " generate Hi --local '' > /dev/full 2> " + said;
  EXPECT_NE(std::system(generate.c_str()), 0);
  std::ifstream file(said);
  const std::string err{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(err, HasSubstr("standard output cannot be written"));
}

}  // namespace
}  // namespace tramontane
