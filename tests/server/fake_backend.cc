#include "tests/server/fake_backend.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "server/grpc/grpc_status.h"

namespace tramontane {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

}  // namespace

struct FakeBackend::Impl final : public grpc::CallbackGenericService {
  explicit Impl(Script told) : script(std::move(told)) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(this);
    server = builder.BuildAndStart();
    grpc::EnableDefaultHealthCheckService(false);  // of this server alone: the process may start others
    server->GetHealthCheckService()->SetServingStatus("tramontane.v1.Inference", true);
    address = "127.0.0.1:" + std::to_string(port);
  }
  ~Impl() override { server->Shutdown(std::chrono::system_clock::now()); }

  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    Call(Impl& impl, std::string method) : impl_(impl), method_(std::move(method)) { StartRead(&request_); }

   private:
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status(grpc::StatusCode::INTERNAL, "no request"));
      answer_ = impl_.script(method_, BytesOf(request_));
      Go();
    }
    void OnWriteDone(bool ok) override {
      if (!ok) return End();
      Go();
    }
    void OnCancel() override {
      ++impl_.cancelled;
      if (answer_.hangs) End();
    }
    void OnDone() override { delete this; }

    void Go() {
      const size_t messages = answer_.messages.size();
      if (next_ >= messages && !(answer_.endless && messages > 0)) {
        if (!answer_.hangs) End();
        return;
      }
      message_ = BufferOf(answer_.messages[std::min(next_++, messages - 1)]);
      StartWrite(&message_);
    }
    void End() {
      if (ended_.exchange(true)) return;
      Finish(answer_.bare_status.empty() ? ToGrpcStatus(answer_.status)
                                         : grpc::Status(grpc::StatusCode::UNAVAILABLE, answer_.bare_status));
    }

    Impl& impl_;
    const std::string method_;
    grpc::ByteBuffer request_, message_;
    Answer answer_;
    size_t next_ = 0;
    std::atomic<bool> ended_{false};
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    std::string method = context->method().substr(context->method().rfind('/') + 1);
    {
      std::lock_guard lock(mutex);
      ++calls[method];
    }
    return new Call(*this, std::move(method));
  }

  const Script script;
  std::string address;
  std::atomic<int64_t> cancelled{0};
  mutable std::mutex mutex;  // guards calls
  std::map<std::string, int64_t> calls;
  std::unique_ptr<grpc::Server> server;
};

FakeBackend::FakeBackend(Script script) : impl_(std::make_unique<Impl>(std::move(script))) {}

FakeBackend::~FakeBackend() = default;

const std::string& FakeBackend::address() const { return impl_->address; }

int64_t FakeBackend::calls(const std::string& method) const {
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->calls.find(method);
  return found == impl_->calls.end() ? 0 : found->second;
}

int64_t FakeBackend::cancelled() const { return impl_->cancelled; }

}  // namespace tramontane
