// JSON at the edge: what clients sent, parsed under limits, and the pieces of what they get.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kernels/core/status.h"

namespace tramontane {

// Keys keep the order in which they were sent: a model reads the schemas of its tools in that order.
using Json = nlohmann::ordered_json;

// What a text may hold. More of any: INVALID_ARGUMENT, before a value is built.
struct JsonLimits {
  int32_t max_depth = 64;            // brackets inside each other: printing and freeing recurse
  int64_t max_values = 1 << 20;      // 16 bytes of memory each
  int64_t max_containers = 1 << 18;  // arrays and objects: 50 bytes more
  int32_t max_object_keys = 1024;    // of one object: a look-up walks them
  int64_t max_total_keys = 1 << 17;  // of all objects
};

// INVALID_ARGUMENT says what is wrong and at which byte. Strings are checked to be UTF-8.
StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// `value` on one line, without blanks.
std::string PrintJson(const Json& value);

// A number that is whole as an integer: 0, not 0.0.
Json NumberJson(double number);

// `bytes` as a JSON string with its quotes. What is not UTF-8 becomes U+FFFD, so the result always is. No
// character at which any reader of lines would end one stands in it as it is.
void AppendJsonString(std::string_view bytes, std::string* out);
std::string JsonString(std::string_view bytes);

void AppendJsonInteger(int64_t value, std::string* out);

// A log probability. JSON has no infinity: what is not finite is written as -9999.0, as other servers do.
void AppendJsonLogprob(float value, std::string* out);

}  // namespace tramontane
