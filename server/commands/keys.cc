// keys new NAME: draws an API key, and prints it once beside its entry for the file of keys.
#include <cstdio>
#include <memory>
#include <string>

#include "server/access/api_key.h"
#include "server/access/key_file.h"
#include "server/commands/commands.h"

namespace tramontane {
namespace {

int PrintNewKey(const std::string& name) {
  if (const std::string fault = KeyNameFault(name); !fault.empty()) {
    std::fprintf(stderr, "tramontane keys new: the name %s\n", fault.c_str());
    return 2;
  }
  const std::string key = DrawKey();
  std::printf("key    %s\nentry  %s\n", key.c_str(), KeyFileEntry(name, DigestOfKey(key)).c_str());
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace

void AddKeysCommand(CLI::App& app, RunCommand* run) {
  CLI::App* command = app.add_subcommand("keys", "API keys");
  command->require_subcommand(1);
  CLI::App* make =
      command->add_subcommand("new", "Print a new key, once, and its entry for the file of keys");
  auto name = std::make_shared<std::string>();
  make->add_option("NAME", *name, "whose it is, as logs and metrics call it")->required();
  make->callback([name, run] { *run = [name] { return PrintNewKey(*name); }; });
}

}  // namespace tramontane
