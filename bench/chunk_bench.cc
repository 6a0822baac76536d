// chunk_bench: what an event costs between the engine's message and the bytes on the wire, for each shape of
// stream: one token a time, as an idle reader gets them.
//
//   build/release/bin/chunk_bench [EVENTS]
//
// The aim: about 2 us an event. The bound to compare with is the copy of the chunk's bytes (column "copy").

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"

namespace tramontane {
namespace {

struct Shape {
  const char* name;
  bool is_chat;
  const char* body;
};

constexpr Shape kShapes[] = {
    {"chat", true, R"({"messages":[{"role":"user","content":"x"}],"stream":true})"},
    {"chat, usage in each", true,
     R"({"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"continuous_usage_stats":true}})"},
    {"chat, logprobs 5", true,
     R"({"messages":[{"role":"user","content":"x"}],"stream":true,"logprobs":true,"top_logprobs":5})"},
    {"chat, tools", true,
     R"({"messages":[{"role":"user","content":"x"}],"stream":true,"tools":[{"function":{"name":"f"}}]})"},
    {"completion", false, R"({"prompt":"x","stream":true})"},
};

double MicrosecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

v1::GenerateResponse Token(int64_t number, int32_t logprobs) {
  v1::GenerateResponse event;
  v1::Delta* delta = event.mutable_delta();
  delta->set_text(" word");
  delta->set_completion_tokens(number);
  if (logprobs < 0) return event;
  v1::TokenLogprob* token = delta->add_logprobs();
  token->set_token_bytes(" word");
  token->set_logprob(-0.7182818f);
  for (int32_t i = 0; i < logprobs; ++i) {
    v1::TopLogprob* top = token->add_top();
    top->set_token_bytes(" other");
    top->set_logprob(-1.4142135f);
  }
  return event;
}

void Run(const Shape& shape, int64_t events) {
  const RequestContext context = {.id = "bench-0123456789",
                                  .created_s = 1700000000,
                                  .any_model = false,
                                  .system_fingerprint = "tramontane-bench"};
  GenerationRequest request;
  const auto fault = shape.is_chat ? ParseChatCompletion(shape.body, context, &request)
                                   : ParseCompletion(shape.body, context, &request);
  TM_CHECK(!fault, "%s", fault->message.c_str());
  const int32_t logprobs = request.answer.logprobs;
  const auto writer = shape.is_chat ? MakeChatWriter(request.answer, request.names)
                                    : MakeCompletionWriter(request.answer, request.names);
  std::vector<v1::GenerateResponse> first(1);
  first[0].mutable_started()->set_model("bench");
  writer->OnEvents(0, std::move(first));

  // The messages are made before the clock starts: they are the engine's cost.
  std::vector<std::vector<v1::GenerateResponse>> takes(static_cast<size_t>(events));
  for (int64_t i = 0; i < events; ++i) takes[static_cast<size_t>(i)].push_back(Token(i + 1, logprobs));
  std::string chunk;
  size_t bytes = 0;
  auto start = std::chrono::steady_clock::now();
  for (auto& take : takes) {
    chunk = writer->OnEvents(0, std::move(take));
    bytes += chunk.size();
  }
  const double write_us = MicrosecondsSince(start);
  std::string copy;
  start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < events; ++i) {
    chunk[static_cast<size_t>(i) % chunk.size()] ^= 1;  // so that no copy can be left out
    copy = chunk;
  }
  const double copy_us = MicrosecondsSince(start);
  TM_CHECK(copy == chunk, "the last copy");
  const auto count = static_cast<double>(events);
  std::printf("%-22s %8.3f us/event %8.0f bytes %8.3f us copy\n", shape.name, write_us / count,
              static_cast<double>(bytes) / count, copy_us / count);
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  const int64_t events = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 100'000;
  for (const auto& shape : tramontane::kShapes) tramontane::Run(shape, events);
  return 0;
}
