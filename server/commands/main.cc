// tramontane: one binary, thirteen subcommands.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/core/nearest_name.h"
#include "server/commands/commands.h"
#include "server/setup/embedded_model.h"
#include "server/setup/logging.h"

namespace tramontane {
namespace {

// What was meant by a word that nobody knows; "" where nothing known is like it.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest(NearestName(word, {known.begin(), known.end()}));
  const bool is_like_it = EditDistance(word, nearest) < std::max(word.size(), nearest.size());
  return word + " is unknown" + (is_like_it ? "; did you mean " + nearest + "?\n" : "\n");
}

// Of the first flag that the command has not, and of the first word in the place of a subcommand.
std::string UnknownWords(const CLI::App& command) {
  std::vector<std::string> flags, commands;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  for (const CLI::App* sub : command.get_subcommands(nullptr)) commands.push_back(sub->get_name());
  const bool wants_command = !commands.empty() && command.get_subcommands().empty();
  for (const std::string& word : command.remaining()) {
    if (word.starts_with("--")) return DidYouMean(word.substr(0, word.find('=')), flags);
    if (wants_command) return DidYouMean(word, commands);
  }
  return "";
}

std::string UsageError(const CLI::App* app, const CLI::Error& error) {
  std::string unknown;
  for (const CLI::App* command = app; command != nullptr;) {
    unknown += UnknownWords(*command);
    const std::vector<CLI::App*> chosen = command->get_subcommands();
    command = chosen.empty() ? nullptr : chosen.front();
  }
  return unknown + CLI::FailureMessage::simple(app, error);
}

// Says of each option that takes a value what it is without it, as the flags of settings do.
void ShowDefaults(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const bool is_plain = option->get_items_expected_max() > 0 && !option->get_required();
    if (!is_plain || option->get_description().find("[default:") != std::string::npos) continue;
    const std::string value = option->get_default_str();
    option->description(option->get_description() + " [default: " + (value.empty() ? "none" : value) + "]");
    option->default_str("");
  }
  for (CLI::App* sub : command.get_subcommands(nullptr)) ShowDefaults(*sub);
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  tramontane::AddEmbeddedModel();
  CLI::App app("Tramontane: an inference server for Mistral-style models", "tramontane");
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
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
  tramontane::ShowDefaults(app);
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
