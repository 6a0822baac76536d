// Rotary embeddings stretched beyond the context that a model was first made for: what a config says of it,
// and the frequencies that come of it. Any thread; values and pure functions.
//
// YaRN: Peng et al., 2023, arXiv:2309.00071. Llama 3's three bands: the Llama 3.1 release.
#pragma once

#include <cstdint>
#include <vector>

namespace tramontane {

struct RopeScaling {
  enum class Kind {
    kNone,
    kLlama3,   // short waves stay, long ones are `factor` times longer, those between are blended
    kYarn,     // the same by the number of turns that a pair makes within original_context
    kDivided,  // each frequency by a number of its own, which a GGUF file has for kLlama3
  };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  double original_context = 1.0;  // positions that the model was first made for
  // Turns within original_context: pairs that make more than `fast` stay, those below `slow` are stretched.
  double fast = 0.0;
  double slow = 0.0;
  bool truncate = true;              // YaRN: the band's ends lie at whole pairs
  double magnitude = 1.0;            // times cos and sin
  std::vector<float> divisors = {};  // [head_dim / 2], where the kind is kDivided
};

// Queries times 1 + beta ln(1 + floor(position / positions)).
struct QueryScaling {
  double beta = 0.0;  // 0: none
  int32_t positions = 1;
};

// YaRN's magnitude where a config does not say it: that of `mscale` over that of `mscale_all_dim`.
double YarnMagnitude(double factor, double mscale, double mscale_all_dim);

// Radians per position of each pair: [head_dim / 2]. REQUIRES: theta > 1 where the kind is kYarn.
std::vector<double> RotaryFrequencies(double theta, int32_t head_dim, const RopeScaling& scaling);

}  // namespace tramontane
