// RawCall: one call of the gRPC door, in bytes: from its header, by its message, to its status. It owns
// itself until gRPC is done with it; whoever may use it later holds a reference.
//
//   begun -> its message has come (OnMessage) -> writes -> Finish or StartWriteAndFinish, once -> gone
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "server/call/caller.h"
#include "server/call/request_line.h"
#include "server/call/rpc_error.h"
#include "server/grpc/call_metadata.h"
#include "server/grpc/call_table.h"
#include "server/grpc/connections.h"

namespace tramontane {

// What the calls of a door share; borrowed by each.
struct GrpcCalls {
  CallTable& open;
  GrpcConnections& connections;
  const Doorkeeper& doorkeeper;
  const RequestLog& log;
};

// Whether a call needs an API key, where there are any. Of those that need none the log has no line.
enum class NeedsKey { kYes, kNo };

class RawCall : public grpc::ServerGenericBidiReactor, public std::enable_shared_from_this<RawCall> {
 public:
  RawCall(GrpcCalls& calls, grpc::GenericCallbackServerContext* context, NeedsKey needs_key = NeedsKey::kYes);
  ~RawCall() override = default;

  // gRPC's thread. The message is asked for, or the call refused. Once.
  void Begin();

  const Caller& caller() const { return caller_; }
  const std::string& share() const { return share_; }               // of the door's limits (AddressShare)
  GrpcConnection* connection() const { return connection_.get(); }  // null: not told from others
  static int64_t NowNs();                                           // of the clocks

 protected:
  // It is one of those there may be. gRPC's thread.
  virtual void OnBegun() { ReadNext(); }
  // Its message, or for calls of many the next. gRPC's thread.
  virtual void OnMessage(const grpc::ByteBuffer& bytes) = 0;
  // No message comes any more.
  virtual void OnNoMessage();
  // It ends before its first message was taken; the status comes next. Must not block.
  virtual void OnRefused(const RpcError& /*refusal*/) {}
  // Another message is wanted.
  void ReadNext();
  // Before a write of so many bytes: its clock. OnWriteDone ends it.
  void StartWriteClock(size_t bytes);
  void StopWriteClock();
  [[nodiscard]] bool TryHold(int64_t bytes) { return calls_.open.TryHold(this, bytes); }
  // The call's end: one of these, once. The log is told before the status leaves, with the error's trailer.
  void End(const RpcError& error);
  void Finish(const grpc::Status& status);
  void WriteAndFinish(const grpc::ByteBuffer* bytes, const grpc::Status& status);
  // What the call's line has beside what that of every call has; after its end.
  virtual void Describe(RequestLine* /*line*/) {}
  // What its client calls it, or else drawn.
  const std::string& request_id();
  // The one answer of a call and its end. Not OK: it is too long for the client, or there is no room for it;
  // then nothing was done but this said.
  RpcError HoldAnswer(const google::protobuf::Message& answer);
  void FinishWith(const google::protobuf::Message& answer, const grpc::Status& status);  // after HoldAnswer

  GrpcCalls& calls_;
  grpc::GenericCallbackServerContext* const context_;  // until the status was given to gRPC

 private:
  friend class CallTable;

  void OnReadDone(bool ok) final;
  void OnDone() final;
  // Its client was too slow.
  void EndLate();

  void Tell(const grpc::Status& status);

  Caller caller_;      // constant once made
  RpcError stranger_;  // not OK: its key is not valid
  const std::string share_;
  const std::shared_ptr<GrpcConnection> connection_;
  std::shared_ptr<RawCall> self_;
  grpc::ByteBuffer message_;          // owned by gRPC while reading_
  grpc::ByteBuffer answer_;           // of FinishWith
  std::atomic<bool> reading_{false};  // whoever ends it says what becomes of the call
  std::atomic<int64_t> due_ns_{0};    // 0: no clock runs
  bool has_read_ = false;             // connection_ knows
  const bool is_told_of_;             // the log has its line
  const int64_t begin_ns_ = NowNs();
  std::string request_id_;  // "": not asked for yet
  RpcError outcome_;        // that End was given
  bool refused_ = false;    // this and the next are CallTable'
  HeldBytes held_;
};

}  // namespace tramontane
