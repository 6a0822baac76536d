#include <cstdio>

#include "kernels/backends/cpu_backend.h"
#include "server/commands/commands.h"

namespace tramontane {

void AddVersionCommand(CLI::App& app, RunCommand* run) {
  CLI::App* command =
      app.add_subcommand("version", "Print the version and what this build and machine can do");
  app.set_version_flag("--version", "tramontane " TRAMONTANE_VERSION, "Print the version");
  command->callback([run] {
    *run = [] {
      std::printf("tramontane %s\n", TRAMONTANE_VERSION);
      std::string variants;
      for (const std::string& variant : CpuVariants()) variants += (variants.empty() ? "" : ", ") + variant;
      std::printf("cpu: %s\n", variants.c_str());
      return 0;
    };
  });
}

}  // namespace tramontane
