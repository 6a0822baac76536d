// JoinedEvents: what a call over gRPC has said and its reader has not taken yet: of each choice at most one
// Delta, and a Started that came in parts as a whole. One thread at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class JoinedEvents {
 public:
  bool empty() const { return events_.empty(); }  // nothing to take
  size_t bytes() const { return bytes_; }         // on the wire, before they were joined

  void Add(v1::GenerateResponse event);
  std::vector<v1::GenerateResponse> Take();

 private:
  v1::Delta* DeltaOf(int32_t choice);  // null: none waits

  std::vector<v1::GenerateResponse> events_;
  v1::Started started_;  // the parts of one that go on
  size_t bytes_ = 0;
};

}  // namespace tramontane
