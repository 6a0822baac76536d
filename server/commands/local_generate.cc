#include "server/commands/local_generate.h"

#include <condition_variable>
#include <mutex>

#include "server/host_options.h"
#include "server/model_source.h"
#include "server/proto_convert.h"
#include "server/served_model.h"

namespace tramontane {

namespace {

// Lets this thread sleep until the output thread has something.
class Bell {
 public:
  void Ring() {
    const std::lock_guard lock(mutex_);
    rung_ = true;
    condition_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool rung_ = false;
};

}  // namespace

Status GenerateLocally(const std::string& folder, const v1::GenerateRequest& proto,
                       const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  ServeConfig config;
  config.max_sequences = std::max<int64_t>(1, proto.choices());
  TM_ASSIGN_OR_RETURN(const ModelSource source, FindModel(folder));
  TM_ASSIGN_OR_RETURN(const ModelConfig model_config, LoadModelConfig(source.folder));
  TM_ASSIGN_OR_RETURN(const Device device, MakeDevice(config));
  const BackendPtr& backend = device.backend;
  TM_ASSIGN_OR_RETURN(const EngineHostOptions options,
                      MakeHostOptions(config, source.folder, model_config, *backend));
  const SteadyClock clock;
  Bell bell;  // outlives the engine, whose output thread rings it
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<EngineHost> host,
                      EngineHost::Start(source.folder, *backend, options, clock));
  ServedModel model;
  model.names = {source.name};
  model.config = host->model().config();
  model.device = DescribeDevice(backend->info());
  model.engine = &host->engine();
  model.tokenizer = &host->tokenizer();
  model.clock = &clock;

  const ProtoConverter converter(model);
  Request request;
  request.id = "local";
  request.received_ns = clock.NowNs();
  if (RpcError error = converter.Generate(proto, &request); !error.ok()) return {error.code, error.message};
  request.tokenized_ns = clock.NowNs();
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<TokenStream> stream,
                      host->engine().Submit(std::move(request), [&bell] { bell.Ring(); }));
  bool wanted = true;
  const auto deliver = [&](const v1::GenerateResponse& event) {
    if (wanted && !on_event(event)) {
      wanted = false;
      stream->Cancel();
      host->engine().Wake();
    }
  };
  while (true) {
    bell.Wait();
    StreamUpdate update = stream->Take();
    if (update.started) deliver(converter.StartedToProto(*update.started, stream->request_id()));
    for (StreamDelta& delta : update.deltas) {
      for (const auto& event : converter.DeltaToProto(std::move(delta), {})) deliver(event);
    }
    for (const StreamFinished& finished : update.finished) deliver(ProtoConverter::FinishedToProto(finished));
    if (update.done) return wanted ? update.status : Status::Ok();
  }
}

}  // namespace tramontane
