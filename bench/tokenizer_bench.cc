// How fast text becomes ids, on one thread: the tokenizer of a folder on files of one's own. The bound beside
// it is what the same core takes to check that the text is UTF-8, which nobody can leave out.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/tokenizer/load.h"

namespace tramontane {
namespace {

struct Arguments {
  std::string folder;
  std::vector<std::string> files;
  int64_t repeats = 9;  // of which the median counts
};

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--repeats") == 0 && i + 1 < argc) {
      arguments->repeats = std::atoll(argv[++i]);
    } else if (arguments->folder.empty()) {
      arguments->folder = argv[i];
    } else {
      arguments->files.emplace_back(argv[i]);
    }
  }
  return !arguments->files.empty() && arguments->repeats > 0;
}

// The file, as often as it takes to have a megabyte.
std::string LongText(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string once{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  std::string text = once;
  while (!once.empty() && text.size() < 1'000'000) text += once;
  return text;
}

double MedianSeconds(int64_t repeats, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

int Run(const Arguments& arguments) {
  const auto load_begin = std::chrono::steady_clock::now();
  const auto tokenizer = LoadTokenizer(arguments.folder);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 1;
  }
  const std::chrono::duration<double> load = std::chrono::steady_clock::now() - load_begin;
  std::printf("%s: %d tokens, loaded in %.0f ms\n", arguments.folder.c_str(), (*tokenizer)->vocab_size(),
              load.count() * 1000);
  std::printf("%-40s %10s %12s %10s %10s %10s\n", "file", "MB", "bytes/token", "encode", "decode", "bound");
  for (const std::string& file : arguments.files) {
    const std::string text = LongText(file);
    const auto ids = (*tokenizer)->Encode(text);
    if (!ids.ok() || ids->empty()) {
      std::fprintf(stderr, "%s: %s\n", file.c_str(), ids.ok() ? "no text" : ids.status().message().c_str());
      return 1;
    }
    const double megabytes = static_cast<double>(text.size()) / 1e6;
    size_t sink = 0;  // so that nothing is optimised away
    const double encode =
        MedianSeconds(arguments.repeats, [&] { sink += (*tokenizer)->Encode(text)->size(); });
    const double decode =
        MedianSeconds(arguments.repeats, [&] { sink += (*tokenizer)->Decode(*ids)->size(); });
    const double bound = MedianSeconds(arguments.repeats, [&] { sink += IsUtf8(text) ? 1 : 0; });
    std::printf("%-40s %10.2f %12.2f %5.1f MB/s %5.0f MB/s %5.0f MB/s\n", file.c_str(), megabytes,
                static_cast<double>(text.size()) / static_cast<double>(ids->size()), megabytes / encode,
                megabytes / decode, megabytes / bound);
    if (sink == 0) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  tramontane::Arguments arguments;
  if (!tramontane::Parse(argc, argv, &arguments)) {
    std::fprintf(stderr, "usage: tokenizer_bench [--repeats N] FOLDER FILE...\n");
    return 2;
  }
  return tramontane::Run(arguments);
}
