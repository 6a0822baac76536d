// EventCheck: whether what a server says of one Generate is what inference.proto promises. A server elsewhere
// may be of another version, broken, or none of ours: what has passed here is safe to join, to count and to
// print. A plain value. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class EventCheck {
 public:
  // `request` outlives this. `max_started_bytes`: of a Started with all its parts; 0: any.
  EventCheck(const v1::GenerateRequest& request, int64_t max_started_bytes);

  // What is wrong with the next event, for a log: "choice 7 of 2"; "": nothing. After a fault none is looked
  // at.
  std::string FaultOf(const v1::GenerateResponse& event);
  // What is wrong with a stream that ends here, and well.
  std::string FaultOfEnd() const;

 private:
  struct Choice {
    int64_t completion_tokens = 0;
    int64_t text_bytes = 0;  // thoughts included
    int64_t marks = 0;
    int64_t idle_deltas = 0;  // that said nothing
    bool has_tool_calls = false;
    bool finished = false;
    bool cancelled = false;
  };

  std::string FaultOfStarted(const v1::Started& started);
  std::string FaultOfPrompt(const v1::Started& started);
  std::string FaultOfDelta(const v1::Delta& delta, Choice* choice) const;
  std::string FaultOfText(const v1::Delta& delta, Choice* choice) const;
  std::string FaultOfFinished(const v1::Finished& finished, Choice* choice) const;

  const v1::GenerateRequest& request_;
  const int64_t max_started_bytes_;
  const int64_t max_tokens_;
  std::vector<Choice> choices_;
  v1::Started head_;             // of its first part, without the lists
  int64_t started_bytes_ = 0;    // of the parts so far
  int64_t prompt_logprobs_ = 0;  // likewise
  int64_t prompt_ = 0;
  bool has_started_ = false;  // all of it
};

}  // namespace tramontane
