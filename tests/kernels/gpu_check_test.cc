// What bench/gpu_check is made of, as far as it can be seen without a GPU: its report, its random weights,
// and the order, time-outs and exit status of its script over programs that only say that they were started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/gpu/random_weights.h"
#include "bench/gpu/report.h"
#include "kernels/backends/cpu_backend.h"
#include "kernels/core/dtype.h"
#include "tests/support/temp_folder.h"

namespace tramontane::gpu {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// ---- the report

Table TableOf(const std::string& name, double seconds) {
  return {name, "a note", {{"1 x 1k", seconds, MemoryBound(2e9, 4e12)}}};
}

TEST(GpuReportTest, TablesAreAddedOneByOneAndKeepWhatStandsBesideThem) {
  const TempFolder folder;
  Report report = ReadReport(folder.path());
  EXPECT_TRUE(report.tables.empty());
  report.facts["device"] = "a card";
  report.checks = {"op tests: passed"};
  report.peers["Decode attention"]["1 x 1k"] = {{"PyTorch flash", 0.002}, {kOursInTurn, 0.001}};
  AddTable(report, TableOf("Decode attention", 0.0015));
  ASSERT_TRUE(WriteReport(report, folder.path()));

  report = ReadReport(folder.path());
  EXPECT_EQ(report.facts.at("device"), "a card");
  EXPECT_THAT(report.checks, ElementsAre("op tests: passed"));
  AddTable(report, TableOf("Sampling", 0.5));
  Table again = TableOf("Decode attention", 0.001);
  again.rows[0].kernel = "HopperDecodeKernel, 16 rows";
  AddTable(report, again);
  ASSERT_TRUE(WriteReport(report, folder.path()));

  report = ReadReport(folder.path());
  ASSERT_EQ(report.tables.size(), 2U);
  EXPECT_EQ(report.tables[0].name, "Decode attention");
  EXPECT_EQ(report.tables[0].note, "a note");
  EXPECT_DOUBLE_EQ(report.tables[0].rows[0].seconds, 0.001);
  EXPECT_DOUBLE_EQ(report.tables[0].rows[0].share(), 0.5);
  EXPECT_EQ(report.tables[0].rows[0].kernel, "HopperDecodeKernel, 16 rows");
  EXPECT_EQ(report.tables[1].rows[0].bound.unit, "bytes");
  EXPECT_EQ(report.tables[1].rows[0].kernel, "");
  // A peer is held to ours in the same process, where that was timed.
  EXPECT_THAT(ReadFile(folder.PathOf("gpu_check.md")),
              AllOf(HasSubstr("PyTorch flash 2000.0 us, ours takes 50 % (1000.0 us in turn with it)"),
                    HasSubstr("| 1 x 1k (HopperDecodeKernel, 16 rows) |"), HasSubstr("| 1 x 1k | ")));
}

TEST(GpuReportTest, ABoundOfTwoPartsIsWrittenAndReadAsBoth) {
  const TempFolder folder;
  Report report;
  AddTable(report,
           {"Mistral 7B", "a note", {{"decode", 0.02, Then(ArithmeticBound(4e12, 1e15), 1e10, 2.5e12)}}});
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(WriteReport(report, folder.path()));
    EXPECT_THAT(ReadFile(folder.PathOf("gpu_check.md")),
                HasSubstr("| decode | 20000.0 us | 200.0 TFLOP/s and 500 GB/s | 4000.00 GFLOP at 1000 "
                          "TFLOP/s, then 10000.0 MB at 2500 GB/s | 40 % |"));
    report = ReadReport(folder.path());
  }
}

