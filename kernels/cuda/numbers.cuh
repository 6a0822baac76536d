// Numbers in registers, a few neighbours of a row at a time. Device code.
#pragma once

#include <type_traits>

#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

// Numbers that a thread takes together.
template <int kCount>
struct Floats {
  float value[kCount];
};

template <typename T>
TM_DEVICE Floats<8> Unpack(const Vector16& piece) {
  Floats<8> out;
  TM_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.value[2 * i] = ToFloat(T{static_cast<uint16_t>(piece.word[i])});
    out.value[2 * i + 1] = ToFloat(T{static_cast<uint16_t>(piece.word[i] >> 16)});
  }
  return out;
}

template <typename T>
TM_DEVICE Vector16 Pack(const Floats<8>& in) {
  Vector16 out;
  TM_UNROLL
  for (int i = 0; i < 4; ++i) out.word[i] = PackPair<T>(in.value[2 * i], in.value[2 * i + 1]);
  return out;
}

// Numbers of 16 bits at a multiple of their bytes together, in one access: eight, four or one.
template <int kCount, typename T>
TM_DEVICE Floats<kCount> LoadNumbers(const T* at) {
  static_assert(sizeof(T) == 2 && (kCount == 8 || kCount == 4 || kCount == 1));
  if constexpr (kCount == 8) {
    return Unpack<T>(LoadGlobal16(at));
  } else if constexpr (kCount == 4) {
    const Vector8 piece = LoadGlobal(reinterpret_cast<const Vector8*>(at));
    Floats<4> out;
    TM_UNROLL
    for (int i = 0; i < 4; ++i) {
      out.value[i] = ToFloat(T{static_cast<uint16_t>(piece.word[i / 2] >> (i % 2 * 16))});
    }
    return out;
  } else {
    return {{ToFloat(LoadGlobal(at))}};
  }
}

template <int kCount, typename T>
TM_DEVICE void StoreNumbers(T* at, const Floats<kCount>& in) {
  static_assert(sizeof(T) == 2 && (kCount == 8 || kCount == 4 || kCount == 1));
  if constexpr (kCount == 8) {
    StoreGlobal16(at, Pack<T>(in));
  } else if constexpr (kCount == 4) {
    StoreGlobal(reinterpret_cast<Vector8*>(at),
                Vector8{{PackPair<T>(in.value[0], in.value[1]), PackPair<T>(in.value[2], in.value[3])}});
  } else {
    StoreGlobal(at, FromFloat<T>(in.value[0]));
  }
}

// Floats that lie together: four at a time, at a multiple of 16 bytes, or two at any place.
template <int kCount>
TM_DEVICE Floats<kCount> LoadFloats(const float* at) {
  static_assert(kCount % 4 == 0 || kCount == 2);
  Floats<kCount> out;
  if constexpr (kCount == 2) {
    out.value[0] = LoadGlobal(at);
    out.value[1] = LoadGlobal(at + 1);
  } else {
    TM_UNROLL
    for (int i = 0; i < kCount; i += 4) {
      const Vector16 piece = LoadGlobal16(at + i);
      TM_UNROLL
      for (int j = 0; j < 4; ++j) out.value[i + j] = FloatOf(piece.word[j]);
    }
  }
  return out;
}

// Four codes of fp8 as two pairs of bf16. What is stored is the upper half of an f32 2^120 below the number;
// NaN, whose magnitude is the only one that one more carries out of, is added.
TM_DEVICE void CodesOfFp8(uint32_t bytes, uint32_t* out) {
  constexpr uint32_t kTo120 = 0x7b807b80u;
  TM_UNROLL
  for (int pair = 0; pair < 2; ++pair) {
    const uint32_t upper = PermuteBytes(bytes, 0, pair == 0 ? 0x1404u : 0x3424u);
    const uint32_t magnitude = upper & 0x7f007f00u;
    const uint32_t nan = PermuteBytes(magnitude + 0x01000100u, 0, 0xbb99u);
    out[pair] = MultiplyAddPair((upper & 0x80008000u) | magnitude >> 4, kTo120, nan);
  }
}

}  // namespace tramontane::cuda
