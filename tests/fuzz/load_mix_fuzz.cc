// Mixes of classes of requests. What is taken has names of its own and weights, and can be drawn from.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bench/load/schedule.h"
#include "bench/load/work.h"

namespace {

using tramontane::load::kMaxTokens;
using tramontane::load::WorkClass;

void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto classes = tramontane::load::ParseMix("mix", text, WorkClass{});
  if (!classes.ok()) {
    Require(!classes.status().message().empty());
    return 0;
  }
  std::set<std::string> names;
  double weights = 0;
  for (const WorkClass& work : *classes) {
    names.insert(work.name);
    Require(!work.name.empty() && work.weight >= 0 && work.turns >= 1 && work.shared_prefix.count >= 1);
    weights += work.weight;
  }
  Require(!names.empty() && names.size() == classes->size() && weights > 0);
  tramontane::load::ScheduleOptions options;
  options.classes = *classes;
  tramontane::load::Scheduler scheduler(options);
  for (int i = 0; i < 200; ++i) {
    const auto request = scheduler.Next();
    Require(request.has_value());
    const auto& plan = request->plan;
    Require(plan.class_index >= 0 && static_cast<size_t>(plan.class_index) < classes->size());
    Require((*classes)[static_cast<size_t>(plan.class_index)].weight > 0);
    Require(plan.input_tokens >= 1 && plan.input_tokens <= kMaxTokens);
    Require(plan.output_tokens >= 1 && plan.output_tokens <= kMaxTokens);
  }
  return 0;
}
