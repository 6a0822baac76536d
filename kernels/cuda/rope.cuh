// How the rotary embedding turns a head: in units of 2 * kCount numbers, two pieces of kCount that a thread
// loads and stores whole. Pairs kCount * u .. kCount * u + kCount - 1 are unit u's in both styles, so that a
// head turns where it lies. Device code.
//
//   halves apart:  | piece 0 of u | ... half a head ... | piece 1 of u |     a pair is (d, d + half)
//   interleaved:   | piece 0 of u | piece 1 of u |                           a pair is (2i, 2i + 1)
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/numbers.cuh"

namespace tramontane::cuda {

template <int kCount>
struct RopeUnit {
  Floats<kCount> piece[2];
};

// From the head's first number to a unit's two pieces.
struct RopePlaces {
  int first, second;
};
template <int kCount>
TM_DEVICE RopePlaces PlacesOfUnit(RotaryStyle style, int unit, int half) {
  if (style == RotaryStyle::kHalfSplit) return {unit * kCount, half + unit * kCount};
  return {unit * 2 * kCount, unit * 2 * kCount + kCount};
}

template <int kCount, typename T>
TM_DEVICE RopeUnit<kCount> LoadUnit(const T* head, RopePlaces at) {
  return {{LoadNumbers<kCount>(head + at.first), LoadNumbers<kCount>(head + at.second)}};
}
template <int kCount, typename T>
TM_DEVICE void StoreUnit(T* head, RopePlaces at, const RopeUnit<kCount>& unit) {
  StoreNumbers<kCount>(head + at.first, unit.piece[0]);
  StoreNumbers<kCount>(head + at.second, unit.piece[1]);
}

TM_DEVICE void TurnPair(float cosine, float sine, float* a, float* b) {
  const float x = *a * cosine - *b * sine, y = *b * cosine + *a * sine;
  *a = x;
  *b = y;
}

// cos_sin: [pairs, 2], the unit's first.
template <int kCount>
TM_DEVICE void TurnUnit(RotaryStyle style, const float* cos_sin, RopeUnit<kCount>* unit) {
  const Floats<2 * kCount> angle = LoadFloats<2 * kCount>(cos_sin);
  if (style == RotaryStyle::kHalfSplit) {
    TM_UNROLL
    for (int i = 0; i < kCount; ++i) {
      TurnPair(angle.value[2 * i], angle.value[2 * i + 1], &unit->piece[0].value[i],
               &unit->piece[1].value[i]);
    }
    return;
  }
  TM_UNROLL
  for (int i = 0; i < 2 * kCount; i += 2) {
    TurnPair(angle.value[i], angle.value[i + 1], &unit->piece[i / kCount].value[i % kCount],
             &unit->piece[(i + 1) / kCount].value[(i + 1) % kCount]);
  }
}

template <int kCount>
TM_DEVICE void ScaleUnit(float scale, RopeUnit<kCount>* unit) {
  TM_UNROLL
  for (int i = 0; i < 2 * kCount; ++i) unit->piece[i / kCount].value[i % kCount] *= scale;
}

}  // namespace tramontane::cuda
