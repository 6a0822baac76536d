// load_bench: how fast weights are loaded, beside a plain read of the same file.
//
//   load_bench [--gigabytes N] [--variant NAME] [--threads N] [--rounds N] [--folder FOLDER]
//
// A model of random bf16 weights in the shape of a larger one, as many layers as fill N GB (4), is written to
// a temporary folder (in TMPDIR, or in FOLDER) and removed at the end. Cold: its pages were given back to the
// system before, as far as the system does so. Loading and reading take turns; the best of each.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "kernels/backends/cpu_backend.h"
#include "kernels/core/check.h"
#include "tests/support/load_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"
#include "tests/support/weight_file.h"

namespace tramontane {
namespace {

struct Options {
  CpuBackendOptions backend;
  double gigabytes = 4.0;
  int rounds = 3;
};

// A layer in the shape of Mistral 7B's, of 436 MB; 16,384 pieces.
TinyModel ShapeOf(double gigabytes) {
  TinyModel model;
  model.vocab = 16 << 10;
  model.hidden = 4096;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_dim = 128;
  model.intermediate = 14336;
  model.tied = true;
  model.layers = std::max(1, static_cast<int32_t>(gigabytes / 0.436));
  return model;
}

// Returns the path.
std::string WriteRandom(const TempFolder& folder, const TinyModel& model) {
  folder.Write("config.json", model.HuggingFaceConfig().dump());
  const auto asked = OpenModel(folder.path(), {});
  TM_CHECK(asked.ok(), "%s", asked.status().ToString().c_str());
  const WeightFileHeader header = HeaderOfAll(asked->weights, [](const auto&) { return DType::kBf16; });
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<uint16_t> piece(size_t{1} << 20);
  std::string path = folder.PathOf("model.safetensors");
  std::ofstream file(path, std::ios::binary);
  file << header.bytes;
  for (uint16_t& value : piece) value = FloatToBf16(uniform(random));
  for (int64_t at = 0; at < header.data_bytes;) {
    const int64_t bytes = std::min(header.data_bytes - at, static_cast<int64_t>(2 * piece.size()));
    file.write(reinterpret_cast<const char*>(piece.data()), bytes);
    at += bytes;
  }
  TM_CHECK(file.flush().good(), "%s cannot be written", path.c_str());
  return path;
}

// Asks for the file's pages to be given back, so that it must be read from the disk.
void MakeCold(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  TM_CHECK(file >= 0 && fsync(file) == 0, "%s cannot be opened", path.c_str());
  (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
}

// Of all threads: what a busy machine does not stretch.
double ProcessorSeconds() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

// Returns the bytes.
int64_t PlainRead(const std::string& path) {
  std::vector<char> buffer(size_t{4} << 20);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  TM_CHECK(file >= 0, "%s cannot be opened", path.c_str());
  int64_t bytes = 0;
  for (ssize_t count = 0; (count = read(file, buffer.data(), buffer.size())) > 0;) bytes += count;
  close(file);
  return bytes;
}

void Run(const Options& options) {
  const TempFolder folder;
  const std::string path = WriteRandom(folder, ShapeOf(options.gigabytes));
  const auto gigabytes = static_cast<double>(PlainRead(path)) * 1e-9;
  const BackendPtr backend = std::move(MakeCpuBackend(options.backend)).value();
  std::printf("%s, %d threads, %.2f GB\n", backend->info().variant, backend->info().threads, gigabytes);
  const auto load = [&] {
    const auto model = LoadFolder(folder.path(), *backend, {});
    TM_CHECK(model.ok(), "%s", model.status().ToString().c_str());
  };
  for (const bool cold : {false, true}) {
    double loading = 1e30, reading = 1e30, processor = 1e30;
    for (int round = 0; round < options.rounds; ++round) {
      if (cold) MakeCold(path);
      reading = std::min(reading, Seconds([&] { (void)PlainRead(path); }));
      if (cold) MakeCold(path);
      const double before = ProcessorSeconds();
      loading = std::min(loading, Seconds(load));
      processor = std::min(processor, ProcessorSeconds() - before);
    }
    std::printf(
        "  %-4s loaded in %6.2f s (%.2f of all processors'): %5.2f of %5.2f GB/s that one thread reads: "
        "%3.0f %%\n",
        cold ? "cold" : "warm", loading, processor, gigabytes / loading, gigabytes / reading,
        100.0 * reading / loading);
  }
}

bool Parse(int argc, char** argv, Options& options) {
  if (argc % 2 == 0) return false;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    const char* const value = argv[i + 1];
    if (flag == "--gigabytes") {
      options.gigabytes = std::atof(value);
    } else if (flag == "--variant") {
      options.backend.variant = value;
    } else if (flag == "--threads") {
      options.backend.threads = std::atoi(value);
    } else if (flag == "--rounds") {
      options.rounds = std::max(1, std::atoi(value));
    } else if (flag == "--folder") {
      setenv("TMPDIR", value, 1);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  tramontane::Options options;
  if (!tramontane::Parse(argc, argv, options)) {
    std::fprintf(
        stderr,
        "usage: load_bench [--gigabytes N] [--variant NAME] [--threads N] [--rounds N] [--folder FOLDER]\n");
    return 2;
  }
  tramontane::Run(options);
  return 0;
}
