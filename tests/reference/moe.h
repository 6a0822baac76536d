// A mixture of experts by its definition, in double precision. Any thread; pure.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/reference/linear.h"

namespace tramontane::reference {

struct MoeExpert {
  Matrix gate{0, 0}, up{0, 0};  // [intermediate, hidden]
  Matrix down{0, 0};            // [hidden, intermediate]
};

struct MoeLayer {
  std::vector<double> norm;  // [hidden]
  double norm_epsilon = 0;
  Matrix router{0, 0};  // [experts, hidden]
  std::vector<MoeExpert> experts;
  int32_t experts_per_token = 0;
};

struct MoeChoice {
  std::vector<int32_t> experts;  // ascending
  std::vector<double> shares;    // softmax of their scores
  double lead = 0;               // of the last chosen score over the next one; infinite where all are chosen
};

// The highest scores; of equal ones the lower expert.
MoeChoice ChooseExperts(const std::vector<double>& scores, int32_t count);

// Of rows normalised already. [rows, experts]
Matrix MoeScores(const MoeLayer& layer, const Matrix& normalised);

Matrix Moe(const MoeLayer& layer, const Matrix& x);

// The same over absolute values, each product of gate and up by what an error of either makes of it: what
// rounding errors of inputs and sums are in proportion to, as long as the same experts are chosen.
Matrix MoeMagnitude(const MoeLayer& layer, const Matrix& x);

}  // namespace tramontane::reference
