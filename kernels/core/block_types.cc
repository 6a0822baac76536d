#include "kernels/core/block_types.h"

#include <bit>
#include <cstring>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// Bytes of a block, read in turn.
class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(reinterpret_cast<const uint8_t*>(at)) {}

  float Half() {
    uint16_t bits = 0;
    std::memcpy(&bits, at_, sizeof(bits));
    at_ += sizeof(bits);
    return F16ToFloat(bits);
  }
  const uint8_t* Bytes(int64_t count) {
    const uint8_t* bytes = at_;
    at_ += count;
    return bytes;
  }

 private:
  const uint8_t* at_;
};

int Nibble(const uint8_t* bytes, int i, int half) { return half == 0 ? bytes[i] & 15 : bytes[i] >> 4; }

// Blocks of 32 whose low four bits stand as the first 16 numbers in the low halves of bytes, then the others.
void DecodeSmall(DType type, const std::byte* block, float* out) {
  Reader reader(block);
  const bool five_bits = type == DType::kQ5_0 || type == DType::kQ5_1;
  const bool has_minimum = type == DType::kQ4_1 || type == DType::kQ5_1;
  const int middle = has_minimum ? 0 : five_bits ? 16 : 8;
  const float scale = reader.Half();
  const float minimum = has_minimum ? reader.Half() : 0.0f;
  const uint8_t* high = five_bits ? reader.Bytes(4) : nullptr;
  const uint8_t* low = reader.Bytes(16);
  for (int i = 0; i < 32; ++i) {
    int q = Nibble(low, i % 16, i / 16);
    if (high != nullptr) q |= (high[i / 8] >> i % 8 & 1) << 4;
    out[i] = scale * static_cast<float>(q - middle);
    if (has_minimum) out[i] += minimum;
  }
}

void DecodeQ8(const std::byte* block, float* out) {
  Reader reader(block);
  const float scale = reader.Half();
  const uint8_t* bytes = reader.Bytes(32);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(bytes[i]));
}

// 64 numbers share 32 bytes: the first 32 stand in their low halves.
void DecodeWithGroups(DType type, const std::byte* block, float* out) {
  Reader reader(block);
  const float scale = reader.Half();
  const float minimum = reader.Half();
  const GroupScales groups = UnpackGroupScales(reinterpret_cast<const std::byte*>(reader.Bytes(12)));
  const uint8_t* high = type == DType::kQ5K ? reader.Bytes(32) : nullptr;
  const uint8_t* low = reader.Bytes(128);
  for (int group = 0; group < 8; ++group) {
    const float group_scale = scale * static_cast<float>(groups.scale[group]);
    const float group_minimum = minimum * static_cast<float>(groups.minimum[group]);
    for (int i = 0; i < 32; ++i) {
      int q = Nibble(low + group / 2 * 32, i, group % 2);
      if (high != nullptr) q |= (high[i] >> group & 1) << 4;
      *out++ = group_scale * static_cast<float>(q) - group_minimum;
    }
  }
}

// 128 numbers, four runs of 32, share 64 bytes of low halves and 32 of high pairs of bits.
void DecodeQ6K(const std::byte* block, float* out) {
  Reader reader(block);
  const uint8_t* low = reader.Bytes(128);
  const uint8_t* high = reader.Bytes(64);
  const uint8_t* scales = reader.Bytes(16);
  const float scale = reader.Half();
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128, run = k % 128 / 32, i = k % 32;
    const int q = Nibble(low + half * 64 + run % 2 * 32, i, run / 2) | (high[half * 32 + i] >> 2 * run & 3)
                                                                           << 4;
    out[k] = scale * static_cast<float>(static_cast<int8_t>(scales[k / 16])) * static_cast<float>(q - 32);
  }
}

float ReadScale(Reader& reader, DType scale) {
  if (scale == DType::kF16) return reader.Half();
  uint32_t bits = 0;  // of an f32, whose upper half is a bf16
  if (scale == DType::kF32) {
    std::memcpy(&bits, reader.Bytes(4), sizeof(bits));
  } else {
    uint16_t upper = 0;
    std::memcpy(&upper, reader.Bytes(2), sizeof(upper));
    bits = uint32_t{upper} << 16;
  }
  return std::bit_cast<float>(bits);
}

void DecodeGroup(const Format& format, const std::byte* block, float* out) {
  Reader reader(block);
  const float scale = ReadScale(reader, format.scale);
  const int zero = format.zero_points != 0 ? *reader.Bytes(1) : format.middle();
  const uint8_t* codes = reader.Bytes(0);
  for (int64_t i = 0; i < format.block_size(); ++i) {
    if (format.dtype == DType::kFp8E4M3) {
      out[i] = scale * Fp8E4M3ToFloat(codes[i]);
    } else {
      const int q = format.dtype == DType::kInt4 ? codes[i / 2] >> i % 2 * 4 & 15 : codes[i];
      out[i] = scale * static_cast<float>(q - zero);
    }
  }
}

void DecodeBlock(const Format& format, const std::byte* block, float* out) {
  const DType type = format.dtype;
  switch (type) {
    case DType::kQ8_0:
      return DecodeQ8(block, out);
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
      return DecodeSmall(type, block, out);
    case DType::kQ4K:
    case DType::kQ5K:
      return DecodeWithGroups(type, block, out);
    case DType::kQ6K:
      return DecodeQ6K(block, out);
    case DType::kInt4:
    case DType::kInt8:
    case DType::kFp8E4M3:
      return DecodeGroup(format, block, out);
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
      break;
  }
  TM_CHECK(false, "%s does not stand in blocks", DTypeName(type));
}

}  // namespace

// Groups 0 to 3 have their six bits in one byte each; of the others the low four stand in the last four bytes
// and the high two on top of the first eight.
GroupScales UnpackGroupScales(const std::byte* packed) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(packed);
  GroupScales groups = {};
  for (int i = 0; i < 4; ++i) {
    groups.scale[i] = bytes[i] & 63;
    groups.minimum[i] = bytes[4 + i] & 63;
    groups.scale[4 + i] = static_cast<uint8_t>((bytes[8 + i] & 15) | (bytes[i] >> 6) << 4);
    groups.minimum[4 + i] = static_cast<uint8_t>(bytes[8 + i] >> 4 | (bytes[4 + i] >> 6) << 4);
  }
  return groups;
}

void DecodeBlocks(const Format& format, const std::byte* blocks, int64_t count, float* out) {
  TM_CHECK(count % format.block_size() == 0, "%lld numbers are no whole blocks of %s",
           static_cast<long long>(count), FormatName(format).c_str());
  for (int64_t i = 0; i < count; i += format.block_size())
    DecodeBlock(format, blocks + format.Bytes(i), out + i);
}

}  // namespace tramontane
