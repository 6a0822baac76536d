#include "bench/gpu/whole_steps.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"

namespace tramontane::gpu {
namespace {

constexpr int kPrompts = 5;  // that are timed, after one that is not
constexpr int kStepsAtOnce = 8;

constexpr Work kAllWork[] = {{0, 128},    {1, 1024},   {1, 8192},    {8, 1024},   {0, 2048},   {1, 32768},
                             {32, 1024},  {0, 8192},   {8, 8192},    {64, 1024},  {128, 1024}, {0, 32768},
                             {256, 1024}, {32, 8192},  {8, 32768},   {64, 8192},  {128, 8192}, {32, 32768},
                             {256, 8192}, {64, 32768}, {128, 32768}, {256, 32768}};
constexpr Work kShortWork[] = {{1, 1024}, {8, 1024}, {0, 2048}, {32, 1024}};

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

double Median(std::vector<double> seconds) {
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

Request RandomPrompt(const StepShape& shape, int64_t prompt_tokens, int64_t max_tokens, uint32_t salt) {
  Request request = MakeRequest(std::to_string(salt), prompt_tokens, max_tokens, salt);
  std::mt19937 random(salt);
  for (int32_t& token : request.prompt)
    token = static_cast<int32_t>(3 + random() % static_cast<uint32_t>(shape.vocab - 3));
  return request;
}

// One step that did something: where the output thread is behind the engine does nothing until it has room.
void StepOnce(BackendEngine& engine) {
  while (!engine.Step()) {
    const Status fatal = engine.engine().fatal();
    TM_CHECK(fatal.ok(), "%s", fatal.ToString().c_str());
    TM_CHECK(!engine.engine().idle(), "no stream is left to step");
    std::this_thread::yield();
  }
}

// Keys that the query at a position sees.
int64_t KeysAt(int64_t position, int32_t window) { return position + 1 - FirstVisible(position, window); }

double SecondsOfDecodeStep(BackendEngine& engine, const StepShape& shape, const Work& work,
                           const StepCounts& counts) {
  const int64_t prompt_tokens = work.tokens - counts.timed / 2 - counts.warm_ups;
  TM_CHECK(prompt_tokens > 0, "a context of %lld tokens", static_cast<long long>(work.tokens));
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> reading;
  const EngineLoad before = engine.engine().Load();  // prompts come first: kPrefillFirst
  for (int i = 0; i < work.sequences; ++i) {
    const Request request =
        RandomPrompt(shape, prompt_tokens, counts.OutputTokens(), static_cast<uint32_t>(i));
    readers.push_back(engine.Submit(request));
    TM_CHECK(readers.back()->refused().ok(), "%s", readers.back()->refused().ToString().c_str());
    reading.push_back(readers.back().get());
  }
  while (engine.engine().Load().prompt_tokens - before.prompt_tokens < work.sequences * prompt_tokens)
    StepOnce(engine);
  for (int i = 0; i < counts.warm_ups; ++i) StepOnce(engine);
  std::vector<double> seconds;
  for (int step = 0; step < counts.timed / kStepsAtOnce; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kStepsAtOnce; ++i) StepOnce(engine);
    seconds.push_back(SecondsSince(begin) / kStepsAtOnce);
  }
  engine.RunToEnd(reading);
  TM_CHECK(engine.engine().fatal().ok(), "%s", engine.engine().fatal().ToString().c_str());
  TM_CHECK(engine.engine().Load().preemptions == before.preemptions, "%s took more pages than there are",
           NameOf(work).c_str());
  return Median(std::move(seconds));
}

double SecondsToFirstToken(BackendEngine& engine, const StepShape& shape, int64_t tokens) {
  std::vector<double> seconds;
  for (uint32_t i = 0; i <= kPrompts; ++i) {
    auto reader = engine.Submit(RandomPrompt(shape, tokens, 1, 1000 + i));
    TM_CHECK(reader->refused().ok(), "%s", reader->refused().ToString().c_str());
    const auto begin = std::chrono::steady_clock::now();
    engine.RunToEnd({reader.get()});
    if (i > 0) seconds.push_back(SecondsSince(begin));
    TM_CHECK(engine.engine().fatal().ok(), "%s", engine.engine().fatal().ToString().c_str());
  }
  return Median(std::move(seconds));
}

std::string Rounded(double seconds) { return std::to_string(std::lround(std::ceil(seconds))) + " s"; }

}  // namespace

int64_t StepShape::LayerWeights() const {
  return hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden + 3 * hidden * intermediate;
}

bool WriteStepModel(const std::string& folder, const StepShape& shape, int32_t window, int64_t context) {
  nlohmann::json config = {{"architectures", {"MistralForCausalLM"}},
                           {"model_type", "mistral"},
                           {"hidden_size", shape.hidden},
                           {"num_hidden_layers", shape.layers},
                           {"head_dim", shape.head_dim},
                           {"intermediate_size", shape.intermediate},
                           {"num_attention_heads", shape.heads},
                           {"num_key_value_heads", shape.kv_heads},
                           {"rms_norm_eps", 1e-5},
                           {"vocab_size", shape.vocab},
                           {"rope_theta", 10000.0},
                           {"max_position_embeddings", context},
                           {"sliding_window", nullptr},
                           {"tie_word_embeddings", false}};
  if (window > 0) config["sliding_window"] = window;
  std::ofstream(folder + "/config.json") << config.dump();
  WeightFile file;
  file.Add("model.embed_tokens.weight", {shape.vocab, shape.hidden});
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    file.Add(layer + "input_layernorm.weight", {shape.hidden});
    file.Add(layer + "self_attn.q_proj.weight", {shape.heads * shape.head_dim, shape.hidden});
    file.Add(layer + "self_attn.k_proj.weight", {shape.kv_heads * shape.head_dim, shape.hidden});
    file.Add(layer + "self_attn.v_proj.weight", {shape.kv_heads * shape.head_dim, shape.hidden});
    file.Add(layer + "self_attn.o_proj.weight", {shape.hidden, shape.heads * shape.head_dim});
    file.Add(layer + "post_attention_layernorm.weight", {shape.hidden});
    file.Add(layer + "mlp.gate_proj.weight", {shape.intermediate, shape.hidden});
    file.Add(layer + "mlp.up_proj.weight", {shape.intermediate, shape.hidden});
    file.Add(layer + "mlp.down_proj.weight", {shape.hidden, shape.intermediate});
  }
  file.Add("model.norm.weight", {shape.hidden});
  file.Add("lm_head.weight", {shape.vocab, shape.hidden});
  return file.Write(folder + "/model.safetensors");
}

