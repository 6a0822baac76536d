#include "models/quantized/same_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace tramontane {
namespace {

constexpr double kRounding = 1e-6;  // relative: a few roundings to float

std::vector<int64_t> Dimensions(const ModelConfig& config) {
  return {config.vocab_size,        config.hidden_size, config.layers,  config.heads,
          config.kv_heads,          config.head_dim,    config.experts, config.intermediate_size,
          config.experts_per_token, config.context};
}

std::set<int32_t> Ends(const ModelConfig& config) { return {config.eos_ids.begin(), config.eos_ids.end()}; }

}  // namespace

bool NearlyEqual(double a, double b) {
  return std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b));
}

bool SameFrequencies(const ModelConfig& model, double theta, const RopeScaling& scaling) {
  const auto wanted = RotaryFrequencies(model.rope_theta, model.head_dim, model.rope_scaling);
  const auto given = RotaryFrequencies(theta, model.head_dim, scaling);
  return std::equal(wanted.begin(), wanted.end(), given.begin(), given.end(), NearlyEqual);
}

std::string WhatDiffers(const ModelConfig& wanted, const ModelConfig& read) {
  if (Dimensions(read) != Dimensions(wanted)) return "its dimensions";
  if (read.rms_epsilon != wanted.rms_epsilon) return "the epsilon of its norms";
  if (read.window != wanted.window) return "the windows of its layers";
  if (!SameFrequencies(wanted, read.rope_theta, read.rope_scaling)) return "its rotary frequencies";
  if (!NearlyEqual(read.rope_scaling.magnitude, wanted.rope_scaling.magnitude))
    return "the factor on cos and sin";
  const QueryScaling &is = read.query_scaling, &was = wanted.query_scaling;
  if (!NearlyEqual(is.beta, was.beta) || (was.beta != 0.0 && is.positions != was.positions))
    return "the factor on queries";
  if (!wanted.eos_ids.empty() && Ends(read) != Ends(wanted)) return "the ids that end an answer";
  return "";
}

}  // namespace tramontane
