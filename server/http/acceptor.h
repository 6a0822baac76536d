// Acceptor: takes in the connections of an HttpServer, and looks for room where there are too many, on any io
// thread: a connection that waits for a request is closed for the new one, the longest there, and first one
// of a client that has more than half of all; where none waits, one of such a client whose request is not all
// there, if the new one is another's. Where there is none, the new one begins over the limit. On the first of
// the io threads, but for Listen.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/http/connection.h"
#include "server/http/io_thread.h"
#include "server/http/spare_files.h"
#include "server/http/tls_handshakes.h"

namespace tramontane {

class Acceptor {
 public:
  // `threads` must run until what was accepted is closed.
  Acceptor(std::shared_ptr<HttpServerState> shared, const std::vector<std::shared_ptr<IoThread>>& threads);

  // Before the threads run. UNAVAILABLE or INVALID_ARGUMENT says why not.
  Status Listen(const std::string& wanted);
  const std::string& address() const { return address_; }  // with the port that was really taken

  void Accept();
  void Close();

 private:
  enum class Fullness {
    kRoom,
    kFull,      // one connection more than there may be, or than the system's files allow
    kOverFull,  // one more, too, of those that are over the limit
  };

  boost::system::error_code AcceptOne();
  void OnAccepted(const std::shared_ptr<IoThread>& thread, boost::asio::ip::tcp::socket socket,
                  bool has_spare_file);
  void BeginTls(const std::shared_ptr<IoThread>& thread, std::unique_ptr<TcpSocket> socket,
                bool has_spare_file);
  // A client that may speak.
  void Admit(const std::shared_ptr<IoThread>& thread, std::unique_ptr<ByteSocket> socket, Fullness fullness);
  Fullness FullnessWith(int any_file) const;
  // Who makes room: whoever stands in the line for longest, of all threads; of one client where one is given.
  struct Candidates {
    ConnectionThread::Line line;
    std::string client = {};
  };
  std::vector<Candidates> CandidatesFor(const std::string& client) const;
  // Closes one of the first candidates that there are. then(whether there were any), on any thread.
  void MakeRoom(const std::vector<Candidates>& candidates, std::function<void(bool found)> then) const;

  const std::shared_ptr<HttpServerState> shared_;
  const std::vector<std::shared_ptr<IoThread>>& threads_;
  const std::shared_ptr<SpareFiles> spare_files_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  const std::unique_ptr<TlsHandshakes> handshakes_;  // null: no TLS
  size_t next_thread_ = 0;
  int64_t max_files_ = 0;
  std::string address_;
};

}  // namespace tramontane
