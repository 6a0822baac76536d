// HttpRefusal: why the transport answers a request by itself. What the answer says is written by whoever
// serves over it. Plain values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "server/http/http.h"

namespace tramontane {

struct HttpRefusal {
  int status = 400;
  std::string message = {};    // a sentence for people
  std::string reason = {};     // a word for programs; "": the status says all
  int64_t retry_after_ms = 0;  // above 0: a retry can help after this time
};

// The server stops: to be tried again, elsewhere or later.
HttpRefusal ServerStops();
// There is no room for this client.
HttpRefusal TooManyConnections();

// So many requests wait for a handler thread, of all clients or of this one.
HttpRefusal TooManyWaiting();
// The answers that clients have not taken hold `most` bytes together, and this one finds no room.
HttpRefusal TooManyUnreadBytes(int64_t most);

// The requests being read hold `most` bytes together, and this one finds no room.
HttpRefusal TooManyBodyBytes(int64_t most);

// Makes the answer of a refusal. `request` has an id, and as much of the rest as had come: no method where it
// was refused before the end of its header. Any thread; must not block.
using RefusalWriter = std::function<HttpResponse(const HttpRefusal& refusal, const HttpRequest& request)>;

// Word and sentence as plain text, for a server that speaks no dialect.
HttpResponse PlainRefusal(const HttpRefusal& refusal, const HttpRequest& request);

// Retry-After where it can help: in seconds, as HTTP has it, and in milliseconds, as OpenAI's clients read
// it.
void AddRetryAfter(int64_t retry_after_ms, HttpHeaders* headers);

}  // namespace tramontane
