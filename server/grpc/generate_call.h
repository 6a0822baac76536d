// GenerateCall: one Generate call, from its bytes to its status.
// Its initial metadata is sent when it is submitted.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "server/grpc/engine_rpc.h"

namespace tramontane {

class GenerateCall final : public EngineRpc {
 public:
  using EngineRpc::EngineRpc;

 private:
  RpcError Read(const grpc::ByteBuffer& bytes) override;
  void TakeTurn() override { WriteNext(); }
  void NoteRefused() override;
  void OnWriteDone(bool ok) override;

  RpcError Admit(const v1::GenerateRequest& proto);  // worker
  void WriteNext();                                  // writer, or gRPC's thread
  void TakeEvents();                                 // holds mutex_
  void DropEvents();                                 // holds mutex_

  std::mutex mutex_;  // guards everything below
  bool admitted_ = false;
  bool reader_gone_ = false;
  bool write_in_flight_ = false;
  bool ended_ = false;
  grpc::ByteBuffer writing_;                 // owned by gRPC while write_in_flight_
  bool writing_content_ = false;             // in it
  std::deque<v1::GenerateResponse> outbox_;  // what was last taken, and is not written
  std::optional<RpcError> outcome_;          // known with the last events
};

}  // namespace tramontane
