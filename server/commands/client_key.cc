#include "server/commands/client_key.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace tramontane {

void AddApiKeyFlag(std::string* file, CLI::App* command) {
  command
      ->add_option("--api-key-file", *file,
                   "file whose first line is the API key for the server; else TRAMONTANE_API_KEY")
      ->group("security");
}

StatusOr<std::string> ClientKey(const std::string& file) {
  std::string key;
  if (file.empty()) {
    const char* given = std::getenv("TRAMONTANE_API_KEY");
    if (given != nullptr) key = given;
  } else {
    std::ifstream stream(file);
    if (!std::getline(stream, key)) {
      return InvalidArgument("--api-key-file is \"" + file + "\": a file whose first line is the key");
    }
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
  }
  const bool is_text = std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!is_text) return InvalidArgument("the API key has characters that no header can hold");
  return key;
}

}  // namespace tramontane
