// Terms of a device that are known give tables, and the fit to these gives the terms back.
#include "bench/simulate/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tramontane::simulate {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

struct Terms {
  double overhead_s = 3e-4;
  double memory_share = 0.8, product_share = 0.6, attention_share = 0.4;
  double decode_error = 0;  // one row takes this share longer
};

constexpr double kCopyRate = 4e12, kPeak = 1e15;

Json Row(const std::string& name, double seconds, double amount, const std::string& unit, double per_second) {
  return {{"name", name},
          {"seconds", seconds},
          {"amount", amount},
          {"unit", unit},
          {"bound_per_second", per_second}};
}

Json Tables(const Terms& terms) {
  Json decode = Json::array(), attention = Json::array();
  for (const double gigabytes : {14.0, 15.0, 18.0, 31.0}) {
    const double amount = gigabytes * 1e9;
    double seconds = terms.overhead_s + amount / (kCopyRate * terms.memory_share);
    if (gigabytes == 15.0) seconds *= 1 + terms.decode_error;
    decode.push_back(Row("decode, " + std::to_string(gigabytes), seconds, amount, "bytes", kCopyRate));
  }
  decode.push_back(
      Row("prefill, 2k", terms.overhead_s + 3e13 / (kPeak * terms.product_share), 3e13, "FLOP", kPeak));
  // Products bound a step of many sequences: that is no row of memory's.
  decode.push_back(Row("decode, 256 x 1k", 1.0, 4e12, "FLOP", kPeak));
  for (const double amount : {1e12, 2e12, 7e12}) {
    attention.push_back(Row("1 x " + std::to_string(amount), amount / (kPeak * terms.attention_share), amount,
                            "FLOP", kPeak));
  }
  return {{"facts", {{"device", "card"}, {"driver", "1.2"}, {"commit", "abc"}, {"memory", "1000 MiB"}}},
          {"tables",
           {{{"name", "Decode attention"}, {"rows", Json::array()}},
            {{"name", "Mistral 7B"}, {"rows", decode}},
            {{"name", "Prefill attention"}, {"rows", attention}}}}};
}

TEST(FitTest, GivesBackTheTermsThatTablesWereMadeOf) {
  const auto fitted = FitDevice(Tables({}).dump(), "f");
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  const DeviceRoofline& device = fitted->device;
  EXPECT_EQ(device.name, "card");
  EXPECT_NEAR(static_cast<double>(device.step_overhead_ns), 300'000, 10);
  EXPECT_EQ(device.bytes_per_s, kCopyRate);
  EXPECT_EQ(device.flops_per_s, kPeak);
  EXPECT_NEAR(device.memory_share, 0.8, 1e-6);
  EXPECT_NEAR(device.product_share, 0.6, 1e-6);
  EXPECT_NEAR(device.attention_share, 0.4, 1e-6);
  EXPECT_EQ(device.memory_bytes, 1000.0 * 1048576);
  EXPECT_LT(fitted->worst_error, 1e-6);
  EXPECT_EQ(fitted->source, "device card, driver 1.2, commit abc");
}

TEST(FitTest, WhatItPrintsIsADevice) {
  const auto fitted = FitDevice(Tables({}).dump(), "f");
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  const auto device = ParseDeviceRoofline(DeviceJson(*fitted), "printed");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->step_overhead_ns, fitted->device.step_overhead_ns);
  EXPECT_EQ(device->memory_bytes, fitted->device.memory_bytes);
  EXPECT_EQ(device->attention_share, fitted->device.attention_share);
}

TEST(FitTest, TellsHowFarOffARowIs) {
  const auto fitted = FitDevice(Tables({.decode_error = 0.2}).dump(), "f");
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  EXPECT_GT(fitted->worst_error, 0.05);
  EXPECT_LT(fitted->worst_error, 0.2);
}

TEST(FitTest, AShareAboveOneRaisesThePeak) {
  const auto fitted = FitDevice(Tables({.memory_share = 1.25, .attention_share = 2}).dump(), "f");
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  const DeviceRoofline& device = fitted->device;
  EXPECT_EQ(device.memory_share, 1);
  EXPECT_NEAR(device.bytes_per_s, 5e12, 1e6);
  EXPECT_NEAR(device.flops_per_s * device.attention_share, 2e15, 1e9);
  EXPECT_NEAR(device.flops_per_s * device.product_share, 6e14, 1e9);
  EXPECT_LE(device.attention_share, 1);
}

// A step that is shorter than its bytes say leaves nothing for an overhead.
TEST(FitTest, NoTermIsBelowZero) {
  Json tables = Tables({.overhead_s = 0});
  tables["tables"][1]["rows"][0]["seconds"] = 0.003;
  const auto fitted = FitDevice(tables.dump(), "f");
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  EXPECT_EQ(fitted->device.step_overhead_ns, 0);
}

TEST(FitTest, ErrorsNameTheFileAndWhatIsMissing) {
  EXPECT_THAT(FitDevice("[]", "f").status().message(), HasSubstr("f: must be a JSON object"));
  EXPECT_THAT(FitDevice("{}", "f").status().message(),
              HasSubstr(R"(f: table Mistral 7B has 0 rows "decode..." in bytes, the least is 2)"));
  EXPECT_THAT(FitDevice(R"({"tables": 3, "facts": []})", "f").status().message(), HasSubstr("Mistral 7B"));
  Json tables = Tables({});
  tables["tables"][2]["rows"][0]["seconds"] = 0;
  EXPECT_THAT(FitDevice(tables.dump(), "f").status().message(), HasSubstr("Prefill attention needs seconds"));
  tables = Tables({});
  tables["tables"][1]["rows"][4]["seconds"] = 1e-4;
  EXPECT_THAT(FitDevice(tables.dump(), "f").status().message(), HasSubstr("shorter than the step overhead"));
}

}  // namespace
}  // namespace tramontane::simulate
