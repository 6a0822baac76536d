// CandidateScores: the answer to a ScoreCandidates, out of the events of its request. A plain value.
#pragma once

#include <cstdint>
#include <vector>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

struct CandidateScores {
  std::vector<int64_t> lengths = {};  // of the candidates, in tokens
  v1::ScoreCandidatesResponse answer = {};

  // An event of the request, in order: a Started tells the logprobs of all candidates' tokens, one candidate
  // after the other; of a request that has failed it has fewer, and the answer none.
  void Note(const v1::GenerateResponse& event);
};

}  // namespace tramontane
