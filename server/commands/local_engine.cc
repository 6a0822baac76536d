#include "server/commands/local_engine.h"

#include <utility>

#include "server/setup/host_options.h"
#include "server/setup/logging.h"
#include "server/setup/model_source.h"
#include "server/setup/tuning_cache.h"

namespace tramontane {

StatusOr<std::unique_ptr<LocalEngine>> StartLocalEngine(const ServeConfig& config) {
  TM_RETURN_IF_ERROR(SetUpLogging("warn", "text"));  // standard output is the answer's
  TM_ASSIGN_OR_RETURN(ModelSource source, FindModel(config.model));
  TM_ASSIGN_OR_RETURN(OpenedModel opened,
                      OpenModel(source.folder, KvOptionsOf(config), FileChoiceOf(config)));
  TM_ASSIGN_OR_RETURN(Device device, MakeDevice(config));
  auto local = std::make_unique<LocalEngine>();
  local->name = std::move(source.name);
  local->backend = std::move(device.backend);
  TM_ASSIGN_OR_RETURN(EngineHostOptions options, MakeHostOptions(config, opened, *local->backend));
  if (!config.tuning_cache.empty()) {
    TM_ASSIGN_OR_RETURN(local->tuned, UseTuningCache(config.tuning_cache, *local->backend));
    options.tune = local->tuned;
  }
  TM_ASSIGN_OR_RETURN(local->host,
                      EngineHost::Start(std::move(opened), *local->backend, options, local->clock));
  return local;
}

}  // namespace tramontane
