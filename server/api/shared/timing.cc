#include "server/api/shared/timing.h"

#include <utility>
#include <vector>

#include "server/watch/ttft_stages.h"

namespace tramontane {
namespace {

double MsOfStage(const v1::Timings& timing, size_t number) {
  return TtftStages::MsOf(timing, static_cast<TtftStage>(number));
}

}  // namespace

bool WantsTiming(const HttpRequest& request) {
  const std::string* value = request.Header(kTimingHeader);
  return value != nullptr && *value == "1";
}

Json TimingJson(const v1::Timings& timing) {
  const bool has_content = timing.has_ttft_ms();
  Json json = Json::object();
  for (size_t i = 0; i < TtftStages::kCount; ++i) {
    json[std::string(TtftStages::Names()[i]) + "_ms"] = has_content ? Json(MsOfStage(timing, i)) : Json();
  }
  json["ttft_ms"] = has_content ? Json(timing.ttft_ms()) : Json();
  json["chunks"] = timing.chunks();
  json["cached_tokens"] = timing.cached_tokens();
  json["preemptions"] = timing.preemptions();
  return json;
}

Shape TimingShape() {
  constexpr double kMostMs = 1e15;
  std::vector<Field> fields;
  for (const char* name : TtftStages::Names()) {
    fields.push_back(Maybe(std::string(name) + "_ms", Number(0, kMostMs)));
  }
  fields.push_back(
      Maybe("ttft_ms", Number(0, kMostMs), "The sum of the stages; null where there was no content."));
  for (const char* name : {"chunks", "cached_tokens", "preemptions"}) {
    fields.push_back(Always(name, Integer(0)));
  }
  return Object(std::move(fields));
}

std::string ServerTimingText(const v1::Timings& timing) {
  if (!timing.has_ttft_ms()) return {};
  std::string text;
  for (size_t i = 0; i < TtftStages::kCount; ++i) {
    text += std::string(TtftStages::Names()[i]) + ";dur=" + PrintJson(MsOfStage(timing, i)) + ", ";
  }
  return text + "ttft;dur=" + PrintJson(timing.ttft_ms());
}

}  // namespace tramontane
