#include "kernels/weight.h"

#include <cstddef>
#include <vector>

namespace tramontane {
namespace {

// Whether each of `count` columns has an input of its own; null: in order.
bool IsPermutation(const int32_t* column_order, int64_t count) {
  if (column_order == nullptr) return true;
  std::vector<bool> seen(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) {
    const int64_t input = column_order[k];
    if (input < 0 || input >= count || seen[static_cast<size_t>(input)]) return false;
    seen[static_cast<size_t>(input)] = true;
  }
  return true;
}

std::string WhyNotPart(const WeightRows& part, int64_t in_features) {
  const Format& format = part.format;
  if (!format.well_formed()) {
    return "is " + FormatName(format) +
           ", supported are the types by themselves, and those in groups of 32 to 256";
  }
  if (!IsPermutation(part.column_order, in_features)) {
    return "has columns in an order that is no permutation of " + std::to_string(in_features);
  }
  if (part.rows % format.scale_rows != 0) {
    return "has " + std::to_string(part.rows) + " rows, of which every " + std::to_string(format.scale_rows) +
           " share their scales";
  }
  // A row's last group may be filled up, a part of it that backends multiply at once may not.
  constexpr int64_t kGroupPart = 32;
  const int64_t whole = format.in_groups() ? kGroupPart : format.block_size();
  if (in_features % whole != 0) {
    return "is " + FormatName(format) + " in rows of " + std::to_string(in_features) +
           ", which are no whole blocks of " + std::to_string(whole);
  }
  if (part.rows < 1 || part.rows > kMaxFeatures) {
    return "has " + std::to_string(part.rows) + " rows, supported are 1 to " + std::to_string(kMaxFeatures);
  }
  if (part.row_stride < in_features || part.row_stride % format.block_size() != 0) {
    return "has rows of " + std::to_string(in_features) + " elements every " +
           std::to_string(part.row_stride);
  }
  return "";
}

std::string WhyMalformed(const LinearSource& source) {
  if (source.in_features < 1 || source.in_features > kMaxFeatures) {
    return "in_features is " + std::to_string(source.in_features) + ", supported are 1 to " +
           std::to_string(kMaxFeatures);
  }
  if (source.part_count < 1) return "a linear weight without parts";
  for (int32_t i = 0; i < source.part_count; ++i) {
    const std::string reason = WhyNotPart(source.parts[i], source.in_features);
    if (!reason.empty()) return "part " + std::to_string(i) + " " + reason;
  }
  if (source.layout == LinearLayout::kGateUp &&
      (source.part_count != 2 || source.parts[0].rows != source.parts[1].rows)) {
    return "a gate-up weight needs two parts of equal rows";
  }
  return "";
}

}  // namespace

std::string WhyNotPackable(const LinearSource& source, const PackingLimits& limits) {
  if (std::string reason = WhyMalformed(source); !reason.empty()) return reason;
  const std::string takes = "; " + std::string(limits.backend) + " takes ";
  if (source.part_count > limits.max_parts) {
    return std::to_string(source.part_count) + " parts" + takes + "up to " + std::to_string(limits.max_parts);
  }
  if (source.in_features % limits.in_features_multiple != 0) {
    return std::to_string(source.in_features) + " input features" + takes + "multiples of " +
           std::to_string(limits.in_features_multiple);
  }
  for (int32_t i = 0; i < source.part_count; ++i) {
    if (source.use == WeightUse::kExpert && source.parts[i].column_order != nullptr &&
        source.in_features > limits.max_expert_order) {
      return "an expert's " + std::to_string(source.in_features) + " columns in an order of their own" +
             takes + "up to " + std::to_string(limits.max_expert_order);
    }
  }
  if (source.layout == LinearLayout::kGateUp && source.parts[0].rows % limits.gate_rows_multiple != 0) {
    return std::to_string(source.parts[0].rows) + " gate rows" + takes + "multiples of " +
           std::to_string(limits.gate_rows_multiple);
  }
  return "";
}

}  // namespace tramontane
