// CallListSchema: what a list of calls is, in the formats that have no marks within calls, v2 to v7: a JSON
// list of objects with a tool's name and arguments that are valid under its schema. Pure functions; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "server/answers/constraint_convert.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

inline constexpr char kAnyObject[] = R"({"type":"object"})";

// A tool whose calls are in the list.
struct ListedTool {
  int index = 0;       // in chat.tools
  std::string schema;  // of its arguments, an object: JSON
};

// Tools whose arguments are kAnyObject are one alternative together, so that thousands have room. `source`
// says which field each part of it came from: "chat.tools[1].parameters". REQUIRES: at least one
// tool.
std::string CallListSchema(const v1::Chat& chat, const std::vector<ListedTool>& tools, bool one_call,
                           ConstraintSource* source);

}  // namespace tramontane
