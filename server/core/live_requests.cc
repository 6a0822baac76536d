#include "server/core/live_requests.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

namespace tramontane {

using RequestsJson = nlohmann::ordered_json;

LiveRequestsText::LiveRequestsText(std::vector<LiveCall> calls, std::string model, int64_t now_ns,
                                   std::shared_ptr<const LiveQuestion> question)
    : calls_(std::move(calls)), model_(std::move(model)), now_ns_(now_ns), question_(std::move(question)) {
  std::sort(calls_.begin(), calls_.end(),
            [](const LiveCall& a, const LiveCall& b) { return a.received_ns < b.received_ns; });
  left_out_ = std::max<int64_t>(0, std::ssize(calls_) - static_cast<int64_t>(kRequests));
  if (left_out_ > 0) calls_.resize(kRequests);
}

std::optional<std::string> LiveRequestsText::Take() {
  const LiveReport* const report = question_->answer();
  if (report == nullptr) return std::nullopt;
  std::unordered_map<const TokenStream*, const LiveReport::OfRequest*> running;
  for (const LiveReport::OfRequest& request : report->requests) running[request.stream] = &request;
  RequestsJson requests = RequestsJson::array();
  for (const LiveCall& call : calls_) {
    const auto found = running.find(call.stream.get());
    const LiveReport::OfRequest known = found == running.end() ? LiveReport::OfRequest() : *found->second;
    requests.push_back(
        {{"id", call.id},
         {"state", SequenceStateName(known.state)},
         {"age_ms", static_cast<double>((now_ns_ - call.received_ns) / 1000) / 1000},
         {"key", call.key.empty() ? RequestsJson() : RequestsJson(call.key)},
         {"model", model_},
         {"prompt_tokens", call.prompt_tokens < 0 ? RequestsJson() : RequestsJson(call.prompt_tokens)},
         {"output_tokens", known.output_tokens},
         {"pages", known.pages}});
  }
  const RequestsJson json = {{"requests", std::move(requests)}, {"requests_left_out", left_out_}};
  return json.dump(-1, ' ', false, RequestsJson::error_handler_t::replace);
}

}  // namespace tramontane