TEST(GpuReportTest, WhatPeersLeftOutStandsBelowTheChecksAndIsThatOfTheirLastFile) {
  const TempFolder folder;
  Report report;
  report.checks = {"op tests: passed"};
  AddTable(report, TableOf("Decode attention", 0.0015));
  folder.Write("peers.json", R"({"seconds": {"Decode attention": {"1 x 1k": {"PyTorch flash": 0.002}}},
    "left_out": {"Decode attention": {"for want of time": ["16 x 4k", "1 x 32k"]},
                 "Linear layers, few rows": {"not done": ["head, 16"]}}})");
  TakePeers(folder.PathOf("peers.json"), report);
  ASSERT_TRUE(WriteReport(report, folder.path()));
  report = ReadReport(folder.path());
  ASSERT_TRUE(WriteReport(report, folder.path()));
  EXPECT_THAT(ReadFile(folder.PathOf("gpu_check.md")),
              AllOf(HasSubstr("- op tests: passed\n"
                              "- beside Decode attention: left out, for want of time: 16 x 4k; 1 x 32k\n"
                              "- beside Linear layers, few rows: left out, not done: head, 16\n"),
                    HasSubstr("PyTorch flash 2000.0 us")));

  folder.Write("peers.json", R"({"seconds": {}, "left_out": {}})");
  TakePeers(folder.PathOf("peers.json"), report);
  EXPECT_TRUE(report.peers_left_out.empty());
  // What is no such file, or none at all, changes nothing.
  report.peers_left_out["Sampling"]["not done"] = {"greedy"};
  folder.Write("peers.json", R"({"left_out": {}})");
  TakePeers(folder.PathOf("peers.json"), report);
  TakePeers(folder.PathOf("nothing.json"), report);
  EXPECT_EQ(report.peers_left_out.size(), 1U);
  EXPECT_EQ(report.peers.at("Decode attention").at("1 x 1k").size(), 1U);
}

TEST(GpuReportTest, WhoReadsAReportSeesAWholeOne) {
  const TempFolder folder;
  Report report;
  AddTable(report, TableOf("Sampling", 0.5));
  ASSERT_TRUE(WriteReport(report, folder.path()));
  std::ifstream before(folder.PathOf("gpu_check.json"));
  AddTable(report, TableOf("Small kernels", 0.5));
  ASSERT_TRUE(WriteReport(report, folder.path()));
  std::ostringstream text;
  text << before.rdbuf();
  EXPECT_THAT(text.str(),
              AllOf(HasSubstr("Sampling"), Not(HasSubstr("Small kernels")), testing::EndsWith("}\n")));
  EXPECT_EQ(ReadReport(folder.path()).tables.size(), 2U);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("gpu_check.")) << "left behind";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(GpuReportTest, AProgressIsToldOfEveryRow) {
  Table table = {"Sampling", "a note", {}};
  std::vector<size_t> told;
  const Progress progress = [&](const Table& so_far) { told.push_back(so_far.rows.size()); };
  AddRow(table, {"greedy", 0.5, MemoryBound(1, 1)}, progress);
  AddRow(table, {"sampled", 0.5, MemoryBound(1, 1)}, progress);
  EXPECT_THAT(told, ElementsAre(1U, 2U));
}

TEST(GpuReportTest, AFileThatIsNoReportIsWrittenAnew) {
  const TempFolder folder;
  folder.Write("gpu_check.json", R"({"tables": 3})");
  EXPECT_TRUE(ReadReport(folder.path()).tables.empty());
}

// ---- random weights

class RandomWeightsTest : public testing::TestWithParam<DType> {};

