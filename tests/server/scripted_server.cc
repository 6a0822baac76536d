#include "tests/server/scripted_server.h"

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "kernels/core/check.h"
#include "models/chat/mistral_chat.h"
#include "models/tokenizer/load.h"

namespace tramontane {
namespace {

constexpr char kScriptText[] = "The wind came down from the hills and sang to the river.";
constexpr int64_t kPollMs = 2;
constexpr int64_t kMostPolls = 60'000 / kPollMs;

}  // namespace

// ---- ScriptedServer --------------------------------------------------------------------------------

ScriptedServer::ScriptedServer(ScriptedServerOptions options) : max_answer_bytes_(options.max_answer_bytes) {
  QuietLogs();
  auto tokenizer = LoadTokenizer(std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights");
  TM_CHECK(tokenizer.ok(), "%s", tokenizer.status().message().c_str());
  tokenizer_ = std::move(tokenizer).value();
  chat_format_ = options.chat_format
                     ? options.chat_format(*tokenizer_)
                     : std::make_unique<MistralChatFormat>(*tokenizer_, tokenizer_->version().value());
  model_ = std::make_unique<ScriptedModel>(
      tokenizer_->Encode(options.says.empty() ? kScriptText : options.says).value());

  EngineLimits& limits = options.limits;
  if (limits.context == 0) limits.context = 32768;
  EngineModel engine_model;
  engine_model.vocab_size = tokenizer_->vocab_size();
  engine_model.eos_ids = {tokenizer_->eos_id()};
  engine_model.kv_layout =
      MakeKvLayout({64, 64}, {.kv_heads = 1, .head_dim = 8, .page_size = limits.page_size});
  if (limits.pool_pages == 0) limits.pool_pages = 8192;  // windowed: a sequence needs about 40
  const Status valid = limits.Validate();
  TM_CHECK(valid.ok(), "%s", valid.message().c_str());
  engine_ = std::make_unique<Engine>(limits, engine_model, *model_, tokenizer_.get(), clock_);
  thread_.emplace(*engine_);

  options.server.grpc_address = "127.0.0.1:0";
  auto server = Server::Start(options.server);
  TM_CHECK(server.ok(), "%s", server.status().message().c_str());
  server_ = std::move(server).value();
  if (options.serve) Serve();
  channel_ = grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  stub_ = v1::Inference::NewStub(channel_);
  client_ = std::make_unique<UnaryClient>(address());
}

ScriptedServer::~ScriptedServer() {
  model_->Release();
  server_->Stop();
  thread_.reset();
}

void ScriptedServer::Serve() { server_->Serve(served()); }

ServedModel ScriptedServer::served() const {
  ServedModel served;
  served.names = {"scripted", "also-scripted"};
  served.config.architecture = "ScriptedForTests";
  served.config.vocab_size = tokenizer_->vocab_size();
  served.config.context = 65536;
  served.config.layers = 3;
  served.config.window = {64, 0, 64};
  served.config.eos_ids = {tokenizer_->eos_id()};
  served.device = "none";
  served.engine = engine_.get();
  served.tokenizer = tokenizer_.get();
  served.chat_format = chat_format_.get();
  served.clock = &clock_;
  served.max_answer_bytes = max_answer_bytes_;
  return served;
}

std::vector<int32_t> ScriptedServer::IdsSaid(int64_t begin, int64_t count) const {
  std::vector<int32_t> ids;
  for (int64_t position = begin; position < begin + count; ++position)
    ids.push_back(model_->TokenAt(position));
  return ids;
}

std::string ScriptedServer::TextSaid(int64_t begin, int64_t count) const {
  std::string text;
  for (const int32_t id : IdsSaid(begin, count)) text += tokenizer_->PieceBytes(id);
  return text;
}

void ScriptedServer::CheckWaited(int64_t polls) const {
  TM_CHECK(polls < kMostPolls, "the load never became what the test waits for");
  std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
}

void QuietLogs() { spdlog::set_level(spdlog::level::warn); }

// ---- Stream ----------------------------------------------------------------------------------------

Stream::Stream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
               const std::vector<std::pair<std::string, std::string>>& metadata) {
  for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
  reader_ = stub.Generate(&context_, request);
}

Stream::Stream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
               std::chrono::milliseconds timeout) {
  context_.set_deadline(std::chrono::system_clock::now() + timeout);
  reader_ = stub.Generate(&context_, request);
}

std::optional<v1::GenerateResponse> Stream::Next() {
  v1::GenerateResponse event;
  if (!reader_->Read(&event)) return std::nullopt;
  events_.push_back(event);
  return event;
}

grpc::Status Stream::ReadAll() {
  while (Next()) {
  }
  return reader_->Finish();
}

std::string Stream::InitialMetadata(const std::string& key) const {
  const auto& metadata = context_.GetServerInitialMetadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

std::string Stream::TrailingMetadata(const std::string& key) const {
  const auto& metadata = context_.GetServerTrailingMetadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

std::string Stream::text(int32_t choice) const {
  std::string text;
  for (const auto& event : events_) {
    if (event.has_delta() && event.delta().choice() == choice) text += event.delta().text();
  }
  return text;
}

std::vector<int32_t> Stream::token_ids(int32_t choice) const {
  std::vector<int32_t> ids;
  for (const auto& event : events_) {
    if (!event.has_delta() || event.delta().choice() != choice) continue;
    ids.insert(ids.end(), event.delta().token_ids().begin(), event.delta().token_ids().end());
  }
  return ids;
}

const v1::Finished& Stream::finished(int32_t choice) const {
  for (const auto& event : events_) {
    if (event.has_finished() && event.finished().choice() == choice) return event.finished();
  }
  static const v1::Finished none;
  ADD_FAILURE() << "choice " << choice << " never finished";
  return none;
}

int64_t Stream::deltas() const {
  return std::count_if(events_.begin(), events_.end(), [](const auto& event) { return event.has_delta(); });
}

// ---- raw calls -------------------------------------------------------------------------------------

v1::GenerateRequest RequestOfIds(std::vector<int32_t> ids, int64_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& bytes, std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer answer;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &answer,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  std::vector<grpc::Slice> slices;
  if (response != nullptr && answer.Valid() && answer.Dump(&slices).ok()) {
    for (const grpc::Slice& part : slices) {
      response->append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
  }
  return status;
}

int HealthOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  // HealthCheckRequest.service is field 1; HealthCheckResponse.status too.
  const std::string request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  std::string response;
  if (!CallWithBytes(channel, "/grpc.health.v1.Health/Check", request, &response).ok()) return -1;
  return response.size() == 2 && response[0] == '\x08' ? response[1] : -1;
}

}  // namespace tramontane
