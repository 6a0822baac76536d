// bench and simulate: each becomes a program of its own beside this one, tramontane_bench, the load tool, or
// tramontane_simulate. What follows the word is its command line, --help too.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "server/commands/commands.h"

namespace tramontane {
namespace {

// `name`: of the command, and the program is tramontane_NAME.
int Become(const std::string& name, const std::vector<std::string>& arguments) {
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (binary.parent_path() / ("tramontane_" + name)).string();
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  std::fprintf(stderr, "%s: %s cannot be started (%s); ./run --build-only builds it\n", name.c_str(),
               program.c_str(), std::strerror(errno));
  return 1;
}

void AddProgram(CLI::App& app, const std::string& name, const std::string& about, RunCommand* run) {
  CLI::App* command = app.add_subcommand(name, about);
  command->prefix_command();
  command->set_help_flag();  // the program's own
  command->callback([command, name, run] {
    *run = [name, arguments = command->remaining()] { return Become(name, arguments); };
  });
}

}  // namespace

void AddBenchCommand(CLI::App& app, RunCommand* run) {
  AddProgram(app, "bench", "Measure how a server answers under load; bench --help tells more", run);
}

void AddSimulateCommand(CLI::App& app, RunCommand* run) {
  AddProgram(app, "simulate",
             "Tell what the server would do on a device that is not there; simulate --help tells more", run);
}

}  // namespace tramontane
