#include "kernels/cpu/block_panels.h"

#include <cstring>

namespace tramontane {
namespace {

constexpr bool HasBitPlane(DType type) { return type == DType::kQ5_0 || type == DType::kQ5_1; }

// Bit 4 g + i to bit 8 i + g.
uint32_t SpreadBits(uint32_t bits) {
  uint32_t spread = 0;
  for (uint32_t k = 0; k < 32; ++k) spread |= (bits >> k & 1u) << (k % 4 * 8 + k / 4);
  return spread;
}
uint32_t GatherBits(uint32_t spread) {
  uint32_t bits = 0;
  for (uint32_t k = 0; k < 32; ++k) bits |= (spread >> (k % 4 * 8 + k / 4) & 1u) << k;
  return bits;
}

// Where a lane's half, or word, stands in a panel's block.
int64_t HalfAt(int64_t half, int32_t panel_width, int64_t lane) { return (half * panel_width + lane) * 2; }
int64_t WordAt(const BlockWords& parts, int64_t word, int32_t panel_width, int64_t lane) {
  return int64_t{parts.halves} * panel_width * 2 + (word * panel_width + lane) * 4;
}

// Which of a panel's words a word of the file becomes. In q6_k the file has two times 16 words of low bits,
// of 128 numbers each, then two times 8 of high bits, then scales.
int64_t PlaceOfWord(DType type, int64_t word) {
  constexpr int64_t kLowWords = 32, kHighWords = 16, kScaleWords = 4;
  if (type != DType::kQ6K) return word;
  if (word >= kLowWords + kHighWords) return word - kLowWords - kHighWords;
  const bool high = word >= kLowWords;
  const int64_t half = high ? (word - kLowWords) / 8 : word / 16;
  return kScaleWords + (half * 8 + word % 8) * 3 + (high ? 0 : 1 + word / 8 % 2);
}

uint32_t LoadHalf(const std::byte* from) {
  uint16_t half = 0;
  std::memcpy(&half, from, sizeof(half));
  return half;
}

// Four nibbles of 16 bits to the low halves of four bytes.
uint32_t SpreadNibbles(uint32_t half) {
  half = (half | half << 8) & 0x00ff00ffu;
  return (half | half << 4) & 0x0f0f0f0fu;
}
uint16_t GatherNibbles(uint32_t word) {
  word &= 0x0f0f0f0fu;
  word = (word | word >> 4) & 0x00ff00ffu;
  return static_cast<uint16_t>(word | word >> 8);
}

// What differs between a word of four codes of a file and one of a panel: of int8, unsigned there and signed
// here around 128, the signs.
constexpr uint32_t ChangedOfCodes(DType type) {
  return (type == DType::kInt8 ? 0x80u : uint32_t{kFp8Inverted}) * 0x01010101u;
}

// Where a lane's parts of a group stand in a panel's.
struct LaneOfGroup {
  int64_t scale_at;
  int64_t zero_at;
  int32_t zero_shift;   // of int4: lanes of the second half have the high halves of the first's bytes
  int64_t words_at;     // the first
  int64_t word_stride;  // to the next

