#include "kernels/core/format.h"

namespace tramontane {

std::string FormatName(const Format& format) {
  std::string name = DTypeName(format.dtype);
  if (format == Format::BareFp8()) return name;
  if (format.in_groups()) {
    name += " in groups of " + std::to_string(format.block_size()) + " with " + DTypeName(format.scale);
    name += format.scale_rows == 2 ? " scales of two rows" : " scales";
    return name + (format.zero_points != 0 ? " and zero points" : "");
  }
  if (format == Format(format.dtype)) return name;
  return name + " in blocks of " + std::to_string(format.block_size());
}

}  // namespace tramontane
