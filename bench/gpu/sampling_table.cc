// Choosing tokens on the device, for the vocabularies of Mistral 7B and Nemo.
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu/tables.h"
#include "kernels/cuda/sampling.h"

namespace tramontane::gpu {
namespace {

constexpr int kCalls = 16;

struct Choice {
  const char* name;
  SamplingRow row;
};

}  // namespace

Table SamplingTable(Device& device, const Progress& progress) {
  Table table;
  table.name = "Sampling";
  table.note =
      "Rows of logits x vocabulary, by as many blocks a row as the backend takes, and by one. "
      "The bound is one read of the logits at the rate of memory; in a step they come from the cache.";
  const Choice choices[] = {{"greedy", {.temperature = 0.0f, .wants_logprob = 0}},
                            {"greedy with its logprob", {.temperature = 0.0f}},
                            {"sampled", {.wants_logprob = 0}},
                            {"top_p 0.9", {.top_p = 0.9f, .wants_logprob = 0}},
                            {"top_k 50, top_p 0.9", {.top_p = 0.9f, .top_k = 50, .wants_logprob = 0}},
                            {"top_k 5000, top_p 0.9", {.top_p = 0.9f, .top_k = 5000, .wants_logprob = 0}},
                            {"top_p 0.9 with its logprob", {.top_p = 0.9f}}};
  for (const int32_t vocab : {32768, 131072}) {
    for (const int32_t rows : {1, 8, 32, 128}) {
      std::mt19937_64 random(7);
      std::normal_distribution<float> normal(0.0f, 3.0f);
      std::vector<float> logits(static_cast<size_t>(rows) * static_cast<size_t>(vocab));
      for (float& logit : logits) logit = normal(random);
      cuda::SampleKernelParams params{};
      params.call.logits = MakeTensor(device.Upload(logits), DType::kF32, rows, vocab);
      params.call.records = static_cast<SampleRecord*>(device.Allocate(rows * int64_t{sizeof(SampleRecord)}));
      params.adjusted = static_cast<float*>(device.Allocate(cuda::SampleScratchBytes(rows, vocab)));
      params.split = device.Upload(std::vector<std::byte>(static_cast<size_t>(cuda::SplitSampleBytes())));
      for (const Choice& choice : choices) {
        std::vector<SamplingRow> sampling(static_cast<size_t>(rows), choice.row);
        for (size_t r = 0; r < sampling.size(); ++r) sampling[r].seed = r;
        params.call.rows = device.Upload(sampling);
        const int32_t most = cuda::SampleBlocks(rows, vocab, device.properties().multiprocessors);
        for (const int32_t blocks : most > 1 ? std::vector<int32_t>{most, 1} : std::vector<int32_t>{1}) {
          params.blocks = blocks;
          AddRow(table,
                 {std::string(choice.name) + ", " + std::to_string(rows) + " x " + std::to_string(vocab) +
                      (blocks > 1 ? ", " + std::to_string(blocks) + " blocks a row" : ""),
                  device.MedianSeconds(
                      kCalls, [&](int, cudaStream_t stream) { return cuda::LaunchSample(params, stream); }),
                  MemoryBound(4.0 * rows * vocab, device.memory_bytes_per_second())},
                 progress);
        }
      }
      device.FreeAll();
    }
  }
  return table;
}

}  // namespace tramontane::gpu
