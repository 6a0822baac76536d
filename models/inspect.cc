#include "models/inspect.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

namespace tramontane {
namespace {

// 12345678 -> "12,345,678"
std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string Line(const std::string& name, const std::string& value) {
  constexpr size_t kNameWidth = 14;
  return name + std::string(kNameWidth - std::min(name.size(), kNameWidth - 1), ' ') + value + "\n";
}

std::string LayoutText(FolderLayout layout) {
  switch (layout) {
    case FolderLayout::kHuggingFace:
      return "Hugging Face layout";
    case FolderLayout::kMistral:
      return "Mistral's own layout";
    case FolderLayout::kGguf:
      return "GGUF";
  }
  return "";
}

// Ascending layers as "0-3, 7, ...", at most kRanges of them.
std::string Ranges(const std::vector<int32_t>& layers) {
  constexpr int kRanges = 4;
  std::string text;
  int ranges = 0;
  for (size_t begin = 0; begin < layers.size();) {
    size_t end = begin + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    text += text.empty() ? "" : ", ";
    if (++ranges > kRanges) return text + "...";
    text += std::to_string(layers[begin]);
    if (end - begin > 1) text += "-" + std::to_string(layers[end - 1]);
    begin = end;
  }
  return text;
}

std::string WidthText(int32_t window) { return window == 0 ? "none" : std::to_string(window); }

// What is there by its name; several may be.
std::string TokenizerText(const std::vector<std::string>& file_names) {
  std::vector<std::string> found;
  for (const std::string& name : file_names) {
    if (name.starts_with("tokenizer.model")) found.push_back(name + " (SentencePiece)");
    if (name == "tekken.json") found.push_back(name + " (tekken)");
    if (name == "tokenizer.json") found.push_back(name + " (Hugging Face)");
  }
  std::sort(found.begin(), found.end());
  std::string text;
  for (const std::string& name : found) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "absent" : text;
}

std::string WeightsText(const ModelFolder& folder) {
  if (folder.weight_files.size() == 1) return folder.weight_files[0];
  if (!folder.weight_files.empty()) {
    return std::to_string(folder.weight_files.size()) + " files, " + folder.weight_files.front() + " to " +
           folder.weight_files.back();
  }
  if (folder.unreadable_weights.empty()) return "absent; sizes are by the config's dtype";
  return "absent; " + folder.unreadable_weights[0] + " cannot be read: only safetensors and GGUF files can";
}

// "bf16 1,234 bytes, f32 56": what the model needs, as it lies in the files.
std::string FormatsText(const OpenedModel& model) {
  std::map<std::string, int64_t> bytes;
  std::set<std::string> counted;  // experts may be slices of one tensor
  if (!model.weight_files.ok()) return "";
  for (const WeightSpec& spec : model.weights) {
    for (const TensorSpec& part : spec.parts) {
      if (!counted.insert(part.name).second) continue;
      const auto found = model.weight_files->Find(part);
      if (!found.ok()) continue;
      bytes[found->coded ? FormatName(found->format()) : found->plain.tensor->dtype_name] += found->bytes();
    }
  }
  std::string text;
  for (const auto& [format, count] : bytes) {
    text += (text.empty() ? "" : ", ") + format + " " + Grouped(count) + " bytes";
  }
  return text;
}

std::string RopeText(const ModelConfig& config) {
  char text[160];
  std::snprintf(text, sizeof(text), "theta %g", config.rope_theta);
  const RopeScaling& scaling = config.rope_scaling;
  std::string rope = text;
  if (scaling.kind == RopeScaling::Kind::kDivided) {
    rope += ", each frequency divided as rope_freqs.weight says";
  } else if (scaling.kind != RopeScaling::Kind::kNone) {
    std::snprintf(text, sizeof(text), ", %s of %g times %.0f, magnitude %g",
                  scaling.kind == RopeScaling::Kind::kYarn ? "YaRN" : "llama3 bands", scaling.factor,
                  scaling.original_context, scaling.magnitude);
    rope += text;
  }
  if (config.query_scaling.beta != 0.0) {
    std::snprintf(text, sizeof(text), ", queries times 1 + %g ln(1 + position / %d)",
                  config.query_scaling.beta, config.query_scaling.positions);
    rope += text;
  }
  return rope;
}

std::string FeedForwardText(const ModelConfig& config) {
  const std::string width = std::to_string(config.intermediate_size);
  if (config.experts == 0) return width;
  return std::to_string(config.experts) + " experts of " + width + ", " +
         std::to_string(config.experts_per_token) + " for each token";
}

std::string IdsText(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ", ") + std::to_string(id);
  return text.empty() ? "none" : text;
}

}  // namespace

