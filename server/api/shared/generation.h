// From a plan to an answer: drives the calls of one HTTP request and hands what they say to a ResponseWriter.
//
// An endpoint parses its body, makes a GenerationPlan and calls RunGeneration; it never sees sockets, threads
// or calls. Any thread may call RunGeneration.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/shared/answer_room.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/call_window.h"
#include "server/api/shared/gateway_exchange.h"
#include "server/api/shared/generation_request.h"
#include "server/call/inference_client.h"
#include "server/watch/request_counts.h"

namespace tramontane {

// Makes the body of one answer out of the events of its calls. One thread at a time.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // What call `call` (its index in the plan) has to show since the last time. Returns what to send now; ""
  // for nothing, and always "" where nothing is streamed. What it returns leaves in one write.
  virtual std::string OnEvents(size_t call, std::vector<v1::GenerateResponse> events) = 0;

  // Something of what OnEvents has been given so far is content for the client: text, thoughts, calls of
  // tools or token ids.
  virtual bool HasContent() const { return false; }

  // What of the answer is held until its end, about (server/call/answer_cost.h).
  virtual int64_t held_bytes() const { return 0; }

  // Where the time to that went, for the client that asked: before OnEvents is given the end of a choice.
  // What is said last holds.
  virtual void SetTiming(const v1::Timings& /*timing*/) {}

  // Every call has ended well. Returns the end of the stream (usage, "data: [DONE]\n\n"), or the whole JSON
  // body.
  virtual std::string Finish() = 0;

  // Asked before Finish where nothing is streamed: why there is no answer although every call ended well,
  // because a choice ended with an error. (A stream has said so by itself.)
  virtual std::optional<ApiError> Fault() const { return std::nullopt; }

  // Call `call` failed with `error`: in the words of the request, with the names of its fields.
  virtual ApiError Explain(size_t call, const RpcError& error) const = 0;

  // The stream cannot go on when part of it was out already. Returns its end: as OpenAI's clients want it, an
  // error event and [DONE].
  virtual std::string Fail(const ApiError& error) = 0;
};

struct GenerationPlan {
  std::vector<v1::GenerateRequest> requests;  // at least one; a completion with several prompts has several
  v1::GenerateRequest shared;                 // goes into each of them when its call is made
  bool stream = false;
  bool timing = false;          // the answer says where the time to its first content went
  AnswerRoomOptions room = {};  // for what the writer holds; beyond it the request fails
  std::unique_ptr<ResponseWriter> writer;
  HttpHeaders headers;                    // of the answer, besides those that every answer has
  std::shared_ptr<RequestCounts> counts;  // of tokens and stages, by what events say; null: the engine does
  std::optional<FieldNames> names =
      {};  // by which a header says what calls are not held to; none: it does not
};

// Answers `exchange`. Nothing is sent before the first events, so that a refusal still has its HTTP status.
// Between writes, events wait joined in their calls: a slow reader costs no memory here. The first call that
// fails ends the others; a hang-up cancels all of them at once.
//
// Many requests are made calls of as room comes: at most kMaxWaitingCalls of them wait for their first event,
// and one that finds no room (RESOURCE_EXHAUSTED) is tried again when another is under way, or half a second
// later. Only when none of them has found room is the answer that refusal.
//
// A stream with `timing` whose first content is not yet taken by the system when a choice ends says that end
// in a write of its own, when it is. An answer that is not streamed has its first content when that is known
// here.
void RunGeneration(InferenceClient& client, GenerationPlan plan, std::shared_ptr<GatewayExchange> exchange);

}  // namespace tramontane
