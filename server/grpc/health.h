// Health: gRPC's standard health service: the status of each service, and who watches it.
// Any thread. Outlives its calls.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grpc/health/v1/health.pb.h"
#include "server/grpc/raw_call.h"

namespace tramontane {

using HealthStatus = grpc::health::v1::HealthCheckResponse;

class HealthWatch;

class Health {
 public:
  void Set(const std::string& service, HealthStatus::ServingStatus status);
  // SERVICE_UNKNOWN: there is none of this name.
  HealthStatus::ServingStatus Of(const std::string& service) const;
  // Is told of changes from now on, while it lives.
  void Add(std::weak_ptr<HealthWatch> watch);

 private:
  mutable std::mutex mutex_;  // guards everything below
  std::map<std::string, HealthStatus::ServingStatus> statuses_;
  std::vector<std::weak_ptr<HealthWatch>> watches_;
};

class HealthCheck final : public RawCall {
 public:
  HealthCheck(GrpcCalls& calls, grpc::GenericCallbackServerContext* context, const Health& health)
      : RawCall(calls, context, NeedsKey::kNo), health_(health) {}

 private:
  void OnMessage(const grpc::ByteBuffer& bytes) override;

  const Health& health_;
};

// Tells the status at once, and each other one that comes, until its client has enough.
class HealthWatch final : public RawCall {
 public:
  HealthWatch(GrpcCalls& calls, grpc::GenericCallbackServerContext* context, Health& health)
      : RawCall(calls, context, NeedsKey::kNo), health_(health) {}

  // Writes the status, if it is another; ends the call, if nobody reads it.
  void WriteNext();

 private:
  void OnMessage(const grpc::ByteBuffer& bytes) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;

  Health& health_;
  std::mutex mutex_;  // guards everything below
  bool watching_ = false;
  bool writing_ = false;
  bool gone_ = false;
  std::string service_;
  int told_ = -1;             // the status
  grpc::ByteBuffer message_;  // owned by gRPC while writing_
};

}  // namespace tramontane
