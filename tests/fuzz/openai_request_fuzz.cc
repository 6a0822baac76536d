// Any bytes as the body of every OpenAI endpoint: a request, or an error object that clients can read. Never
// a crash, never a stack that depends on the input, and never text that is not UTF-8 in what is accepted.
//
// The first byte chooses the endpoint, the rest is the body.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/dialect.h"
#include "server/api/openai/responses.h"
#include "server/api/openai/tokenize.h"
#include "server/api/shared/json.h"

namespace tramontane {
namespace {

const RequestContext kContext = {.id = "fuzz", .created_s = 1};

// A server parses the message again, and there text that is not UTF-8 is refused.
template <typename Message>
void CheckMessage(const Message& message) {
  Message copy;
  TM_CHECK(copy.ParseFromString(message.SerializeAsString()), "a message that a server cannot parse");
}

// Errors reach clients as JSON, whatever was sent.
void CheckError(const ApiError& fault) {
  TM_CHECK(fault.status == 400, "a body's fault is a 400, not %d", fault.status);
  TM_CHECK(!fault.message.empty(), "an error says what is wrong");
  const auto json = ParseJson(ErrorJson(fault));
  TM_CHECK(json.ok() && (*json)["error"].size() == 4, "not an error object: %s", ErrorJson(fault).c_str());
}

void CheckGeneration(ParseRequest parse, std::string_view body) {
  GenerationRequest request;
  if (const auto fault = parse(body, kContext, &request)) return CheckError(*fault);
  TM_CHECK(!request.calls.empty() && request.calls.size() == request.names.size(), "no calls, or nameless");
  CheckMessage(request.shared);
  for (const v1::GenerateRequest& call : request.calls) CheckMessage(call);
}

void CheckTokenize(std::string_view body) {
  TokenizeBody parsed;
  if (const auto fault = ParseTokenize(body, kContext, &parsed)) return CheckError(*fault);
  CheckMessage(parsed.request);
}

void CheckDetokenize(std::string_view body) {
  DetokenizeBody parsed;
  if (const auto fault = ParseDetokenize(body, kContext, &parsed)) return CheckError(*fault);
  CheckMessage(parsed.request);
}

void CheckString(std::string_view bytes) {
  const auto json = ParseJson(JsonString(bytes));
  TM_CHECK(json.ok() && json->is_string(), "a string that cannot be read back");
  TM_CHECK(!IsUtf8(bytes) || json->get_ref<const std::string&>() == bytes, "read back, it differs");
}

void Check(uint8_t endpoint, std::string_view body) {
  CheckString(body);
  switch (endpoint % 5) {
    case 0:
      return CheckGeneration(ParseChatCompletion, body);
    case 1:
      return CheckGeneration(ParseCompletion, body);
    case 2:
      return CheckGeneration(ParseResponses, body);
    case 3:
      return CheckTokenize(body);
    default:
      return CheckDetokenize(body);
  }
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) tramontane::Check(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
