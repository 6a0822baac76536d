// tramontane: one binary, eleven subcommands.
#include "server/commands/commands.h"
#include "server/setup/embedded_model.h"
#include "server/setup/logging.h"

int main(int argc, char** argv) {
  tramontane::AddEmbeddedModel();
  CLI::App app("Tramontane: an inference server for Mistral-style models", "tramontane");
  app.require_subcommand(1);
  tramontane::RunCommand run;
  tramontane::AddServeCommand(app, &run);
  tramontane::AddGatewayCommand(app, &run);
  tramontane::AddGenerateCommand(app, &run);
  tramontane::AddInspectCommand(app, &run);
  tramontane::AddKvCommand(app, &run);
  tramontane::AddPerplexityCommand(app, &run);
  tramontane::AddQuantizeCommand(app, &run);
  tramontane::AddTuneCommand(app, &run);
  tramontane::AddBenchCommand(app, &run);
  tramontane::AddSimulateCommand(app, &run);
  tramontane::AddVersionCommand(app, &run);
  CLI11_PARSE(app, argc, argv);
  const int status = run();
  tramontane::FlushLogs();
  return status;
}
