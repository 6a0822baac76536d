// ResponseFraming: an answer as HTTP/1.1 writes it: its head, and a body with its length, in chunks, or up to
// the end of the connection. Of one request; a plain value without a socket.
#pragma once

#include <string>

#include "server/http/http.h"
#include "server/http/output_buffer.h"

namespace tramontane {

struct ResponseFraming {
  std::string request_id = {};
  bool is_head = false;     // HEAD: no body is sent
  bool is_chunked = false;  // a body of unknown length comes in chunks; else the connection ends behind it
  bool keep_alive = false;  // after this answer

  void WriteWhole(HttpResponse response, OutputBuffer* output) const;
  // The head, and its body as the first chunk.
  void WriteStreamHead(HttpResponse head, OutputBuffer* output) const;
  // Nothing where there is nothing: an empty chunk would end the body.
  void WriteChunk(std::string bytes, OutputBuffer* output) const;
  void WriteStreamEnd(OutputBuffer* output) const;

 private:
  std::string Head(const HttpResponse& response, const std::string& length_field) const;
};

}  // namespace tramontane
