#include "bench/load/wire/grpc_transport.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bench/load/wire/answer_reader.h"
#include "bench/load/wire/event_stream_parser.h"
#include "bench/load/wire/stamp.h"
#include "server/remote/from_grpc_status.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane::load {
namespace {

// What gRPC says where it never had a connection, in all versions known.
constexpr std::string_view kNoConnectionWords[] = {
    "failed to connect", "Connection refused", "DNS resolution failed",
    "Failed to connect", "No route to host",   "connections to all backends failing"};
// And where it lost one.
constexpr std::string_view kLostWords[] = {"Socket closed", "Connection reset",     "Broken pipe",
                                           "GOAWAY",        "Endpoint read failed", "keepalive watchdog"};

template <size_t N>
bool HasOneOf(const std::string& text, const std::string_view (&words)[N]) {
  return std::any_of(std::begin(words), std::end(words),
                     [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

StatusOr<std::string> ReadFile(const std::string& option, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream stream(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (stream && !text.empty()) return text;
  return InvalidArgument("is \"" + path + "\", which cannot be read").WithField(option, FieldForm::kSubject);
}

// --insecure has a verifier that looks at nothing; else gRPC's own checks of chain and host.
StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const WireTarget& target) {
  const TargetOptions& options = target.options();
  if (!target.has_tls()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions files;
  TM_ASSIGN_OR_RETURN(files.pem_root_certs, ReadFile("--ca", options.ca_file));
  TM_ASSIGN_OR_RETURN(files.pem_cert_chain, ReadFile("--cert", options.cert_file));
  const std::string& key_file = options.key_file.empty() ? options.cert_file : options.key_file;
  TM_ASSIGN_OR_RETURN(files.pem_private_key, ReadFile("--key", key_file));
  if (!options.insecure) return grpc::SslCredentials(files);
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions unverified;
  unverified.set_verify_server_certs(false);
  unverified.set_check_call_host(false);
  unverified.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  if (!files.pem_cert_chain.empty()) {
    unverified.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
        files.pem_root_certs,
        std::vector<tls::IdentityKeyCertPair>{{files.pem_private_key, files.pem_cert_chain}}));
    unverified.watch_identity_key_cert_pairs();
  }
  return tls::TlsCredentials(unverified);
}

// Of its own connection: channels with the same arguments would share one.
StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const WireTarget& target) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials, Credentials(target));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxEventBytes));  // gRPC names it where one is longer
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target.authority(), credentials, arguments);
}

void AddMetadata(const WireTarget& target, grpc::ClientContext* context) {
  for (const auto& [name, value] : target.options().headers) {
    std::string key = name;
    std::transform(key.begin(), key.end(), key.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    context->AddMetadata(key, value);
  }
  if (!target.options().api_key.empty()) {
    context->AddMetadata("authorization", "Bearer " + target.options().api_key);
  }
}

v1::GenerateRequest ToProto(const OutgoingRequest& request, const TargetOptions& options) {
  v1::GenerateRequest proto;
  proto.set_request_id(request.request_id);
  proto.set_model(options.model);
  if (options.endpoint == Endpoint::kChat) {
    v1::ChatMessage& message = *proto.mutable_chat()->add_messages();
    message.set_role(v1::ROLE_USER);
    message.set_content(request.text);
  } else if (!request.text.empty()) {
    proto.set_text(request.text);
  } else {
    proto.mutable_token_ids()->mutable_ids()->Add(request.ids.begin(), request.ids.end());
  }
  proto.mutable_stopping()->set_max_tokens(request.output_tokens);
  if (options.ignore_eos) proto.mutable_stopping()->set_ignore_eos(true);
  return proto;
}

bool HasContent(const v1::Delta& delta) {
  return !delta.text().empty() || !delta.reasoning().empty() || delta.token_ids_size() > 0;
}

std::string TimingJson(const v1::Timings& timings) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const bool printed = google::protobuf::util::MessageToJsonString(timings, &json, options).ok();
  return printed ? json : "";
}

// CPU of this process's threads that were not there when it was made: gRPC makes its own and names none.
class NewThreadsClock {
 public:
  NewThreadsClock() : before_(Ids()), read_ns_(NowNs()) {}

  ClientLoad Read() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now_ns = NowNs();
    const auto elapsed_ns = static_cast<double>(std::max<int64_t>(1, now_ns - read_ns_));
    ClientLoad load;
    std::map<pid_t, int64_t> spent;
    for (const pid_t id : Ids()) {
      timespec time{};
      // The CPU clock of any thread of this process, as pthread_getcpuclockid makes it of its own handles.
      const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(id) << 3) | 6u);
      if (before_.count(id) != 0 || clock_gettime(clock, &time) != 0) continue;
      spent[id] = ToNs(time);
      const int64_t since_ns = spent[id] - (spent_.count(id) != 0 ? spent_[id] : 0);
      load.busiest_thread_share =
          std::max(load.busiest_thread_share, std::min(1.0, static_cast<double>(since_ns) / elapsed_ns));
      total_ns_ += since_ns;
    }
    load.cpu_ns = total_ns_;
    spent_ = std::move(spent);
    read_ns_ = now_ns;
    return load;
  }

 private:
  static std::set<pid_t> Ids() {
    std::set<pid_t> ids;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", gone)) {
      ids.insert(static_cast<pid_t>(std::atoi(entry.path().filename().c_str())));
    }
    return ids;
  }

  std::mutex mutex_;
  const std::set<pid_t> before_;
  // Under mutex_.
  std::map<pid_t, int64_t> spent_;  // of the threads that are there
  int64_t total_ns_ = 0;  // of those that ended too, but for what they did since they were last read
  int64_t read_ns_;
};

