#include "server/remote/remote_question.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>
#include <utility>

#include "kernels/core/check.h"
#include "server/remote/answer_check.h"
#include "server/remote/backend_outcome.h"
#include "server/remote/server_choice.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {
namespace {

using google::protobuf::Message;

constexpr std::chrono::seconds kTimeout(60);

// The path of the unary call that has this request.
std::string MethodOf(const google::protobuf::Descriptor& request) {
  const auto* service = request.file()->FindServiceByName("Inference");
  for (int i = 0; i < service->method_count(); ++i) {
    if (service->method(i)->input_type() != &request) continue;
    return "/" + service->full_name() + "/" + service->method(i)->name();
  }
  TM_CHECK(false, "no call has a %s", request.full_name().c_str());
}

// Only the server that keeps it is asked; "": any.
std::string SessionOf(const Message& request) {
  if (const auto* save = dynamic_cast<const v1::SaveSessionRequest*>(&request)) return save->name();
  if (const auto* restore = dynamic_cast<const v1::RestoreSessionRequest*>(&request)) return restore->name();
  const auto* erase = dynamic_cast<const v1::DeleteSessionRequest*>(&request);
  return erase == nullptr ? "" : erase->name();
}

class RemoteQuestion : public std::enable_shared_from_this<RemoteQuestion> {
 public:
  RemoteQuestion(RemoteServers& servers, const Caller& caller, std::shared_ptr<const Message> request,
                 std::unique_ptr<Message> response, InferenceClient::Done<Message> done)
      : servers_(servers),
        caller_(caller),
        method_(MethodOf(*request->GetDescriptor())),
        request_(std::move(request)),
        response_(std::move(response)),
        done_(std::move(done)),
        choice_(servers, SessionOf(*request_)) {}

  void Start() {
    if (!AskAt(choice_.First())) done_(choice_.NoneError(), *response_);
  }

 private:
  // False: null, or no call may start any more.
  bool AskAt(RemoteServer* server) {
    if (server == nullptr) return false;
    struct OpenCall {
      OpenCallCount count;  // in front of the context
      grpc::ClientContext context;
      grpc::ByteBuffer answer;
    };
    auto call = std::make_shared<OpenCall>();
    call->context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    server->Sign(caller_, &call->context);
    call->context.AddMetadata(kMaxMessageBytesKey, std::to_string(kMaxLongMessageBytes));
    if (!servers_.open_calls().Add(&call->context)) return false;
    call->count.calls = &servers_.open_calls();
    const auto on_status = [self = shared_from_this(), server, call](const grpc::Status& status) {
      OpenCalls& open_calls = self->servers_.open_calls();
      self->OnStatus(status, *server, &call->answer);
      open_calls.Remove(&call->context);
    };
    server->raw_stub().UnaryCall(&call->context, method_, grpc::StubOptions(), request_.get(), &call->answer,
                                 on_status);
    return true;
  }

  void OnStatus(const grpc::Status& status, const RemoteServer& server, grpc::ByteBuffer* answer) {
    const RpcError outcome = OutcomeOf(status, server, answer);
    if (!outcome.ok() && AskAt(choice_.NextAfter(outcome))) return;
    done_(outcome, *response_);
  }

  RpcError OutcomeOf(const grpc::Status& status, const RemoteServer& server, grpc::ByteBuffer* answer) const {
    if (!status.ok()) return BackendError(status, server.address());
    const std::string fault = TakeAnswer(answer);
    return fault.empty() ? RpcError() : BadGatewayError(fault, server.address());
  }

  // What is wrong with it; "": nothing.
  std::string TakeAnswer(grpc::ByteBuffer* answer) const {
    if (static_cast<int64_t>(answer->Length()) > MostAnswerBytes(*request_)) {
      return "an answer of " + std::to_string(answer->Length()) + " bytes to a request of " +
             std::to_string(request_->ByteSizeLong());
    }
    const bool is_one = grpc::SerializationTraits<Message>::Deserialize(answer, response_.get()).ok();
    return is_one ? AnswerFault(*request_, *response_) : "bytes that are no answer";
  }

  RemoteServers& servers_;
  const Caller caller_;
  const std::string method_;
  const std::shared_ptr<const Message> request_;
  const std::unique_ptr<Message> response_;
  const InferenceClient::Done<Message> done_;
  ServerChoice choice_;
};

}  // namespace

void AskRemotely(RemoteServers& servers, const Caller& caller, std::shared_ptr<const Message> request,
                 std::unique_ptr<Message> response, InferenceClient::Done<Message> done) {
  std::make_shared<RemoteQuestion>(servers, caller, std::move(request), std::move(response), std::move(done))
      ->Start();
}

}  // namespace tramontane
