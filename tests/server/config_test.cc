// Settings of `serve`: every problem is reported at once, each naming key, value and limit.
#include "server/setup/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace tramontane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ConfigTest, SetsEveryKindOfValue) {
  ServeConfig config;
  EXPECT_THAT(ApplyConfigJson(R"({"model": "/models/7b", "served_model_names": ["a", "b"], "memory": "4GiB",
                                  "max_sequences": 8, "drain_timeout": 1.5, "kv_dtype": "f32", "linear": "exact",
                                  "any_model": true})",
                              &config),
              IsEmpty());
  EXPECT_EQ(config.model, "/models/7b");
  EXPECT_TRUE(config.any_model);
  EXPECT_THAT(config.served_model_names, ElementsAre("a", "b"));
  EXPECT_EQ(config.memory, 4ll << 30);
  EXPECT_EQ(config.max_sequences, 8);
  EXPECT_EQ(config.drain_timeout, 1.5);
  EXPECT_EQ(config.kv_dtype, "f32");
  EXPECT_EQ(config.linear, "exact");
}

TEST(ConfigTest, StrictFieldsAreOnOrOff) {
  ServeConfig config;
  EXPECT_EQ(config.strict_fields, "on");
  EXPECT_THAT(ApplyConfigJson(R"({"strict_fields": "off"})", &config), IsEmpty());
  EXPECT_EQ(config.strict_fields, "off");
  EXPECT_THAT(ApplyConfigJson(R"({"strict_fields": "maybe"})", &config),
              ElementsAre(R"("strict_fields" is "maybe", it must be one of "on", "off")"));
}

TEST(ConfigTest, TheQueuesHoldALoadToolsBurst) {
  EXPECT_EQ(ServeConfig().max_queued_requests, 2048);
  EXPECT_EQ(ServeConfig().max_queued_work, 2048);
}

TEST(ConfigTest, ReportsEveryProblemAtOnceWithKeyValueAndLimit) {
  ServeConfig config;
  EXPECT_THAT(ApplyConfigJson(R"({"max_sequences": 0, "max_sequence": 4, "kv_dtype": "fp4", "page_size": "16",
                          "memory": "4 parsecs", "threads": 1.5, "drain_timeout": -1, "model": null, "any_model": "true"})",
                              &config),
              ElementsAre(R"("max_sequences" is 0, the least is 1)",
                          R"("max_sequence" is unknown; did you mean "max_sequences"?)",
                          R"("kv_dtype" is "fp4", it must be one of "f32", "bf16", "fp8", "int8", "int4")",
                          R"("page_size" is "16", it must be of the kind N)",
                          AllOf(HasSubstr(R"("memory" is "4 parsecs")"), HasSubstr("GiB")),
                          R"("threads" is "1.5", it must be a whole number)",
                          R"("drain_timeout" is -1, it must lie in 0 .. 86400.0)",
                          R"("model" is null, it must be of the kind MODEL_DIR)",
                          R"("any_model" is "true", it must be of the kind true|false)"));
}

TEST(ConfigTest, AddressesAreRefusedByNameValueAndLimit) {
  ServeConfig config;
  EXPECT_THAT(
      ApplyConfigJson(R"({"http_address": "127.0.0.1:99999", "grpc_address": "127.0.0.1: 80"})", &config),
      ElementsAre(
          R"("http_address" is "127.0.0.1:99999", it must be HOST:PORT, the port a whole number from 0 to 65535, or it is off)",
          R"("grpc_address" is "127.0.0.1: 80", it must be HOST:PORT, the port a whole number from 0 to 65535, or it is unix:PATH)"));
  EXPECT_THAT(ApplyConfigJson(R"({"http_address": ""})", &config),
              ElementsAre(HasSubstr("\"http_address\" is \"\"")));
  EXPECT_THAT(ApplyConfigJson(R"({"grpc_address": "off"})", &config), ElementsAre(HasSubstr("HOST:PORT")));
  EXPECT_THAT(ApplyConfigJson(R"({"http_address": "off", "grpc_address": "unix:/tmp/x"})", &config),
              IsEmpty());
  EXPECT_EQ(config.http_address, "off");
}

