// Ascend's masks and FlashInfer's, from the builders of kernels/masks.h.
#include <string>
#include <vector>

#include "kernels/foreign_kv.h"
#include "kernels/masks.h"
#include "tests/kv_vectors/kinds.h"

namespace tramontane::kv_vectors {
namespace {

constexpr int32_t kMaxAscendLength = 1 << 15;

AscendMaskSpec ReadSpec(CaseReader& reader, const char* window) {
  AscendMaskSpec spec;
  spec.window = static_cast<int32_t>(reader.Int(window, 1, kMaxAscendLength));
  spec.head_size = static_cast<int32_t>(reader.Int("head_size", 1, kMaxAscendLength));
  spec.rule = reader.OneOf("rule", {"python", "cpp"}) == 0 ? AscendRule::kPython : AscendRule::kCpp;
  return spec;
}

// The rows of a mask, with its masked value read back from the matrix.
Status ExpectRows(CaseRun& run, const DenseMask& mask, double masked_value) {
  for (int32_t row = 0; row < mask.size; ++row) {
    for (int32_t column = 0; column < mask.size; ++column) {
      const bool visible =
          column >= mask.first[static_cast<size_t>(row)] && column < mask.end[static_cast<size_t>(row)];
      if (mask.At(row, column) == (visible ? 0 : masked_value)) continue;
      return Internal("row " + std::to_string(row) + " holds " + std::to_string(mask.At(row, column)) +
                      " in column " + std::to_string(column));
    }
  }
  TM_RETURN_IF_ERROR(run.Expect("first", mask.first));
  return run.Expect("end", mask.end);
}

}  // namespace

Status RunAscendMask(CaseRun& run) {
  CaseReader& reader = run.reader();
  const bool is_full = reader.OneOf("form", {"full", "compressed"}) == 0;
  const auto maxseq = static_cast<int32_t>(reader.Int("maxseq", 1, kMaxAscendLength));
  const double masked_value = reader.Number("masked_value");
  if (is_full) {
    const auto window = static_cast<int32_t>(reader.Int("window", 1, kMaxAscendLength));
    TM_RETURN_IF_ERROR(reader.status());
    TM_ASSIGN_OR_RETURN(const DenseMask mask, AscendFullMask(maxseq, window, masked_value));
    return ExpectRows(run, mask, masked_value);
  }
  const AscendMaskSpec spec = ReadSpec(reader, "window");
  TM_RETURN_IF_ERROR(reader.status());
  TM_ASSIGN_OR_RETURN(const AscendCompressedMask compressed, MakeAscendCompressedMask(spec, masked_value));
  TM_RETURN_IF_ERROR(run.Expect("block", std::vector<int32_t>{compressed.block}));
  TM_RETURN_IF_ERROR(run.Expect("compressed_window", std::vector<int32_t>{compressed.compressed_window}));
  return ExpectRows(run, compressed.mask, masked_value);
}

Status RunAscendTiles(CaseRun& run) {
  CaseReader& reader = run.reader();
  const AscendMaskSpec spec = ReadSpec(reader, "window");
  const auto seqlen = static_cast<int32_t>(reader.Int("seqlen", 1, kMaxAscendLength));
  TM_RETURN_IF_ERROR(reader.status());
  TM_ASSIGN_OR_RETURN(const AscendCompressedMask compressed, MakeAscendCompressedMask(spec, 1));
  TM_ASSIGN_OR_RETURN(const std::vector<int32_t> tiles, AscendTiles(spec, seqlen));
  TM_RETURN_IF_ERROR(run.Expect("block", std::vector<int32_t>{compressed.block}));
  TM_RETURN_IF_ERROR(run.Expect("compressed_window", std::vector<int32_t>{compressed.compressed_window}));
  return run.Expect("tile", tiles);
}

Status RunFlashInferMask(CaseRun& run) {
  CaseReader& reader = run.reader();
  const std::vector<int32_t> qo_indptr = reader.Ints("qo_indptr", {-1});
  const std::vector<int32_t> kv_indptr = reader.Ints("kv_indptr", {static_cast<int64_t>(qo_indptr.size())});
  const std::vector<uint8_t> data = reader.Bytes("mask_data", {-1});
  TM_RETURN_IF_ERROR(reader.status());
  const int64_t batch = std::ssize(qo_indptr) - 1;
  TM_RETURN_IF_ERROR(CheckIndptr("qo_indptr", qo_indptr, batch));
  TM_RETURN_IF_ERROR(CheckIndptr("kv_indptr", kv_indptr, batch));
  std::vector<int32_t> queries, keys;
  for (size_t b = 1; b < qo_indptr.size(); ++b) {
    queries.push_back(qo_indptr[b] - qo_indptr[b - 1]);
    keys.push_back(kv_indptr[b] - kv_indptr[b - 1]);
  }
  TM_ASSIGN_OR_RETURN(const RaggedMask mask, MaskOfBools(queries, keys, data));
  TM_RETURN_IF_ERROR(run.Expect("mask_indptr", std::vector<double>(mask.indptr.begin(), mask.indptr.end())));
  const std::vector<uint8_t> flat = PackFlat(mask);
  TM_RETURN_IF_ERROR(run.Expect("packed", std::vector<double>(flat.begin(), flat.end())));
  const PackedMask packed = PackSegments(mask);
  TM_RETURN_IF_ERROR(
      run.Expect("segment_packed", std::vector<double>(packed.bits.begin(), packed.bits.end())));
  TM_RETURN_IF_ERROR(run.Expect("segment_packed_indptr", packed.indptr));
  // Bits read back are the mask that was packed.
  TM_ASSIGN_OR_RETURN(const RaggedMask again, MaskOfBits(queries, keys, packed.bits, packed.indptr));
  return again.visible == mask.visible ? Status::Ok()
                                       : Internal("segments that were packed read back as another mask");
}

}  // namespace tramontane::kv_vectors