class GrpcTransport;

// One call. Deletes itself when gRPC is done with it.
class GrpcCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  GrpcCall(GrpcTransport* transport, const WireTarget& target, OutgoingRequest request, Transport::Done done)
      : transport_(transport), target_(target), request_(std::move(request)), done_(std::move(done)) {}

  void Begin(v1::Inference::Stub* stub);
  void Cancel() { context_.TryCancel(); }

  void OnReadInitialMetadataDone(bool ok) override {
    const int64_t now_ns = NowNs();
    if (ok) record_.headers_ns = now_ns;
  }
  void OnReadDone(bool ok) override {
    const int64_t now_ns = NowNs();
    if (!ok) return;
    ReadEvent(now_ns);
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override;

 private:
  void ReadEvent(int64_t now_ns);
  void AddContent(int64_t now_ns);
  void Judge(const grpc::Status& status);
  void CountOutput();

  GrpcTransport* transport_;
  const WireTarget& target_;
  OutgoingRequest request_;
  Transport::Done done_;
  grpc::ClientContext context_;
  v1::GenerateRequest proto_;
  v1::GenerateResponse event_;
  RequestRecord record_;
  int64_t ids_ = 0;
  bool has_usage_ = false;
  bool has_finish_ = false;
  bool is_too_long_ = false;  // more content than is kept
  std::string fault_;         // of a choice
};

class GrpcTransport final : public Transport {
 public:
  GrpcTransport(std::shared_ptr<const WireTarget> target,
                const std::vector<std::shared_ptr<grpc::Channel>>& channels)
      : target_(std::move(target)) {
    for (const auto& channel : channels) stubs_.push_back(v1::Inference::NewStub(channel));
  }
  ~GrpcTransport() override { Abort(); }

  void Send(OutgoingRequest request, Done done) override {
    auto* const call = new GrpcCall(this, *target_, std::move(request), std::move(done));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      calls_.insert(call);
      ++open_;
    }
    call->Begin(stubs_[next_++ % stubs_.size()].get());
  }

  void Abort() override {
    std::unique_lock<std::mutex> lock(mutex_);
    aborting_ = true;
    for (GrpcCall* call : calls_) call->Cancel();
    ended_.wait(lock, [this] { return open_ == 0; });
    aborting_ = false;
  }

  ClientLoad Load() override { return clock_.Read(); }

  bool aborting() const { return aborting_.load(); }
  // A call's record is out; the call is about to go, and is cancelled no more.
  void Forget(GrpcCall* call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.erase(call);
  }
  // It is gone, and nothing of gRPC's that it held is left behind for the end of the process.
  void CountDown() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--open_ == 0) ended_.notify_all();
  }

 private:
  NewThreadsClock clock_;  // before gRPC makes a thread
  const std::shared_ptr<const WireTarget> target_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> aborting_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  // Under mutex_. As many as senders want to have under way.
  std::unordered_set<GrpcCall*> calls_;
  int64_t open_ = 0;  // calls that are not gone
};

void GrpcCall::Begin(v1::Inference::Stub* stub) {
  proto_ = ToProto(request_, target_.options());
  AddMetadata(target_, &context_);
  context_.AddMetadata("x-request-id", request_.request_id);
  if (target_.options().timing) context_.AddMetadata("x-tramontane-timing", "1");
  record_.index = request_.index;
  record_.class_index = request_.class_index;
  record_.request_id = request_.request_id;
  record_.intended_ns = request_.intended_ns;
  record_.sent_ns = NowNs();
  context_.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(request_.deadline_ns, GPR_TIMESPAN)));
  stub->async()->Generate(&context_, &proto_, this);
  StartRead(&event_);
  StartCall();
}

void GrpcCall::ReadEvent(int64_t now_ns) {
  if (event_.has_started()) {
    record_.input_tokens = static_cast<int32_t>(event_.started().prompt_tokens());
  } else if (event_.has_delta()) {
    if (!record_.first_any_ns) record_.first_any_ns = now_ns;
    if (HasContent(event_.delta())) AddContent(now_ns);
    ids_ += event_.delta().token_ids_size();
  } else if (event_.has_finished()) {
    const v1::Finished& finished = event_.finished();
    if (!record_.first_any_ns) record_.first_any_ns = now_ns;
    record_.done_ns = now_ns;
    has_finish_ = true;
    if (finished.reason() == v1::FINISH_REASON_ERROR)
      fault_ = "a choice ended with an error: " + finished.error_message();
    if (finished.has_usage()) {
      has_usage_ = true;
      record_.output_tokens += static_cast<int32_t>(finished.usage().completion_tokens());
      record_.input_tokens = static_cast<int32_t>(finished.usage().prompt_tokens());
    }
    if (target_.options().timing && finished.has_timings())
      record_.timing_json = TimingJson(finished.timings());
  }
}

