// CallWindow: the calls of one HTTP request, and how many of them wait for their first event at once.
//
// A request of it, from left to right, but for one that found no room and goes back to the beginning:
//   unsent -> waiting for its first event -> under way -> done
//
// One thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/base/held_bytes.h"
#include "server/call/inference_client.h"
#include "server/http/http.h"

namespace tramontane {

inline constexpr size_t kMaxWaitingCalls = 32;

class CallWindow {
 public:
  // `shared` goes into each of `requests` when its call is made; `deadline` is that of all of them.
  CallWindow(InferenceClient& client, std::vector<v1::GenerateRequest> requests, v1::GenerateRequest shared,
             std::optional<std::chrono::steady_clock::time_point> deadline);
  ~CallWindow() { LetGo(); }
  CallWindow(const CallWindow&) = delete;
  CallWindow& operator=(const CallWindow&) = delete;

  // Before the first Send: requests of several are charged to `share` until their calls are under way. False:
  // there is no room for them.
  bool HoldRequests(HeldBytes share);

  // Makes calls of what is unsent while there is room. `on_ready` is told of a call, on any thread, each time
  // it goes from nothing to take to something. Not OK: why the first of those unsent has to fail.
  RpcError Send(const HttpExchange& exchange, const std::function<void(size_t call)>& on_ready);
  size_t first_unsent() const { return unsent_.front(); }
  bool all_done() const { return done_ == calls_.size(); }

  // Its first events are many: log probabilities of a long prompt.
  bool StartsLong(size_t call) const { return calls_[call].starts_long && !calls_[call].under_way; }
  // It is made, and has not ended.
  bool IsOpen(size_t call) const { return calls_[call].handle != nullptr && !calls_[call].ended; }
  // Everything that an open call has, behind what was put back of it.
  InferenceEvents Take(size_t call);
  void PutBack(size_t call, InferenceEvents events);
  // Appends the calls of which something was put back since this was last asked.
  void AddPutBack(std::vector<size_t>* calls);
  void NoteDelivered(size_t call) { calls_[call].handle->NoteDelivered(); }

  // What was taken shows that it has begun.
  void NoteUnderWay(size_t call);
  // It has ended. False: there was no room for it, and it will be made again.
  bool NoteEnd(size_t call, const RpcError& outcome);
  // How many are under way, and how many are done.
  std::pair<size_t, size_t> progress() const { return {under_way_, done_}; }

  // Nothing more is sent, and what was made is cancelled.
  void Cancel();

 private:
  struct Call {
    std::shared_ptr<InferenceCall> handle;  // null: unsent
    bool starts_long = false;
    bool under_way = false;
    bool ended = false;
    std::optional<InferenceEvents> put_back = {};
  };

  bool HasFoundRoom() const { return waiting_ + under_way_ + done_ > 0; }
  void TellUnsent();
  void LetGo();

  InferenceClient& client_;
  std::vector<v1::GenerateRequest> requests_;  // [calls]; kept until under way
  std::optional<HeldBytes> held_;              // for them, where there are several
  const v1::GenerateRequest shared_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::vector<Call> calls_;
  std::deque<size_t> unsent_;               // in the order in which they are to be sent
  size_t most_waiting_ = kMaxWaitingCalls;  // one where there was no room lately
  size_t waiting_ = 0;
  size_t under_way_ = 0;
  size_t done_ = 0;                                     // that ended well
  std::vector<size_t> put_back_;                        // calls of which something was
  int64_t told_unsent_ = 0;                             // to the client
  std::shared_ptr<std::atomic<int64_t>> answer_bytes_;  // InferenceCallOptions'; null: there is one call
};

}  // namespace tramontane
