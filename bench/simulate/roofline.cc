#include "bench/simulate/roofline.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tramontane::simulate {
namespace {

using Json = nlohmann::json;

struct Term {
  const char* key;
  double DeviceRoofline::* member;
  double most;
};

constexpr Term kTerms[] = {{"memory_bytes", &DeviceRoofline::memory_bytes, 1e15},
                           {"bytes_per_s", &DeviceRoofline::bytes_per_s, 1e18},
                           {"flops_per_s", &DeviceRoofline::flops_per_s, 1e21},
                           {"memory_share", &DeviceRoofline::memory_share, 1},
                           {"product_share", &DeviceRoofline::product_share, 1},
                           {"attention_share", &DeviceRoofline::attention_share, 1}};

constexpr double kMostOverheadUs = 1e7;

struct Overhead {
  const char* key;
  int64_t DeviceRoofline::* member;
  bool may_lack;
};

constexpr Overhead kOverheads[] = {{"step_overhead_us", &DeviceRoofline::step_overhead_ns, false},
                                   {"sample_us", &DeviceRoofline::sample_ns, true}};

}  // namespace

StatusOr<DeviceRoofline> ParseDeviceRoofline(std::string_view json, const std::string& file) {
  const Json document = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return InvalidArgument(file + ": must be a JSON object");
  DeviceRoofline device;
  for (const Overhead& overhead : kOverheads) device.*overhead.member = overhead.may_lack ? 0 : -1;
  for (const auto& [key, value] : document.items()) {
    const auto term = std::find_if(std::begin(kTerms), std::end(kTerms),
                                   [&key = key](const Term& t) { return key == t.key; });
    const auto overhead = std::find_if(std::begin(kOverheads), std::end(kOverheads),
                                       [&key = key](const Overhead& o) { return key == o.key; });
    if (key == "name" && value.is_string()) {
      device.name = value.get<std::string>();
    } else if (overhead != std::end(kOverheads) && value.is_number()) {
      const auto us = value.get<double>();
      device.*overhead->member = us >= 0 && us <= kMostOverheadUs ? std::llround(us * 1e3) : -1;
    } else if (term != std::end(kTerms) && value.is_number()) {
      device.*term->member = value.get<double>();
      if (device.*term->member > term->most) {
        return InvalidArgument(file + ": " + key + " is " + value.dump() + ", the most is " +
                               Json(term->most).dump());
      }
    } else if (key != "about") {
      return InvalidArgument(file + ": " + key + " is " + value.dump() + ", which is no term of a device");
    }
  }
  for (const Term& term : kTerms) {
    const bool may_lack = term.member == &DeviceRoofline::memory_bytes;
    if (device.*term.member > 0 || (may_lack && device.*term.member == 0)) continue;
    return InvalidArgument(file + ": " + term.key + " is missing or not above 0");
  }
  if (device.name.empty()) return InvalidArgument(file + ": name is missing");
  for (const Overhead& overhead : kOverheads) {
    if (device.*overhead.member >= 0) continue;
    return InvalidArgument(file + ": " + overhead.key + " is missing, or not in 0 .. " +
                           Json(kMostOverheadUs).dump());
  }
  return device;
}

ModelWork WorkOf(const ModelConfig& config, const KvFormat& format) {
  const double hidden = config.hidden_size;
  const double layers = config.layers;
  const double heads = config.heads;
  const double kv_heads = config.kv_heads;
  const double head_dim = config.head_dim;
  const double attention = hidden * head_dim * (2 * heads + 2 * kv_heads);
  const double expert = 3 * hidden * config.intermediate_size;
  const double experts = std::max(config.experts, 1);
  const double chosen = config.experts > 0 ? config.experts_per_token : 1;
  ModelWork work;
  work.layer_weights = layers * (attention + chosen * expert);
  work.read_layer_weights = layers * (attention + experts * expert);
  work.head_weights = hidden * config.vocab_size;
  constexpr int64_t kSome = 1 << 20;  // whole blocks, where there are blocks
  work.bytes_per_weight = static_cast<double>(Format(config.weight_dtype).Bytes(kSome)) / kSome;
  work.key_bytes = static_cast<double>(format.TokenBytes());
  work.key_flops = 4 * heads * head_dim;
  return work;
}

int64_t StepNs(const StepPlan& plan, const ModelWork& work, const PrefillCost& keys,
               const DeviceRoofline& device) {
  double samples = 0;  // and scores: rows of logits
  int64_t drawn = 0;
  double read_positions = 0;  // over the layers: those that a row's last token sees are read once
  for (const StepRow& row : plan.rows) {
    const int64_t end = row.start + row.count;
    const int64_t draws = plan.Draws(row);  // of one row of logits
    samples += static_cast<double>(std::ssize(plan.WantsOf(row)) - draws + (draws > 0 ? 1 : 0));
    drawn += draws;
    read_positions += static_cast<double>(keys.AttendedKeys(end - 1, end));
  }
  const double bandwidth = device.bytes_per_s * device.memory_share;
  const auto tokens = static_cast<double>(plan.tokens);
  const double head_read = samples > 0 ? work.head_weights : 0;
  // Of experts that few tokens choose, no more are read than are chosen.
  const double read = std::min(work.read_layer_weights, work.layer_weights * tokens);
  const double products = std::max((read + head_read) * work.bytes_per_weight / bandwidth,
                                   2 * (work.layer_weights * tokens + work.head_weights * samples) /
                                       (device.flops_per_s * device.product_share));
  const double attention = std::max(read_positions * work.key_bytes / bandwidth,
                                    static_cast<double>(plan.attended_keys) * work.key_flops /
                                        (device.flops_per_s * device.attention_share));
  return std::max<int64_t>(
      1, device.step_overhead_ns + drawn * device.sample_ns + std::llround((products + attention) * 1e9));
}

std::vector<RowSpeed> RowSpeedsOf(const ModelWork& work, const PrefillCost& keys,
                                  const DeviceRoofline& device, int32_t most_rows) {
  std::vector<RowSpeed> speeds;
  for (const int32_t count : {32, 64, 128, 256, 512}) {
    const int32_t rows = std::min(count, most_rows);
    if (!speeds.empty() && rows <= speeds.back().rows) break;
    StepPlan plan;
    plan.lane = Lane::kPrefill;
    plan.rows = {{.sequence = nullptr, .start = 0, .count = rows}};
    plan.tokens = rows;
    plan.attended_keys = keys.AttendedKeys(0, rows);
    speeds.push_back({rows, StepNs(plan, work, keys, device)});
  }
  return speeds;
}

}  // namespace tramontane::simulate
