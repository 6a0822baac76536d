// CallTable: the calls of the gRPC door from their first header until gRPC is done with them: how many there
// may be, what of their answers is not taken, and the clocks of what their clients have to do.
//
// Any thread.
// Always: a call that is one too many is refused, and who goes on regardless is hung up on; one address has
// at most half of the calls, and its share of the bytes (held_bytes.h).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "server/base/held_bytes.h"
#include "server/call/rpc_error.h"

namespace tramontane {

class RawCall;

struct CallTableOptions {
  int32_t max_of_address = 2048 + 256;  // in all twice as many
  double read_timeout = 30;             // seconds for a call's message to come; 0: any time
  double write_timeout = 30;            // for a message, or each 4 MiB of it, to be taken; 0: any time
};

class CallTable {
 public:
  // `unread` is borrowed and outlives it.
  CallTable(const CallTableOptions& options, ByteBudget& unread) : options_(options), unread_(unread) {}

  // Not OK: it is one too many. It counts all the same, until Remove.
  RpcError Add(RawCall* call);
  void Remove(RawCall* call);

  // Bytes that the call holds instead of what it held; few are free. False, and nothing changed: there is no
  // room for them.
  [[nodiscard]] bool TryHold(RawCall* call, int64_t bytes);
  RpcError NoRoomError() const;

  // Ends calls whose clients were too slow.
  void Sweep();

  ByteBudget& unread() { return unread_; }
  const CallTableOptions& options() const { return options_; }

 private:
  struct Share {
    int32_t calls = 0;
    int32_t refused = 0;  // of them
  };

  const CallTableOptions options_;
  ByteBudget& unread_;
  std::mutex mutex_;  // guards everything below
  std::unordered_set<RawCall*> calls_;
  std::unordered_map<std::string, Share> shares_;  // by address
};

}  // namespace tramontane
