// The host side of hopper_primitives.cuh: what each wrapped instruction of sm_90a does, in terms of the
// emulator. Tests only. Included by hopper_primitives.cuh when no CUDA compiler is at work.
#pragma once

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/cuda/emulator/primitives_host.h"
#include "kernels/cuda/tensor_map.h"

#define TM_GRID_CONSTANT
#define TM_ROLLED

namespace tramontane::cuda {

inline std::byte* AlignedSharedBytes() { return SharedBytes(); }
inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const std::byte*>(pointer) - emulator::SharedMemory());
}

// What cuTensorMapEncodeTiled refuses, for bf16 in rows of 128 bytes.
inline bool DriverTakes(const TensorMapShape& shape) {
  bool takes = reinterpret_cast<uintptr_t>(shape.base) % 16 == 0 && shape.box[0] <= 64;
  for (const int64_t size : shape.sizes) takes = takes && size >= 1 && size <= int64_t{1} << 32;
  for (const int64_t bytes : shape.stride_bytes)
    takes = takes && bytes >= 0 && bytes % 16 == 0 && bytes < int64_t{1} << 40;
  for (const int32_t size : shape.box) takes = takes && size >= 1 && size <= 256;
  return takes;
}

inline int MakeTensorMap(const TensorMapShape& shape, TensorMap* map) {
  constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue
  if (!DriverTakes(shape)) return kInvalidValue;
  emulator::BoxedTensor tensor;
  static_assert(sizeof(tensor) <= sizeof(TensorMap));
  tensor.base = static_cast<const std::byte*>(shape.base);
  std::copy_n(shape.sizes, emulator::BoxedTensor::kDimensions, tensor.sizes);
  std::copy_n(shape.stride_bytes, emulator::BoxedTensor::kDimensions - 1, tensor.stride_bytes + 1);
  std::copy_n(shape.box, emulator::BoxedTensor::kDimensions, tensor.box);
  *map = {};
  std::memcpy(map, &tensor, sizeof(tensor));
  return 0;
}

struct alignas(8) Mbarrier {
  uint64_t state;
};

inline void InitBarrier(Mbarrier* barrier, int arrivals, emulator::Site site = emulator::Site::current()) {
  emulator::InitBarrier(barrier, arrivals, site);
}
inline void FenceBarrierInit() {}
inline void Arrive(Mbarrier* barrier, emulator::Site site = emulator::Site::current()) {
  emulator::ArriveAtBarrier(barrier, 0, site);
}
inline void ArriveExpecting(Mbarrier* barrier, int bytes, emulator::Site site = emulator::Site::current()) {
  emulator::ArriveAtBarrier(barrier, bytes, site);
}
inline void WaitPhase(Mbarrier* barrier, int parity, emulator::Site site = emulator::Site::current()) {
  emulator::WaitAtBarrier(barrier, static_cast<unsigned>(parity), site);
}

inline void PrefetchMap(const TensorMap&) {}
inline void LoadBox(void* shared, const TensorMap& map, Mbarrier* barrier,
                    const int32_t (&coordinates)[kTensorMapDimensions],
                    emulator::Site site = emulator::Site::current()) {
  emulator::BoxedTensor tensor;
  std::memcpy(static_cast<void*>(&tensor), &map, sizeof(tensor));
  emulator::IssueBox(static_cast<std::byte*>(shared), tensor, coordinates, barrier, site);
}
inline void FenceAsyncProxy() { emulator::FenceAsyncProxy(); }

inline void SyncNamedBarrier(int barrier, int threads, emulator::Site site = emulator::Site::current()) {
  emulator::MeetAtNamedBarrier(barrier, threads, true, site);
}
inline void ArriveAtNamedBarrier(int barrier, int threads, emulator::Site site = emulator::Site::current()) {
  emulator::MeetAtNamedBarrier(barrier, threads, false, site);
}
inline void SyncWarp(emulator::Site site = emulator::Site::current()) { emulator::SyncWarp(site); }

template <int kRegisters>
void LowerRegisterCount() {}
template <int kRegisters>
void RaiseRegisterCount() {}

// ---- products of a warpgroup --------------------------------------------------------------------

inline void WgmmaFence() { emulator::FenceProducts(); }
inline void WgmmaCommit() { emulator::CommitProducts(); }
template <int kGroupsLeft>
void WgmmaWait(emulator::Site site = emulator::Site::current()) {
  emulator::WaitProducts(kGroupsLeft, site);
}
template <int kCount>
void PinRegisters(float (&)[kCount]) {}

namespace host {

// Where 16 bytes of an operand lie: PTX ISA, wgmma, "Strides" of the matrix descriptor, for SWIZZLE_128B.
struct Operand {
  uint32_t start, leading_bytes, stride_bytes;

