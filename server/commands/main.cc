// tramontane: one binary, thirteen subcommands.
#include "kernels/core/nearest_name.h"
#include "server/commands/commands.h"
#include "server/setup/embedded_model.h"
#include "server/setup/logging.h"

namespace tramontane {
namespace {

// The flag of the command that was meant by the first one that it has not; "" where there is none.
std::string MeantFlag(const CLI::App& command) {
  std::vector<std::string_view> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  }
  for (const std::string& word : command.remaining()) {
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(2, word.find('=') - 2);
    return "the nearest to --" + name + " is --" + std::string(NearestName(name, known)) + '\n';
  }
  return "";
}

std::string UsageError(const CLI::App* app, const CLI::Error& error) {
  std::string text = CLI::FailureMessage::simple(app, error);
  for (const CLI::App* command : app->get_subcommands()) text += MeantFlag(*command);
  return text;
}

}  // namespace
}  // namespace tramontane

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
  tramontane::AddHealthCommand(app, &run);
  tramontane::AddKeysCommand(app, &run);
  tramontane::AddBenchCommand(app, &run);
  tramontane::AddSimulateCommand(app, &run);
  tramontane::AddVersionCommand(app, &run);
  app.failure_message(tramontane::UsageError);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kUsageStatus = 2;
    return app.exit(error) == 0 ? 0 : kUsageStatus;
  }
  const int status = run();
  tramontane::FlushLogs();
  return status;
}
