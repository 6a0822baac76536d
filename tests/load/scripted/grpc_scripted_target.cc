#include "tests/load/scripted/grpc_scripted_target.h"

#include <grpcpp/grpcpp.h>

#include <ctime>
#include <mutex>
#include <utility>

#include "bench/load/clock.h"
#include "bench/load/wire/stamp.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane::load {
namespace {

void SleepUntil(int64_t ns) {
  const timespec until{ns / kNsPerSecond, ns % kNsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

class StreamingService final : public v1::Inference::Service {
 public:
  explicit StreamingService(const GrpcScript& script) : script_(script) {}

  grpc::Status Generate(grpc::ServerContext* /*context*/, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const int64_t received_ns = NowNs();
    v1::GenerateResponse response;
    response.mutable_started()->set_prompt_tokens(request->token_ids().ids_size());
    writer->Write(response);
    for (int32_t event = 0; event < script_.events; ++event) {
      const int64_t due_ns = received_ns + script_.ttft_ns + event * script_.gap_ns;
      SleepUntil(due_ns);
      response.mutable_delta()->add_token_ids(event);
      Log(request->request_id(), received_ns, due_ns);
      writer->Write(response);
      response.Clear();
    }
    v1::Finished& finished = *response.mutable_finished();
    finished.set_reason(v1::FINISH_REASON_LENGTH);
    finished.mutable_usage()->set_prompt_tokens(request->token_ids().ids_size());
    finished.mutable_usage()->set_completion_tokens(script_.events);
    writer->Write(response);
    return grpc::Status::OK;
  }

  std::map<std::string, ScriptLog> Logs() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return logs_;
  }

 private:
  void Log(const std::string& id, int64_t received_ns, int64_t due_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ScriptLog& log = logs_[id];
    log.received_ns = received_ns;
    log.writes.push_back({due_ns, NowNs(), 1});
  }

  const GrpcScript script_;
  mutable std::mutex mutex_;
  std::map<std::string, ScriptLog> logs_;  // under mutex_; of a test's requests
};

class RunningGrpcTarget final : public GrpcScriptedTarget {
 public:
  explicit RunningGrpcTarget(const GrpcScript& script) : service_(script) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~RunningGrpcTarget() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  bool runs() const { return server_ != nullptr && port_ != 0; }
  std::string url() const override { return "grpc://127.0.0.1:" + std::to_string(port_); }
  std::map<std::string, ScriptLog> Logs() const override { return service_.Logs(); }

 private:
  StreamingService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

StatusOr<std::unique_ptr<GrpcScriptedTarget>> StartGrpcTarget(const GrpcScript& script) {
  auto target = std::make_unique<RunningGrpcTarget>(script);
  if (!target->runs()) return Unavailable("a scripted gRPC server cannot listen");
  return std::unique_ptr<GrpcScriptedTarget>(std::move(target));
}

}  // namespace tramontane::load
