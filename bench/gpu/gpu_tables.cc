// gpu_tables: measures one table on this machine's GPU (attention: on Hopper two) and adds it to
// gpu_check.json and gpu_check.md. Part of the bundle of bench/gpu_check, whose script run_on_gpu starts it,
// once for each table.
//
//   gpu_tables --device-only            exit 0 where there is a GPU; else says why not and exits 3
//   gpu_tables --list                   the tables, cheapest first
//   gpu_tables --out FOLDER [--table NAME [--seconds N]] [--peers FILE] [--checks FILE] [--commit NAME]
//              [--driver NAME]
//
// --seconds: whole steps begin no row that would end later, by what the rows before it took. --peers,
// --checks: what peers.py wrote, and lines for the report's list of checks, in place of those it has.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/device.h"
#include "bench/gpu/report.h"
#include "bench/gpu/tables.h"
#include "server/setup/cuda_loader.h"

namespace tramontane::gpu {
namespace {

constexpr int kNoDevice = 3;
constexpr int32_t kWindow = 4096;

struct Entry {
  const char* name;
  std::function<std::vector<Table>(Device&, double seconds, const Progress&)> measure;
};

Entry WholeSteps(const char* name, const EndToEnd& asked, bool pdl = true) {
  return {name, [asked, pdl](Device& device, double seconds, const Progress& progress) {
            if (!pdl) setenv("TRAMONTANE_NO_PDL", "1", 1);  // read by the library's first launch
            EndToEnd of_run = asked;
            of_run.library = CudaLibraryPath();
            of_run.seconds = seconds;
            return std::vector<Table>{EndToEndTable(device, of_run, progress)};
          }};
}
Entry WholeStepsIn(const char* name, const char* model, const Format& matrices) {
  return WholeSteps(name, {.name = model, .window = kWindow, .matrices = matrices, .short_list = true});
}
Entry Kernels(const char* name, Table (*measure)(Device&, const Progress&)) {
  return {name, [measure](Device& device, double, const Progress& progress) {
            return std::vector<Table>{measure(device, progress)};
          }};
}
Entry Kernels(const char* name, std::vector<Table> (*measure)(Device&, const Progress&)) {
  return {name,
          [measure](Device& device, double, const Progress& progress) { return measure(device, progress); }};
}

template <DType kWeight>
std::vector<Table> LargeLinear(Device& device, double, const Progress& progress) {
  return {LargeLinearTable(device, CudaLibraryPath(), kWeight, progress)};
}

std::vector<Table> BlockLinear(Device& device, double, const Progress& progress) {
  return {BlockLinearTable(device, CudaLibraryPath(), progress)};
}

// Cheapest first.
const Entry kTables[] = {
    Kernels("pointwise", PointwiseTable),
    Kernels("decode-attention", DecodeAttentionTables),
    Kernels("prefill-attention", PrefillAttentionTables),
    Kernels("quantised-prefill-attention", QuantisedPrefillAttentionTables),
    Kernels("small-linear", SmallLinearTable),
    {"large-linear", LargeLinear<DType::kBf16>},
    {"large-linear-fp8", LargeLinear<DType::kFp8E4M3>},
    Kernels("sampling", SamplingTable),
    {"block-linear", BlockLinear},
    WholeSteps("steps", {.name = "Mistral 7B", .window = kWindow}),
    WholeSteps("steps-without-window", {.name = "Mistral 7B without a window"}),
    WholeSteps("steps-without-pdl",
               {.name = "Mistral 7B, no kernel before the one before it is done",
                .window = kWindow,
                .short_list = true},
               /*pdl=*/false),
    WholeStepsIn("steps-in-q4_0", "Mistral 7B in Q4_0", DType::kQ4_0),
    WholeStepsIn("steps-in-int4", "Mistral 7B in int4, groups of 128", DType::kInt4),
    WholeStepsIn("steps-in-fp8", "Mistral 7B in fp8, groups of 128", DType::kFp8E4M3),
    Kernels("moe", MoeTable),
};

using Options = std::map<std::string, std::string>;

std::string Get(const Options& options, const char* name) {
  const auto found = options.find(name);
  return found == options.end() ? "" : found->second;
}

void TakeWhatWasFound(const Options& options, Report& report) {
  for (const char* name : {"commit", "driver"}) {
    if (const std::string value = Get(options, name); !value.empty()) report.facts[name] = value;
  }
  if (const std::string path = Get(options, "checks"); !path.empty()) {
    report.checks.clear();
    std::ifstream checks(path);
    for (std::string line; std::getline(checks, line);) report.checks.push_back(line);
  }
  TakePeers(Get(options, "peers"), report);
}

int Run(const Options& options) {
  std::string why_not;
  const std::unique_ptr<Device> device = Device::Open(&why_not);
  if (device == nullptr) {
    std::printf("no device: %s\n", why_not.c_str());
    return kNoDevice;
  }
  if (options.count("device-only") != 0) {
    std::printf("device: %s\n", device->facts().at("device").c_str());
    return 0;
  }
  const std::string folder = Get(options, "out"), wanted = Get(options, "table");
  Report report = ReadReport(folder);
  for (const auto& [name, value] : device->facts()) report.facts[name] = value;
  TakeWhatWasFound(options, report);
  if (!wanted.empty()) {
    const Entry* const entry = std::find_if(std::begin(kTables), std::end(kTables),
                                            [&](const Entry& e) { return wanted == e.name; });
    if (entry == std::end(kTables)) {
      std::fprintf(stderr, "no table '%s'; --list names them\n", wanted.c_str());
      return 2;
    }
    const Progress keep = [&](const Table& so_far) {
      AddTable(report, so_far);
      WriteReport(report, folder);
    };
    std::string said;
    for (Table& table : entry->measure(*device, std::atof(Get(options, "seconds").c_str()), keep)) {
      said += (said.empty() ? "" : "; ") + table.name + ": " + std::to_string(table.rows.size()) + " rows";
      AddTable(report, std::move(table));
    }
    std::printf("%s\n", said.c_str());
  }
  if (!WriteReport(report, folder)) {
    std::fprintf(stderr, "cannot write to the folder '%s'\n", folder.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tramontane::gpu

int main(int argc, char** argv) {
  tramontane::gpu::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--list") == 0) {
      for (const auto& entry : tramontane::gpu::kTables) std::printf("%s\n", entry.name);
      return 0;
    }
    if (std::strcmp(argv[i], "--device-only") == 0) {
      options["device-only"] = "";
    } else if (std::strncmp(argv[i], "--", 2) == 0 && i + 1 < argc) {
      options[argv[i] + 2] = argv[i + 1];
      ++i;
    } else {
      std::fprintf(stderr, "unknown argument '%s'\n", argv[i]);
      return 2;
    }
  }
  if (options.count("device-only") == 0 && options.count("out") == 0) {
    std::fprintf(stderr, "--out FOLDER is missing\n");
    return 2;
  }
  return tramontane::gpu::Run(options);
}
