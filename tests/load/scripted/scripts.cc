#include "tests/load/scripted/scripts.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace tramontane::load {
namespace {

constexpr char kStreamHead[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
constexpr int kSlowHeadBytes = 600;

std::string InChunk(const std::string& bytes) {
  std::array<char, 20> size{};
  std::snprintf(size.data(), size.size(), "%zx", bytes.size());
  return std::string(size.data()) + "\r\n" + bytes + "\r\n";
}

std::string EventOf(const std::string& json) { return "data: " + json + "\n\n"; }

// Shaped like vLLM's, so that it costs a client what theirs do.
std::string ChunkJson(const StreamScript& stream, const std::string& text, const std::string& ids,
                      const std::string& finish_reason) {
  const std::string head = stream.chat
                               ? R"({"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk",)"
                               : R"({"id":"cmpl-0123456789abcdef","object":"text_completion",)";
  const std::string words =
      stream.chat ? R"("delta":{"content":")" + text + "\"}" : R"("text":")" + text + '"';
  return head + R"("created":1700000000,"model":"scripted","choices":[{"index":0,)" + words +
         R"(,"logprobs":null,"finish_reason":)" + finish_reason + R"(,"token_ids":[)" + ids + "]}]}";
}

std::string ContentEvent(const StreamScript& stream, int32_t index) {
  std::string ids;
  for (int32_t i = 0; i < stream.tokens_per_event; ++i)
    ids += (i > 0 ? "," : "") + std::to_string(1300 + index);
  return EventOf(ChunkJson(stream, " word", ids, "null"));
}

std::string EndOf(const StreamScript& stream) {
  std::string end = EventOf(ChunkJson(stream, "", "", "\"length\""));
  if (stream.with_usage) {
    end += EventOf(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":)" +
                   std::to_string(stream.events * stream.tokens_per_event) + "}}");
  }
  return end + "data: [DONE]\n\n";
}

// The head leaves at once; then the content events, as many in a write as asked for.
Script WithoutEnd(const StreamScript& stream) {
  Script script;
  script.writes.push_back({0, kStreamHead, 0});
  int64_t at_ns = stream.ttft_ns;
  for (int32_t event = 0; event < stream.events;) {
    std::string bytes;
    const int32_t end = std::min(stream.events, event + stream.events_per_write);
    const int32_t count = end - event;
    for (; event < end; ++event) bytes += ContentEvent(stream, event);
    script.writes.push_back({at_ns, InChunk(bytes), count});
    at_ns += stream.gap_ns;
  }
  return script;
}

Script OneWrite(std::string bytes, ScriptEnd end) {
  Script script;
  script.writes.push_back({0, std::move(bytes), 0});
  script.end = end;
  return script;
}

}  // namespace

// The end comes with the last content event, as servers send it.
Script Stream(const StreamScript& stream) {
  Script script = WithoutEnd(stream);
  script.writes.back().bytes += InChunk(EndOf(stream)) + "0\r\n\r\n";
  return script;
}

Script BrokenOff(const StreamScript& stream, ScriptEnd end) {
  Script script = WithoutEnd(stream);
  script.end = end;
  // A reset overtakes what was written and not read.
  if (end == ScriptEnd::kReset) script.end_after_ns = script.writes.back().after_ns + 100'000'000;
  return script;
}

Script ErrorEventAfter(const StreamScript& stream) {
  Script script = WithoutEnd(stream);
  const std::string error = EventOf(R"({"error":{"message":"scripted","type":"server_error","code":500}})");
  script.writes.push_back(
      {script.writes.back().after_ns, InChunk(error + "data: [DONE]\n\n") + "0\r\n\r\n", 0});
  return script;
}

Script StatusAnswer(int32_t status, const std::string& retry_after, const std::string& message) {
  const std::string body = R"({"error":{"message":")" + message + R"(","code":null}})";
  std::string head = "HTTP/1.1 " + std::to_string(status) + " Scripted\r\nContent-Type: application/json\r\n";
  if (!retry_after.empty()) head += "Retry-After: " + retry_after + "\r\n";
  return OneWrite(head + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body,
                  ScriptEnd::kKeep);
}

Script NoTokens() {
  StreamScript stream;
  stream.chat = true;
  stream.events = 0;
  const std::string role = R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})";
  return OneWrite(kStreamHead + InChunk(EventOf(role) + EndOf(stream)) + "0\r\n\r\n", ScriptEnd::kKeep);
}

Script NothingButDone() {
  return OneWrite(kStreamHead + InChunk("data: [DONE]\n\n") + "0\r\n\r\n", ScriptEnd::kKeep);
}

Script Silent() { return OneWrite(kStreamHead, ScriptEnd::kHold); }

Script SilentFromTheBegin() {
  Script script;
  script.end = ScriptEnd::kHold;
  return script;
}

Script SlowHead(int64_t gap_ns) {
  Script script;
  const std::string head = "HTTP/1.1 200 OK\r\nX-Slow: ";
  for (int i = 0; i < kSlowHeadBytes; ++i) {
    const auto at = static_cast<size_t>(i);
    script.writes.push_back({i * gap_ns, at < head.size() ? head.substr(at, 1) : "x", 0});
  }
  script.end = ScriptEnd::kHold;
  return script;
}

Script ClosedWithoutAByte() {
  Script script;
  script.end = ScriptEnd::kClose;
  return script;
}

std::vector<NamedScript> GarbageScripts() {
  const std::string head = kStreamHead;
  const auto answer = [](const std::string& bytes) { return OneWrite(bytes, ScriptEnd::kHold); };
  return {
      {"not HTTP", answer("SSH-2.0-OpenSSH_9.2p1 Debian\r\n")},
      {"not a header", answer("HTTP/1.1 200 OK\r\nno header here\r\n\r\n")},
      {"not a chunk", answer(head + "no size\r\n")},
      {"a chunk longer than it says", answer(head + "3\r\n: comment\r\n")},
      {"not an event stream", answer(head + InChunk("<html>\n"))},
      {"not JSON", answer(head + InChunk("data: {\"choices\":[\n\n"))},
      {"a JSON body", answer("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"choices\":[]}")},
      {"compressed",
       answer("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b")},
  };
}

}  // namespace tramontane::load
