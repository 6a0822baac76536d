// One thread of the HTTP transport: a poll set with its connections, kept ones and busy ones.
//
// Stamps: of all sockets that are ready together each is read once, and stamped, before a byte of any is
// parsed. So what one answer costs does not stand in the stamps of the next.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/load/transport.h"
#include "bench/load/wire/answer_reader.h"
#include "bench/load/wire/http_connection.h"
#include "bench/load/wire/wire_target.h"

namespace tramontane::load {

// Open connections without a request; one more is closed.
inline constexpr size_t kMaxIdleConnections = 16 * 1024;

class HttpLoop {
 public:
  explicit HttpLoop(std::shared_ptr<const WireTarget> target);
  ~HttpLoop();  // as Abort
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  // Any thread.
  void Send(OutgoingRequest request, Transport::Done done);
  // Any thread but this loop's own.
  void Abort();
  int64_t CpuNs() const;

 private:
  struct ReadResult {
    HttpConnection* connection = nullptr;
    int64_t at_ns = 0;
    ssize_t count = 0;  // as of recv; -1 with EAGAIN: nothing was to be read
    int error = 0;
    uint32_t events = 0;
  };

  void Run();
  int MillisecondsToWait() const;
  void ReadReady(int ready);
  void HandleReady(int ready);
  void Handle(const ReadResult& result, std::string_view bytes);
  void HandleConnecting(HttpConnection* connection, int64_t at_ns);
  void HandleBytes(HttpConnection* connection, std::string_view bytes, int64_t at_ns);
  void AfterRead(HttpConnection* connection, bool is_open, int64_t at_ns);
  void HandleClosed(HttpConnection* connection, int64_t at_ns, const std::string& how);

  void DrainInbox();
  void Start(std::unique_ptr<HttpExchange> exchange);
  void Open(std::unique_ptr<HttpExchange> exchange, size_t address_index);
  void SendRequest(HttpConnection* connection);
  void Report(HttpExchange* exchange);
  void Refuse(std::unique_ptr<HttpExchange> exchange, const std::string& why);
  void ExpireDeadlines();
  void AbandonAll();

  void SetDeadline(HttpConnection* connection, int64_t deadline_ns);
  void Watch(HttpConnection* connection, uint32_t events);
  void Close(HttpConnection* connection);

  const std::shared_ptr<const WireTarget> target_;
  int poll_ = -1;
  int wake_ = -1;

  // This loop's thread only.
  std::set<std::pair<int64_t, HttpConnection*>> deadlines_;
  std::vector<std::unique_ptr<HttpConnection>> connections_;  // each knows its index
  std::vector<std::unique_ptr<HttpConnection>> closed_;       // until no event can name them
  std::vector<HttpConnection*> idle_;
  std::vector<char> read_bytes_;  // a slot for each socket that is read in a round
  std::vector<ReadResult> results_;
  std::string plain_;  // of a TLS read

  std::mutex mutex_;
  std::condition_variable aborted_;
  // Under mutex_. As many as senders want to have under way.
  std::vector<std::unique_ptr<HttpExchange>> inbox_;
  bool abort_ = false;
  bool stop_ = false;
  std::atomic<bool> has_mail_ = false;

  std::thread thread_;
};

}  // namespace tramontane::load
