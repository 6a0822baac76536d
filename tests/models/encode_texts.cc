// Encodes texts for oracles: the tokenizer of the file named, then a JSON string on each line of standard
// input; each is answered by a line with a list of two: the ids where control tokens are text, and where they
// are not.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenizer/load.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

std::string IdsText(const StatusOr<std::vector<int32_t>>& ids) {
  TM_CHECK(ids.ok(), "%s", ids.status().message().c_str());
  std::string text;
  for (const int32_t id : *ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return "[" + text + "]";
}

void Answer(const Tokenizer& tokenizer, const std::string& line) {
  const StatusOr<JsonValue> json = ParsePythonJson(line);
  TM_CHECK(json.ok(), "%s", json.status().message().c_str());
  std::cout << "[" << IdsText(tokenizer.Encode(json->text)) << ","
            << IdsText(tokenizer.EncodeWithControlTokens(json->text)) << "]\n";
}

int Run(const char* path) {
  const auto tokenizer = LoadTokenizer(path);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  std::string line;
  while (std::getline(std::cin, line)) Answer(**tokenizer, line);
  return 0;
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) { return argc == 2 ? tramontane::Run(argv[1]) : 2; }
