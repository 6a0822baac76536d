#include "bench/load/target_idle.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "bench/load/parse.h"

namespace tramontane::load {
namespace {

constexpr int64_t kPollNs = 200'000'000;
constexpr int64_t kUnknownNs = 1'000'000'000;

// Of all samples of a gauge in Prometheus' text; nothing where there is none.
std::optional<double> SumOf(std::string_view page, std::string_view name) {
  std::optional<double> sum;
  for (const std::string_view line : SplitAt(page, '\n')) {
    if (!line.starts_with(name)) continue;
    const std::string_view rest = line.substr(name.size());
    if (rest.empty() || (rest.front() != '{' && rest.front() != ' ')) continue;
    const std::string value(line.substr(line.rfind(' ') + 1));
    sum = sum.value_or(0) + std::strtod(value.c_str(), nullptr);
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

// Other than Clock::WaitUntil this is not ended by an answer.
void SleepUntil(int64_t ns, Clock& clock) {
  while (clock.Now() < ns) clock.WaitUntil(ns);
}

}  // namespace

bool WaitUntilIdle(const TargetOptions& target, const AskTarget& ask, bool gave_up, int64_t most_ns,
                   Clock& clock) {
  const int64_t end = clock.Now() + most_ns;
  for (;;) {
    const auto busy = Busy(target, ask);
    if (!busy) {
      if (gave_up) SleepUntil(clock.Now() + std::min(kUnknownNs, most_ns), clock);
      return true;
    }
    if (*busy == 0) return true;
    if (clock.Now() >= end) return false;
    SleepUntil(clock.Now() + kPollNs, clock);
  }
}

}  // namespace tramontane::load
