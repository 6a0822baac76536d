// The passes of sampling over a whole vocabulary that are compiled once per instruction set; sampling.cc
// tells what they are for. Pure functions of a row: the same bits in every variant, for they multiply and add
// apart and sum in chains that no vector width changes.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/sampling.h"
#include "kernels/sampling_math.h"

namespace tramontane {

struct LogitScan {
  bool usable = true;    // no NaN, no +inf
  float highest = 0.0f;  // of all; -inf when there is nothing else
};

// Where a filter cuts the tokens sorted by logit, highest first, equal ones by id: this token is the last to
// stay.
struct Cut {
  float logit = -std::numeric_limits<float>::infinity();
  int32_t token = std::numeric_limits<int32_t>::max();

  bool Keeps(float other_logit, int32_t other) const {
    return other_logit > logit || (other_logit == logit && other <= token);
  }
};

inline constexpr int32_t kNoBucket = kCutBuckets;  // of what is no candidate

// Who runs a row's race.
struct RaceField {
  uint64_t state = 0;       // RaceState of the row
  double least_weight = 0;  // above 0
  Cut cut;
};

struct RaceWinner {
  int32_t token = -1;
  double time = std::numeric_limits<double>::infinity();  // E / w
};

// `first` is the id of the first token of what a pass is given: a row, or a part of it.
struct SamplingKernels {
  LogitScan (*scan)(const float* logits, int64_t vocab);
  // weights[t] = exp((logits[t] - highest) * inverse_temperature) for no logit above highest; returns their
  // sum.
  double (*exp_weights)(const float* logits, int64_t vocab, float highest, double inverse_temperature,
                        double* weights);
  int32_t (*count_higher)(const float* logits, int64_t vocab, float than);
  // The bucket of every token, kNoBucket for one that `cut` does not keep or whose logit is -inf.
  void (*find_buckets)(const float* logits, int64_t vocab, int32_t first, float highest, const Cut& cut,
                       int32_t* buckets);
  // The token with the least E / w, of equal ones the lowest; token -1 where there is none.
  RaceWinner (*race)(const float* logits, const double* weights, int64_t vocab, int32_t first,
                     const RaceField& field);
};

}  // namespace tramontane