TEST(ConfigTest, OriginsAndHostsAreListsOfWhatCanBeOne) {
  ServeConfig config;
  EXPECT_THAT(ApplyConfigJson(
                  R"({"http_cors_origin": ["https://a.example", "http://b:80"], "http_host": "x,y.example"})",
                  &config),
              IsEmpty());
  EXPECT_THAT(config.http_cors_origin, ElementsAre("https://a.example", "http://b:80"));
  EXPECT_THAT(config.http_host, ElementsAre("x", "y.example"));
  EXPECT_THAT(ApplyConfigJson(R"({"http_cors_origin": "*", "http_host": "*"})", &config), IsEmpty());
  EXPECT_THAT(
      ApplyConfigJson(R"({"http_cors_origin": "https://a.example/", "http_host": "a.example:80"})", &config),
      ElementsAre(HasSubstr(R"("http_cors_origin" is "https://a.example/")"),
                  HasSubstr(R"("http_host" is "a.example:80")")));
}

TEST(ConfigTest, HttpsBoundsAreSettingsWithTheTransportsDefaults) {
  ServeConfig config;
  EXPECT_EQ(HttpLimitsOf(config), HttpLimits{});
  EXPECT_THAT(
      ApplyConfigJson(
          R"({"http_max_connections": 7, "http_max_header_bytes": "2KiB", "http_max_header_fields": 50, "http_max_body_bytes": 3000,
                                  "http_max_held_body_bytes": "4MiB", "http_read_timeout": 0.5, "http_idle_timeout": 6,
                                  "http_write_timeout": 7.5, "http_silence": 0, "http_last_words": 0.25})",
          &config),
      IsEmpty());
  const HttpLimits expected = {.max_connections = 7,
                               .max_header_bytes = 2048,
                               .max_header_fields = 50,
                               .max_body_bytes = 3000,
                               .max_held_body_bytes = 4 << 20,
                               .read_timeout_ms = 500,
                               .idle_timeout_ms = 6000,
                               .write_timeout_ms = 7500,
                               .last_words_ms = 250,
                               .silence_ms = 0};
  EXPECT_EQ(HttpLimitsOf(config), expected);
  EXPECT_THAT(ApplyConfigJson(R"({"http_max_header_bytes": 0, "http_read_timeout": 0})", &config),
              ElementsAre(R"("http_max_header_bytes" is 0 bytes, it must lie in 1024 .. 1048576)",
                          R"("http_read_timeout" is 0, it must lie in 0.01 .. 86400.0)"));
}

TEST(ConfigTest, NamesRepeatedKeysAndMalformedDocuments) {
  ServeConfig config;
  EXPECT_THAT(ApplyConfigJson(R"({"threads": 1, "threads": 2})", &config),
              ElementsAre(R"("threads" is given more than once)"));
  EXPECT_THAT(ApplyConfigJson("{\"threads\": ", &config), ElementsAre(HasSubstr("not valid JSON")));
  EXPECT_THAT(ApplyConfigJson("[1, 2]", &config), ElementsAre(HasSubstr("must be a JSON object")));
  EXPECT_THAT(ApplyConfigJson("{\"model\": \"\xff\"}", &config), ElementsAre(HasSubstr("not valid JSON")));
}

TEST(ConfigTest, PrintedConfigReadsBackAsItself) {
  ServeConfig config;
  config.model = "a \"quoted\" folder";
  config.served_model_names = {"x", "y"};
  config.memory = 123456789;
  config.drain_timeout = 2.25;
  ServeConfig copy;
  ASSERT_THAT(ApplyConfigJson(PrintConfig(config), &copy), IsEmpty());
  EXPECT_EQ(PrintConfig(copy), PrintConfig(config));
}

