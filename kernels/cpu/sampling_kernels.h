// The passes of sampling over a whole vocabulary that are compiled once per instruction set; sampling.cc
// tells what they are for. Pure functions of a row: the same bits in every variant, for they multiply and add
// apart and sum in chains that no vector width changes.
#pragma once

#include <cstdint>

namespace tramontane {

struct LogitScan {
  bool usable = true;    // no NaN, no +inf
  float highest = 0.0f;  // of all; -inf when there is nothing else
};

struct SamplingKernels {
  LogitScan (*scan)(const float* logits, int64_t vocab);
  // weights[t] = exp((logits[t] - highest) * inverse_temperature) for no logit above highest; returns their
  // sum.
  double (*exp_weights)(const float* logits, int64_t vocab, float highest, double inverse_temperature,
                        double* weights);
  int32_t (*count_higher)(const float* logits, int64_t vocab, float than);
};

}  // namespace tramontane
