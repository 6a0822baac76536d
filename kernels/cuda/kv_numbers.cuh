// Keys and values as small numbers, eight at a time: the definition of kernels/core/kv_quantize.h in device
// code, with the same bytes. Device side.
#pragma once

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/primitives.cuh"
#include "kernels/paged_kv.h"

namespace tramontane::cuda {

inline constexpr int kKvPiece = 8;  // of a group or a vector; groups have at least so many

// Bytes of a piece.
TM_HOST_DEVICE int KvPieceBytes(const Format& format) {
  return format.block_bytes * kKvPiece >> format.block_log2;
}

// Rows lie at multiples of 2 bytes, since a row of one group has a scale of two; where all lie at multiples
// of 8 (`wide`) a piece is one access.
inline bool AreWide(const KvLayerView& kv) {
  const auto pool = static_cast<int64_t>(reinterpret_cast<uintptr_t>(kv.pool));
  return (pool | kv.page_bytes | kv.layer_offset | kv.value_offset | kv.head_bytes | kv.token_bytes) % 8 == 0;
}
TM_DEVICE Vector8 LoadKvPiece(const std::byte* at, int bytes, bool wide) {
  Vector8 out = {};
  if (wide && bytes == 8) return LoadGlobal(reinterpret_cast<const Vector8*>(at));
  if (wide) {
    out.word[0] = LoadGlobal(reinterpret_cast<const uint32_t*>(at));
    return out;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(at);
  TM_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i * 2 < bytes) out.word[i / 2] |= uint32_t{LoadGlobal(halves + i)} << (i % 2 * 16);
  }
  return out;
}
TM_DEVICE void StoreKvPiece(std::byte* at, const Vector8& piece, int bytes, bool wide) {
  if (wide && bytes == 8) return StoreGlobal(reinterpret_cast<Vector8*>(at), piece);
  if (wide) return StoreGlobal(reinterpret_cast<uint32_t*>(at), piece.word[0]);
  auto* halves = reinterpret_cast<uint16_t*>(at);
  TM_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i * 2 < bytes) StoreGlobal(halves + i, static_cast<uint16_t>(piece.word[i / 2] >> (i % 2 * 16)));
  }
}

TM_DEVICE float LoadKvScale(const Format& format, const std::byte* at) {
  return format.scale == DType::kF32 ? LoadGlobal(reinterpret_cast<const float*>(at))
                                     : ToFloat(LoadGlobal(reinterpret_cast<const F16*>(at)));
}

// ---- fp8: e4m3

TM_DEVICE float FloatOfFp8(uint32_t code) {
  const uint32_t sign = (code & 0x80u) << 24;
  if ((code & 0x7fu) == 0x7fu) return FloatOf(sign | 0x7fc00000u);
  // The code's exponent and mantissa as those of a float, whose exponent counts from 120 less.
  return FloatOf(sign | BitsOf(FloatOf((code & 0x7fu) << 20) * 0x1p120f));
}

