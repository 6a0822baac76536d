#include "kernels/cuda/weight_packing.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/block_types.h"
#include "kernels/core/check.h"
#include "kernels/cuda/blocks.h"

namespace tramontane::cuda {
namespace {

// Whether a part stands in rows of fp8 where that is wanted. Products of fp8 come in sixteens of outputs.
bool FitsFp8Rows(const LinearSource& source, const WeightRows& part) {
  return source.use == WeightUse::kLinear && part.format.dtype == DType::kFp8E4M3 &&
         part.format.in_groups() && part.scale_of_row != 0 && part.column_order == nullptr &&
         part.rows % kUnitRows == 0 && source.in_features % part.format.block_size() == 0;
}

// What a segment holds of a part of this format.
Format PackedFormat(const Format& format, bool fp8_rows) {
  if (fp8_rows) return Format::InGroups(DType::kFp8E4M3, format.block_log2, DType::kF32);
  return format.plain() ? DType::kBf16 : format;
}

// The row of the source, parts one after the other, that stands in a row of a segment.
int64_t SourceRow(const PackedSegment& segment, int64_t packed) {
  if (segment.layout == LinearLayout::kStacked) return segment.first_row + packed;
  return GateUpRow(packed, kGateUpRun, segment.rows);
}

const Format& FormatOfRow(const LinearSource& source, int64_t row) {
  for (int32_t i = 0; i < source.part_count; ++i) {
    if (row < source.parts[i].rows) return source.parts[i].format;
    row -= source.parts[i].rows;
  }
  TM_CHECK(false, "row beyond the parts of a source");
}

// ---- plain

void ConvertRow(const std::byte* row, DType dtype, int64_t count, std::byte* out) {
  if (dtype == DType::kBf16) {
    std::memcpy(out, row, static_cast<size_t>(count) * sizeof(uint16_t));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    float value = 0.0f;
    if (dtype == DType::kF32) {
      std::memcpy(&value, row + i * int64_t{sizeof(value)}, sizeof(value));
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, row + i * int64_t{sizeof(bits)}, sizeof(bits));
      value = F16ToFloat(bits);
    }
    const uint16_t rounded = FloatToBf16(value);
    std::memcpy(out + i * int64_t{sizeof(rounded)}, &rounded, sizeof(rounded));
  }
}

// ---- blocks: what a row's blocks hold, and where a unit has it

constexpr int kMostNumbers = 256;

// The blocks of one row in a unit.
struct RowOfUnit {
  uint8_t number[kMostNumbers];  // without its sign: what is subtracted from it comes after
  uint8_t scales[18];            // as a unit has them
};

const uint8_t* Unsigned(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }

// The low halves of `count` bytes as numbers, and the high halves.
void ReadNibbles(const uint8_t* bytes, int count, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < count; ++i) low[i] = bytes[i] & 15;
  for (int i = 0; i < count; ++i) high[i] = bytes[i] >> 4;
}

// Blocks of 32: scales, high bits, low bits.
void ReadSmallBlock(DType type, const uint8_t* block, RowOfUnit* row) {
  const int scale_bytes = LayoutOf(type).scale_bytes / kUnitRows;
  const bool five_bits = type == DType::kQ5_0 || type == DType::kQ5_1;
  std::memcpy(row->scales, block, static_cast<size_t>(scale_bytes));
  block += scale_bytes;
  if (type == DType::kQ8_0) {
    for (int i = 0; i < 32; ++i) row->number[i] = static_cast<uint8_t>(block[i] ^ 128);
    return;
  }
  ReadNibbles(five_bits ? block + 4 : block, 16, row->number, row->number + 16);
  if (!five_bits) return;
  uint32_t high = 0;
  std::memcpy(&high, block, sizeof(high));
  for (int i = 0; i < 32; ++i) row->number[i] = static_cast<uint8_t>(row->number[i] | (high >> i & 1) << 4);
}

void ReadGroupedBlock(DType type, const uint8_t* block, RowOfUnit* row) {
  std::memcpy(row->scales, block, 16);
  const uint8_t* high = block + 16;
  const uint8_t* low = type == DType::kQ5K ? high + 32 : high;
  for (int pair = 0; pair < 4; ++pair) {
    ReadNibbles(low + 32 * pair, 32, row->number + 64 * pair, row->number + 64 * pair + 32);
  }
  if (type != DType::kQ5K) return;
  for (int group = 0; group < 8; ++group) {
    uint8_t* number = row->number + 32 * group;
    for (int i = 0; i < 32; ++i) number[i] = static_cast<uint8_t>(number[i] | (high[i] >> group & 1) << 4);
  }
}

void ReadQ6KBlock(const uint8_t* block, RowOfUnit* row) {
  std::memcpy(row->scales, block + 192, 18);
  for (int half = 0; half < 2; ++half) {  // four runs of 32 each
    const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
    uint8_t* number = row->number + 128 * half;
    ReadNibbles(low, 64, number, number + 64);
    for (int run = 0; run < 4; ++run, number += 32) {
      for (int i = 0; i < 32; ++i)
        number[i] = static_cast<uint8_t>(number[i] | (high[i] >> 2 * run & 3) << 4);
    }
  }
}

