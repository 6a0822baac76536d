// Traces of three kinds, and what is wrong with a file by line and field.
#include "bench/load/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_folder.h"

namespace tramontane::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TraceTest, AzureStampsCountFromTheFirstRow) {
  const auto rows = ParseTrace("conv.csv",
                               "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                               "2023-11-16 18:15:46.6805900,374,44\r\n"
                               "2023-11-16 18:15:50.9951690,396,109\r\n"
                               "2023-11-17 00:00:00,7,8\n");
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[0].at_ns, 0);
  EXPECT_EQ((*rows)[0].input_tokens, 374);
  EXPECT_EQ((*rows)[0].output_tokens, 44);
  EXPECT_EQ((*rows)[1].at_ns, 4'314'579'000);
  // From 18:15:46.68059 to midnight: 5 h 44 min 13.31941 s.
  EXPECT_EQ((*rows)[2].at_ns, ((5 * 60 + 44) * 60 + 13) * 1'000'000'000LL + 319'410'000);
}

TEST(TraceTest, MooncakeRowsHaveBlocks) {
  const auto rows = ParseTrace(
      "m.jsonl", R"({"timestamp": 3000, "input_length": 513, "output_length": 2, "hash_ids": [7, 9]})"
                 "\n"
                 R"({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [7]})"
                 "\n");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0].at_ns, 0);  // in the order of stamps
  EXPECT_THAT((*rows)[0].blocks, ElementsAre(7));
  EXPECT_EQ((*rows)[1].at_ns, 3'000'000'000);
  EXPECT_THAT((*rows)[1].blocks, ElementsAre(7, 9));
}

TEST(TraceTest, OwnRowsKeepTheirTimes) {
  const auto rows =
      ParseTrace("own.jsonl", R"({"index":0,"intended_ns":1234567,"input_tokens":10,"output_tokens":3})"
                              "\n");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0].at_ns, 1234567);
}

TEST(TraceTest, WhatIsWrongIsNamedByLineAndField) {
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n";
  const struct {
    std::string text;
    std::vector<std::string> said;
  } cases[] = {
      {"", {"holds no requests"}},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n", {"holds no requests"}},
      {"hello\n", {"line 1", "hello"}},
      {azure + "2023-11-16 18:15:46.68,374\n", {"line 3", "the row"}},
      {azure + "2023-11-16 18:15:46.68,374,44,1\n", {"line 3", "the row"}},
      {azure + "16.11.2023 18:15:46,374,44\n", {"line 3", "TIMESTAMP", "16.11.2023"}},
      {azure + "2023-02-30 18:15:46,374,44\n", {"line 3", "TIMESTAMP"}},
      {azure + "2023-02-03 25:15:46,374,44\n", {"line 3", "TIMESTAMP"}},
      {azure + "2023-02-03 05:15:46.x,374,44\n", {"line 3", "TIMESTAMP"}},
      {azure + "2023-02-03 05:15:46,-4,44\n", {"line 3", "ContextTokens", "-4", "from 1 to"}},
      {azure + "2023-02-03 05:15:46,4,many\n", {"line 3", "GeneratedTokens", "many"}},
      {azure + "2023-02-03 05:15:46,4,0\n", {"line 3", "GeneratedTokens", "from 1 to"}},
      {"{\"timestamp\": 1,\n", {"line 1", "the row"}},
      {"{\"time\": 1}\n", {"line 1", "timestamp"}},
      {"\n{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}\n", {"line 2", "timestamp", "-1"}},
      {"{\"timestamp\": 1, \"output_length\": 1}\n", {"line 1", "input_length", "missing"}},
      {"{\"timestamp\": 1, \"input_length\": 1.5, \"output_length\": 1}\n",
       {"line 1", "input_length", "1.5"}},
      {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 99999999999}\n",
       {"line 1", "output_length"}},
      {"{\"timestamp\": 1, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1, 2]}\n",
       {"line 1", "hash_ids", "at most 1", "512"}},
      {"{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [\"a\"]}\n",
       {"line 1", "hash_ids[0]"}},
      {"{\"intended_ns\": 1, \"input_tokens\": 0, \"output_tokens\": 1}\n",
       {"line 1", "input_tokens", "from 1"}},
      {"{\"intended_ns\": \"1\", \"input_tokens\": 1, \"output_tokens\": 1}\n", {"line 1", "intended_ns"}},
  };
  for (const auto& wrong : cases) {
    const auto rows = ParseTrace("file.x", wrong.text);
    ASSERT_FALSE(rows.ok()) << wrong.text;
    EXPECT_THAT(rows.status().message(), HasSubstr("file.x")) << wrong.text;
    for (const std::string& said : wrong.said) {
      EXPECT_THAT(rows.status().message(), HasSubstr(said)) << wrong.text;
    }
  }
}

