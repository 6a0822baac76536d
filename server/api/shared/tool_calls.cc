#include "server/api/shared/tool_calls.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tramontane {
namespace {

using nlohmann::ordered_json;

constexpr size_t kIdCharacters = 9;

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

std::string CallIdSeed(const v1::GenerateRequest& call, const std::string& request_id) {
  const v1::Sampling& sampling = call.sampling();
  const bool is_greedy = sampling.has_temperature() && sampling.temperature() == 0;
  if (!sampling.has_seed() && !is_greedy) return request_id;
  std::string conversation;
  for (const v1::ChatMessage& message : call.chat().messages()) message.AppendToString(&conversation);
  const std::string seed = sampling.has_seed() ? std::to_string(sampling.seed()) : "greedy";
  return seed + "/" + NineCharacterId(conversation);
}

ToolCallParser MakeToolCallParser(const std::string& call_id_seed, bool one_call, size_t index) {
  return ToolCallParser(call_id_seed + "-" + std::to_string(index),
                        one_call ? 1 : std::numeric_limits<size_t>::max());
}

std::string MistralCallId(std::string_view id) {
  const bool fits = id.size() == kIdCharacters && std::all_of(id.begin(), id.end(), IsLetterOrDigit);
  return fits ? std::string(id) : NineCharacterId(id);
}

ordered_json ToolCallsJson(const std::vector<ParsedToolCall>& calls) {
  ordered_json list = ordered_json::array();
  for (const ParsedToolCall& call : calls) {
    ordered_json function = {{"name", call.name}, {"arguments", call.arguments}};
    list.push_back({{"id", call.id}, {"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

std::vector<ordered_json> ToolCallDeltas(const std::vector<ParsedToolCall>& calls, size_t first_index) {
  std::vector<ordered_json> chunks;
  size_t index = first_index;
  for (const ParsedToolCall& call : calls) {
    ordered_json head = {{"index", index},
                         {"id", call.id},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", ""}}}};
    ordered_json arguments = {{"index", index}, {"function", {{"arguments", call.arguments}}}};
    chunks.push_back(ordered_json::array({std::move(head)}));
    chunks.push_back(ordered_json::array({std::move(arguments)}));
    ++index;
  }
  return chunks;
}

}  // namespace tramontane
