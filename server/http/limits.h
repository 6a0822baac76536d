// HttpLimits: every bound of the HTTP transport, with what happens there. A plain value; the settings of the
// server have their defaults from here.
#pragma once

#include <cstdint>

namespace tramontane {

struct HttpLimits {
  int32_t max_connections = 16384;      // one more: the one that waits longest for a request is closed,
                                        // first of a client with more than half; none does: 503 for the
                                        // new one
  int64_t max_header_bytes = 32 << 10;  // request line and fields, a chunk's line; more: 431, closed
  int32_t max_header_fields = 100;      // with those behind a chunked body; more: 431, closed
  int64_t max_body_bytes = 8 << 20;  // of one request, also decompressed; more: 413, closed. Parsing may take
                                     // kParsedTimes as much
  int64_t max_held_body_bytes = 256 << 20;  // of all requests, parsed or not, until they are calls; more: 503
  int32_t max_handshakes = 512;  // of TLS, at once; one more: the oldest of the address that has most
                                 // is closed
  int64_t handshake_timeout_ms = 10'000;  // of TLS, or read_timeout_ms if less; longer: connection closed
  int64_t read_timeout_ms = 30'000;       // first byte to last of a request; longer: 408, connection closed
  int64_t idle_timeout_ms = 300'000;      // between two requests; longer: connection closed
  int64_t write_timeout_ms = 60'000;      // for the client to take 64 KiB of a write, or the rest of it;
                                          // longer: as if it had hung up
  int64_t last_words_ms = 2'000;          // for a stopping server's last answers to leave; then it hangs up
  int64_t silence_ms = 15'000;  // nothing written to a stream for so long: a comment keeps it open; 0: none

  bool operator==(const HttpLimits&) const = default;
};

inline constexpr int64_t kParsedTimes = 6;
inline constexpr int64_t kShortHeaderBytes = 8 << 10;  // that a request without a body may have in no budget
inline constexpr int64_t kDefaultUnreadAnswerBytes = 256 << 20;  // of a server that is given no budget
inline constexpr int32_t kDefaultIoThreads = 1;                  // sockets, events
inline constexpr int32_t kDefaultHandlerThreads = 2;             // JSON of requests

}  // namespace tramontane