TEST_P(RandomWeightsTest, MatricesHoldNumbersOfTheirScaleWhateverTheSourceSays) {
  constexpr int64_t kIn = 256, kOut = 64;
  constexpr float kScale = 0.5f;
  const BackendPtr backend(
      new RandomWeights(MakeCpuBackend({.threads = 1, .variant = "portable"}).value(), kScale, GetParam()));
  StepMaxima maxima;
  maxima.tokens = maxima.sequences = maxima.logit_rows = 1;
  maxima.hidden = kIn;
  maxima.query_heads = maxima.kv_heads = 1;
  maxima.head_dim = 32;
  maxima.vocab = 64;
  maxima.context = 64;
  ASSERT_EQ(backend->Reserve(maxima), OpCode::kOk);
  const std::vector<uint16_t> nothing(kIn * kOut);
  const WeightRows rows = {.data = nothing.data(), .rows = kOut, .row_stride = kIn};
  WeightHandle weight;
  ASSERT_EQ(backend->PackLinear({.parts = &rows, .part_count = 1, .in_features = kIn}, &weight), OpCode::kOk);

  // The columns of the matrix, one by one.
  std::vector<float> numbers;
  for (int64_t k = 0; k < kIn; ++k) {
    std::vector<float> x(kIn), out(kOut);
    x[static_cast<size_t>(k)] = 1.0f;
    LinearParams params;
    params.x = MakeTensor(x.data(), DType::kF32, 1, kIn);
    params.rows = 1;
    params.weight = weight;
    params.out = MakeTensor(out.data(), DType::kF32, 1, kOut);
    ASSERT_EQ(backend->Linear(params), OpCode::kOk);
    numbers.insert(numbers.end(), out.begin(), out.end());
  }
  backend->FreeWeight(weight);
  double sum = 0, squares = 0;
  for (const float number : numbers) {
    sum += number;
    squares += double{number} * number;
  }
  const auto count = static_cast<double>(numbers.size());
  // 16,384 draws: a mean is off by 0.004 of the scale's 0.5, a standard deviation by less; ten times that.
  EXPECT_NEAR(sum / count, 0.0, 0.04);
  EXPECT_NEAR(std::sqrt(squares / count), kScale, 0.04);
}

