#include "server/remote/remote_server.h"

#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/remote/answer_check.h"
#include "server/remote/backend_outcome.h"
#include "server/remote/channel_credentials.h"

namespace tramontane {
namespace {

constexpr int kConnectTimeoutMs = 2000;
constexpr int kFirstReconnectMs = 200;
constexpr int kLongestReconnectMs = 2000;
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
// The calls whose answers are as long as what they are asked, or kept.
constexpr const char* kLongCalls[] = {"Tokenize", "Detokenize", "RenderChat", "ListSessions"};

// With this gRPC itself watches the health service: the channel is READY only while it says SERVING.
// (pick_first, the default policy, does not look.) And it ends a call whose server sends a longer message.
std::string ServiceConfig() {
  std::string long_calls;
  for (const char* call : kLongCalls) {
    long_calls += std::string(long_calls.empty() ? "" : ", ") +
                  R"({"service": "tramontane.v1.Inference", "method": ")" + call + R"("})";
  }
  return R"({"loadBalancingConfig": [{"round_robin": {}}],
             "healthCheckConfig": {"serviceName": "tramontane.v1.Inference"},
             "methodConfig": [{"name": [)" +
         long_calls + R"(], "maxResponseMessageBytes": )" + std::to_string(kMaxLongMessageBytes) + R"(},
                              {"name": [{"service": "tramontane.v1.Inference"}], "maxResponseMessageBytes": )" +
         std::to_string(kMaxShortMessageBytes) + "}]}";
}

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address, const ClientTls& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxLongMessageBytes);
  arguments.SetServiceConfigJSON(ServiceConfig());
  grpc::ResourceQuota memory;
  memory.Resize(kServerMemoryBytes);
  arguments.SetResourceQuota(memory);
  // The bounds are of what comes over the wire: what is compressed can be any number of times as long.
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);  // it is the connect timeout, too
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // A connection of its own, also where another client of this process has the same address.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, CredentialsFor(tls), arguments);
}

// 0: the server does not say how many it takes.
bool IsBelow(int64_t number, int64_t most) { return most == 0 || number < most; }

bool HasRoom(const v1::GetLoadResponse& load) {
  return IsBelow(load.waiting_requests(), load.max_waiting_requests()) &&
         IsBelow(load.open_streams(), load.max_open_streams());
}

}  // namespace

// ---- OpenCalls ----------------------------------------------------------------------------------

bool OpenCalls::Add(grpc::ClientContext* context) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  contexts_.insert(context);
  ++not_gone_;
  return true;
}

void OpenCalls::Remove(grpc::ClientContext* context) {
  std::lock_guard lock(mutex_);
  contexts_.erase(context);
}

void OpenCalls::CountDown() {
  std::lock_guard lock(mutex_);
  if (--not_gone_ == 0) changed_.notify_all();
}

void OpenCalls::CancelAndWait() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
  changed_.wait(lock, [this] { return not_gone_ == 0; });
}

// ---- RemoteServer ------------------------------------------------------------------------------------

RemoteServer::RemoteServer(const std::string& address, std::string api_key, const ClientTls& tls)
    : api_key_(std::move(api_key)),
      address_(address),
      channel_(ChannelTo(address, tls)),
      stub_(v1::Inference::NewStub(channel_)),
      raw_stub_(channel_) {}

void RemoteServer::Sign(const Caller& caller, grpc::ClientContext* context) const {
  if (!api_key_.empty()) context->AddMetadata("authorization", "Bearer " + api_key_);
  if (!caller.identity.empty()) context->AddMetadata(kTramontaneCallerKey, caller.identity);
  if (caller.weight != 1) context->AddMetadata(kCallerWeightKey, std::to_string(caller.weight));
  if (!caller.request_id.empty()) context->AddMetadata(kRequestIdKey, caller.request_id);
  if (!caller.trace.parent.empty()) context->AddMetadata(kTraceParentKey, caller.trace.parent);
  if (!caller.trace.state.empty()) context->AddMetadata(kTraceStateKey, caller.trace.state);
}

void RemoteServer::CallStarted() {
  ++open_calls_;
  ++started_calls_;
}