void ReadGroup(const Format& format, const uint8_t* group, RowOfUnit* row) {
  std::memcpy(row->scales, group, static_cast<size_t>(format.codes_at()));
  const uint8_t* codes = group + format.codes_at();
  for (int i = 0; i < format.block_size(); ++i) {
    row->number[i] =
        static_cast<uint8_t>(format.dtype == DType::kInt4 ? codes[i / 2] >> i % 2 * 4 & 15 : codes[i]);
  }
}

void ReadBlock(const Format& format, const std::byte* block, RowOfUnit* row) {
  const DType type = format.dtype;
  if (format.in_groups()) {
    ReadGroup(format, Unsigned(block), row);
  } else if (type == DType::kQ6K) {
    ReadQ6KBlock(Unsigned(block), row);
  } else if (LayoutOf(type).tiles == 1) {
    ReadSmallBlock(type, Unsigned(block), row);
  } else {
    ReadGroupedBlock(type, Unsigned(block), row);
  }
}

// Eight numbers of half `half` of lane `lane` in a tile.
void WriteNumbers(const UnitLayout& layout, const uint8_t* number, int tile, int lane, int half,
                  uint8_t* unit) {
  uint8_t* run = unit + tile / layout.run_tiles * layout.run_bytes();
  const int in_run = tile % layout.run_tiles;
  if (layout.low_bits == 8) {
    std::memcpy(run + lane * 16 + half * 8, number, 8);
    return;
  }
  uint32_t first = 0, second = 0;  // numbers 0-3 and 4-7, a byte each
  std::memcpy(&first, number, sizeof(first));
  std::memcpy(&second, number + 4, sizeof(second));
  const uint32_t low = (first & 0x0f0f0f0fu) | (second & 0x0f0f0f0fu) << 4;
  std::memcpy(run + lane * 8 * layout.run_tiles + in_run * 8 + half * 4, &low, sizeof(low));
  if (layout.high_bits == 0) return;
  uint8_t* high = run + layout.low_bytes();
  int place = 2 * half;
  if (layout.high_bits == 2) {
    high += (lane * layout.run_tiles + in_run) * 4;
  } else if (layout.run_tiles == 2) {
    high += lane * 4;
    place += 4 * in_run;
  } else {
    high += lane / 2 * 4;
    place += 4 * (lane % 2);
  }
  uint32_t bits = 0;
  std::memcpy(&bits, high, sizeof(bits));
  bits |= (first >> 4 & 0x03030303u) << (layout.high_bits * place);
  bits |= (second >> 4 & 0x03030303u) << (layout.high_bits * (place + 1));
  std::memcpy(high, &bits, sizeof(bits));
}

void WriteScales(const Format& format, const uint8_t* scales, int g, int half, uint8_t* at) {
  if (format.in_groups()) {
    const int bytes = format.scale_bytes();
    std::memcpy(at + (2 * (g / format.scale_rows) + half) * bytes, scales, static_cast<size_t>(bytes));
    if (format.zero_points == 0) return;
    uint8_t* zeros = at + kUnitRows * format.packed_scale_bytes();
    if (format.dtype == DType::kInt4) {
      zeros[g] = static_cast<uint8_t>(zeros[g] | (scales[bytes] - format.least_zero) << (4 * half));
    } else {
      zeros[2 * g + half] = scales[bytes];
    }
    return;
  }
  const int bytes = LayoutOf(format).scale_bytes / kUnitRows;
  if (bytes < 16) {
    std::memcpy(at + (2 * g + half) * bytes, scales, static_cast<size_t>(bytes));
    return;
  }
  std::memcpy(at + (8 * half + g) * 16, scales, 16);
  if (bytes > 16) std::memcpy(at + kUnitRows * 16 + (2 * g + half) * 2, scales + 16, 2);
}

// Row `in_unit` of 16, one block, into its unit, which was zeros.
void WriteRow(const Format& format, const RowOfUnit& row, int in_unit, uint8_t* unit) {
  const UnitLayout layout = LayoutOf(format);
  const int g = in_unit % 8, half = in_unit / 8;
  for (int tile = 0; tile < layout.tiles; ++tile) {
    for (int t = 0; t < 4; ++t) {
      WriteNumbers(layout, row.number + tile * kTileNumbers + 8 * t, tile, g * 4 + t, half, unit);
    }
  }
  WriteScales(format, row.scales, g, half, unit + layout.scales_at());
}

