// Whole steps of Mistral 7B: the engine, the model and the CUDA backend as a server runs them, over random
// weights that no disk has: the model folder's matrices are holes, and what is packed comes from memory.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>

#include "bench/gpu/random_weights.h"
#include "bench/gpu/tables.h"
#include "kernels/core/dtype.h"
#include "server/setup/cuda_loader.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"

namespace tramontane::gpu {
namespace {

constexpr int64_t kHidden = 4096, kLayers = 32, kHeads = 32, kKvHeads = 8, kHeadDim = 128,
                  kIntermediate = 14336, kVocab = 32000;
constexpr int64_t kContext = 33 * 1024;  // 32k and what a row of the table adds
constexpr int32_t kSequences = 256;
constexpr float kWeightScale = 0.02f;
constexpr int64_t kLayerWeights =
    kHidden * (kHeads + 2 * kKvHeads) * kHeadDim + kHeads * kHeadDim * kHidden + 3 * kHidden * kIntermediate;
// What one step reads of the weights, and what one token of the context holds.
constexpr double kWeightBytes = 2.0 * (kLayers * kLayerWeights + kVocab * kHidden);
constexpr double kKeyBytes = 2.0 * 2 * kKvHeads * kHeadDim * kLayers;

// One safetensors file of bf16: norms of ones, matrices that are holes.
class WeightFile {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape) {
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    header_[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end_, end_ + elements * 2}}};
    if (shape.size() == 1) norms_.push_back({end_, elements});
    end_ += elements * 2;
  }

  bool Write(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    const std::string header = header_.dump();
    const uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof(length)) << header;
    const auto begin = static_cast<int64_t>(file.tellp());
    for (const Norm& norm : norms_) {
      const std::vector<uint16_t> ones(static_cast<size_t>(norm.elements), FloatToBf16(1.0f));
      file.seekp(begin + norm.begin);
      file.write(reinterpret_cast<const char*>(ones.data()), norm.elements * 2);
    }
    file.close();
    std::error_code error;
    std::filesystem::resize_file(path, static_cast<uintmax_t>(begin + end_), error);
    return file.good() && !error;
  }

 private:
  struct Norm {
    int64_t begin;
    int64_t elements;
  };
  nlohmann::json header_ = nlohmann::json::object();
  std::vector<Norm> norms_;
  int64_t end_ = 0;
};

