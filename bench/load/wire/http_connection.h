// A connection of an HttpLoop, and the request and answer that it carries. The loop's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bench/load/transport.h"
#include "bench/load/wire/answer_reader.h"
#include "bench/load/wire/tls_session.h"

namespace tramontane::load {

// A request on its way and what is known of its answer.
struct HttpExchange {
  HttpExchange(OutgoingRequest outgoing, Transport::Done when_done, const AnswerRules& rules)
      : request(std::move(outgoing)), done(std::move(when_done)), reader(&record, rules) {
    record.index = request.index;
    record.class_index = request.class_index;
    record.request_id = request.request_id;
    record.intended_ns = request.intended_ns;
  }
  HttpExchange(const HttpExchange&) = delete;  // the reader points at the record
  HttpExchange& operator=(const HttpExchange&) = delete;

  int64_t DeadlineNs() const { return record.sent_ns + request.deadline_ns; }

  OutgoingRequest request;
  Transport::Done done;  // null once it was called
  RequestRecord record;
  AnswerReader reader;
  std::string bytes;  // of the request, should they have to be sent again
};

struct HttpConnection {
  enum class Stage {
    kConnecting,
    kHandshake,
    kBusy,
    kEnding,  // its record is complete, the end of its reply has not come
    kIdle,
    kClosed,
  };

  int fd = -1;
  size_t index = 0;  // into the loop's connections
  Stage stage = Stage::kConnecting;
  size_t address_index = 0;  // into the target's
  bool is_kept = false;      // it has carried a request before this one
  bool watches_output = false;
  int64_t deadline_ns = 0;  // 0: none
  std::unique_ptr<TlsSession> tls;
  std::unique_ptr<HttpExchange> exchange;
  std::string output;  // as it goes into the socket
  size_t sent = 0;     // of output
};

}  // namespace tramontane::load
