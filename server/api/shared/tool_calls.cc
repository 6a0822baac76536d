#include "server/api/shared/tool_calls.h"

#include <algorithm>

#include "server/answers/answer_reader.h"

namespace tramontane {
namespace {

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

std::string MistralCallId(std::string_view id) {
  const bool fits = id.size() == kIdCharacters && std::all_of(id.begin(), id.end(), IsLetterOrDigit);
  return fits ? std::string(id) : NineCharacterId(id);
}

}  // namespace tramontane