int64_t Work::PromptTokens() const { return tokens * (sequences > 0 ? sequences : 1 + kPrompts); }

std::span<const Work> AllWork() { return kAllWork; }
std::span<const Work> ShortWork() { return kShortWork; }

std::string TokensText(int64_t count) {
  return count % 1024 == 0 ? std::to_string(count / 1024) + "k" : std::to_string(count);
}

std::string NameOf(const Work& work) {
  return work.sequences > 0 ? "decode, " + std::to_string(work.sequences) + " x " + TokensText(work.tokens)
                            : "prefill, " + TokensText(work.tokens);
}

int64_t PagesOf(const Work& work, const KvLayout& layout, const EngineLimits& limits,
                const StepCounts& counts) {
  const int64_t sequences = std::max(work.sequences, 1);
  const int64_t tokens = work.tokens + (work.sequences > 0 ? counts.OutputTokens() : 1);
  const int64_t part_way = std::min<int64_t>(sequences, limits.max_partial_prefills);
  const int64_t least = LeastChunk(layout, limits.max_step_tokens) * limits.steps_in_flight;
  const int64_t most = int64_t{limits.max_step_tokens} * limits.steps_in_flight;
  return sequences * layout.PagesForSequence(tokens, least) +
         part_way * (layout.PagesForSequence(tokens, most) - layout.PagesForSequence(tokens, least));
}

double StepBounds::FlopsOfPrompt(int64_t tokens) const {
  double pairs = 0;
  for (int64_t position = 0; position < tokens; ++position)
    pairs += static_cast<double>(KeysAt(position, window));
  return 2.0 * static_cast<double>(shape.layers * shape.LayerWeights()) * static_cast<double>(tokens) +
         4.0 * static_cast<double>(shape.heads * shape.head_dim * shape.layers) * pairs +
         2.0 * static_cast<double>(shape.vocab * shape.hidden);
}

double StepBounds::FlopsOfProducts(int64_t rows) const {
  return 2.0 * static_cast<double>(shape.Weights()) * static_cast<double>(rows);
}

Bound StepBounds::Of(const Work& work) const {
  const Bound weights = MemoryBound(weight_bytes, bytes_per_second);
  if (work.sequences > 0) {
    const Bound products = ArithmeticBound(FlopsOfProducts(work.sequences), flops_per_second);
    const auto keys = static_cast<double>(KeysAt(work.tokens, window));
    return Then(Slower(products, weights),
                work.sequences * keys * static_cast<double>(shape.KvBytesOfToken()), bytes_per_second);
  }
  return Slower(weights, ArithmeticBound(FlopsOfPrompt(work.tokens), flops_per_second));
}

double WorkPlan::SecondsFor(const Work& work) const {
  const Work prompt = {0, work.tokens};
  const double one_prompt = bounds_.Of(prompt).seconds() / prompt_share_;
  if (work.sequences == 0) return one_prompt * (1 + kPrompts);
  return one_prompt * work.sequences +
         bounds_.Of(work).seconds() / decode_share_ * static_cast<double>(counts_.OutputTokens());
}

std::string WorkPlan::WhyNot(const Work& work, int64_t pages, int64_t pool_pages, double seconds_left) const {
  if (pages > pool_pages) {
    return NameOf(work) + " (" + std::to_string(pages) + " pages of " + std::to_string(pool_pages) + ")";
  }
  if (const double seconds = SecondsFor(work); seconds > seconds_left) {
    return NameOf(work) + " (some " + Rounded(seconds) + " of " +
           (seconds_left > 0 ? Rounded(seconds_left) : "none") + " left)";
  }
  return "";
}

void WorkPlan::Measured(const Work& work, double seconds) {
  const double share = bounds_.Of(work).seconds() / seconds;
  if (share > 0) (work.sequences > 0 ? decode_share_ : prompt_share_) = share;
}

double SecondsOf(BackendEngine& engine, const StepShape& shape, const Work& work, const StepCounts& counts) {
  return work.sequences > 0 ? SecondsOfDecodeStep(engine, shape, work, counts)
                            : SecondsToFirstToken(engine, shape, work.tokens);
}

}  // namespace tramontane::gpu
