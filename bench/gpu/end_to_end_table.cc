// Whole steps of Mistral 7B: the engine, the model and the CUDA backend as a server runs them, over random
// weights that are written as a model folder on this machine.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bench/gpu/tables.h"
#include "kernels/core/dtype.h"
#include "server/setup/cuda_loader.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"

namespace tramontane::gpu {
namespace {

constexpr int64_t kHidden = 4096, kLayers = 32, kHeads = 32, kKvHeads = 8, kHeadDim = 128,
                  kIntermediate = 14336, kVocab = 32000;
constexpr int32_t kWindow = 4096;
constexpr int64_t kBlockElements = 32 << 20;
constexpr int64_t kContext = 1024;
constexpr int64_t kLayerWeights =
    kHidden * (kHeads + 2 * kKvHeads) * kHeadDim + kHeads * kHeadDim * kHidden + 3 * kHidden * kIntermediate;
// What one step reads of the weights, and what one token of the context holds.
constexpr double kWeightBytes = 2.0 * (kLayers * kLayerWeights + kVocab * kHidden);
constexpr double kKeyBytes = 2.0 * 2 * kKvHeads * kHeadDim * kLayers;

// One safetensors file: matrices of random bf16 numbers (a block of them over and over), norms of ones.
class RandomWeightFile {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape) {
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    header_[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end_, end_ + elements * 2}}};
    tensors_.push_back({elements, shape.size() == 1});
    end_ += elements * 2;
  }
  int64_t bytes() const { return end_; }

  bool Write(const std::string& path) const {
    std::mt19937_64 random(23);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<uint16_t> some(1 << 16), block(kBlockElements);
    for (uint16_t& bits : some) bits = FloatToBf16(normal(random));
    for (uint16_t& bits : block) bits = some[random() % some.size()];
    const std::vector<uint16_t> ones(kHidden, FloatToBf16(1.0f));

    std::ofstream file(path, std::ios::binary);
    const std::string header = header_.dump();
    const uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof(length)) << header;
    for (const Tensor& tensor : tensors_) {
      const std::vector<uint16_t>& from = tensor.is_norm ? ones : block;
      for (int64_t done = 0; done < tensor.elements;) {
        const int64_t now = std::min<int64_t>(tensor.elements - done, static_cast<int64_t>(from.size()));
        file.write(reinterpret_cast<const char*>(from.data()), now * 2);
        done += now;
      }
    }
    return file.good();
  }

 private:
  struct Tensor {
    int64_t elements;
    bool is_norm;
  };
  nlohmann::json header_ = nlohmann::json::object();
  std::vector<Tensor> tensors_;
  int64_t end_ = 0;
};