  LaneOfGroup(const Format& format, int32_t panel_width, int64_t lane)
      : scale_at(lane / format.scale_rows * format.scale_bytes()),
        zero_at(int64_t{panel_width} * format.packed_scale_bytes() +
                (format.dtype == DType::kInt4 ? lane % (panel_width / 2) : lane)),
        zero_shift(format.dtype == DType::kInt4 && lane >= panel_width / 2 ? 4 : 0),
        words_at(format.PackedCodesAt(panel_width) + lane * 4),
        word_stride(int64_t{panel_width} * 4) {}
};

void PutGroup(const Format& format, const std::byte* group, int32_t panel_width, int64_t lane,
              std::byte* panel_group) {
  const LaneOfGroup at(format, panel_width, lane);
  std::memcpy(panel_group + at.scale_at, group, static_cast<size_t>(format.scale_bytes()));
  if (format.zero_points != 0) {
    const int32_t zero = static_cast<int32_t>(group[format.scale_bytes()]) - format.least_zero;
    panel_group[at.zero_at] |= static_cast<std::byte>(zero << at.zero_shift);
  }
  const std::byte* codes = group + format.codes_at();
  std::byte* to = panel_group + at.words_at;
  for (int64_t word = 0; word < (format.block_bytes - format.codes_at()) / 4; ++word) {
    uint32_t bits = 0;
    if (format.dtype == DType::kInt4) {  // four words of 32 numbers: low halves, then 16 further on high ones
      const std::byte* from = codes + word / 4 * 16 + word % 4 * 2;
      bits = SpreadNibbles(LoadHalf(from)) | SpreadNibbles(LoadHalf(from + 8)) << 4;
    } else {
      std::memcpy(&bits, codes + word * 4, sizeof(bits));
      bits ^= ChangedOfCodes(format.dtype);
    }
    std::memcpy(to + word * at.word_stride, &bits, sizeof(bits));
  }
}

void TakeGroup(const Format& format, const std::byte* panel_group, int32_t panel_width, int64_t lane,
               std::byte* group) {
  const LaneOfGroup at(format, panel_width, lane);
  std::memcpy(group, panel_group + at.scale_at, static_cast<size_t>(format.scale_bytes()));
  if (format.zero_points != 0) {
    const int32_t mask = (1 << Format::ZeroBits(format.dtype)) - 1;
    const int32_t zero = static_cast<int32_t>(panel_group[at.zero_at]) >> at.zero_shift & mask;
    group[format.scale_bytes()] = static_cast<std::byte>(zero + format.least_zero);
  }
  std::byte* codes = group + format.codes_at();
  const std::byte* from = panel_group + at.words_at;
  for (int64_t word = 0; word < (format.block_bytes - format.codes_at()) / 4; ++word) {
    uint32_t bits = 0;
    std::memcpy(&bits, from + word * at.word_stride, sizeof(bits));
    if (format.dtype == DType::kInt4) {
      std::byte* to = codes + word / 4 * 16 + word % 4 * 2;
      const uint16_t low = GatherNibbles(bits), high = GatherNibbles(bits >> 4);
      std::memcpy(to, &low, sizeof(low));
      std::memcpy(to + 8, &high, sizeof(high));
    } else {
      bits ^= ChangedOfCodes(format.dtype);
      std::memcpy(codes + word * 4, &bits, sizeof(bits));
    }
  }
}

}  // namespace

void PutBlock(const Format& format, const std::byte* block, int32_t panel_width, int64_t lane,
              std::byte* panel_block) {
  if (format.in_groups()) return PutGroup(format, block, panel_width, lane, panel_block);
  const DType type = format.dtype;
  const BlockWords parts = WordsOfBlock(type);
  for (int32_t half = 0; half < parts.halves; ++half) {
    std::memcpy(panel_block + HalfAt(half, panel_width, lane), block + parts.halves_at + half * 2, 2);
  }
  for (int32_t word = 0; word < parts.words; ++word) {
    uint32_t bits = 0;
    std::memcpy(&bits, block + parts.words_at + word * 4, 4);
    if (word == 0 && HasBitPlane(type)) bits = SpreadBits(bits);
    std::memcpy(panel_block + WordAt(parts, PlaceOfWord(type, word), panel_width, lane), &bits, 4);
  }
}

void TakeBlock(const Format& format, const std::byte* panel_block, int32_t panel_width, int64_t lane,
               std::byte* block) {
  if (format.in_groups()) return TakeGroup(format, panel_block, panel_width, lane, block);
  const DType type = format.dtype;
  const BlockWords parts = WordsOfBlock(type);
  for (int32_t half = 0; half < parts.halves; ++half) {
    std::memcpy(block + parts.halves_at + half * 2, panel_block + HalfAt(half, panel_width, lane), 2);
  }
  for (int32_t word = 0; word < parts.words; ++word) {
    uint32_t bits = 0;
    std::memcpy(&bits, panel_block + WordAt(parts, PlaceOfWord(type, word), panel_width, lane), 4);
    if (word == 0 && HasBitPlane(type)) bits = GatherBits(bits);
    std::memcpy(block + parts.words_at + word * 4, &bits, 4);
  }
}

}  // namespace tramontane