  static Operand Of(uint64_t descriptor) {
    TM_CHECK(descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0, "a descriptor that is not SWIZZLE_128B");
    const auto field = [&](int shift) { return static_cast<uint32_t>(descriptor >> shift & 0x3fff) * 16; };
    return {field(0), field(16), field(32)};
  }
  // K-major: row `mn`, elements 8 * k_piece to 8 * k_piece + 7 of k, below 16.
  const std::byte* OfRow(int mn, int k_piece) const {
    return At(start + static_cast<uint32_t>(mn / 8) * stride_bytes + static_cast<uint32_t>(mn % 8 * 128) +
              static_cast<uint32_t>(k_piece * 16));
  }
  // MN-major: row `k`, elements 8 * piece to 8 * piece + 7 of m or n.
  const std::byte* OfColumn(int k, int piece) const {
    return At(start + static_cast<uint32_t>(piece / 8) * leading_bytes +
              static_cast<uint32_t>(k / 8) * stride_bytes + static_cast<uint32_t>(k % 8 * 128) +
              static_cast<uint32_t>(piece % 8 * 16));
  }
  static const std::byte* At(uint32_t address) {
    return emulator::SharedMemory() + (address ^ (address >> 3 & 0x70));
  }
};

inline float HalfOf(const std::byte* piece, int i) {
  uint16_t bits;
  std::memcpy(&bits, piece + 2 * i, 2);
  return Bf16ToFloat(bits);
}

// A warp's 16 rows of d [64, kN] += a [64, 16] * b [16, kN]. Each lane reads its share of the operands in
// shared memory, where a race detector sees it; then one multiplies for all.
template <int kN, bool kTransposed>
void MultiplyWarpgroup(float (&d)[kN / 2], const uint32_t* a_registers, uint64_t a, uint64_t b,
                       bool accumulate, emulator::Site site) {
  constexpr int kPieces = kN * 2 / emulator::kWarp;  // of b, of each lane
  struct Shared {
    std::byte b[kPieces][16];
    std::byte a[16];
  } pieces;
  struct Lane {
    float* sums;
    const Shared* pieces;
    uint32_t a[4];
    bool a_in_registers;
  } own{};
  const int lane = LaneId();
  own.sums = emulator::BeginProduct(d, kN / 2, accumulate, site);
  own.pieces = &pieces;
  own.a_in_registers = a_registers != nullptr;
  const Operand b_operand = Operand::Of(b);
  for (int i = 0; i < kPieces; ++i) {
    const int piece = i * emulator::kWarp + lane;
    emulator::ReadOperand(kTransposed ? b_operand.OfColumn(piece / (kN / 8), piece % (kN / 8))
                                      : b_operand.OfRow(piece / 2, piece % 2),
                          pieces.b[i], site);
  }
  if (a_registers != nullptr) {
    std::copy_n(a_registers, 4, own.a);
  } else {
    const int row = ThreadX() / emulator::kWarp % 4 * 16 + lane / 2;
    emulator::ReadOperand(Operand::Of(a).OfRow(row, lane % 2), pieces.a, site);
  }
  emulator::WarpCollective(0xffffffffu, site, &own, sizeof(own), [](void* const operands[32], unsigned) {
    float a_full[16][16], b_full[16][kN], sum[16][kN];
    for (int lane = 0; lane < emulator::kWarp; ++lane) {
      const auto& from = *static_cast<const Lane*>(operands[lane]);
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 8; ++i) {
        if (from.a_in_registers) {
          // Register r holds columns 2t and 2t + 1, and 8 more for r >= 2, of row g, and 8 more for odd r.
          const int r = i / 2;
          const auto half = static_cast<uint16_t>(i % 2 == 0 ? from.a[r] : from.a[r] >> 16);
          a_full[g + r % 2 * 8][2 * t + r / 2 * 8 + i % 2] = Bf16ToFloat(half);
        } else {
          a_full[lane / 2][lane % 2 * 8 + i] = HalfOf(from.pieces->a, i);
        }
      }
      for (int p = 0; p < kPieces; ++p) {
        const int piece = p * emulator::kWarp + lane;
        for (int i = 0; i < 8; ++i) {
          const float value = HalfOf(from.pieces->b[p], i);
          if (kTransposed) {
            b_full[piece / (kN / 8)][piece % (kN / 8) * 8 + i] = value;
          } else {
            b_full[piece % 2 * 8 + i][piece / 2] = value;
          }
        }
      }
    }
    // Element i of d is row g, and 8 more for i / 2 odd, and column 8 (i / 4) + 2t + i % 2.
    const auto place = [](int lane, int i) {
      return std::pair{lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
    };
    for (int lane = 0; lane < emulator::kWarp; ++lane) {
      for (int i = 0; i < kN / 2; ++i) {
        const auto [row, column] = place(lane, i);
        sum[row][column] = static_cast<const Lane*>(operands[lane])->sums[i];
      }
    }
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 16; ++k) {
        for (int n = 0; n < kN; ++n) sum[row][n] += a_full[row][k] * b_full[k][n];
      }
    }
    for (int lane = 0; lane < emulator::kWarp; ++lane) {
      for (int i = 0; i < kN / 2; ++i) {
        const auto [row, column] = place(lane, i);
        static_cast<const Lane*>(operands[lane])->sums[i] = sum[row][column];
      }
    }
  });
}

}  // namespace host

template <int kN>
void WgmmaShared(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate,
                 emulator::Site site = emulator::Site::current()) {
  host::MultiplyWarpgroup<kN, false>(d, nullptr, a, b, accumulate, site);
}
template <int kN>
void WgmmaRegisters(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                    emulator::Site site = emulator::Site::current()) {
  emulator::KeepRegisters(a);
  host::MultiplyWarpgroup<kN, true>(d, a, 0, b, true, site);
}

}  // namespace tramontane::cuda