// "" or what went wrong.
std::string WriteModel(const TempFolder& folder) {
  const nlohmann::json config = {{"architectures", {"MistralForCausalLM"}},
                                 {"model_type", "mistral"},
                                 {"hidden_size", kHidden},
                                 {"num_hidden_layers", kLayers},
                                 {"head_dim", kHeadDim},
                                 {"intermediate_size", kIntermediate},
                                 {"num_attention_heads", kHeads},
                                 {"num_key_value_heads", kKvHeads},
                                 {"rms_norm_eps", 1e-5},
                                 {"vocab_size", kVocab},
                                 {"rope_theta", 10000.0},
                                 {"max_position_embeddings", 32768},
                                 {"sliding_window", kWindow},
                                 {"tie_word_embeddings", false}};
  folder.Write("config.json", config.dump());
  RandomWeightFile file;
  file.Add("model.embed_tokens.weight", {kVocab, kHidden});
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    file.Add(layer + "input_layernorm.weight", {kHidden});
    file.Add(layer + "self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden});
    file.Add(layer + "self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden});
    file.Add(layer + "self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden});
    file.Add(layer + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim});
    file.Add(layer + "post_attention_layernorm.weight", {kHidden});
    file.Add(layer + "mlp.gate_proj.weight", {kIntermediate, kHidden});
    file.Add(layer + "mlp.up_proj.weight", {kIntermediate, kHidden});
    file.Add(layer + "mlp.down_proj.weight", {kHidden, kIntermediate});
  }
  file.Add("model.norm.weight", {kHidden});
  file.Add("lm_head.weight", {kVocab, kHidden});
  std::error_code error;
  const auto free = std::filesystem::space(folder.path(), error).available;
  if (error || free < static_cast<uintmax_t>(file.bytes()) + (uintmax_t{1} << 30)) {
    return "no room for 14.5 GB of random weights in " + folder.path() + " (TMPDIR names another folder)";
  }
  return file.Write(folder.PathOf("model.safetensors")) ? "" : "the random weights could not be written";
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Request RandomPrompt(int64_t prompt_tokens, int64_t max_tokens, uint32_t salt) {
  Request request = MakeRequest(std::to_string(salt), prompt_tokens, max_tokens, salt);
  std::mt19937 random(salt);
  for (int32_t& token : request.prompt) token = static_cast<int32_t>(3 + random() % (kVocab - 3));
  return request;
}

// Median seconds of a decode step of `sequences`, whose contexts are kContext tokens on the average.
double SecondsOfDecodeStep(BackendEngine& engine, int sequences) {
  constexpr int64_t kSteps = 128;
  constexpr int kWarmUps = 8;
  // While prompts are computed, two a step, decode steps run in between: the first sequences get ahead by
  // half as many tokens as there are sequences.
  const int64_t ahead = sequences / 2;
  const int64_t prompt_tokens = kContext - kSteps / 2 - kWarmUps - ahead / 2;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> reading;
  const int64_t before = engine.engine().Load().prompt_tokens;
  for (int i = 0; i < sequences; ++i) {
    const Request request =
        RandomPrompt(prompt_tokens, kSteps + 2 * (ahead + kWarmUps), static_cast<uint32_t>(i));
    readers.push_back(engine.Submit(request));
    reading.push_back(readers.back().get());
  }
  while (engine.engine().Load().prompt_tokens - before < sequences * prompt_tokens) engine.Step();
  for (int i = 0; i < kWarmUps; ++i) engine.Step();
  std::vector<double> seconds;
  for (int64_t step = 0; step < kSteps / 8; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 8; ++i) engine.Step();
    seconds.push_back(SecondsSince(begin) / 8);
  }
  engine.RunToEnd(reading);
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

double SecondsOfPrefill(BackendEngine& engine, int64_t tokens) {
  std::vector<double> seconds;
  for (uint32_t i = 0; i < 6; ++i) {
    auto reader = engine.Submit(RandomPrompt(tokens, 1, 1000 + i));
    const auto begin = std::chrono::steady_clock::now();
    engine.RunToEnd({reader.get()});
    if (i > 0) seconds.push_back(SecondsSince(begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
  return seconds[2];
}

}  // namespace

Table EndToEndTable(Device& device, const std::string& library) {
  Table table;
  table.name = "Mistral 7B";
  table.note =
      "The whole engine, greedy, random weights of the exact shape in bf16. Decode (sequences x context): "
      "time of a step; the bound is the weights and the keys and values, read once, at the rate of a "
      "copy. Prefill: from a prompt to its first token; the bound is its FLOPs at the peak of dense bf16.";
  auto backend = OpenCudaBackend(library);
  if (!backend.ok()) {
    table.note = "Not measured: " + backend.status().ToString();
    return table;
  }
  const TempFolder folder;
  if (const std::string wrong = WriteModel(folder); !wrong.empty()) {
    table.note = "Not measured: " + wrong;
    return table;
  }
  const int64_t memory_bytes = (*backend)->info().memory_bytes;
  BackendEngine::Options options;
  options.limits.context = 4096;
  options.limits.max_step_tokens = 2048;
  options.limits.max_sequences = 128;
  options.limits.steps_in_flight = (*backend)->info().asynchronous != 0 ? 2 : 1;
  options.recorded = true;
  const int64_t page_bytes = static_cast<int64_t>(kKeyBytes) * options.limits.page_size;
  const int64_t pool_bytes = std::min<int64_t>(
      memory_bytes * 9 / 10 - static_cast<int64_t>(kWeightBytes) - kVocab * kHidden * 2 - (int64_t{4} << 30),
      int64_t{40} << 30);
  options.limits.pool_pages = pool_bytes / page_bytes;
  if (options.limits.pool_pages < 2 * kContext / options.limits.page_size) {
    table.note = "Not measured: the weights leave no room for keys and values on this device";
    return table;
  }
  BackendEngine engine(*std::move(backend), folder.path(), options);
  for (const int sequences : {1, 8, 32, 128}) {
    const int64_t pages = sequences * (kContext + 256) / options.limits.page_size;
    if (pages > options.limits.pool_pages) continue;
    const double bytes = kWeightBytes + sequences * kContext * kKeyBytes;
    table.rows.push_back({"decode, " + std::to_string(sequences) + " x 1k",
                          SecondsOfDecodeStep(engine, sequences),
                          MemoryBound(bytes, device.copy_bytes_per_second())});
  }
  const double tokens = 2048, pairs = tokens * (tokens + 1) / 2;
  const double flops = 2.0 * kLayers * kLayerWeights * tokens + 4.0 * kHeads * kHeadDim * kLayers * pairs +
                       2.0 * kVocab * kHidden;
  table.rows.push_back(
      {"prefill, 2k", SecondsOfPrefill(engine, 2048), ArithmeticBound(flops, device.peak_flops())});
  return table;
}

}  // namespace tramontane::gpu
