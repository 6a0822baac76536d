// A blocking HTTP/1 client over a plain socket that can also misbehave: it sends whatever bytes it is told
// to. One thread at a time. Nothing waits longer than a minute; then a read ends as if the server had closed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tramontane {

struct HttpReply {
  int status = 0;  // 0: the connection ended before a whole reply came
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // without the framing of chunks
  int64_t chunks = 0;

  std::string Header(const std::string& name) const;  // "": none
};

class HttpTestClient {
 public:
  struct Options {
    int32_t receive_buffer_bytes = 0;  // 0: the system's
    std::string from = {};             // the client's own address: "127.0.0.2"; "": the system's choice
  };
  explicit HttpTestClient(const std::string& address) : HttpTestClient(address, Options{}) {}
  HttpTestClient(const std::string& address, const Options& options);  // "127.0.0.1:8000"
  ~HttpTestClient();
  HttpTestClient(const HttpTestClient&) = delete;
  HttpTestClient& operator=(const HttpTestClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  // False: the server closed before all of it was sent.
  bool Send(std::string_view bytes);
  // A whole reply, with its body; `to_head`: of a HEAD request, which has none. Interim replies (1xx) are
  // replies too.
  HttpReply Read(bool to_head = false);
  // What comes until `text` was in it, or the end.
  std::string ReadUntil(std::string_view text);
  // What comes until the server closes.
  std::string ReadToEnd();

  void ShutdownSend();
  void Close();
  // Closes so that the server sees a reset.
  void Reset();

 private:
  friend HttpReply ParseReply(std::string bytes);
  HttpTestClient() = default;

  bool Fill();  // reads more into buffer_
  std::string TakeLine();

  int fd_ = -1;
  std::string buffer_;  // read, not yet returned
};

// "GET PATH HTTP/1.1" with a Host and the headers given, each "name: value".
std::string HttpGet(const std::string& path, const std::vector<std::string>& headers = {});
// With a length and, unless the headers name one, application/json.
std::string HttpPost(const std::string& path, const std::string& body,
                     const std::vector<std::string>& headers = {});
// One request on a connection of its own.
HttpReply Fetch(const std::string& address, const std::string& request);
// All the bytes of a reply.
HttpReply ParseReply(std::string bytes);

// Very many streams at once, read by one thread.
struct SwarmOptions {
  std::string address;
  int64_t streams = 0;
  std::string request;  // whose answer is chunked; each stream sends it once
  // Called when all have sent; until it returns nobody reads. May be null.
  std::function<void()> before_reading = {};
};
struct SwarmResult {
  std::vector<std::string> replies;  // bytes, for ParseReply; cut short where a connection ended early
  int64_t cpu_ns = 0;                // of the reading thread
};
SwarmResult RunSwarm(const SwarmOptions& options);

}  // namespace tramontane
