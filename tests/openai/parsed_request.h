// Bodies for tests of parsers, and what becomes of them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/generation_request.h"

namespace tramontane {

inline const RequestContext kContext = {.id = "r1", .created_s = 1700000000};
inline constexpr char kUser[] = R"("messages":[{"role":"user","content":"Hi"}])";

inline std::string ChatBody(const std::string& fields) {
  return std::string("{") + kUser + (fields.empty() ? "" : ",") + fields + "}";
}
inline std::string CompletionBody(const std::string& fields) {
  return std::string(R"({"prompt":"Hi")") + (fields.empty() ? "" : ",") + fields + "}";
}

inline GenerationRequest Chat(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseChatCompletion(body, kContext, &request);
  EXPECT_FALSE(fault) << fault->message << " in " << body;
  return request;
}
inline GenerationRequest ChatWith(const std::string& fields) { return Chat(ChatBody(fields)); }

inline GenerationRequest Completion(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseCompletion(body, kContext, &request);
  EXPECT_FALSE(fault) << fault->message << " in " << body;
  return request;
}
inline GenerationRequest CompletionWith(const std::string& fields) {
  return Completion(CompletionBody(fields));
}

inline ApiError ChatFault(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseChatCompletion(body, kContext, &request);
  EXPECT_TRUE(fault) << body;
  return fault.value_or(ApiError{});
}
inline ApiError ChatFaultWith(const std::string& fields) { return ChatFault(ChatBody(fields)); }
inline ApiError CompletionFault(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseCompletion(body, kContext, &request);
  EXPECT_TRUE(fault) << body;
  return fault.value_or(ApiError{});
}

}  // namespace tramontane
