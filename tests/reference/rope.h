// Rotary position embedding by its definition, in double precision. Any thread; pure.
#pragma once

#include <cstdint>
#include <vector>

namespace tramontane::reference {

enum class RotaryPairs { kHalfSplit, kInterleaved };  // (i, i + head_dim / 2) or (2i, 2i + 1)

// theta^(-2i / head_dim) for i in [0, head_dim / 2).
std::vector<double> InverseFrequencies(double theta, int32_t head_dim);

// One head, turned by its position: pair i by the angle position * inverse_frequency[i].
std::vector<double> Rotate(const std::vector<double>& head, int64_t position,
                           const std::vector<double>& inverse_frequency, RotaryPairs pairs);

}  // namespace tramontane::reference