INSTANTIATE_TEST_SUITE_P(Formats, RandomWeightsTest,
                         testing::Values(DType::kBf16, DType::kQ4_0, DType::kInt4, DType::kFp8E4M3),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// ---- run_on_gpu

// A bundle whose programs note how they were started and end as told.
class RunOnGpu {
 public:
  RunOnGpu() {
    std::filesystem::create_directory(folder_.PathOf("bin"));
    std::filesystem::copy_file(std::string(TRAMONTANE_SOURCE_DIR) + "/bench/gpu/run_on_gpu",
                               folder_.PathOf("run_on_gpu"));
    folder_.Write("commit", "abc\n");
    for (const char* name : {"bin/gpu_tables", "bin/gpu_op_tests", "bin/gpu_engine_tests"}) {
      Program(name, "echo '[  PASSED  ] 3 tests.'");
    }
    // Nothing of this machine's Python or CUDA is asked.
    Program("bin/python3", "exit 1");
    Program("bin/nvidia-smi", "exit 1");
    UseProcessors(1);
  }

  void UseProcessors(int count) { Program("bin/nproc", "echo " + std::to_string(count)); }

  // The program notes its arguments, then runs `body`.
  void Program(const std::string& name, const std::string& body) {
    folder_.Write(
        name, "#!/bin/bash\necho \"$(basename \"$0\") $*\" >> " + folder_.PathOf("log") + "\n" + body + "\n");
    std::filesystem::permissions(folder_.PathOf(name), std::filesystem::perms::owner_all);
  }

  // No stage may take longer than this: what goes beyond it here sleeps for a minute.
  void HoldStagesTo(int seconds) { settings_ = "TRAMONTANE_STAGE_SECONDS=" + std::to_string(seconds) + " "; }

  // The exit status, where the script believes to have run for `seconds` already.
  int Run(const std::string& arguments, int seconds = 0) {
    const std::string command = settings_ + "PATH=" + folder_.PathOf("bin") +
                                ":/usr/bin:/bin SECONDS=" + std::to_string(seconds) + " bash " +
                                folder_.PathOf("run_on_gpu") + " " + arguments + " " + folder_.PathOf("out") +
                                " > " + folder_.PathOf("printed") + " 2>&1";
    return WEXITSTATUS(std::system(command.c_str()));
  }

  const TempFolder& folder() const { return folder_; }
  std::string printed() const { return ReadFile(folder_.PathOf("printed")); }
  // A line for each program that was started, with its arguments.
  std::string log() const { return ReadFile(folder_.PathOf("log")); }
  // What --seconds said to gpu_tables for this table; -1: it was not started.
  int SecondsOfTable(const std::string& name) const {
    std::istringstream log(ReadFile(folder_.PathOf("log")));
    for (std::string line; std::getline(log, line);) {
      int seconds = 0;
      if (std::sscanf(line.c_str(), ("gpu_tables --table " + name + " --seconds %d").c_str(), &seconds) == 1)
        return seconds;
    }
    return -1;
  }
  // The tables asked for, and the test programs, in order.
  std::vector<std::string> started() const {
    std::vector<std::string> names;
    std::istringstream log(ReadFile(folder_.PathOf("log")));
    for (std::string line; std::getline(log, line);) {
      std::istringstream words(line);
      std::string program, flag, table;
      words >> program >> flag >> table;
      if (program == "gpu_tables" && flag == "--table") names.push_back(table);
      if (program == "gpu_op_tests" || program == "gpu_engine_tests") names.push_back(program);
    }
    return names;
  }

 private:
  TempFolder folder_;
  std::string settings_;
};

TEST(RunOnGpuTest, TheManualsReadingComesFirstThenTablesThenTheChecks) {
  RunOnGpu run;
  EXPECT_EQ(run.Run(""), 0) << run.printed();
  EXPECT_THAT(
      run.started(),
      ElementsAre("gpu_op_tests", "pointwise", "decode-attention", "prefill-attention", "small-linear",
                  "large-linear", "sampling", "block-linear", "steps", "gpu_op_tests", "gpu_engine_tests",
                  "gpu_op_tests", "large-linear-fp8", "quantised-prefill-attention", "steps-without-window",
                  "steps-without-pdl", "steps-in-q4_0", "steps-in-int4", "steps-in-fp8", "moe"));
  EXPECT_THAT(run.printed(), AllOf(HasSubstr("op tests: passed (3 passed, 0 skipped)"),
                                   HasSubstr("PyTorch beside it: not on this machine"),
                                   HasSubstr("memcheck: not run"), Not(HasSubstr("left out"))));
}

TEST(RunOnGpuTest, WholeStepsLeaveTheChecksBehindThemTheirTime) {
  RunOnGpu run;
  EXPECT_EQ(run.Run("--minutes 8", /*seconds=*/200), 0) << run.printed();
  // Of the 280 seconds left 110 are kept, and a tenth of the rest is for the program to end in.
  EXPECT_LE(run.SecondsOfTable("steps"), 153);
  EXPECT_GE(run.SecondsOfTable("steps"), 90) << "what the programs before it took is far from that";
  RunOnGpu at_leisure;
  EXPECT_EQ(at_leisure.Run(""), 0);
  EXPECT_EQ(at_leisure.SecondsOfTable("steps"), 270);
}

TEST(RunOnGpuTest, StagesThatWouldNotFitTheMinutesAreLeftOutAndNamed) {
  RunOnGpu run;
  EXPECT_EQ(run.Run("--minutes 8", /*seconds=*/8 * 60 - 27), 0) << run.printed();
  EXPECT_THAT(run.started(), Contains("pointwise"));
  EXPECT_THAT(run.started(), Not(Contains("steps")));
  EXPECT_THAT(run.printed(), HasSubstr("table steps: left out for want of time"));
}

TEST(RunOnGpuTest, ATableThatFailsTakesNoOtherAlong) {
  RunOnGpu run;
  run.Program("bin/gpu_tables", "[[ $2 != decode-attention ]]");
  EXPECT_EQ(run.Run(""), 1);
  EXPECT_THAT(run.printed(), HasSubstr("table decode-attention: FAILED, see table_decode-attention.log"));
  EXPECT_THAT(run.started(), AllOf(Contains("prefill-attention"), Contains("gpu_engine_tests")));
}

TEST(RunOnGpuTest, PeersOfAnEarlierRunStandBesideNoRowOfThisOne) {
  RunOnGpu run;
  std::filesystem::create_directory(run.folder().PathOf("out"));
  run.folder().Write("out/peers.json", "{}");
  EXPECT_EQ(run.Run(""), 0) << run.printed();  // there is no PyTorch
  EXPECT_THAT(run.log(), AllOf(HasSubstr("--checks"), Not(HasSubstr("--peers"))));
  run.Program("bin/python3", "if [[ $1 == peers.py ]]; then echo '{}' >\"$2\"; fi");
  EXPECT_EQ(run.Run(""), 0) << run.printed();
  EXPECT_THAT(run.log(), HasSubstr("--peers " + run.folder().PathOf("out/peers.json")));
  // Nor where there is PyTorch and no time for it.
  RunOnGpu late;
  late.Program("bin/python3", "exit 0");
  std::filesystem::create_directory(late.folder().PathOf("out"));
  late.folder().Write("out/peers.json", "{}");
  EXPECT_EQ(late.Run("--minutes 8", /*seconds=*/8 * 60 - 100), 0) << late.printed();
  EXPECT_THAT(late.printed(), HasSubstr("PyTorch beside it: left out for want of time"));
  EXPECT_THAT(late.log(), AllOf(HasSubstr("--checks"), Not(HasSubstr("--peers"))));
}

TEST(RunOnGpuTest, ATableBeyondItsTimeIsEndedAndTheNextOneBegins) {
  RunOnGpu run;
  run.HoldStagesTo(2);
  run.Program("bin/gpu_tables", "if [[ $2 == decode-attention ]]; then exec sleep 60; fi");
  EXPECT_EQ(run.Run(""), 1) << run.printed();
  EXPECT_THAT(run.printed(), HasSubstr("table decode-attention: FAILED, not done after 2 s\n"));
  EXPECT_THAT(run.started(), AllOf(Contains("prefill-attention"), Contains("gpu_engine_tests")));
}

TEST(RunOnGpuTest, ACheckBeyondItsTimeIsEndedAndTheNextOneBegins) {
  RunOnGpu run;
  run.HoldStagesTo(2);
  run.Program("bin/gpu_engine_tests", "echo the last words; exec sleep 60");
  EXPECT_EQ(run.Run(""), 1) << run.printed();
  EXPECT_THAT(run.printed(), HasSubstr("engine tests: FAILED (0 passed, 0 skipped); engine_tests.0.log: not "
                                       "done after 2 s\nthe last words\n"));
  EXPECT_THAT(run.started(), AllOf(Contains("steps-without-window"), Contains("moe")));
}

// Each process has its share of the tests, and one that fails fails all.
TEST(RunOnGpuTest, TestsRunInAProcessForEachProcessorTwelveAtMost) {
  RunOnGpu run;
  run.UseProcessors(3);
  run.Program("bin/gpu_engine_tests",
              "echo \"share $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS\"; echo '[  PASSED  ] 5 "
              "tests.'; [[ $GTEST_SHARD_INDEX != 1 ]]");
  EXPECT_EQ(run.Run(""), 1) << run.printed();
  EXPECT_THAT(run.printed(),
              AllOf(HasSubstr("op tests: passed (9 passed, 0 skipped)"),
                    HasSubstr("engine tests: FAILED (15 passed, 0 skipped); engine_tests.1.log: exit "
                              "status 1\nshare 1 of 3\n")));
  RunOnGpu large;
  large.UseProcessors(64);
  EXPECT_EQ(large.Run(""), 0) << large.printed();
  EXPECT_THAT(large.printed(), HasSubstr("op tests: passed (36 passed, 0 skipped)"));
  // One that runs no test at all checks nothing.
  RunOnGpu empty;
  empty.Program("bin/gpu_engine_tests", "exit 0");
  EXPECT_EQ(empty.Run(""), 1);
  EXPECT_THAT(empty.printed(), HasSubstr("engine tests: FAILED (0 passed, 0 skipped)"));
}

TEST(RunOnGpuTest, PyTorchBeyondItsTimeIsEndedAndIsNoFaultOfOurs) {
  RunOnGpu run;
  run.HoldStagesTo(2);
  run.Program("bin/python3", "if [[ $1 == peers.py ]]; then exec sleep 60; fi");
  EXPECT_EQ(run.Run(""), 0) << run.printed();
  EXPECT_THAT(run.printed(), HasSubstr("PyTorch beside it: failed or not done, see peers.log"));
  EXPECT_THAT(run.started(), Contains("steps"));
}

TEST(RunOnGpuTest, ASanitizerWatchesTheOpTestsWhereItCanWatchOne) {
  RunOnGpu run;
  run.Program("bin/compute-sanitizer", "[[ $3 == --report* ]] && shift 2; shift 4; \"$@\"");
  EXPECT_EQ(run.Run(""), 0) << run.printed();
  EXPECT_THAT(run.printed(), AllOf(HasSubstr("memcheck: passed"), HasSubstr("racecheck: passed")));
  EXPECT_THAT(run.log(),
              HasSubstr("compute-sanitizer --tool racecheck --report-api-errors no --error-exitcode 9 "
                        "bin/gpu_op_tests --gtest_filter=-*MoreSequences*:*LargeVocabulary*"));
  // What it finds is a fault.
  RunOnGpu with_fault;
  with_fault.Program(
      "bin/compute-sanitizer",
      "[[ $2 == memcheck && $* == *LargeVocabulary* ]] && exit 9; echo '[  PASSED  ] 1 test.'");
  EXPECT_EQ(with_fault.Run(""), 1);
  EXPECT_THAT(with_fault.printed(),
              AllOf(HasSubstr("memcheck: FAILED (0 passed, 0 skipped); memcheck.0.log: exit status 9"),
                    HasSubstr("racecheck: passed")));
}

TEST(RunOnGpuTest, ASanitizerThatCannotWatchOneTestSaysNothingOfOurs) {
  RunOnGpu run;
  run.Program("bin/compute-sanitizer", "exit 1");
  EXPECT_EQ(run.Run(""), 0) << run.printed();
  RunOnGpu hangs;
  hangs.HoldStagesTo(2);
  hangs.Program("bin/compute-sanitizer", "exec sleep 60");
  EXPECT_EQ(hangs.Run(""), 0) << hangs.printed();
  for (const RunOnGpu* each : {&run, &hangs}) {
    EXPECT_THAT(each->printed(),
                AllOf(HasSubstr("memcheck: not run, compute-sanitizer does not work here"),
                      HasSubstr("racecheck: not run, compute-sanitizer does not work here")));
    EXPECT_THAT(each->log(), AllOf(HasSubstr("compute-sanitizer"), Not(HasSubstr("LargeVocabulary"))));
  }
}

TEST(RunOnGpuTest, OnlyTheSecondRunOfTheOpTestsLaunchesNoKernelBeforeTheOneBeforeItIsDone) {
  RunOnGpu run;
  run.Program("bin/gpu_op_tests",
              "echo \"without: ${TRAMONTANE_NO_PDL:-nothing}\"; echo '[  PASSED  ] 1 test.'");
  EXPECT_EQ(run.Run(""), 0) << run.printed();
  const auto said = [&](const std::string& log) { return ReadFile(run.folder().PathOf("out/" + log)); };
  EXPECT_THAT(said("fragment_layouts.0.log"), HasSubstr("without: nothing\n"));
  EXPECT_THAT(said("op_tests.0.log"), HasSubstr("without: nothing\n"));
  EXPECT_THAT(said("op_tests,_no_kernel_before_the_one_before_it_is_done.0.log"), HasSubstr("without: 1\n"));
}

TEST(RunOnGpuTest, WithoutADeviceNothingElseIsStarted) {
  RunOnGpu run;
  run.Program("bin/gpu_tables", "exit 3");
  EXPECT_EQ(run.Run(""), 3);
  EXPECT_TRUE(run.started().empty());
}

TEST(RunOnGpuTest, MinutesThatAreNoNumberAreRefused) {
  RunOnGpu run;
  EXPECT_EQ(run.Run("--minutes soon"), 2);
  EXPECT_THAT(run.printed(), HasSubstr("--minutes is \"soon\": a whole number from 1 to 9999"));
}

}  // namespace
}  // namespace tramontane::gpu
