#include "server/grpc/inference_service.h"

#include <google/protobuf/descriptor.h>

#include <utility>

#include "server/grpc/generate_call.h"
#include "server/grpc/reflection.h"
#include "server/grpc/score_call.h"
#include "server/grpc/unary_call.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {
namespace {

using Context = grpc::GenericCallbackServerContext;

class UnknownCall final : public RawCall {
 public:
  using RawCall::RawCall;

 private:
  void OnBegun() override { Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "")); }
  void OnMessage(const grpc::ByteBuffer&) override {}
};

}  // namespace

InferenceService::InferenceService(const InferenceServiceOptions& options, InferenceCore& core,
                                   GrpcCalls& calls, Health& health)
    : calls_(calls), writers_({.threads = options.writer_threads, .max_queued = options.max_streams}) {
  const google::protobuf::ServiceDescriptor& service =
      *v1::GenerateRequest::descriptor()->file()->FindServiceByName("Inference");
  const std::string inference = "/" + service.full_name() + "/";
  for (int i = 0; i < service.method_count(); ++i) {
    const google::protobuf::MethodDescriptor* method = service.method(i);
    methods_[inference + method->name()] = [&calls, &core, method](Context* context) {
      return std::make_shared<UnaryRpc>(calls, context, core, *method);
    };
  }
  methods_[inference + "Generate"] = [&calls, &core, this](Context* context) {
    return std::make_shared<GenerateCall>(calls, context, core, writers_);
  };
  methods_[inference + "ScoreCandidates"] = [&calls, &core, this](Context* context) {
    return std::make_shared<ScoreCall>(calls, context, core, writers_);
  };
  methods_["/grpc.health.v1.Health/Check"] = [&calls, &health](Context* context) {
    return std::make_shared<HealthCheck>(calls, context, health);
  };
  methods_["/grpc.health.v1.Health/Watch"] = [&calls, &health](Context* context) {
    return std::make_shared<HealthWatch>(calls, context, health);
  };
  if (!options.reflection) return;
  methods_["/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"] = [&calls](Context* context) {
    return std::make_shared<ReflectionCall>(calls, context);
  };
}

grpc::ServerGenericBidiReactor* InferenceService::CreateReactor(Context* context) {
  const auto found = methods_.find(context->method());
  const std::shared_ptr<RawCall> call =
      found == methods_.end() ? std::make_shared<UnknownCall>(calls_, context) : found->second(context);
  call->Begin();
  return call.get();
}

}  // namespace tramontane
