// A mixture of experts in five kernels: parameters and launches. Host side; any CUDA stream.
// Every launch returns 0 or the runtime's error.
//
// A pair is a row and one of its experts: number row * experts_per_token + i, its experts ascending in i.
// Pairs of padding have no expert, -1, and no kernel works for them.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tramontane::cuda {

inline constexpr int32_t kMaxMoeHidden = 16384;  // a normalised row lies in shared memory as f32
inline constexpr int32_t kMoeSmallRows = 16;     // up to which experts find their rows themselves
inline constexpr int32_t kMoePairRows = 4;       // up to which a block belongs to a pair, not to an expert
inline constexpr int32_t kMoeTileRows = 64;  // rows of an expert that share a pass over its weights beyond
inline constexpr int32_t kMaxMoeOrderWidth = 49152;  // a row that is reordered lies in shared memory as bf16

// Scores in f32 from the unrounded norm; the experts_per_token highest, their softmax, and the norm in bf16.
struct MoeRouteParams {
  const void* x;             // [rows, hidden] bf16, rows x_stride apart
  const float* norm_weight;  // [hidden]
  const float* router;       // [experts, hidden]
  void* normalised;          // [rows, hidden] bf16
  int32_t* chosen;           // [pairs] experts
  float* shares;             // [pairs]
  const int32_t* live_rows;  // one number: rows from there on choose no expert, -1; null: all choose
  int64_t x_stride;
  int32_t rows;
  int32_t hidden;  // a multiple of 8, at most kMaxMoeHidden
  int32_t experts;
  int32_t experts_per_token;
  float epsilon;
};

// Rows of one expert that a block of MoeTileKernel takes.
struct MoeTile {
  int32_t expert;
  int32_t begin;  // in MoeGroupParams::order
  int32_t rows;   // 0: none
};

// Pairs expert by expert, and the tiles of each expert's pairs.
struct MoeGroupParams {
  const int32_t* chosen;  // [pairs]
  int32_t* order;         // [pairs] pairs, by expert and then by number
  MoeTile* tiles;         // [max_tiles]
  int32_t pairs;
  int32_t experts;
  int32_t max_tiles;  // MoeTileBound
};

// y[pair][k] = x[pair / pairs_of_a_row][orders[expert of the pair][k]].
struct MoeOrderParams {
  const int32_t* orders[kMaxExperts];  // [width] each; null: in order
  const void* x;                       // [.., width] bf16
  void* y;                             // [pairs, width] bf16; may be x where pairs_of_a_row is 1
  const int32_t* chosen;               // [pairs]
  int32_t pairs;
  int32_t pairs_of_a_row;
  int32_t width;  // a multiple of 8, at most kMaxMoeOrderWidth
};

// What becomes of a product, of which a pair has a row.
enum class MoeOut : int32_t {
  kF32 = 0,     // [pairs, out_features] f32
  kSwiGlu = 1,  // [pairs, out_features / 2] bf16, of gate and up in one weight
  kGate = 2,    // [pairs, out_features] bf16, of a gate whose up is another weight
  kUp = 3,      // SwiGLU of that gate, in its place
};

// y[pair] = x[pair / pairs_of_a_row] W[expert of the pair]^T.
struct MoeGemmParams {
  // Each [out_features, in_features], as in linear_small.h; null: pairs of this expert are left alone.
  const void* weights[kMaxExperts];
  const void* x;  // [.., in_features] bf16
  void* out;      // as out_kind says
  const int32_t* chosen;
  const int32_t* order;  // from MoeGroup; null: experts look for their rows in `chosen`
  const MoeTile* tiles;
  int32_t max_tiles;
  int32_t rows;
  int32_t pairs;
  int32_t pairs_of_a_row;  // of x: experts_per_token, or 1
  int32_t experts;
  int32_t in_features;   // a multiple of 8; without `order` of 32; in blocks whole units
  int32_t out_features;  // a multiple of 8, of 16 for kSwiGlu
  MoeOut out_kind;
  Format weight_format = DType::kBf16;
};

// out[row] = sum over its pairs, ascending, of share * y, or that added to it; rounded to bf16 once.
struct MoeCombineParams {
  const float* y;            // [pairs, hidden]
  const float* shares;       // [pairs]
  void* out;                 // [rows, hidden] bf16, rows out_stride apart
  const int32_t* live_rows;  // one number: rows from there on are left alone; null: none is
  int64_t out_stride;
  int32_t rows;
  int32_t hidden;  // a multiple of 8
  int32_t experts_per_token;
  bool add;
};

// Tiles that so many pairs can make.
constexpr int32_t MoeTileBound(int32_t pairs, int32_t experts) {
  return pairs / kMoeTileRows + (experts < pairs ? experts : pairs);
}
// Whether a step of so many rows needs no MoeGroup.
constexpr bool MoeIsSmall(int32_t rows, int32_t hidden, int32_t intermediate) {
  return rows <= kMoeSmallRows && hidden % 32 == 0 && intermediate % 32 == 0;
}

int LaunchMoeRoute(const MoeRouteParams& params, void* stream);
int LaunchMoeGroup(const MoeGroupParams& params, void* stream);
int LaunchMoeOrder(const MoeOrderParams& params, void* stream);
int LaunchMoeGemm(const MoeGemmParams& params, void* stream);
int LaunchMoeCombine(const MoeCombineParams& params, void* stream);

}  // namespace tramontane::cuda
