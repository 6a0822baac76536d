// The subcommands of `tramontane`, one file each. Main thread.
// Each adds itself to the command line and, when chosen, sets `run`, which returns the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace tramontane {

using RunCommand = std::function<int()>;

void AddServeCommand(CLI::App& app, RunCommand* run);
void AddGatewayCommand(CLI::App& app, RunCommand* run);
void AddGenerateCommand(CLI::App& app, RunCommand* run);
void AddInspectCommand(CLI::App& app, RunCommand* run);
void AddKvCommand(CLI::App& app, RunCommand* run);
void AddPerplexityCommand(CLI::App& app, RunCommand* run);
void AddQuantizeCommand(CLI::App& app, RunCommand* run);
void AddTuneCommand(CLI::App& app, RunCommand* run);
void AddHealthCommand(CLI::App& app, RunCommand* run);
void AddKeysCommand(CLI::App& app, RunCommand* run);
void AddBenchCommand(CLI::App& app, RunCommand* run);
void AddSimulateCommand(CLI::App& app, RunCommand* run);
void AddVersionCommand(CLI::App& app, RunCommand* run);

}  // namespace tramontane