TM_DEVICE uint32_t Fp8OfFloat(float value) {
  constexpr uint32_t kInfinity = 0x7f800000u, kLargest = 0x43e00000u;  // 448
  constexpr uint32_t kLeastNormal = 0x3c800000u;                       // 2^-6
  const uint32_t bits = BitsOf(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > kInfinity) return 0x7fu;
  if (magnitude >= kLargest) return sign | 0x7eu;
  if (magnitude < kLeastNormal) {  // a multiple of 2^-9, ties to even in the low bits of 1.5 * 2^23
    return sign | (BitsOf(FloatOf(magnitude) * 512.0f + 12582912.0f) & 0xfu);
  }
  return sign | (((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3));
}

// ---- a piece

struct KvNumbers {
  float value[kKvPiece];
};

// Of int8 and int4, before their scale.
template <DType kType>
TM_DEVICE KvNumbers DecodeKvPiece(const Vector8& piece) {
  KvNumbers out;
  TM_UNROLL
  for (int i = 0; i < kKvPiece; ++i) {
    if constexpr (kType == DType::kInt4) {
      const auto nibble = static_cast<int32_t>(piece.word[0] >> (i * 4) & 0xfu);
      out.value[i] = static_cast<float>((nibble ^ 8) - 8);
    } else {
      const auto byte = static_cast<int32_t>(piece.word[i / 4] >> (i % 4 * 8) & 0xffu);
      out.value[i] = static_cast<float>((byte ^ 128) - 128);
    }
  }
  return out;
}

// As bf16, each number times its scale rounded once.
template <DType kType>
TM_DEVICE Vector16 KvPieceAsBf16(const Vector8& piece, float scale) {
  Vector16 out;
  if constexpr (kType == DType::kFp8E4M3) {  // what codes stand for is exact
    CodesOfFp8(piece.word[0], out.word);
    CodesOfFp8(piece.word[1], out.word + 2);
    if (scale == 1.0f) return out;
    TM_UNROLL
    for (uint32_t& pair : out.word) {
      pair = PackPair<Bf16>(FloatOf(pair << 16) * scale, FloatOf(pair & 0xffff0000u) * scale);
    }
    return out;
  }
  const KvNumbers numbers = DecodeKvPiece<kType>(piece);
  TM_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.word[i] = PackPair<Bf16>(numbers.value[2 * i] * scale, numbers.value[2 * i + 1] * scale);
  }
  return out;
}

TM_DEVICE Vector8 Fp8KvPiece(const KvNumbers& numbers, float scale) {
  Vector8 out = {};
  TM_UNROLL
  for (int i = 0; i < kKvPiece; ++i) out.word[i / 4] |= Fp8OfFloat(numbers.value[i] / scale) << (i % 4 * 8);
  return out;
}

// The largest magnitude of a group that so many neighbouring lanes hold, NaN where one is. Every lane of the
// warp takes part.
TM_DEVICE float LargestOfGroup(const KvNumbers& numbers, int lanes) {
  uint32_t largest = 0;
  TM_UNROLL
  for (int i = 0; i < kKvPiece; ++i) {
    const uint32_t magnitude = BitsOf(numbers.value[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    const uint32_t other = BitsOf(ShuffleXor(FloatOf(largest), mask));
    largest = other > largest ? other : largest;
  }
  return FloatOf(largest);
}

// The scale of a group with that largest magnitude, as it is read back; `bits`: as it is stored in f16.
TM_DEVICE float KvGroupScale(const Format& format, float largest, uint16_t* bits) {
  const float wanted = largest / (format.dtype == DType::kInt4 ? 7.0f : 127.0f);
  const float scale = wanted < 1e-5f ? 1e-5f : wanted;
  if (format.scale == DType::kF32) return scale;
  *bits = scale != scale ? uint16_t{0x7e00} : FromFloat<F16>(scale).bits;
  return ToFloat(F16{*bits});
}

// By the rounded scale; all zero where that is not finite.
TM_DEVICE Vector8 QuantisedKvPiece(DType type, const KvNumbers& numbers, float scale) {
  Vector8 out = {};
  if ((BitsOf(scale) & 0x7fffffffu) >= 0x7f800000u) return out;
  const float most = type == DType::kInt4 ? 7.0f : 127.0f;
  TM_UNROLL
  for (int i = 0; i < kKvPiece; ++i) {
    const float ratio = numbers.value[i] / scale;
    const float clamped = ratio < -most ? -most : ratio > most ? most : ratio;
    const uint32_t code = BitsOf(clamped + 12582912.0f);  // 1.5 * 2^23: ties to even in the low bits
    if (type == DType::kInt4) {
      out.word[0] |= (code & 0xfu) << (i * 4);
    } else {
      out.word[i / 4] |= (code & 0xffu) << (i % 4 * 8);
    }
  }
  return out;
}

}  // namespace tramontane::cuda