TEST(TraceTest, AFileThatIsNotThereIsNamed) {
  EXPECT_THAT(ReadTrace("/nowhere/trace.csv").status().message(), HasSubstr("/nowhere/trace.csv"));
}

// What the notes on these files say of them.
TEST(TraceTest, ReadsTheRealOnes) {
  const std::string folder = "../shared/data/traces/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder << ": the real traces were not read";
  const auto conv = ReadTrace(folder + "azure_llm_2023_conv.csv");
  ASSERT_TRUE(conv.ok()) << conv.status();
  EXPECT_EQ(conv->size(), 19'366u);
  EXPECT_NEAR(static_cast<double>(conv->back().at_ns) * 1e-9, 3502, 1);
  const auto code = ReadTrace(folder + "azure_llm_2023_code.csv");
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(code->size(), 8'819u);
  const auto mooncake = ReadTrace(folder + "mooncake_conversation.jsonl");
  ASSERT_TRUE(mooncake.ok()) << mooncake.status();
  EXPECT_EQ(mooncake->size(), 12'031u);
}

TEST(TraceTest, StampsThatNoClockHoldsAreRefused) {
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const char* stamp :
       {"9999-12-31 23:59:59", "2200-01-01 00:00:00", "1969-12-31 23:59:59", "0000-01-01 00:00:00"}) {
    const auto rows = ParseTrace("t.csv", head + stamp + ",1,1\n");
    EXPECT_THAT(rows.status().message(),
                testing::AllOf(HasSubstr("line 2, TIMESTAMP"), HasSubstr("1970 to 2199")));
  }
  const auto year = ParseTrace("t.csv", head + "2023-01-01 00:00:00,1,1\n2024-01-02 00:00:00,1,1\n");
  ASSERT_TRUE(year.ok()) << year.status();
  EXPECT_EQ(year->back().at_ns, kMaxTraceSeconds * 1'000'000'000);
  const auto longer = ParseTrace("t.csv", head + "2023-01-01 00:00:00,1,1\n2024-01-02 00:00:01,1,1\n");
  EXPECT_THAT(longer.status().message(), HasSubstr("t.csv: spans 31622401 seconds"));
  EXPECT_THAT(longer.status().message(), HasSubstr("at most 31622400"));
}

TEST(TraceTest, AByteOrderMarkMayLead) {
  const std::string mark = "\xEF\xBB\xBF";
  const std::string row = R"({"intended_ns":5,"input_tokens":1,"output_tokens":1})";
  EXPECT_TRUE(
      ParseTrace("t", mark + "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-01-01 00:00:00,1,1\r\n").ok());
  EXPECT_EQ(ParseTrace("t", mark + row + "\n")->front().at_ns, 5);
}

TEST(TraceTest, ARowEndsWithItsJson) {
  const std::string row = R"({"intended_ns":5,"input_tokens":1,"output_tokens":1})";
  const auto rows = ParseTrace("t", row + std::string("\0junk", 5) + "\n");
  EXPECT_THAT(rows.status().message(), HasSubstr("line 1, the row"));
}

TEST(TraceTest, AFileAndItsLinesHaveABound) {
  const auto rows = ParseTrace("t", "{" + std::string(kMaxTraceLineBytes, ' ') + "\n");
  EXPECT_THAT(rows.status().message(), HasSubstr("line 1, the row has 1048577 bytes; at most 1048576"));
  TempFolder folder;
  folder.Write("long", "");
  std::filesystem::resize_file(folder.PathOf("long"), kMaxTraceBytes + 1);  // sparse
  EXPECT_THAT(ReadTrace(folder.PathOf("long")).status().message(), HasSubstr("more than 1073741824 bytes"));
}

TEST(TraceTest, AFaultMovesNoCursor) {
  EXPECT_THAT(ParseTrace("t", "\x1b[2J\n").status().message(), HasSubstr("\\u001b[2J"));
}

}  // namespace
}  // namespace tramontane::load
