#include <nlohmann/json.hpp>
#include <ostream>

#include "bench/load/report.h"

namespace tramontane::load {
namespace {

using Line = nlohmann::ordered_json;

Line MsOrNull(const std::optional<double>& ms) { return ms ? Line(*ms) : Line(nullptr); }

}  // namespace

void WriteRequestLines(const std::vector<RequestRecord>& records, const std::vector<std::string>& class_names,
                       const std::string& target, std::ostream& out) {
  for (const RequestRecord& record : records) {
    const Latencies latencies = LatenciesOf(record);
    Line line;
    line["index"] = record.index;
    line["request_id"] = record.request_id;
    if (!target.empty()) line["target"] = target;
    line["class"] = class_names.at(static_cast<size_t>(record.class_index));
    line["intended_ns"] = record.intended_ns;
    line["sent_ns"] = record.sent_ns == 0 ? Line(nullptr) : Line(record.sent_ns);
    line["connect_ms"] = MsOrNull(latencies.connect);
    line["headers_ms"] = MsOrNull(latencies.headers);
    line["ttft_any_ms"] = MsOrNull(latencies.ttft_any);
    line["ttft_ms"] = MsOrNull(latencies.ttft);
    line["ttft_sent_ms"] = MsOrNull(latencies.ttft_sent);
    line["itl_ms"] = latencies.itl;
    line["tpot_ms"] = MsOrNull(latencies.tpot);
    line["e2el_ms"] = MsOrNull(latencies.e2el);
    line["done_ms"] = MsOrNull(latencies.done);
    line["input_tokens"] = record.input_tokens;
    line["output_tokens"] = record.output_tokens;
    line["output_tokens_from"] = TokenCountFromName(record.output_tokens_from);
    line["status"] = record.status == 0 ? Line(nullptr) : Line(record.status);
    line["outcome"] = OutcomeName(record.outcome, record.status);
    line["retry_after_s"] = MsOrNull(record.retry_after_s);
    line["error"] = record.error;
    // Where a secret was taken out of a number, it is no JSON any more.
    if (Line timing = Line::parse(record.timing_json, nullptr, false); timing.is_object()) {
      line["timing"] = std::move(timing);
    }
    out << line.dump(-1, ' ', false, Line::error_handler_t::replace) << '\n';
  }
}

void WriteScheduleLines(const std::vector<ScheduledRequest>& requests, std::ostream& out) {
  for (const ScheduledRequest& request : requests) {
    const Line line = {{"index", request.plan.index},
                       {"intended_ns", request.plan.intended_ns},
                       {"input_tokens", request.plan.input_tokens},
                       {"output_tokens", request.plan.output_tokens}};
    out << line.dump() << '\n';
  }
}

}  // namespace tramontane::load
