// TraceContext: the trace that a request is part of, as W3C's Trace Context has it (traceparent, tracestate).
// This server records no spans: what came is kept and passed on as it came. A plain value; pure functions;
// any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tramontane {

// Header and metadata, both ways.
inline constexpr char kTraceParentKey[] = "traceparent";
inline constexpr char kTraceStateKey[] = "tracestate";

inline constexpr size_t kMaxTraceStateBytes = 512;
inline constexpr size_t kMaxTraceStateMembers = 32;

struct TraceContext {
  // "00-" 32 digits "-" 16 digits "-" 2 digits; "": the request is part of none.
  std::string parent = {};
  std::string state = {};  // "": none

  std::string_view trace_id() const { return parent.empty() ? "" : std::string_view(parent).substr(3, 32); }
};

// Of all fields of either name, in their order. What is malformed is as if it were not there: a traceparent
// that is none or one of several, with its tracestate; a tracestate of which a member is none. Of a version
// that is to come the known part is taken, as version 00. Of a tracestate that is longer than its bounds
// whole members go, those over 128 bytes first, then the last ones.
TraceContext ReadTraceContext(const std::vector<std::string_view>& parents,
                              const std::vector<std::string_view>& states);

}  // namespace tramontane
