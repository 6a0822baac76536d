#include "server/grpc/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <string>
#include <vector>

#include "grpc/health/v1/health.pb.h"
#include "server/grpc/raw_message.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {
namespace {

namespace reflection = grpc::reflection::v1alpha;
using google::protobuf::DescriptorPool;
using FileOfProto = google::protobuf::FileDescriptor;
using reflection::ServerReflectionRequest;
using reflection::ServerReflectionResponse;

std::vector<const FileOfProto*> ServedFiles() {
  return {v1::GenerateRequest::descriptor()->file(),
          grpc::health::v1::HealthCheckRequest::descriptor()->file(),
          ServerReflectionRequest::descriptor()->file()};
}

void SetError(grpc::StatusCode code, const std::string& message, ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(message);
}

// It, and what it imports, each once.
void AddFile(const FileOfProto& file, std::set<const FileOfProto*>* added,
             reflection::FileDescriptorResponse* response) {
  if (!added->insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, response);
}

void SetFile(const FileOfProto* file, ServerReflectionResponse* response) {
  if (file == nullptr) return SetError(grpc::StatusCode::NOT_FOUND, "there is no such file", response);
  std::set<const FileOfProto*> added;
  AddFile(*file, &added, response->mutable_file_descriptor_response());
}

}  // namespace

ServerReflectionResponse Reflect(const ServerReflectionRequest& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      for (const FileOfProto* file : ServedFiles()) {
        for (int i = 0; i < file->service_count(); ++i) {
          response.mutable_list_services_response()->add_service()->set_name(file->service(i)->full_name());
        }
      }
      break;
    case ServerReflectionRequest::kFileByFilename:
      SetFile(pool.FindFileByName(request.file_by_filename()), &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      SetFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), &response);
      break;
    default:  // no message of ours has extensions
      SetError(grpc::StatusCode::NOT_FOUND, "there is no such extension", &response);
  }
  return response;
}

void ReflectionCall::OnMessage(const grpc::ByteBuffer& bytes) {
  ServerReflectionRequest request;
  if (const RpcError error = ParseMessage(bytes, &request); !error.ok()) return End(error);
  const ServerReflectionResponse response = Reflect(request);
  if (const RpcError error = HoldAnswer(response); !error.ok()) return End(error);
  answer_ = SerializeMessage(response);
  StartWriteClock(answer_.Length());
  StartWrite(&answer_);
}

void ReflectionCall::OnNoMessage() {
  Finish(context_->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK);
}

void ReflectionCall::OnWriteDone(bool ok) {
  StopWriteClock();
  if (!ok) return Finish(grpc::Status::CANCELLED);
  ReadNext();
}

}  // namespace tramontane
