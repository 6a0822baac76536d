#include "server/commands/local_generate.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "server/setup/host_options.h"
#include "server/setup/logging.h"
#include "server/setup/model_source.h"

namespace tramontane {

namespace {

// Lets this thread sleep until there is something to take.
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

// As GrpcClient::Generate, without a wire.
Status Generate(InferenceClient& client, v1::GenerateRequest request,
                const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  const auto bell = std::make_shared<Bell>();  // the call may ring it after its end
  RpcError refusal;
  const auto call = client.Generate(std::move(request), {}, [bell] { bell->Ring(); }, &refusal);
  if (call == nullptr) return ToStatus(refusal);
  bool wanted = true;
  while (true) {
    bell->Wait();
    const InferenceEvents taken = call->Take();
    for (const v1::GenerateResponse& event : taken.events) {
      if (!wanted || on_event(event)) continue;
      wanted = false;
      call->Cancel();
    }
    if (taken.done) return wanted ? ToStatus(taken.outcome) : Status::Ok();
  }
}

}  // namespace

Status GenerateLocally(ServeConfig config, const v1::GenerateRequest& request,
                       const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  TM_RETURN_IF_ERROR(SetUpLogging("warn", "text"));  // standard output is the answer's
  config.max_sequences = std::max<int64_t>(1, request.choices());
  TM_ASSIGN_OR_RETURN(const ModelSource source, FindModel(config.model));
  TM_ASSIGN_OR_RETURN(OpenedModel opened,
                      OpenModel(source.folder, KvOptionsOf(config), FileChoiceOf(config)));
  TM_ASSIGN_OR_RETURN(const Device device, MakeDevice(config));
  const BackendPtr& backend = device.backend;
  TM_ASSIGN_OR_RETURN(const EngineHostOptions options, MakeHostOptions(config, opened, *backend));
  const SteadyClock clock;
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<EngineHost> host,
                      EngineHost::Start(std::move(opened), *backend, options, clock));
  ServedModel model;
  model.names = {source.name};
  model.config = host->model().config();
  model.device = DescribeDevice(backend->info());
  model.engine = &host->engine();
  model.tokenizer = &host->tokenizer();
  model.chat_format = &host->chat_format();
  model.clock = &clock;

  InferenceCore core({.workers = {.threads = 1}, .max_streams = 1});
  core.Serve(model);
  EngineClient client(core);
  return Generate(client, request, on_event);
}

}  // namespace tramontane
