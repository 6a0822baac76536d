#include "tests/support/drawn_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/core/check.h"
#include "models/gguf/gguf_output.h"
#include "models/gguf/gguf_types.h"
#include "models/opened_model.h"
#include "models/quantized/gguf_model_keys.h"
#include "models/quantized/quantize_model.h"
#include "tests/support/random_blocks.h"
#include "tests/support/safetensors_writer.h"

namespace tramontane {
namespace {

using nlohmann::json;

std::vector<float> NormalNumbers(int64_t count, float mean, float deviation, std::mt19937* random) {
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = normal(*random);
  return numbers;
}

// As large as TinyModel's: spread logits.
float SizeOf(const WeightSpec& weight, const TensorSpec& part, bool tied) {
  if (weight.key.role == WeightRole::kEmbedding) return tied ? 0.5f : 1.0f;
  return (weight.key.role == WeightRole::kLmHead ? 4.0f : 1.2f) / std::sqrt(static_cast<float>(part.columns));
}

// Takes the mean off every block that has minima: as trained weights, whose sums do not drift.
void Centre(DType type, std::vector<std::byte>& blocks) {
  const bool in_groups = type == DType::kQ4K || type == DType::kQ5K;
  if (!in_groups && type != DType::kQ4_1 && type != DType::kQ5_1) return;
  const float middle = type == DType::kQ4_1 || type == DType::kQ4K ? 7.5f : 15.5f;  // of all codes
  const auto block_bytes = static_cast<size_t>(Format(type).block_bytes);
  for (size_t at = 0; at < blocks.size(); at += block_bytes) {
    std::byte* const block = &blocks[at];
    uint16_t scale = 0;
    std::memcpy(&scale, block, sizeof(scale));
    const uint16_t minimum = FloatToF16(F16ToFloat(scale) * (in_groups ? middle : -middle));
    std::memcpy(block + 2, &minimum, sizeof(minimum));
    if (!in_groups) continue;
    // Each group's minimum is its scale: of the first four groups in bytes of their own, whose upper bits are
    // those of the last four, which have half a byte each.
    std::byte* const packed = block + 4;
    for (int i = 0; i < 4; ++i) {
      packed[4 + i] = packed[i];
      packed[8 + i] = (packed[8 + i] & std::byte{0x0f}) | packed[8 + i] << 4;
    }
  }
}

struct GgufTensor {
  std::string bytes;
  uint32_t type;
  std::vector<int64_t> shape;
};

template <typename T>
std::string BytesOfAll(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

GgufTensor DrawGgufTensor(const WeightSpec& weight, const TensorSpec& part, bool tied, const WeightForm& form,
                          std::mt19937* random) {
  const int64_t count = part.rows * std::max<int64_t>(1, part.columns);
  const bool is_vector = part.columns == 0;
  GgufTensor tensor = {.bytes = "", .type = GgufTypeNumber(DType::kF32), .shape = {part.rows}};
  if (!is_vector) tensor.shape.push_back(part.columns);
  if (part.matrices != 0) tensor.shape = {part.matrices, part.rows / part.matrices, part.columns};
  if (!weight.packed) {  // a norm, or a router
    const float spread = is_vector ? 0.2f : 1.5f / std::sqrt(static_cast<float>(part.columns));
    tensor.bytes = BytesOfAll(NormalNumbers(count, is_vector ? 1.0f : 0.0f, spread, random));
    return tensor;
  }
  const DType type = form.blocks[(*random)() % form.blocks.size()];
  tensor.type = GgufTypeNumber(type);
  std::vector<std::byte> blocks = RandomBlocks(
      type, part.rows, part.columns, static_cast<uint32_t>((*random)()), SizeOf(weight, part, tied));
  Centre(type, blocks);
  tensor.bytes = BytesOfAll(blocks);
  return tensor;
}

// A model of the same config.
std::string WriteGguf(const OpenedModel& model, const WeightForm& form, uint32_t seed,
                      const TempFolder& folder) {
  const GgufModelKeys keys = MakeGgufModelKeys(model.config, {}, model.folder.path).value();
  ModelConfig config = model.config;
  config.layout = FolderLayout::kGguf;
  std::mt19937 random(seed);
  std::vector<std::pair<std::string, GgufTensor>> tensors;
  if (!keys.rotary_divisors.empty()) {
    tensors.push_back({"rope_freqs.weight",
                       {BytesOfAll(keys.rotary_divisors),
                        GgufTypeNumber(DType::kF32),
                        {static_cast<int64_t>(keys.rotary_divisors.size())}}});
  }
  std::set<std::string> listed;  // experts are slices of one tensor
  for (const WeightSpec& weight : ListWeights(config)) {
    for (const TensorSpec& part : weight.parts) {
      if (!listed.insert(part.name).second) continue;
      tensors.emplace_back(part.name, DrawGgufTensor(weight, part, config.tied_embeddings, form, &random));
    }
  }
  GgufOutput file;
  for (const auto& [name, tensor] : tensors)
    file.Plan(name, tensor.shape, tensor.type, static_cast<int64_t>(tensor.bytes.size()));
  std::string path = folder.PathOf("drawn.gguf");
  Status status = file.Begin(path, keys.keys);
  for (const auto& [name, tensor] : tensors) {
    if (status.ok()) status = file.Append(tensor.bytes);
    if (status.ok()) status = file.EndTensor();
  }
  if (status.ok()) status = file.End();
  TM_CHECK(status.ok(), "%s", status.ToString().c_str());
  return path;
}

// A layer's matrices; routers stay as they are, and so do the embedding and the output.
bool IsInFp8(const std::string& name, const json& entry) {
  return entry["shape"].size() == 2 && name.find("layers.") != std::string::npos &&
         !name.ends_with(".gate.weight");
}

// Codes of `values`, [rows][columns], each over its row's scale, or over the only one. Scales are bf16's.
std::string Fp8Codes(const std::vector<float>& values, int64_t columns, const std::vector<float>& scales) {
  std::string codes;
  for (size_t i = 0; i < values.size(); ++i) {
    const float scale = scales[scales.size() == 1 ? 0 : i / static_cast<size_t>(columns)];
    codes += static_cast<char>(FloatToFp8E4M3(values[i] / scale));
  }
  return codes;
}

float ScaleFor(std::span<const float> values) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return RoundToBf16(largest / 440.0f);  // 448 at most, whichever way bf16 rounds
}

void WriteFp8(const DrawnModel& drawn, const TempFolder& folder) {
  const bool native = drawn.config.empty();
  SafetensorsWriter plain = native ? drawn.model.MistralTensors() : drawn.model.HuggingFaceTensors();
  SafetensorsWriter writer;
  for (const auto& [name, entry] : plain.header().items()) {
    const auto begin = entry["data_offsets"][0].get<size_t>(), end = entry["data_offsets"][1].get<size_t>();
    const std::string bytes = plain.data().substr(begin, end - begin);
    const std::vector<int64_t> shape = entry["shape"];
    if (!IsInFp8(name, entry)) {
      writer.AddRaw(name, entry["dtype"], shape, bytes);
      continue;
    }
    TM_CHECK(entry["dtype"] == "F32", "%s", name.c_str());
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    const size_t step = native ? values.size() : static_cast<size_t>(shape[1]);
    std::vector<float> scales;
    for (size_t i = 0; i < values.size(); i += step)
      scales.push_back(ScaleFor(std::span(values).subspan(i, step)));
    writer.AddRaw(name, "F8_E4M3", shape, Fp8Codes(values, shape[1], scales));
    const std::string stem = name.substr(0, name.rfind("weight"));
    if (native) {
      writer.Add(stem + "qscale_weight", {}, scales, DType::kBf16);
    } else {
      writer.Add(name + "_scale", {shape[0], 1}, scales, DType::kBf16);
    }
  }
  if (native) {
    json params = drawn.model.MistralParams();
    params["quantization"] = {{"qformat_weight", "fp8_e4m3"}, {"qscheme_act", "NO_SCALES"}};
    folder.Write("params.json", params.dump());
    folder.Write("consolidated.safetensors", writer.File());
    return;
  }
  json config = drawn.config;
  const json of_weights = {
      {"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"dynamic", false}, {"strategy", "channel"}};
  const json group = {{"targets", {"Linear"}}, {"weights", of_weights}};
  config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"format", "float-quantized"},
                                   {"quantization_status", "compressed"},
                                   {"config_groups", {{"group_0", group}}},
                                   {"ignore", {"lm_head", "re:.*\\.gate$"}}};
  folder.Write("config.json", config.dump());
  folder.Write("model.safetensors", writer.File());
}

}  // namespace

std::span<const WeightForm> WeightForms() {
  static const std::vector<WeightForm> forms = {
      {.name = "f32"},
      {.name = "gguf of every type in blocks", .blocks = {std::begin(kBlockTypes), std::end(kBlockTypes)}},
      {.name = "fp8", .fp8 = true},
      {.name = "int4 in groups of 32", .bits = 4},
      {.name = "q4_0", .blocks = {DType::kQ4_0}},
      {.name = "bf16", .plain = DType::kBf16},
      {.name = "q8_0", .blocks = {DType::kQ8_0}},
      {.name = "int8 in groups of 32", .bits = 8},
      {.name = "q4_k", .blocks = {DType::kQ4K}},
      {.name = "f16", .plain = DType::kF16},
  };
  return forms;
}

void FitWidths(const WeightForm& form, TinyModel* sizes) {
  int64_t block = form.bits != 0 || form.fp8 ? 32 : 1;
  for (const DType type : form.blocks) block = std::max(block, Format(type).block_size());
  const auto up = [block](int64_t width) { return (width + block - 1) / block * block; };
  sizes->hidden = static_cast<int32_t>(up(sizes->hidden));
  sizes->intermediate = static_cast<int32_t>(up(sizes->intermediate));
  // Heads as many, but wider.
  sizes->head_dim = static_cast<int32_t>(up(int64_t{sizes->heads} * sizes->head_dim) / sizes->heads);
}

std::string WriteInForm(const DrawnModel& drawn, const WeightForm& form, uint32_t seed,
                        const TempFolder& folder) {
  if (form.fp8) {
    WriteFp8(drawn, folder);
    return folder.path();
  }
  DrawnModel plain = drawn;
  for (auto& [name, tensor] : plain.model.tensors) tensor.dtype = form.plain;
  if (form.bits == 0 && form.blocks.empty()) {
    plain.Write(folder);
    return folder.path();
  }
  const TempFolder source;
  plain.Write(source);
  const OpenedModel opened = OpenModel(source.path(), {}).value();
  if (!form.blocks.empty()) return WriteGguf(opened, form, seed, folder);
  // Integers of 8 bits everywhere, the embedding's rows too.
  const QuantizeOptions options = {.bits = form.bits, .group = 32};
  QuantizeOptions of_all = options;
  of_all.keep = {};
  std::string out = folder.PathOf("quantised");
  const auto written = QuantizeModel(opened, out, form.bits == 8 ? of_all : options);
  TM_CHECK(written.ok(), "%s", written.status().ToString().c_str());
  return out;
}

}  // namespace tramontane
