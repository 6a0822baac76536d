#include "server/commands/local_generate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/commands/local_engine.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "server/setup/host_options.h"

namespace tramontane {

namespace {

// As GrpcClient::Generate, without a wire.
Status Generate(InferenceClient& client, v1::GenerateRequest request,
                const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  const auto bell = std::make_shared<Bell>();  // the call may ring it after its end
  RpcError refusal;
  const auto call = client.Generate(Caller(), std::move(request), {}, [bell] { bell->Ring(); }, &refusal);
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
  config.max_sequences = std::max<int64_t>(1, request.choices());
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<LocalEngine> local, StartLocalEngine(config));
  EngineHost* const host = local->host.get();
  ServedModel model;
  model.names = {local->name};
  model.config = host->model().config();
  model.device = DescribeDevice(local->backend->info());
  model.engine = &host->engine();
  model.tokenizer = &host->tokenizer();
  model.chat_format = &host->chat_format();
  model.clock = &local->clock;

  InferenceCore core({.workers = {.threads = 1}, .max_streams = 1});
  core.Serve(model);
  EngineClient client(core);
  return Generate(client, request, on_event);
}

}  // namespace tramontane
