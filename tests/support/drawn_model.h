// A small random model of an architecture, windows, page size and rotary scaling that a seed chooses: what
// storms run over. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>

#include "models/architecture.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {

struct DrawnModel {
  std::string name;  // "MinistralForCausalLM, windows 16 0 16, pages of 8, yarn"
  TinyModel model;
  nlohmann::json config;  // empty: Mistral's own files, of which params.json tells every layer's window
  int32_t page_size = 4;
  double score_growth = 1.0;  // by how much scalings make attention scores larger, at most

  void Write(const TempFolder& folder) const {
    if (config.empty()) return model.WriteMistral(folder);
    folder.Write("config.json", config.dump());
    folder.Write("model.safetensors", model.HuggingFaceTensors().File());
  }
};

// The table's rows in Hugging Face's files, and Mistral's own files.
inline uint32_t DrawnKinds() { return static_cast<uint32_t>(Architectures().size()) + 1; }

// `kind` chooses among them, modulo their number; `seed` the rest. `base` gives the sizes, those of a mixture
// too; its context is 64 or less.
inline DrawnModel DrawModel(uint32_t kind, uint32_t seed, TinyModel base) {
  constexpr int32_t kWindow = 16;
  constexpr int32_t kPageSizes[] = {1, 4, 8, 16};
  constexpr int32_t kScaledFrom = 16;  // positions, so that scalings show within the context
  std::mt19937 random(seed);
  const auto one_of = [&random](uint32_t count) { return static_cast<uint32_t>(random() % count); };
  DrawnModel drawn;
  drawn.model = std::move(base);
  TinyModel& model = drawn.model;
  kind %= DrawnKinds();
  const bool native = kind == Architectures().size();
  const Architecture& row = Architectures()[native ? 0 : kind];

  const bool by_layer = native || row.layer_types;
  model.window.assign(static_cast<size_t>(model.layers), row.windowed && one_of(2) == 0 ? kWindow : 0);
  if (by_layer) {
    for (int32_t& window : model.window) window = one_of(2) == 0 ? kWindow : 0;
  }
  const bool uniform = std::adjacent_find(model.window.begin(), model.window.end(), std::not_equal_to<>()) ==
                       model.window.end();
  if (!row.experts) model.experts = 0;
  model.tied = one_of(3) == 0;
  const double thetas[] = {1e4, 1e6, 1e8};
  model.rope_theta = thetas[one_of(std::size(thetas))];
  drawn.page_size = kPageSizes[one_of(std::size(kPageSizes))];
  drawn.name = native ? "Mistral's own files" : row.name;
  drawn.name += ", windows";
  for (const int32_t window : model.window) drawn.name += " " + std::to_string(window);
  drawn.name += ", pages of " + std::to_string(drawn.page_size);
  model.Randomise(seed);
  if (native) return drawn;

  nlohmann::json& config = drawn.config = model.HuggingFaceConfig();
  config["architectures"] = {row.name};
  config["model_type"] = row.model_type;
  config["sliding_window"] = nullptr;
  if (!uniform || model.window.front() != 0) config["sliding_window"] = kWindow;
  if (!row.layer_types) config.erase("layer_types");
  nlohmann::json rope = {{"rope_theta", model.rope_theta},
                         {"rope_type", "default"},
                         {"original_max_position_embeddings", kScaledFrom}};
  const uint32_t scaling = row.query_scaling ? 1 : one_of(3);
  if (scaling == 1) {
    rope["rope_type"] = "yarn";
    rope["factor"] = 4.0;
    rope["beta_fast"] = 8.0;
    rope["beta_slow"] = 0.5;
    const double magnitude = 1.0 + 0.1 * std::log(4.0);
    drawn.score_growth *= magnitude * magnitude;  // of both factors of a score
  } else if (scaling == 2) {
    rope["rope_type"] = "llama3";
    rope["factor"] = 8.0;
    rope["low_freq_factor"] = 1.0;
    rope["high_freq_factor"] = 4.0;
  } else {
    rope.erase("original_max_position_embeddings");
  }
  if (row.query_scaling) {
    constexpr double kBeta = 0.1;
    rope["llama_4_scaling_beta"] = kBeta;
    const auto whole_times = model.context / kScaledFrom;
    drawn.score_growth *= 1.0 + kBeta * std::log(1.0 + whole_times);
  }
  drawn.name += ", " + rope["rope_type"].get<std::string>();
  config.erase("rope_theta");
  config["rope_parameters"] = rope;
  return drawn;
}

}  // namespace tramontane