std::string WindowText(const std::vector<int32_t>& window) {
  std::map<int32_t, std::vector<int32_t>> layers_of;
  for (size_t layer = 0; layer < window.size(); ++layer)
    layers_of[window[layer]].push_back(static_cast<int32_t>(layer));
  if (layers_of.size() == 1) {
    return window[0] == 0
               ? "none"
               : std::to_string(window[0]) + " on all " + std::to_string(window.size()) + " layers";
  }
  std::string text;
  for (const auto& [width, layers] : layers_of) {
    text += (text.empty() ? "" : ", ") + WidthText(width) + " on " + std::to_string(layers.size()) +
            " layers (" + Ranges(layers) + ")";
  }
  return text;
}

std::string DescribeModel(const OpenedModel& model) {
  const ModelFolder& files = model.folder;
  const ModelConfig& config = model.config;
  std::string text;
  text += Line("model", files.path);
  text += Line("files", files.config_file + " (" + files.why + ")");
  text += Line("architecture", config.architecture + ", " + LayoutText(config.layout));
  if (!config.wrapper.empty()) {
    text += Line("images", "refused: of " + config.wrapper + " the text part is served");
  }
  text += Line("layers", std::to_string(config.layers) + ", hidden " + std::to_string(config.hidden_size) +
                             ", feed-forward " + FeedForwardText(config));
  text += Line("heads", std::to_string(config.heads) + " of " + std::to_string(config.head_dim) + ", " +
                            std::to_string(config.kv_heads) + " for keys and values");
  text += Line("window", WindowText(config.window));
  text += Line("context", Grouped(config.context) + " tokens, rope " + RopeText(config));
  text +=
      Line("vocabulary", Grouped(config.vocab_size) + (config.tied_embeddings ? ", tied" : "") + ", bos " +
                             std::to_string(config.bos_id) + ", eos " + IdsText(config.eos_ids));
  text +=
      Line("tokenizer", files.tokenizer == files.path ? TokenizerText(model.file_names) : files.tokenizer);
  text += Line("weights", WeightsText(files));
  const std::string formats = FormatsText(model);
  if (!formats.empty()) text += Line("  formats", formats);
  for (const std::string& warning : config.warnings) text += Line("warning", warning);
  return text;
}

std::string DescribePlan(const KvLayout& layout, const MemoryPlan& plan, int64_t memory_bytes) {
  std::string text;
  text += Line("parameters", Grouped(plan.weight_count));
  text += Line("memory", Grouped(memory_bytes) + " bytes");
  text += Line("  weights", Grouped(plan.weight_bytes) + " bytes" +
                                (plan.weights_present ? "" : " (by the config's dtype)"));
  text += Line("  workspace", Grouped(plan.workspace_bytes) + " bytes");
  if (plan.recorded_steps + plan.unrecorded_steps > 0) {
    text +=
        Line("  recorded steps",
             "some " + Grouped(plan.recording_bytes) + " bytes for " + std::to_string(plan.recorded_steps) +
                 " of " + std::to_string(plan.recorded_steps + plan.unrecorded_steps) + " forward passes");
  }
  text += Line("  pages", Grouped(plan.pool_pages) + " of " + Grouped(plan.page_bytes) +
                              " bytes: " + std::to_string(layout.format.page_size) + " tokens, " +
                              std::to_string(layout.layers_per_page) + " layers, " +
                              FormatName(layout.format.element));
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const KvGroupSpec& group = layout.groups[g];
    text += Line("  group " + std::to_string(g), Grouped(layout.token_bytes()) + " bytes per token: layers " +
                                                     Ranges(group.layers) + ", window " +
                                                     WidthText(group.window));
  }
  text += Line("fits", "one sequence of " + Grouped(plan.pool_tokens) + " tokens, or " +
                           Grouped(plan.sequences_at_context) + " of the whole context");
  return text;
}

}  // namespace tramontane
