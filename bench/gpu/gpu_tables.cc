// gpu_tables: measures the CUDA kernels and the whole engine on this machine's GPU, and writes gpu_check.json
// and gpu_check.md. Part of the bundle of bench/gpu_check, whose script run_on_gpu starts it.
//
//   gpu_tables --device-only            exit 0 where there is a GPU; else says why not and exits 3
//   gpu_tables --out FOLDER [--peers FILE] [--checks FILE] [--commit NAME] [--driver NAME]
//
// --checks: lines for the report's list of checks.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "bench/gpu/device.h"
#include "bench/gpu/report.h"
#include "bench/gpu/tables.h"
#include "server/setup/cuda_loader.h"

namespace tramontane::gpu {
namespace {

constexpr int kNoDevice = 3;

int Run(const std::map<std::string, std::string>& options, bool device_only) {
  auto option = [&](const char* name) {
    const auto found = options.find(name);
    return found == options.end() ? std::string() : found->second;
  };
  std::string why_not;
  const std::unique_ptr<Device> device = Device::Open(&why_not);
  if (device == nullptr) {
    std::printf("no device: %s\n", why_not.c_str());
    return kNoDevice;
  }
  if (device_only) {
    std::printf("device: %s\n", device->facts().at("device").c_str());
    return 0;
  }
  Report report;
  report.facts = device->facts();
  for (const char* name : {"commit", "driver"}) {
    if (!option(name).empty()) report.facts[name] = option(name);
  }
  std::ifstream checks(option("checks"));
  for (std::string line; std::getline(checks, line);) report.checks.push_back(line);
  report.peers = ReadPeers(option("peers"));
  // Written after each table: one that fails takes none of those before it along.
  auto add = [&](Table table) {
    std::printf("%s: %zu rows\n", table.name.c_str(), table.rows.size());
    std::fflush(stdout);
    report.tables.push_back(std::move(table));
    return WriteReport(report, option("out"));
  };
  const bool written = add(DecodeAttentionTable(*device)) && add(PrefillAttentionTable(*device)) &&
                       add(SmallLinearTable(*device)) && add(BlockLinearTable(*device)) &&
                       add(MoeTable(*device)) && add(PointwiseTable(*device)) &&
                       add(SamplingTable(*device)) && add(EndToEndTable(*device, CudaLibraryPath()));
  if (!written) {
    std::fprintf(stderr, "cannot write to the folder '%s'\n", option("out").c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tramontane::gpu

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  bool device_only = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--device-only") == 0) {
      device_only = true;
    } else if (std::strncmp(argv[i], "--", 2) == 0 && i + 1 < argc) {
      options[argv[i] + 2] = argv[i + 1];
      ++i;
    } else {
      std::fprintf(stderr, "unknown argument '%s'\n", argv[i]);
      return 2;
    }
  }
  if (!device_only && options.count("out") == 0) {
    std::fprintf(stderr, "--out FOLDER is missing\n");
    return 2;
  }
  return tramontane::gpu::Run(options, device_only);
}
