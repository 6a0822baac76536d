// The ids of tool calls: those of answers, and those of histories.
//
// Any thread.
#pragma once

#include <string>
#include <string_view>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// What the ids of the calls in a chat's answer are drawn from: the conversation and its seed, where the same
// request gives the same answer (a seed, or temperature 0), else `request_id`. They stand in the next prompt,
// so that only so an agent that is run twice says the same twice; and with the conversation no two turns of
// it have one id.
std::string CallIdSeed(const v1::GenerateRequest& call, const std::string& request_id);
// The id of a call, or of what a result belongs to, as Mistral's formats take it: ids of other servers
// ("call_...") become nine characters, the same each time; those that fit stay.
std::string MistralCallId(std::string_view id);

}  // namespace tramontane
