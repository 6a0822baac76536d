#include "models/chat/chat_format.h"

#include <algorithm>
#include <iterator>

#include "kernels/core/check.h"
#include "models/chat/chat_render.h"

namespace tramontane {
namespace {

constexpr std::string_view kBlankLine = "\n\n";

constexpr ChatFormat kV1 = {.version = TokenizerVersion::kV1,
                            .call_ids = ChatFormat::CallIds::kUnchecked,
                            .results = ChatFormat::Results::kCounted,
                            .thinking = ChatFormat::Thinking::kNowhere,
                            .tools_at = ChatFormat::ToolsAt::kNowhere,
                            .between_parts = kBlankLine,
                            .content_beside_calls = false,
                            .system_turns = false,
                            .json_results = true,
                            .model_settings = false,
                            .render = RenderV1,
                            .render_calls = nullptr,
                            .render_result = nullptr};

constexpr ChatFormat kV2 = [] {
  ChatFormat format = kV1;
  format.version = TokenizerVersion::kV2;
  format.tools_at = ChatFormat::ToolsAt::kLastUser;
  format.render = RenderV2;
  return format;
}();

// All tool traffic is kept, with ids.
constexpr ChatFormat kV3 = [] {
  ChatFormat format = kV2;
  format.version = TokenizerVersion::kV3;
  format.call_ids = ChatFormat::CallIds::kNineCharacters;
  format.render = RenderTurns;
  format.render_calls = RenderCallList;
  format.render_result = RenderJsonResult;
  return format;
}();

// System turns, results as plain text, content beside calls.
constexpr ChatFormat kV7 = [] {
  ChatFormat format = kV3;
  format.version = TokenizerVersion::kV7;
  format.content_beside_calls = true;
  format.system_turns = true;
  format.json_results = false;
  format.render_result = RenderResultWithId;
  return format;
}();

// Calls one by one, no longer a JSON list.
constexpr ChatFormat kV11 = [] {
  ChatFormat format = kV7;
  format.version = TokenizerVersion::kV11;
  format.results = ChatFormat::Results::kMatchedById;
  format.render_calls = RenderCallsWithIds;
  return format;
}();

// No ids: the order of the results tells. Thinking.
constexpr ChatFormat kV13 = [] {
  ChatFormat format = kV11;
  format.version = TokenizerVersion::kV13;
  format.call_ids = ChatFormat::CallIds::kAny;
  format.thinking = ChatFormat::Thinking::kOfAssistantAndSystem;
  format.tools_at = ChatFormat::ToolsAt::kFirstUser;
  format.render_calls = RenderCalls;
  format.render_result = RenderResult;
  return format;
}();

constexpr ChatFormat kV15 = [] {
  ChatFormat format = kV13;
  format.version = TokenizerVersion::kV15;
  format.thinking = ChatFormat::Thinking::kOfAssistant;
  format.between_parts = "";
  format.model_settings = true;
  return format;
}();

constexpr ChatFormat kChatFormats[] = {kV1, kV2, kV3, kV7, kV11, kV13, kV15};

}  // namespace

const ChatFormat& ChatFormatOf(TokenizerVersion version) {
  const auto format = std::find_if(std::begin(kChatFormats), std::end(kChatFormats),
                                   [&](const ChatFormat& known) { return known.version == version; });
  TM_CHECK(format != std::end(kChatFormats), "no chat format for %s", TokenizerVersionName(version));
  return *format;
}

}  // namespace tramontane
