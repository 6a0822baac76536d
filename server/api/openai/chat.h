// POST /v1/chat/completions, and its /render: OpenAI's chats. Their bodies' messages and tools are those of
// /tokenize too.
// Pure functions and plain values, any thread; a writer: one thread at a time; endpoints: gateway.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "server/api/shared/endpoint.h"
#include "server/api/shared/generation.h"
#include "server/api/shared/generation_request.h"
#include "server/api/shared/shape.h"
#include "server/call/field_limits.h"

namespace tramontane {

inline constexpr int64_t kMaxTemplateArgumentsBytes = 64 << 10;           // of chat_template_kwargs, as JSON
inline constexpr char kNamesFunctions[] = "only functions can be named";  // by a tool_choice
inline constexpr int64_t kMaxToolsBytes = 4 << 20;                        // of all tools, as JSON

Shape ChatCompletionShape(const FieldLimits& limits);  // of a body
const Shape& ChatCompletionAnswerShape();              // of an answer that is not streamed

// The fault of the body, if it has one.
std::optional<ApiError> ParseChatCompletion(std::string_view body, const RequestContext& context,
                                            GenerationRequest* request);

// The answer: one JSON object, or chunks as they come.
std::unique_ptr<ResponseWriter> MakeChatWriter(AnswerOptions options, std::vector<FieldNames> names);

void AnswerChatCompletions(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
// The prompt of such a request as text and token ids; nothing is generated.
void AnswerRenderChat(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

// ---- for other bodies that hold such a chat -----------------------------------------------------

// Rows: "messages" and "tools", which may be required; what chooses among tools; how the answer begins.
Shape MessagesShape();
Shape ToolsShape();
std::vector<Field> ToolChoiceFields();
std::vector<Field> AllowedToolsFields(Shape tool);  // of a tool_choice that is a list; `tool`: an entry
Field ReasoningEffort();
Field ThinkingTokenBudget();
Field AddGenerationPrompt();
Field TemplateArguments();
Field ContinueFinalMessage();
// All of these of a body that may be a chat, which makes a prompt of it and no answer.
std::vector<Field> ChatPromptFields();
// A checked body with these rows.
std::optional<ApiError> ConvertChat(const Json& json, v1::Chat* chat, FieldNames* names);

}  // namespace tramontane
