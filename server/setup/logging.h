// Logs go to standard error through spdlog: text, or one JSON object a line. Standard output is for results
// only.
//
// SetUpLogging: main thread, once, before anything is logged; the rest from any thread.
// Always: who logs never waits for standard error (log_writer.h), and each message is one line, whatever it
// holds (PrintableText).
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/status.h"
#include "server/call/request_line.h"

namespace tramontane {

// level: trace, debug, info, warn, error, off. format: text, json.
//   json: {"time":"2026-01-31T12:00:00.123Z","level":"info","message":"..."}
// Not OK: there is no thread for it.
Status SetUpLogging(const std::string& level, const std::string& format);

// The one line of a request, at info; of one that generates nothing, and was neither refused nor failed, at
// debug. Its names are RequestLine's: in text name=value, of text with any other character than those of
// names, addresses and paths in quotes; in JSON a field each. What is not known is - and null.
//   event=request id=req-9d41c7e25f0b3a86 key=alice route=/v1/completions model=breeze prompt_tokens=5 ...
void LogRequest(const RequestLine& line);
std::string RequestLineText(const RequestLine& line, bool as_json);  // what it logs, without time and level

// By the settings log_requests and log_prompts. Warns of prompts.
RequestLog RequestLogOf(const std::string& log_requests, bool log_prompts);

// Before the process ends: waits until what was logged is written, but no longer than a second.
void FlushLogs();

// Lines that standard error did not take in time.
int64_t DroppedLogLines();

}  // namespace tramontane
