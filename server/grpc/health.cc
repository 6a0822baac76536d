#include "server/grpc/health.h"

#include <algorithm>
#include <utility>

#include "server/grpc/raw_message.h"

namespace tramontane {

// ---- Health -------------------------------------------------------------------------------------

void Health::Set(const std::string& service, HealthStatus::ServingStatus status) {
  std::vector<std::weak_ptr<HealthWatch>> watches;
  {
    std::lock_guard lock(mutex_);
    statuses_[service] = status;
    watches = watches_;
  }
  for (const auto& weak : watches) {
    if (const std::shared_ptr<HealthWatch> watch = weak.lock()) watch->WriteNext();
  }
}

HealthStatus::ServingStatus Health::Of(const std::string& service) const {
  std::lock_guard lock(mutex_);
  const auto found = statuses_.find(service);
  return found == statuses_.end() ? HealthStatus::SERVICE_UNKNOWN : found->second;
}

void Health::Add(std::weak_ptr<HealthWatch> watch) {
  std::lock_guard lock(mutex_);
  std::erase_if(watches_, [](const auto& other) { return other.expired(); });
  watches_.push_back(std::move(watch));
}

// ---- HealthCheck --------------------------------------------------------------------------------

void HealthCheck::OnMessage(const grpc::ByteBuffer& bytes) {
  grpc::health::v1::HealthCheckRequest request;
  if (const RpcError error = ParseMessage(bytes, &request); !error.ok()) return End(error);
  HealthStatus response;
  response.set_status(health_.Of(request.service()));
  if (response.status() == HealthStatus::SERVICE_UNKNOWN) {
    return Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no such service"));
  }
  FinishWith(response, grpc::Status::OK);
}

// ---- HealthWatch --------------------------------------------------------------------------------

void HealthWatch::OnMessage(const grpc::ByteBuffer& bytes) {
  grpc::health::v1::HealthCheckRequest request;
  if (const RpcError error = ParseMessage(bytes, &request); !error.ok()) return End(error);
  {
    std::lock_guard lock(mutex_);
    service_ = request.service();
    watching_ = true;
  }
  health_.Add(std::static_pointer_cast<HealthWatch>(shared_from_this()));
  WriteNext();
}

void HealthWatch::WriteNext() {
  std::unique_lock lock(mutex_);
  if (!watching_ || writing_) return;
  if (gone_) {
    watching_ = false;
    lock.unlock();
    return Finish(grpc::Status::CANCELLED);
  }
  HealthStatus response;
  response.set_status(health_.Of(service_));
  if (std::exchange(told_, response.status()) == response.status()) return;
  message_ = SerializeMessage(response);
  writing_ = true;
  lock.unlock();
  StartWriteClock(message_.Length());
  StartWrite(&message_);
}

void HealthWatch::OnWriteDone(bool ok) {
  StopWriteClock();
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
    gone_ = gone_ || !ok;
  }
  WriteNext();
}

void HealthWatch::OnCancel() {
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
  }
  WriteNext();
}

}  // namespace tramontane
