#include "server/api/shared/timing.h"

#include <utility>
#include <vector>

#include "server/watch/ttft_stages.h"

namespace tramontane {
namespace {

constexpr double kMostMs = 1e15;

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

Json MetricsJson(const v1::Finished& finished) {
  const v1::Timings& at = finished.timings();
  const int64_t tokens = finished.usage().completion_tokens();
  const bool has_token = at.has_admitted_us() && at.has_first_token_us() && tokens > 0;
  const bool has_end = has_token && at.has_finished_us();
  const auto ms = [](bool happened, int64_t us) {
    return happened ? NumberJson(static_cast<double>(us) / 1000) : Json();
  };
  const int64_t generating_us = at.finished_us() - at.first_token_us();
  const int64_t running_us = at.finished_us() - at.admitted_us();
  Json json = Json::object();
  json["time_to_first_token_ms"] = ms(has_token, at.first_token_us() - at.admitted_us());
  json["queue_time_ms"] = ms(at.has_admitted_us(), at.admitted_us() - at.tokenized_us());
  json["generation_time_ms"] = ms(has_end, generating_us);
  json["mean_itl_ms"] = ms(has_end && tokens > 1, tokens > 1 ? generating_us / (tokens - 1) : 0);
  json["tokens_per_second"] =
      has_end && running_us > 0
          ? NumberJson(static_cast<double>(tokens) * 1e6 / static_cast<double>(running_us))
          : Json();
  json["speculative_decoding"] = nullptr;
  return json;
}

Shape MetricsShape() {
  std::vector<Field> fields;
  for (const char* name : {"time_to_first_token_ms", "queue_time_ms", "generation_time_ms", "mean_itl_ms",
                           "tokens_per_second"}) {
    fields.push_back(Maybe(name, Number(0, kMostMs)));
  }
  fields.push_back(Maybe("speculative_decoding", Anything()));
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
