// bench: becomes tramontane_bench, the load tool, a program of its own beside this one. What follows the word
// is its command line, --help too.
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

int BecomeBench(const std::vector<std::string>& arguments) {
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (binary.parent_path() / "tramontane_bench").string();
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  std::fprintf(stderr, "bench: %s cannot be started (%s); ./run --build-only builds it\n", program.c_str(),
               std::strerror(errno));
  return 1;
}

}  // namespace

void AddBenchCommand(CLI::App& app, RunCommand* run) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure how a server answers under load; bench --help tells more");
  command->prefix_command();
  command->set_help_flag();  // the program's own
  command->callback(
      [command, run] { *run = [arguments = command->remaining()] { return BecomeBench(arguments); }; });
}

}  // namespace tramontane
