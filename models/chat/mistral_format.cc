#include "models/chat/mistral_format.h"

#include <algorithm>
#include <iterator>

#include "kernels/core/check.h"
#include "models/chat/chat_render.h"

namespace tramontane {
namespace {

constexpr std::string_view kBlankLine = "\n\n";

constexpr MistralFormat kV1 = {.version = TokenizerVersion::kV1,
                               .call_ids = MistralFormat::CallIds::kUnchecked,
                               .results = MistralFormat::Results::kCounted,
                               .thinking = MistralFormat::Thinking::kNowhere,
                               .tools_at = MistralFormat::ToolsAt::kNowhere,
                               .between_parts = kBlankLine,
                               .content_beside_calls = false,
                               .system_turns = false,
                               .json_results = true,
                               .model_settings = false,
                               .render = RenderV1,
                               .render_calls = nullptr,
                               .render_result = nullptr};

constexpr MistralFormat kV2 = [] {
  MistralFormat format = kV1;
  format.version = TokenizerVersion::kV2;
  format.tools_at = MistralFormat::ToolsAt::kLastUser;
  format.render = RenderV2;
  return format;
}();

// All tool traffic is kept, with ids.
constexpr MistralFormat kV3 = [] {
  MistralFormat format = kV2;
  format.version = TokenizerVersion::kV3;
  format.call_ids = MistralFormat::CallIds::kNineCharacters;
  format.render = RenderTurns;
  format.render_calls = RenderCallList;
  format.render_result = RenderJsonResult;
  return format;
}();

// System turns, results as plain text, content beside calls.
constexpr MistralFormat kV7 = [] {
  MistralFormat format = kV3;
  format.version = TokenizerVersion::kV7;
  format.content_beside_calls = true;
  format.system_turns = true;
  format.json_results = false;
  format.render_result = RenderResultWithId;
  return format;
}();

// Calls one by one, no longer a JSON list.
constexpr MistralFormat kV11 = [] {
  MistralFormat format = kV7;
  format.version = TokenizerVersion::kV11;
  format.results = MistralFormat::Results::kMatchedById;
  format.render_calls = RenderCallsWithIds;
  return format;
}();

// No ids: the order of the results tells. Thinking.
constexpr MistralFormat kV13 = [] {
  MistralFormat format = kV11;
  format.version = TokenizerVersion::kV13;
  format.call_ids = MistralFormat::CallIds::kAny;
  format.thinking = MistralFormat::Thinking::kOfAssistantAndSystem;
  format.tools_at = MistralFormat::ToolsAt::kFirstUser;
  format.render_calls = RenderCalls;
  format.render_result = RenderResult;
  return format;
}();

constexpr MistralFormat kV15 = [] {
  MistralFormat format = kV13;
  format.version = TokenizerVersion::kV15;
  format.thinking = MistralFormat::Thinking::kOfAssistant;
  format.between_parts = "";
  format.model_settings = true;
  return format;
}();

constexpr MistralFormat kMistralFormats[] = {kV1, kV2, kV3, kV7, kV11, kV13, kV15};

}  // namespace

const MistralFormat& MistralFormatOf(TokenizerVersion version) {
  const auto format = std::find_if(std::begin(kMistralFormats), std::end(kMistralFormats),
                                   [&](const MistralFormat& known) { return known.version == version; });
  TM_CHECK(format != std::end(kMistralFormats), "no chat format for %s", TokenizerVersionName(version));
  return *format;
}

}  // namespace tramontane
