// The fields that other servers have and this one has not: those of OpenAI, vLLM, SGLang, llama.cpp, ollama,
// TGI and OpenRouter that clients are known to send. One that would change the answer is refused by name,
// with what to use instead; a value that changes nothing is accepted; one that is about no token is accepted
// and told (IgnoredKeys). Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "server/api/shared/shape.h"

namespace tramontane {

// A field whose value changes nothing here.
Field Ignored(std::string name);
// A field of which null and the `harmless` values are accepted; `why` is said of the rest.
Field Refused(std::string name, std::vector<Json> harmless, const std::string& why);

std::vector<Field> ForeignFields();  // of chats and completions
std::vector<Field> ForeignChatFields();
std::vector<Field> ForeignCompletionFields();
std::vector<Field> ForeignResponsesFields();  // all of /v1/responses
std::vector<Field> ForeignTokenizeFields();

inline constexpr char kUseReasoningEffort[] = "use reasoning_effort, for models that have such a setting";

}  // namespace tramontane
