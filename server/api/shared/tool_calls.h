// Tool calls of answers, as OpenAI's clients read them: their ids, and their JSON.
//
// Any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/answers/tool_call_parser.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// What the ids of the calls in a chat's answer are drawn from: the conversation and its seed, where the same
// request gives the same answer (a seed, or temperature 0), else `request_id`. They stand in the next prompt,
// so that only so an agent that is run twice says the same twice; and with the conversation no two turns of
// it have one id.
std::string CallIdSeed(const v1::GenerateRequest& call, const std::string& request_id);
// The parser of choice `index` of an answer whose calls are drawn from `call_id_seed`.
ToolCallParser MakeToolCallParser(const std::string& call_id_seed, bool one_call, size_t index);
// The id of a call, or of what a result belongs to, as Mistral's formats take it: ids of other servers
// ("call_...") become nine characters, the same each time; those that fit stay.
std::string MistralCallId(std::string_view id);

// The calls as message.tool_calls of a chat completion.
nlohmann::ordered_json ToolCallsJson(const std::vector<ParsedToolCall>& calls);
// The calls as delta.tool_calls of a stream, one list a chunk: of each call first its id and name, then its
// arguments. `first_index` counts the calls that were sent before.
std::vector<nlohmann::ordered_json> ToolCallDeltas(const std::vector<ParsedToolCall>& calls,
                                                   size_t first_index);

}  // namespace tramontane
