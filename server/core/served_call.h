// ServedCall: one Generate (or ScoreCandidates) call without its transport: admission, the request's id, its
// events as messages and its end. gRPC's call and the gateway's each hold one.
//
//   made -> Open -> Admit -> Take ... Take -> End            after a refusal: straight to End
//
// Threads: Cancel from any, at any time; the rest one call at a time, from whatever thread is said.
// Always: it counts as an open stream from Open until it is gone, and its id is taken from Admit until End.
//
// It has 31 members because what is told of it at its end is about each stage that it went through.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/access/key_charge.h"
#include "server/answers/answer_constraint.h"
#include "server/call/inference_client.h"
#include "server/call/request_line.h"
#include "server/core/inference_core.h"
#include "server/core/live_requests.h"
#include "server/sessions/session_turn.h"
#include "server/watch/ttft_stages.h"

namespace tramontane {

class ServedCall {
 public:
  ServedCall(InferenceCore& core, Caller caller, InferenceCallOptions options)
      : core_(core),
        caller_(std::move(caller)),
        options_(std::move(options)),
        charge_(caller_.key, options_.continues) {}
  // What has not ended then is cancelled: nobody could take its events.
  ~ServedCall();
  ServedCall(const ServedCall&) = delete;
  ServedCall& operator=(const ServedCall&) = delete;

  // Not OK: loading, draining, too many streams, a full queue, or the key's bounds. Quick.
  RpcError Open();

  // Not OK: cancelled, or past its deadline. For work that could be saved.
  RpcError CheckIsWanted();

  // Checks, tokenises, submits: on a worker. `on_ready` is called on the engine's output thread, possibly
  // before this returns, each time the stream goes from nothing to Take to something; it must not block. Not
  // OK: nothing was submitted.
  RpcError Admit(const v1::GenerateRequest& request, std::function<void()> on_ready);

  // The same for scores. Take then gives a Started with the logprobs of all candidates' tokens, one candidate
  // after the other, and a Finished. `lengths`: of the candidates, in tokens; set before `on_ready` is
  // called.
  RpcError Admit(const v1::ScoreCandidatesRequest& request, std::function<void()> on_ready,
                 std::vector<int64_t>* lengths);

  // Before Admit: it took so long to parse the message on a worker. That counts as if it had been done first,
  // and then been waited for a worker.
  void NoteParse(int64_t ns) { parse_ns_ += ns; }

  // The engine ends it within one step; before it is submitted, it never is.
  void Cancel();

  // Everything pending. REQUIRES: Admit was OK.
  InferenceEvents Take();

  // The transport has handed the first content to the system; then again does nothing.
  void NoteDelivered();
  // Where the time to the first content went, as far as that is known now. For whoever sends a Finished later
  // than he took it.
  void SetStages(v1::Finished* finished) const;

  // Gives the id back. Once, before the caller is told of the end.
  void End(const RpcError& outcome);

  // What is known of it, for the log: after its end.
  void Describe(RequestLine* line) const;

  // What is known of it while it is open: any thread.
  LiveCall Live() const;

  // What came of it, for trailers and the log.
  struct Summary {
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t completion_tokens = 0;  // of all choices
    int32_t finished_choices = 0;
    std::string reasons;  // by choice, as they ended: "stop,length"
    Timings timings;      // of the choice that ended last

    void Add(const StreamFinished& finished);
  };
  const Summary& summary() const { return summary_; }

  bool continues() const { return options_.continues; }
  const Caller& caller() const { return caller_; }
  const Serving* serving() const { return serving_; }            // null: refused while loading
  const std::string& request_id() const { return request_id_; }  // "": refused before it had one
  const std::string& correlation_id() const {
    return correlation_id_;
  }  // "": none, or one that cannot be shown

 private:
  RpcError TakeRequestId(const std::string& id_field);
  RpcError Submit(Request request, bool is_chat, std::function<void()> on_ready);
  // No better a priority than the caller's key allows. `is_asked`: the request has one of its own.
  void HoldPriority(bool is_asked, int32_t* priority);
  void NoteLeftQueue();
  void NoteContent(const StreamUpdate& update, const std::vector<v1::GenerateResponse>& events);
  void Count(TtftStage stage) const;
  void Trace() const;
  // What the caller is told of an end: of one that the server's own stop brought about, that.
  RpcError ToldOutcome(const Status& status) const;

  InferenceCore& core_;
  const Caller caller_;
  const InferenceCallOptions options_;
  const Serving* serving_ = nullptr;
  KeyCharge charge_;
  bool counted_ = false;
  bool queued_ = false;  // in the engine
  bool registered_ = false;
  bool ended_ = false;
  bool begun_ = false;  // its Started was taken
  RpcError outcome_;    // once it has ended
  std::string request_id_;
  std::string correlation_id_;
  SessionTurn session_;
  EventConverter::DeltaParts parts_;
  Unenforced unenforced_;
  std::vector<std::string> ignored_;       // fields, as Started has them
  std::vector<AnswerSplitter> splitters_;  // [choices]
  int32_t choices_ = 1;
  int64_t received_ns_ = 0;  // this and the next on the engine's clock
  int64_t deadline_ns_ = 0;  // 0: none
  Summary summary_;
  // Where the time to the first content went: up to kTokenize from Admit on, up to kHold from the content on.
  TtftStages stages_;
  int64_t parse_ns_ = 0;
  std::optional<FirstOutput> first_;  // of the kinds that are asked for

  mutable std::mutex
      mutex_;  // guards the rest, and with the stream the ids and choices_ before it, against others
  bool cancelled_ = false;
  int64_t prompt_tokens_ = -1;  // that the engine was given; -1: it was not
  std::shared_ptr<TokenStream> stream_;
};

// "12.345"; "0.000" where either did not happen.
std::string MillisecondsText(int64_t from_ns, int64_t to_ns);

}  // namespace tramontane