TEST(ConfigTest, EveryDefaultIsWithinItsOwnLimits) {
  ServeConfig config;
  EXPECT_THAT(ApplyConfigJson(PrintConfig(config), &config), IsEmpty());
}

TEST(ConfigTest, ExamplesInConfigsAreSound) {
  for (const char* name : {"behind-gateway.json", "breeze.json", "mistral-7b.json"}) {
    std::ifstream file(std::string(TRAMONTANE_SOURCE_DIR "/configs/") + name);
    ASSERT_TRUE(file) << name;
    std::stringstream text;
    text << file.rdbuf();
    ServeConfig config;
    EXPECT_THAT(ApplyConfigJson(text.str(), &config), IsEmpty()) << name;
  }
}

// Under its group, the one that --help has it under, too.
TEST(ConfigTest, DocumentationNamesEverySettingAndNoOther) {
  std::ifstream file(TRAMONTANE_SOURCE_DIR "/docs/configuration.md");
  std::vector<std::string> documented, known;
  std::string group;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) group = line.substr(3);
    if (line.starts_with("| `")) documented.push_back(group + ": " + line.substr(3, line.find('`', 3) - 3));
  }
  for (const Setting& setting : ServeSettings()) {
    ASSERT_NE(setting.group, nullptr) << setting.key;
    if (setting.json == nullptr) continue;  // it is no more
    std::string heading = setting.group;
    heading[0] = static_cast<char>(std::toupper(heading[0]));
    known.push_back(heading + ": " + setting.key);
    EXPECT_NE(DefaultText(setting), "") << setting.key;
  }
  EXPECT_THAT(documented, testing::UnorderedElementsAreArray(known));
}

// An error that says "(max_streams)" sends its reader here.
TEST(ConfigTest, EveryLimitThatAnErrorNamesIsASetting) {
  std::set<std::string> named;
  const std::regex limit(R"(\(((?:max|http|grpc)_[a-z_]+)(?:\)| is ))");
  for (const char* room : {"server", "engine", "models"}) {
    const std::string folder = std::string(TRAMONTANE_SOURCE_DIR "/") + room;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".cc") continue;
      std::ifstream file(entry.path());
      bool is_text = false;  // every other stretch between quotes is
      for (std::string line; std::getline(file, line); is_text = false) {
        std::istringstream stretches(line);
        for (std::string stretch; std::getline(stretches, stretch, '"'); is_text = !is_text) {
          std::smatch match;
          if (is_text && std::regex_search(stretch, match, limit)) named.insert(match[1]);
        }
      }
    }
  }
  EXPECT_THAT(named, testing::IsSupersetOf({"max_streams", "max_queued_requests", "max_compile_ms"}));
  for (const Setting& setting : ServeSettings()) named.erase(setting.key);
  EXPECT_THAT(named, IsEmpty());
}

TEST(ConfigTest, DefaultsAreToldAsPeopleWouldGiveThem) {
  const auto default_of = [](std::string_view key) {
    for (const Setting& setting : ServeSettings()) {
      if (setting.key == key) return DefaultText(setting);
    }
    return std::string();
  };
  EXPECT_EQ(default_of("max_sequences"), "64");
  EXPECT_EQ(default_of("http_max_body_bytes"), "8MiB");
  EXPECT_EQ(default_of("grpc_address"), "127.0.0.1:50051");
  EXPECT_EQ(default_of("http_host"), "none");
  EXPECT_EQ(default_of("memory"), "0");
  EXPECT_EQ(default_of("log_requests"), "on");
  EXPECT_EQ(default_of("log_prompts"), "false");
}

TEST(ConfigTest, BytesTakeUnits) {
  EXPECT_EQ(*ParseBytes("1.5 KiB"), 1536);
  EXPECT_EQ(*ParseBytes("2GB"), 2'000'000'000);
  EXPECT_EQ(*ParseBytes("77"), 77);
  for (const char* bad : {"", "-1", "1e400", "4 GiBs", "nan", "GiB", "9999999TiB"}) {
    EXPECT_EQ(ParseBytes(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace tramontane
