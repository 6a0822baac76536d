// What every backend's Moe must do with choices, whatever it rounds.
// Any thread; fails the test that calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/kernels/moe_case.h"

namespace tramontane {

// The op over rows of x, its result not added to them.
using RunMoe = std::function<std::vector<float>(MoeCase& of, const std::vector<float>& x)>;

void ExpectTheLowerOfEqualExperts(const RunMoe& run);

// Two scores apart by less than a rounding of the router's inputs, or of its weights, to bf16. `f32_rows`:
// rows may hold what bf16 cannot.
void ExpectAnF32Router(const RunMoe& run, bool f32_rows);

void ExpectNansToStayInTheirRow(const RunMoe& run, int32_t rows);

}  // namespace tramontane
