// Runs a fuzz target once over each of its seeds, for builds without libFuzzer.
// Usage: fuzz_NAME CORPUS_FOLDER. Fails if there is no seed, or (by crashing) if the target finds a fault.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::vector<std::filesystem::path> Seeds(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> seeds;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    if (entry.is_regular_file()) seeds.push_back(entry.path());
  }
  std::sort(seeds.begin(), seeds.end());
  return seeds;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  const auto seeds = Seeds(argv[1]);
  if (seeds.empty()) {
    std::fprintf(stderr, "no seeds in %s: a replay over nothing shows nothing\n", argv[1]);
    return 1;
  }
  size_t bytes = 0;
  for (const auto& seed : seeds) {
    const std::string input = ReadFile(seed);
    std::fprintf(stderr, "%s\n",
                 seed.filename().c_str());  // before the run: after a crash it is the last line
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    bytes += input.size();
  }
  std::printf("replayed %zu seeds, %zu bytes\n", seeds.size(), bytes);
  return 0;
}
