// CallWindow: the calls of one HTTP request, and how many of them wait for their first event at once.
//
// A request of it, from left to right, but for one that found no room and goes back to the beginning:
//   unsent -> waiting for its first event -> under way -> done
//
// One thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/call/inference_client.h"
#include "server/http/http.h"

namespace tramontane {

inline constexpr size_t kMaxWaitingCalls = 32;

class CallWindow {
 public:
  // `shared` goes into each of `requests` when its call is made; `deadline` is that of all of them.
  CallWindow(InferenceClient& client, std::vector<v1::GenerateRequest> requests, v1::GenerateRequest shared,
             std::optional<std::chrono::steady_clock::time_point> deadline);

  // Makes calls of what is unsent while there is room. `on_ready` is told of a call, on any thread, each time
  // it goes from nothing to take to something. Not OK: why the first of those unsent has to fail.
  RpcError Send(const HttpExchange& exchange, const std::function<void(size_t call)>& on_ready);
  size_t first_unsent() const { return unsent_.front(); }
  bool all_done() const { return done_ == calls_.size(); }

  // It is made, and has not ended.
  bool IsOpen(size_t call) const { return calls_[call].handle != nullptr && !calls_[call].ended; }
  // Everything that an open call has, behind what was put back of it.
  InferenceEvents Take(size_t call);
  void PutBack(size_t call, InferenceEvents events) { calls_[call].put_back = std::move(events); }
  void NoteDelivered(size_t call) { calls_[call].handle->NoteDelivered(); }

  // What was taken shows that it has begun.
  void NoteUnderWay(size_t call);
  // It has ended. False: there was no room for it, and it will be made again.
  bool NoteEnd(size_t call, const RpcError& outcome);
  // How many are under way, and how many are done.
  std::pair<size_t, size_t> progress() const { return {under_way_, done_}; }

  void Cancel();

 private:
  struct Call {
    std::shared_ptr<InferenceCall> handle;  // null: unsent
    bool under_way = false;
    bool ended = false;
    std::optional<InferenceEvents> put_back = {};
  };

  bool HasFoundRoom() const { return waiting_ + under_way_ + done_ > 0; }

  InferenceClient& client_;
  std::vector<v1::GenerateRequest> requests_;  // [calls]; kept until under way
  const v1::GenerateRequest shared_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::vector<Call> calls_;
  std::deque<size_t> unsent_;               // in the order in which they are to be sent
  size_t most_waiting_ = kMaxWaitingCalls;  // one where there was no room lately
  size_t waiting_ = 0;
  size_t under_way_ = 0;
  size_t done_ = 0;  // that ended well
};

}  // namespace tramontane
