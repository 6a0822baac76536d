// GenerationTiming: where the time to the first content of one HTTP request went.
//
// The request's own moments are noted here, on its exchange's clock; the middle is told by the call whose
// content was the first. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "server/http/http.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class GenerationTiming {
 public:
  // `wanted`: the answer says it.
  explicit GenerationTiming(bool wanted) : wanted_(wanted) {}

  bool wanted() const { return wanted_; }

  void NoteParsed(int64_t now_ns) { parsed_ns_ = now_ns; }  // the first call is made
  bool has_taken() const { return taken_ns_ != 0; }
  void NoteTaken(int64_t now_ns) { taken_ns_ = now_ns; }  // the first content of a call was taken
  // The writer had content for the client: that of this call.
  void NoteTold(size_t call, int64_t now_ns);
  // And the system has taken it.
  void NoteDelivered(int64_t now_ns) { delivered_ns_ = now_ns; }

  const std::optional<size_t>& first_call() const { return first_call_; }  // whose content was the first
  bool IsOnItsWay() const { return first_call_.has_value() && delivered_ns_ == 0; }

  // Takes what a choice of `call` said at its end. False: another call's content was the first.
  bool NoteEnd(size_t call, const v1::Timings& told, const HttpRequest& request);
  const v1::Timings& timings() const { return timings_; }  // of the last such end

 private:
  const bool wanted_;
  int64_t parsed_ns_ = 0;  // 0, as below: not yet
  int64_t taken_ns_ = 0;
  int64_t told_ns_ = 0;
  int64_t delivered_ns_ = 0;
  std::optional<size_t> first_call_;
  v1::Timings timings_;
};

}  // namespace tramontane
