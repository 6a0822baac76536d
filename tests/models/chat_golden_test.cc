// Chats against mistral-common: tests/golden/chat_v*.json and chat_tekken_v*.json, written by
// tests/golden/make_chat_goldens.py. Where it refuses a chat that we take (mistral_chat.h says which),
// against what it makes of the chat once mended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/chat/mistral_chat.h"
#include "models/tokenizer/load.h"
#include "tests/models/tokenizer_test_model.h"

namespace tramontane {
namespace {

using nlohmann::ordered_json;

std::optional<std::string> OptionalString(const ordered_json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return std::nullopt;
  return object[key].get<std::string>();
}

ContentPart PartFrom(const ordered_json& json) {
  if (json["type"] == "text") return {.text = json["text"]};
  return {.kind = ContentPart::Kind::kThinking, .text = json["thinking"], .closed = json["closed"]};
}

ChatMessage MessageFrom(const ordered_json& json) {
  ChatMessage message;
  message.role = ParseChatRole(json["role"].get<std::string>()).value();
  if (json.contains("content") && json["content"].is_array()) {
    for (const ordered_json& part : json["content"]) message.parts.push_back(PartFrom(part));
  } else {
    message.content = OptionalString(json, "content");
  }
  message.tool_call_id = OptionalString(json, "tool_call_id");
  message.name = OptionalString(json, "name");
  message.prefix = json.value("prefix", false);
  for (const ordered_json& call : json.value("tool_calls", ordered_json::array())) {
    message.tool_calls.push_back({call["id"], call["name"], call["arguments"]});
  }
  return message;
}

struct GoldenFile {
  const char* name;
  int version;
};

class ChatGoldenTest : public ::testing::TestWithParam<GoldenFile> {};

TEST_P(ChatGoldenTest, IdsTextAndRefusalsEqualMistralCommon) {
  const std::string root = TRAMONTANE_SOURCE_DIR;
  const std::string file = root + "/tests/golden/" + GetParam().name + ".json";
  const ordered_json golden = ordered_json::parse(ReadBinaryFile(file));
  const auto tokenizer = LoadTokenizer(root + "/" + golden["tokenizer"].get<std::string>());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const MistralChatFormat format(**tokenizer, static_cast<TokenizerVersion>(GetParam().version));
  ChatOptions options;
  int accepted = 0;
  int refused = 0;
  int departures = 0;
  for (const ordered_json& c : golden["cases"]) {
    std::vector<ChatMessage> messages;
    for (const ordered_json& message : c["messages"]) messages.push_back(MessageFrom(message));
    std::vector<ToolDefinition> tools;
    for (const ordered_json& tool : c.value("tools", ordered_json::array())) {
      tools.push_back({tool["name"], tool["description"], tool["parameters"]});
    }
    options.reasoning_effort = OptionalString(c, "reasoning_effort");
    const StatusOr<RenderedChat> chat = format.Render(messages, tools, options);
    if (c.contains("rejected") && c.contains("ids")) {
      ++departures;
    } else if (c.contains("rejected")) {
      ++refused;
      EXPECT_EQ(chat.status().code(), StatusCode::kInvalidArgument) << c;
      EXPECT_THAT(chat.status().message(),
                  ::testing::ContainsRegex("^((messages|tools)\\[[0-9]+\\]|reasoning_effort: )"))
          << c;
      continue;
    }
    if (!c.contains("rejected")) ++accepted;
    ASSERT_TRUE(chat.ok()) << chat.status() << "\n" << c;
    EXPECT_EQ(chat->ids, c["ids"].get<std::vector<int32_t>>()) << c;
    EXPECT_EQ(chat->text, c["text"].get<std::string>()) << c;
  }
  EXPECT_GE(accepted, 50);
  EXPECT_GE(refused, 20);
  EXPECT_GE(departures, 20);
}

constexpr GoldenFile kFiles[] = {
    {"chat_v1", 1},          {"chat_v2", 2},          {"chat_v3", 3},
    {"chat_v7", 7},          {"chat_tekken_v3", 3},   {"chat_tekken_v7", 7},
    {"chat_tekken_v11", 11}, {"chat_tekken_v13", 13}, {"chat_tekken_v15", 15},
};

INSTANTIATE_TEST_SUITE_P(Formats, ChatGoldenTest, ::testing::ValuesIn(kFiles),
                         [](const auto& file) { return std::string(file.param.name); });

}  // namespace
}  // namespace tramontane
