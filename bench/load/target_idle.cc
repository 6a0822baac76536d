#include "bench/load/target_idle.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "bench/load/parse.h"

namespace tramontane::load {
namespace {

constexpr int64_t kPollNs = 200'000'000;
constexpr int64_t kUnknownNs = 1'000'000'000;
constexpr double kLeastQuestionS = 0.1;  // for one question, however little time is left

// The value of "name{labels} value" or "name value timestamp"; nothing where it is no count.
std::optional<double> ValueOf(std::string_view line) {
  const size_t brace = line.rfind('}');
  const size_t begin =
      line.find_first_not_of(" \t", brace == std::string_view::npos ? line.find(' ') : brace + 1);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string value(line.substr(begin, line.find_first_of(" \t\r", begin) - begin));
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  const bool is_count = !value.empty() && *end == '\0' && std::isfinite(number) && number >= 0;
  return is_count ? std::optional<double>(number) : std::nullopt;
}

// Of all samples of a gauge in Prometheus' text; nothing where there is none.
std::optional<double> SumOf(std::string_view page, std::string_view name) {
  std::optional<double> sum;
  for (const std::string_view line : SplitAt(page, '\n')) {
    if (!line.starts_with(name)) continue;
    const std::string_view rest = line.substr(name.size());
    if (rest.empty() || (rest.front() != '{' && rest.front() != ' ')) continue;
    if (const auto value = ValueOf(line)) sum = sum.value_or(0) + *value;
  }
  return sum;
}

// Requests that the target says it has; nothing where it does not say.
std::optional<double> Busy(const TargetOptions& target, const AskTarget& ask) {
  constexpr int32_t kHttpOk = 200;
  const auto page = ask(target, {"GET", "/metrics", ""});
  if (!page.ok() || page->status != kHttpOk) return std::nullopt;
  const auto running = SumOf(page->body, "vllm:num_requests_running");
  const auto waiting = SumOf(page->body, "vllm:num_requests_waiting");
  if (!running && !waiting) return std::nullopt;
  return running.value_or(0) + waiting.value_or(0);
}

}  // namespace

IdleWait WaitUntilIdle(const TargetOptions& target, const AskTarget& ask, bool gave_up, int64_t most_ns,
                       Clock& clock, const std::atomic<bool>* stop) {
  const auto stopped = [&] { return stop != nullptr && stop->load(); };
  // Other than Clock::WaitUntil this is not ended by an answer.
  const auto sleep_until = [&](int64_t ns) {
    while (clock.Now() < ns && !stopped()) clock.WaitUntil(std::min(ns, clock.Now() + kPollNs));
  };
  const int64_t end = clock.Now() + most_ns;
  TargetOptions asked = target;
  while (!stopped()) {
    const double left_s = static_cast<double>(end - clock.Now()) * 1e-9;
    asked.timeout_s = std::clamp(left_s, kLeastQuestionS, std::max(kLeastQuestionS, target.timeout_s));
    const auto busy = Busy(asked, ask);
    if (stopped()) break;
    if (!busy) {
      if (gave_up) sleep_until(clock.Now() + std::min(kUnknownNs, most_ns));
      return stopped() ? IdleWait::kStopped : IdleWait::kIdle;
    }
    if (*busy == 0) return IdleWait::kIdle;
    if (clock.Now() >= end) return IdleWait::kBusy;
    sleep_until(clock.Now() + kPollNs);
  }
  return IdleWait::kStopped;
}

}  // namespace tramontane::load
