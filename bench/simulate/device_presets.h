// The devices of configs/devices/, which are part of the program. Any thread; pure.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace tramontane::simulate {

// Names, which are those of the files without .json, and texts; by name.
const std::vector<std::pair<std::string_view, std::string_view>>& DevicePresets();

}  // namespace tramontane::simulate