void RemoteServer::CallEnded(bool lost, bool served) {
  --open_calls_;
  if (lost) ++lost_calls_;
  if (served) full_ = false;
}

struct RemoteServer::LoadQuestion {
  OpenCallCount count;  // in front of the context
  grpc::ClientContext context;
  v1::GetLoadRequest request;
  v1::GetLoadResponse response;
};

// Also of a server that is down, waiting for it: gRPC connects and watches health only while some call of
// this process keeps its threads busy.
void RemoteServer::Poll(OpenCalls& open, int64_t timeout_ms) {
  LogChange();
  if (polling_.exchange(true)) return;
  auto question = std::make_shared<LoadQuestion>();
  question->context.set_wait_for_ready(true);
  question->context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  Sign(Caller(), &question->context);
  if (!open.Add(&question->context)) return;
  question->count.calls = &open;
  stub_->async()->GetLoad(&question->context, &question->request, &question->response,
                          [this, &open, question, was_full = full()](const grpc::Status& status) {
                            OnLoad(status, question->response, was_full);
                            open.Remove(&question->context);
                          });
}

// A refusal since the question was asked is newer than the answer.
void RemoteServer::OnLoad(const grpc::Status& status, const v1::GetLoadResponse& load, bool was_full) {
  const std::string fault = status.ok() ? NumberFault(load) : "";
  if (!fault.empty()) BadGatewayError(fault, address_);
  if (status.ok() && fault.empty()) {
    others_calls_ = std::max<int64_t>(0, load.open_streams() - open_calls_);
    if (was_full) full_ = false;
    if (!HasRoom(load)) full_ = true;
    std::lock_guard lock(mutex_);
    last_load_ = load;
  }
  polling_ = false;
}

void RemoteServer::LogChange() {
  const bool is_up = up();
  if (was_up_.exchange(is_up) != is_up) spdlog::info("server {} is {}", address_, is_up ? "up" : "down");
}

BackendState RemoteServer::state() const {
  BackendState state;
  state.address = address_;
  state.up = up();
  state.open_calls = open_calls_;
  state.others_calls = others_calls_;
  state.started_calls = started_calls_;
  state.lost_calls = lost_calls_;
  return state;
}

v1::GetLoadResponse RemoteServer::last_load() const {
  std::lock_guard lock(mutex_);
  return last_load_;
}

// ---- RemoteServers ---------------------------------------------------------------------------------

RemoteServers::RemoteServers(const RemoteClientOptions& options)
    : poll_interval_ms_(options.poll_interval_ms), max_answer_bytes_(options.max_answer_bytes) {
  for (const std::string& address : options.backends)
    backends_.push_back(std::make_unique<RemoteServer>(address, options.api_key, options.tls));
  poller_ = std::thread([this] { PollLoop(); });
}

RemoteServers::~RemoteServers() { Close(); }

RemoteServer* RemoteServers::Choose(const std::vector<RemoteServer*>& tried) {
  const size_t first = choices_++ % backends_.size();  // equal ones take turns
  RemoteServer* best = nullptr;
  for (size_t i = 0; i < backends_.size(); ++i) {
    RemoteServer* backend = backends_[(first + i) % backends_.size()].get();
    if (std::find(tried.begin(), tried.end(), backend) != tried.end() || !backend->up()) continue;
    if (best == nullptr ||
        std::pair(backend->full(), backend->load()) < std::pair(best->full(), best->load()))
      best = backend;
  }
  return best;
}

RemoteServer* RemoteServers::HomeOf(const std::string& session) const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : session) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  RemoteServer* home = backends_[hash % backends_.size()].get();
  return home->up() ? home : nullptr;
}

void RemoteServers::Close() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (poller_.joinable()) poller_.join();
  open_calls_.CancelAndWait();
}

void RemoteServers::PollLoop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    for (const auto& backend : backends_) backend->Poll(open_calls_, poll_interval_ms_);
    lock.lock();
    stop_.wait_for(lock, std::chrono::milliseconds(poll_interval_ms_), [this] { return stopping_; });
  }
}

}  // namespace tramontane