void GrpcCall::AddContent(int64_t now_ns) {
  if (record_.content_ns.size() < kMaxContentEvents) {
    record_.content_ns.push_back(now_ns);
  } else {
    is_too_long_ = true;
    context_.TryCancel();
  }
}

void GrpcCall::Judge(const grpc::Status& status) {
  if (is_too_long_) {
    record_.outcome = Outcome::kGarbage;
    record_.error = "more than " + std::to_string(kMaxContentEvents) + " content events in one answer";
    return;
  }
  const bool has_answer = record_.headers_ns || record_.first_any_ns;
  if (status.ok()) {
    if (!fault_.empty()) {
      record_.outcome = Outcome::kStreamError;
      record_.error = fault_;
    } else if (!has_finish_) {
      record_.outcome = record_.content_ns.empty() ? Outcome::kNoContent : Outcome::kClosedEarly;
      record_.error = record_.content_ns.empty() ? "neither content nor a finish before the stream's end"
                                                 : "the stream ended without a finish";
    }
    return;
  }
  const RpcError error = FromGrpcStatus(status);
  record_.error = std::string(StatusCodeName(error.code)) + ": " + status.error_message();
  if (error.retry_after_ms > 0) record_.retry_after_s = static_cast<double>(error.retry_after_ms) / 1000;
  const bool is_unavailable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  if (transport_->aborting() && status.error_code() == grpc::StatusCode::CANCELLED) {
    record_.outcome = Outcome::kUnfinished;
  } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    record_.outcome = Outcome::kTimeout;
  } else if (is_unavailable && !has_answer && HasOneOf(status.error_message(), kNoConnectionWords)) {
    record_.outcome = Outcome::kRefused;
  } else if (is_unavailable && HasOneOf(status.error_message(), kLostWords)) {
    record_.outcome = Outcome::kClosedEarly;
  } else {
    record_.outcome = Outcome::kStreamError;
  }
}

void GrpcCall::CountOutput() {
  if (has_usage_) {
    record_.output_tokens_from = TokenCountFrom::kUsage;
  } else if (ids_ > 0) {
    record_.output_tokens = static_cast<int32_t>(ids_);
    record_.output_tokens_from = TokenCountFrom::kIds;
  } else {
    record_.output_tokens = static_cast<int32_t>(record_.content_ns.size());
    record_.output_tokens_from = TokenCountFrom::kEvents;
  }
}

void GrpcCall::OnDone(const grpc::Status& status) {
  const int64_t now_ns = NowNs();
  record_.status = status.error_code();
  if (status.ok() && !record_.done_ns) record_.done_ns = now_ns;
  Judge(status);
  CountOutput();
  record_.error = ServerText(record_.error, target_.options().api_key);
  done_(std::move(record_));
  GrpcTransport* const transport = transport_;
  transport->Forget(this);
  delete this;
  transport->CountDown();
}

}  // namespace

StatusOr<std::unique_ptr<Transport>> ConnectGrpc(const std::shared_ptr<const WireTarget>& target) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int32_t i = 0; i < std::max(1, target->options().threads); ++i) {
    TM_ASSIGN_OR_RETURN(channels.emplace_back(), MakeChannel(*target));
  }
  return std::unique_ptr<Transport>(std::make_unique<GrpcTransport>(target, channels));
}

StatusOr<std::string> FirstGrpcModel(const std::shared_ptr<const WireTarget>& target) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(*target));
  grpc::ClientContext context;
  AddMetadata(*target, &context);
  context.set_deadline(gpr_time_add(
      gpr_now(GPR_CLOCK_MONOTONIC),
      gpr_time_from_nanos(static_cast<int64_t>(target->options().timeout_s * 1e9), GPR_TIMESPAN)));
  v1::GetModelResponse model;
  const grpc::Status status = v1::Inference::NewStub(channel)->GetModel(&context, {}, &model);
  const std::string& key = target->options().api_key;
  if (!status.ok()) {
    const std::string why = ServerText(status.error_message(), key);
    const bool is_dead = status.error_code() == grpc::StatusCode::UNAVAILABLE &&
                         HasOneOf(status.error_message(), kNoConnectionWords);
    if (is_dead) return Unavailable(target->authority() + ": " + why);
    return InvalidArgument("GetModel failed: " + why + ": name the model with --model");
  }
  if (model.name().empty() || VisibleText(model.name()) != model.name()) {
    return InvalidArgument(target->authority() + " serves a model called \"" + ServerText(model.name(), key) +
                           "\", which cannot be shown: name the model with --model");
  }
  return model.name();
}

}  // namespace tramontane::load
