// From a plan to an answer: drives the calls of one HTTP request and hands what they say to a ResponseWriter.
//
// An endpoint parses its body, makes a GenerationPlan and calls RunGeneration; it never sees sockets, threads
// or calls. Any thread may call RunGeneration.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/gateway/http.h"
#include "server/inference_client.h"

namespace tramontane {

// Makes the body of one answer out of the events of its calls. One thread at a time.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // What call `call` (its index in the plan) has to show since the last time. Returns what to send now; ""
  // for nothing, and always "" where nothing is streamed. What it returns leaves in one write.
  virtual std::string OnEvents(size_t call, std::vector<v1::GenerateResponse> events) = 0;

  // Every call has ended well. Returns the end of the stream (usage, "data: [DONE]\n\n"), or the whole JSON
  // body.
  virtual std::string Finish() = 0;

  // A call failed when part of the stream was out already. Returns the end of the stream: as OpenAI's clients
  // want it, an error event and [DONE].
  virtual std::string Fail(const RpcError& error);
};

struct GenerationPlan {
  std::vector<v1::GenerateRequest> requests;  // at least one; a completion with several prompts has several
  bool stream = false;
  std::unique_ptr<ResponseWriter> writer;
  int64_t timeout_ms = 0;  // 0: none
};

// Answers `exchange`. Nothing is sent before the first events, so that a refusal still has its HTTP status.
// Between writes, events wait joined in their calls: a slow reader costs no memory here. The first call that
// fails ends the others; a hang-up cancels all of them at once.
void RunGeneration(InferenceClient& client, GenerationPlan plan, std::shared_ptr<HttpExchange> exchange);

}  // namespace tramontane
