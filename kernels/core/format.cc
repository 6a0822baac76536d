#include "kernels/core/format.h"

namespace tramontane {

std::string FormatName(const Format& format) {
  const std::string name = DTypeName(format.dtype);
  if (format.plain()) return name;
  return name + " in blocks of " + std::to_string(int64_t{1} << format.block_log2);
}

}  // namespace tramontane