void PackUnits(const PackedSegment& segment, int64_t first_row, const SourceRows& rows, uint8_t* out) {
  const Format& format = segment.format;
  const UnitLayout layout = LayoutOf(format);
  TM_CHECK(layout.tiles > 0, "%s does not stand in blocks", FormatName(format).c_str());
  const int64_t units = layout.units(segment.in_features);
  std::memset(out, 0, static_cast<size_t>(units * layout.bytes()));
  for (int i = 0; i < kUnitRows && first_row + i < segment.rows; ++i) {
    const std::byte* blocks = rows.Row(SourceRow(segment, first_row + i));
    for (int64_t u = 0; u < units; ++u) {
      RowOfUnit row;
      ReadBlock(format, blocks + u * format.block_bytes, &row);
      WriteRow(format, row, i, out + u * layout.bytes());
    }
  }
}

// ---- fp8 in rows

float ScaleOf(const Format& format, const std::byte* block) {
  if (format.scale == DType::kF32) {
    float value = 0.0f;
    std::memcpy(&value, block, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, block, sizeof(bits));
  return format.scale == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
}

// The numbers of a row of groups into out [in_features]; their scale.
float PackFp8Row(const Format& format, const std::byte* row, int64_t in_features, std::byte* out) {
  for (int64_t k = 0; k < in_features; k += format.block_size()) {
    const std::byte* const block = row + format.Bytes(k);
    TM_CHECK(std::memcmp(block, row, static_cast<size_t>(format.scale_bytes())) == 0,
             "a row with a scale of its own has several");
    std::memcpy(out + k, block + format.codes_at(), static_cast<size_t>(format.block_size()));
  }
  return ScaleOf(format, row);
}

// ---- what can be packed

// The segment that a part begins, still without rows.
PackedSegment SegmentOf(const LinearSource& source, const WeightRows& part, Fp8Form fp8) {
  const bool rows = fp8 == Fp8Form::kRows && FitsFp8Rows(source, part);
  return {.format = PackedFormat(part.format, rows),
          .in_features = source.in_features,
          .column_order = part.column_order,
          .fp8_rows = rows};
}

// Whether two parts may be of one segment.
bool StandTogether(const LinearSource& source, int32_t a, int32_t b, Fp8Form fp8) {
  const PackedSegment first = SegmentOf(source, source.parts[a], fp8),
                      second = SegmentOf(source, source.parts[b], fp8);
  return first.format == second.format && first.fp8_rows == second.fp8_rows &&
         SameColumnOrder(source.parts[a], source.parts[b], source.in_features);
}

}  // namespace

int64_t PackedSegment::rows_at_once() const {
  return in_blocks() ? kUnitRows : layout == LinearLayout::kGateUp ? 2 * kGateUpRun : 1;
}

int64_t PackedSegment::bytes_at_once() const {
  if (in_blocks()) return UnitsBytes(format, kUnitRows, in_features);
  return rows_at_once() * in_features * (fp8_rows ? 1 : 2);
}

int64_t PackedSegment::bytes() const {
  return (rows + rows_at_once() - 1) / rows_at_once() * bytes_at_once();
}

std::vector<PackedSegment> SegmentsOf(const LinearSource& source, Fp8Form fp8) {
  std::vector<PackedSegment> segments;
  int64_t row = 0;
  for (int32_t i = 0; i < source.part_count; ++i) {
    if (i == 0 || !StandTogether(source, i - 1, i, fp8)) {
      segments.push_back(SegmentOf(source, source.parts[i], fp8));
      segments.back().first_row = row;
    } else {
      segments.back().layout = source.layout;
    }
    segments.back().rows += source.parts[i].rows;
    row += source.parts[i].rows;
  }
  return segments;
}

bool PackSegment(const LinearSource& source, const PackedSegment& segment, int64_t begin, int64_t count,
                 SourceRows& rows, std::byte* out, float* row_scales) {
  TM_CHECK(segment.layout == source.layout, "rows of a gate and an up are taken apart or together");
  const int64_t at_once = segment.rows_at_once(), end = std::min((begin + count) * at_once, segment.rows);
  // A row of gate and one of up are one output.
  const int64_t rows_of_output = segment.layout == LinearLayout::kGateUp ? 2 : 1;
  if (!rows.Take((segment.first_row + begin * at_once) / rows_of_output,
                 (segment.first_row + end) / rows_of_output))
    return false;
  for (int64_t row = begin * at_once; row < end; row += segment.in_blocks() ? kUnitRows : 1) {
    if (segment.in_blocks()) {
      PackUnits(segment, row, rows, reinterpret_cast<uint8_t*>(out));
      out += segment.bytes_at_once();
    } else {
      const int64_t from = SourceRow(segment, row);
      const Format& format = FormatOfRow(source, from);
      if (segment.fp8_rows) {
        *row_scales++ = PackFp8Row(format, rows.Row(from), segment.in_features, out);
      } else {
        ConvertRow(rows.Row(from), format.dtype, segment.in_features, out);
      }
      out += segment.bytes_at_once() / segment.rows_at_once();
    }
  }
  return true;
}

}  // namespace tramontane::cuda
