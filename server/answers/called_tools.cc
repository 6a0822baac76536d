#include "server/answers/called_tools.h"

#include <algorithm>
#include <string>

namespace tramontane {
namespace {

constexpr char kPath[] = "chat.tool_choice";

bool HasTool(const v1::Chat& chat, const std::string& name) {
  return std::any_of(chat.tools().begin(), chat.tools().end(),
                     [&name](const v1::Tool& tool) { return tool.name() == name; });
}

RpcError CheckAllowed(const v1::Chat& chat) {
  const v1::ToolChoice& choice = chat.tool_choice();
  const std::string path = std::string(kPath) + ".allowed";
  const bool picks =
      choice.mode() == v1::TOOL_CHOICE_MODE_NONE || choice.mode() == v1::TOOL_CHOICE_MODE_NAMED;
  if (picks && choice.allowed_size() > 0) {
    return FieldError(path, "goes with TOOL_CHOICE_MODE_AUTO and _REQUIRED only");
  }
  for (int i = 0; i < choice.allowed_size(); ++i) {
    if (HasTool(chat, choice.allowed(i))) continue;
    return FieldError(FieldElement(path, static_cast<size_t>(i)), "is not the name of one of the tools");
  }
  return {};
}

}  // namespace

RpcError CheckToolChoice(const v1::Chat& chat) {
  const v1::ToolChoice& choice = chat.tool_choice();
  switch (choice.mode()) {
    case v1::TOOL_CHOICE_MODE_UNSPECIFIED:
    case v1::TOOL_CHOICE_MODE_AUTO:
    case v1::TOOL_CHOICE_MODE_NONE:
      break;
    case v1::TOOL_CHOICE_MODE_REQUIRED:
      if (chat.tools().empty()) return FieldError(kPath, "requires a call, and there are no tools");
      break;
    case v1::TOOL_CHOICE_MODE_NAMED:
      if (HasTool(chat, choice.name())) return CheckAllowed(chat);
      return FieldError(std::string(kPath) + ".name", "is not the name of one of the tools");
    default:
      return FieldError(std::string(kPath) + ".mode",
                        "is " + std::to_string(choice.mode()) +
                            ", which is none of TOOL_CHOICE_MODE_AUTO, _NONE, _REQUIRED, _NAMED");
  }
  if (choice.name().empty()) return CheckAllowed(chat);
  return FieldError(std::string(kPath) + ".name", "goes with TOOL_CHOICE_MODE_NAMED only");
}

bool MayCallTools(const v1::Chat& chat) {
  return !chat.tools().empty() && chat.tool_choice().mode() != v1::TOOL_CHOICE_MODE_NONE;
}

bool MayCallTool(const v1::Chat& chat, const v1::Tool& tool) {
  const v1::ToolChoice& choice = chat.tool_choice();
  if (choice.mode() == v1::TOOL_CHOICE_MODE_NAMED) return tool.name() == choice.name();
  const auto& allowed = choice.allowed();
  return allowed.empty() || std::find(allowed.begin(), allowed.end(), tool.name()) != allowed.end();
}

bool MayCallOnce(const v1::Chat& chat) {
  return chat.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NAMED ||
         (chat.has_parallel_tool_calls() && !chat.parallel_tool_calls());
}

}  // namespace tramontane
