// InferenceClient: the seam between the gateway and whatever generates. In process it is the engine behind
// the same checks as gRPC; in the separate gateway it is gRPC to one or several servers; in tests it is a
// fake. The gateway knows nothing below this page.
//
// Any thread may call. Callbacks come on a thread of the implementation, possibly before the call that was
// given them returns, and must not block.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/call/caller.h"
#include "server/call/rpc_error.h"
#include "server/call/unary_call.h"
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

// What the transport says of a call beside its message and its caller.
struct InferenceCallOptions {
  std::optional<std::string> request_id = {};                          // used where the message names none
  std::optional<std::string> correlation_id = {};                      // travels to the log of the server
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  // then it ends; in the queue too
  // Nanoseconds before the call: from the request's first byte to its last, and from there to the call.
  int64_t receive_ns = 0;
  int64_t parse_ns = 0;
  bool continues = false;  // a later call of a request that was taken: a server that drains finishes it
  // What the answers to a request's other prompts may take together, so far (answer_cost.h); null: there are
  // none.
  std::shared_ptr<std::atomic<int64_t>> answer_bytes = {};
};

class InferenceClient {
 public:
  virtual ~InferenceClient() = default;

  // Faults of the request come as the call's outcome too. `on_ready` is called each time the call goes from
  // nothing to take to something. Null: nobody can take it now (no server that is up and has room);
  // `refusal` then says why.
  virtual std::shared_ptr<InferenceCall> Generate(const Caller& caller, v1::GenerateRequest request,
                                                  const InferenceCallOptions& options,
                                                  std::function<void()> on_ready, RpcError* refusal) = 0;

  // A unary call, by its request's type (unary_call.h): exactly one callback.
  template <typename Response>
  using Done = std::function<void(const RpcError& error, const Response& response)>;
  template <typename Request>
  void Ask(const Caller& caller, Request request, Done<ResponseTo<Request>> done) {
    using Response = ResponseTo<Request>;
    AskUnary(caller, std::make_shared<const Request>(std::move(request)), std::make_unique<Response>(),
             [done = std::move(done)](const RpcError& error, const google::protobuf::Message& response) {
               done(error, static_cast<const Response&>(response));
             });
  }

  // So many more requests wait at a door, or fewer: they are taken, and become calls as room comes.
  virtual void NoteUnsent(int64_t /*change*/) {}

  // Would take a request now: healthy, not draining; for several servers, one of them.
  virtual bool ready() const = 0;

  // Why nobody should be sent here at all: nothing is loaded, or what is does not move; for several servers,
  // none is up. OK also while draining. Waits for nothing.
  virtual RpcError health() const = 0;

  // A unary call of any type. `response` has the type that answers `request`; with an error it may hold
  // anything.
  virtual void AskUnary(const Caller& caller, std::shared_ptr<const google::protobuf::Message> request,
                        std::unique_ptr<google::protobuf::Message> response,
                        Done<google::protobuf::Message> done) = 0;
};

}  // namespace tramontane