// Whether it could be written.
bool WriteModel(const TempFolder& folder, int32_t window) {
  nlohmann::json config = {{"architectures", {"MistralForCausalLM"}},
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
                           {"max_position_embeddings", 2 * kContext},
                           {"sliding_window", nullptr},
                           {"tie_word_embeddings", false}};
  if (window > 0) config["sliding_window"] = window;
  folder.Write("config.json", config.dump());
  WeightFile file;
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
  return file.Write(folder.PathOf("model.safetensors"));
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

// Median seconds of a decode step of `sequences`, whose contexts are `context` tokens on the average.
double SecondsOfDecodeStep(BackendEngine& engine, int sequences, int64_t context) {
  constexpr int64_t kSteps = 128;
  constexpr int kWarmUps = 8;
  const int64_t prompt_tokens = context - kSteps / 2 - kWarmUps;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> reading;
  const int64_t before = engine.engine().Load().prompt_tokens;  // prompts come first: kPrefillFirst
  for (int i = 0; i < sequences; ++i) {
    const Request request = RandomPrompt(prompt_tokens, kSteps + 2 * kWarmUps, static_cast<uint32_t>(i));
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

double SecondsToFirstToken(BackendEngine& engine, int64_t tokens) {
  constexpr int kPrompts = 5;
  std::vector<double> seconds;
  for (uint32_t i = 0; i <= kPrompts; ++i) {
    auto reader = engine.Submit(RandomPrompt(tokens, 1, 1000 + i));
    const auto begin = std::chrono::steady_clock::now();
    engine.RunToEnd({reader.get()});
    if (i > 0) seconds.push_back(SecondsSince(begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kPrompts / 2, seconds.end());
  return seconds[kPrompts / 2];
}

// Keys that the query at a position sees.
int64_t KeysAt(int64_t position, int32_t window) {
  return window > 0 ? std::min<int64_t>(position + 1, window) : position + 1;
}

double FlopsOfPrefill(int64_t tokens, int32_t window) {
  double pairs = 0;
  for (int64_t position = 0; position < tokens; ++position) {
    pairs += static_cast<double>(KeysAt(position, window));
  }
  return 2.0 * kLayers * kLayerWeights * static_cast<double>(tokens) +
         4.0 * kHeads * kHeadDim * kLayers * pairs + 2.0 * kVocab * kHidden;
}

// 1024 is "1k".
std::string Tokens(int64_t count) {
  return count % 1024 == 0 ? std::to_string(count / 1024) + "k" : std::to_string(count);
}

// A row of the table: decode where there are sequences, else a prompt's way to its first token.
struct Work {
  int32_t sequences;
  int64_t tokens;  // of each context, or of the prompt
};
// Cheapest first.
constexpr Work kAllWork[] = {{1, 1024},  {0, 128},    {0, 2048},   {8, 1024},  {32, 1024},
                             {64, 1024}, {128, 1024}, {256, 1024}, {0, 8192},  {1, 8192},
                             {8, 8192},  {1, 32768},  {0, 32768},  {32, 8192}, {8, 32768}};
constexpr Work kShortWork[] = {{1, 1024}, {8, 1024}, {32, 1024}, {0, 2048}};

std::string NameOf(const Work& work) {
  return work.sequences > 0 ? "decode, " + std::to_string(work.sequences) + " x " + Tokens(work.tokens)
                            : "prefill, " + Tokens(work.tokens);
}

}  // namespace

Table EndToEndTable(Device& device, const EndToEnd& asked, const Progress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  Table table;
  table.name = asked.name;
  table.note =
      "The whole engine, greedy, random weights of the exact shape in bf16, " +
      (asked.window > 0 ? "a window of " + Tokens(asked.window) : std::string("no window")) +
      ". Decode (sequences x context): time of a step; the bound is the weights and the keys and values "
      "that are seen, read once, at the rate of a copy. Prefill: from a prompt to its first token; the "
      "bound is its FLOPs at the peak of dense bf16.";
  auto backend = OpenCudaBackend(asked.library);
  if (!backend.ok()) {
    table.note = "Not measured: " + backend.status().ToString();
    return table;
  }
  const TempFolder folder;
  if (!WriteModel(folder, asked.window)) {
    table.note = "Not measured: the model's folder could not be written in " + folder.path();
    return table;
  }
  const int64_t memory_bytes = (*backend)->info().memory_bytes;
  BackendEngine::Options options;
  EngineLimits& limits = options.limits;
  limits.context = kContext;
  limits.max_step_tokens = 2048;
  limits.max_sequences = kSequences;
  limits.steps_in_flight = (*backend)->info().asynchronous != 0 ? 2 : 1;
  limits.lane_policy = LanePolicy::kPrefillFirst;
  limits.prefix_cache = false;  // rows begin with the same prompts
  options.recorded = true;
  const int64_t page_bytes = static_cast<int64_t>(kKeyBytes) * limits.page_size;
  const int64_t pool_bytes = std::min<int64_t>(
      memory_bytes * 9 / 10 - static_cast<int64_t>(kWeightBytes) - kVocab * kHidden * 2 - (int64_t{4} << 30),
      int64_t{48} << 30);
  limits.pool_pages = pool_bytes / page_bytes;
  if (limits.pool_pages < 2 * kContext / limits.page_size) {
    table.note = "Not measured: the weights leave no room for keys and values on this device";
    return table;
  }
  BackendEngine engine(BackendPtr(new RandomWeights(*std::move(backend), kWeightScale)), folder.path(),
                       options);
  std::string left_out;
  const std::span<const Work> all = asked.short_list ? std::span<const Work>(kShortWork) : kAllWork;
  for (const Work& work : all) {
    const int64_t pages = std::max(work.sequences, 1) * (work.tokens + 256) / limits.page_size;
    if (pages > limits.pool_pages || (asked.seconds > 0 && SecondsSince(begin) > asked.seconds)) {
      left_out += (left_out.empty() ? "" : "; ") + NameOf(work);
    } else if (work.sequences > 0) {
      const double keys = static_cast<double>(KeysAt(work.tokens, asked.window));
      const double bytes = kWeightBytes + work.sequences * keys * kKeyBytes;
      AddRow(table,
             {NameOf(work), SecondsOfDecodeStep(engine, work.sequences, work.tokens),
              MemoryBound(bytes, device.copy_bytes_per_second())},
             progress);
    } else {
      AddRow(table,
             {NameOf(work), SecondsToFirstToken(engine, work.tokens),
              ArithmeticBound(FlopsOfPrefill(work.tokens, asked.window), device.peak_flops())},
             progress);
    }
  }
  if (!left_out.empty()) table.note += " Left out for want of time or memory: " + left_out + ".";
  return table;
}

}  // namespace tramontane::gpu
