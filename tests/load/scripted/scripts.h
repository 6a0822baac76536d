// Scripts of what servers do, well and badly. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/load/scripted/scripted_target.h"

namespace tramontane::load {

// A stream that is as it should be.
struct StreamScript {
  int64_t ttft_ns = 0;  // from the request to the first content event
  int64_t gap_ns = 0;   // between content events
  int32_t events = 1;   // of content
  int32_t tokens_per_event = 1;
  int32_t events_per_write = 1;
  bool with_usage = true;
  bool chat = false;
};
Script Stream(const StreamScript& stream);

// The same up to behind its events, then without finish, usage, [DONE] and the body's end.
Script BrokenOff(const StreamScript& stream, ScriptEnd end);
Script ErrorEventAfter(const StreamScript& stream);
Script StatusAnswer(int32_t status, const std::string& retry_after, const std::string& message);
Script NoTokens();  // role, empty, finish, usage, [DONE]
Script NothingButDone();
Script Silent();              // the head, and nothing more
Script SilentFromTheBegin();  // nothing at all
Script SlowHead(
    int64_t gap_ns);  // a byte of a head that never ends every `gap_ns`, for a minute's worth of bytes
Script ClosedWithoutAByte();

// Answers that are not what was asked for, each with what it is.
struct NamedScript {
  std::string name;
  Script script;
};
std::vector<NamedScript> GarbageScripts();

}  // namespace tramontane::load
