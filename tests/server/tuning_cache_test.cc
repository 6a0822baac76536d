// The file of --tuning-cache, over a backend that only remembers what it is told.
#include "server/setup/tuning_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include "kernels/backends/cpu_backend.h"
#include "tests/support/counting_backend.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using testing::HasSubstr;

class ChoosingBackend final : public CountingBackend {
 public:
  ChoosingBackend() : ChoosingBackend(MakeCpuBackend({.threads = 1, .variant = "portable"}).value()) {}
  OpCode UseTuning(const char* text) override {
    if (std::string(text).find("nonsense") != std::string::npos) return OpCode::kUnsupported;
    known = text;
    return OpCode::kOk;
  }
  const char* Tuning() override { return known.c_str(); }

  std::string known;

 private:
  explicit ChoosingBackend(BackendPtr cpu) : CountingBackend(*cpu), cpu_(std::move(cpu)) {}
  BackendPtr cpu_;
};

std::string Text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(TuningCacheTest, WhatOneProcessWritesTheNextTakes) {
  const TempFolder folder;
  const std::string path = folder.PathOf("tuning");
  ChoosingBackend first;
  EXPECT_TRUE(UseTuningCache(path, first).value()) << "a file that is not there says nothing";
  first.known = "a 1\nb 2\n";
  EXPECT_EQ(WriteTuningCache(path, first).value(), 2);
  EXPECT_EQ(Text(path), "tramontane tuning 1\na 1\nb 2\n");
  ChoosingBackend second;
  EXPECT_TRUE(UseTuningCache(path, second).value());
  EXPECT_EQ(second.known, "a 1\nb 2\n");
  // Nothing lies beside it.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(TuningCacheTest, AFileThatSaysTheSameIsNotWrittenAgain) {
  const TempFolder folder;
  const std::string path = folder.PathOf("tuning");
  folder.Write("tuning", "tramontane tuning 1\na 1\n");
  const auto before = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(path, before);
  ChoosingBackend backend;
  ASSERT_TRUE(UseTuningCache(path, backend).value());
  EXPECT_EQ(WriteTuningCache(path, backend).value(), 1);
  EXPECT_EQ(std::filesystem::last_write_time(path), before);
}

TEST(TuningCacheTest, ABackendWithNothingToChooseDoesNotReadTheFile) {
  const TempFolder folder;
  folder.Write("tuning", "nonsense");
  const BackendPtr cpu = MakeCpuBackend({.threads = 1, .variant = "portable"}).value();
  EXPECT_FALSE(UseTuningCache(folder.PathOf("tuning"), *cpu).value());
}

TEST(TuningCacheTest, AFileThatIsNoneIsRefusedByName) {
  const TempFolder folder;
  ChoosingBackend backend;
  const std::string path = folder.PathOf("tuning");
  for (const std::string& text :
       {std::string("x"), std::string("tramontane tuning 2\n"),
        std::string("tramontane tuning 1\nnonsense\n"), std::string("tramontane tuning 1\na\0b\n", 24)}) {
    folder.Write("tuning", text);
    const Status status = UseTuningCache(path, backend).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("tuning_cache is " + path + ", which is no such file"));
  }
  EXPECT_THAT(UseTuningCache(folder.path(), backend).status().message(), HasSubstr("which is no file"));
  std::filesystem::resize_file(path, static_cast<uintmax_t>(kMaxTuningBytes) + 1);
  EXPECT_THAT(UseTuningCache(path, backend).status().message(), HasSubstr("more than 16777216 bytes"));
}

TEST(TuningCacheTest, APlaceThatCannotBeWrittenIsSaid) {
  ChoosingBackend backend;
  backend.known = "a 1\n";
  const TempFolder folder;
  const Status status = WriteTuningCache(folder.PathOf("none/tuning"), backend).status();
  EXPECT_THAT(status.message(), HasSubstr("none/tuning, which cannot be written: "));
}

}  // namespace
}  // namespace tramontane
