// MustCallTools: whether a chat's answer has to be tool calls. A header alone, so that doors need not link
// what called_tools.h checks. Any thread.
#pragma once

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// REQUIRES: its tool_choice was checked (CheckToolChoice), or will be.
inline bool MustCallTools(const v1::Chat& chat) {
  const v1::ToolChoiceMode mode = chat.tool_choice().mode();
  return mode == v1::TOOL_CHOICE_MODE_REQUIRED || mode == v1::TOOL_CHOICE_MODE_NAMED;
}

}  // namespace tramontane
