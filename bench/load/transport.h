// The seam between a run, which says what is sent when, and a connection to a server, which sends it and
// takes stamps.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/load/record.h"

namespace tramontane::load {

// One request, ready to go. The prompt is token ids, or text where `text` is not empty.
struct OutgoingRequest {
  int64_t index = 0;
  int32_t class_index = 0;
  std::string request_id;
  int64_t intended_ns = 0;  // CLOCK_MONOTONIC
  int64_t deadline_ns = 0;  // from sent_ns; the request has ended by then, with kTimeout
  std::vector<int32_t> ids;
  std::string text;
  int32_t input_tokens = 0;  // as planned
  int32_t output_tokens = 0;
};

// What the client's own threads cost.
struct ClientLoad {
  int64_t cpu_ns = 0;               // of all threads of the transport
  double busiest_thread_share = 0;  // of a core, since the last call; 0 to 1
};

// Sends requests to one server. Implementations: HTTP (OpenAI-style), gRPC, and in tests a queue on a fake
// clock.
class Transport {
 public:
  using Done = std::function<void(RequestRecord)>;

  virtual ~Transport() = default;

  // Any thread; returns at once. `done` is called exactly once, on a thread of the transport, by the
  // request's deadline at the latest, or in Abort.
  virtual void Send(OutgoingRequest request, Done done) = 0;

  // Ends everything under way with kUnfinished. Every `done` has been called when it returns.
  virtual void Abort() = 0;

  virtual ClientLoad Load() = 0;
};

}  // namespace tramontane::load
