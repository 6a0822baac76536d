// InferenceClient: the seam between the gateway and whatever generates. In process it is the engine behind
// the same checks as gRPC; in the separate gateway it is gRPC to one or several servers; in tests it is a
// fake. The gateway knows nothing below this page.
//
// Any thread may call. Callbacks come on a thread of the implementation, possibly before the call that was
// given them returns, and must not block.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/core/rpc_error.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// What a call has to show since it was last asked.
struct InferenceEvents {
  // In the order of docs/grpc.md: Started, then Deltas and one Finished for each choice. What its reader did
  // not take in time is joined: at most a few Deltas per choice, however long it waited.
  std::vector<v1::GenerateResponse> events;
  bool done = false;  // nothing will follow; told once
  RpcError outcome;   // with `done`; ok() when every choice has its Finished
};

// One Generate in progress. Letting go of it before its end cancels it.
class InferenceCall {
 public:
  virtual ~InferenceCall() = default;
  // Everything pending; empty and not done when there is nothing.
  virtual InferenceEvents Take() = 0;
  // The first content of what Take gave has been handed to the system: the end of what a trace shows of it.
  virtual void NoteDelivered() {}
  // The request ends within one engine step and gives its pages back; `done` follows with CANCELLED.
  // Idempotent.
  virtual void Cancel() = 0;
};

struct InferenceCallOptions {
  std::string correlation_id;  // travels to the log of the server; "": none
  std::string client =
      {};  // whose call it is, so that one does not hold up others; "": nobody's in particular
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  // then it ends; in the queue too
  // Nanoseconds before Generate: from the request's first byte to its last, and from there to Generate.
  int64_t receive_ns = 0;
  int64_t parse_ns = 0;
  bool continues = false;  // a later call of a request that was taken: a server that drains finishes it
};

class InferenceClient {
 public:
  virtual ~InferenceClient() = default;

  // Faults of the request come as the call's outcome too. `on_ready` is called each time the call goes from
  // nothing to take to something. Null: nobody can take it now (no server that is up and has room);
  // `refusal` then says why.
  virtual std::shared_ptr<InferenceCall> Generate(v1::GenerateRequest request,
                                                  const InferenceCallOptions& options,
                                                  std::function<void()> on_ready, RpcError* refusal) = 0;

  // The unary calls: exactly one callback each.
  template <typename Response>
  using Done = std::function<void(const RpcError& error, const Response& response)>;
  virtual void Tokenize(v1::TokenizeRequest request, Done<v1::TokenizeResponse> done) = 0;
  virtual void Detokenize(v1::DetokenizeRequest request, Done<v1::DetokenizeResponse> done) = 0;
  virtual void RenderChat(v1::RenderChatRequest request, Done<v1::RenderChatResponse> done) = 0;
  virtual void GetModel(v1::GetModelRequest request, Done<v1::GetModelResponse> done) = 0;
  virtual void GetLoad(Done<v1::GetLoadResponse> done) = 0;
  virtual void ListSessions(Done<v1::ListSessionsResponse> done) = 0;
  virtual void DeleteSession(v1::DeleteSessionRequest request, Done<v1::DeleteSessionResponse> done) = 0;
  virtual void SaveSession(v1::SaveSessionRequest request, Done<v1::SaveSessionResponse> done) = 0;
  virtual void RestoreSession(v1::RestoreSessionRequest request, Done<v1::RestoreSessionResponse> done) = 0;

  // Would take a request now: healthy, not draining; for several servers, one of them.
  virtual bool ready() const = 0;

  // Why nobody should be sent here at all: nothing is loaded, or what is does not move; for several servers,
  // none is up. OK also while draining. Waits for nothing.
  virtual RpcError health() const = 0;
};

}  // namespace tramontane
