#include "bench/load/search.h"

#include <cmath>
#include <utility>

namespace tramontane::load {
namespace {

constexpr double kCloseness = 1.02;
constexpr int kConfirmations = 3;
constexpr int kMostDoublings = 24;       // 16 million times the first rate
constexpr int kMostHalvings = 10;        // a thousandth of it: N requests take a thousand times as long there
constexpr int kMostConfirmedRates = 25;  // 40 % down from what the bisection found

class Search {
 public:
  explicit Search(const MakeProbe& probe) : probe_(probe) {}

  StatusOr<FoundRate> Find(double first);
  FoundRate Stopped() { return Nothing("the search was stopped"); }

 private:
  StatusOr<bool> Holds(double rate, int confirmation = 0);
  StatusOr<bool> HoldsAgain(double rate);
  FoundRate Nothing(std::string why) {
    found_.why = std::move(why);
    return std::move(found_);
  }

  const MakeProbe& probe_;
  FoundRate found_;
};

StatusOr<bool> Search::Holds(double rate, int confirmation) {
  TM_ASSIGN_OR_RETURN(Probe probe, probe_(rate, confirmation));
  probe.rate = rate;
  probe.is_confirmation = confirmation > 0;
  found_.probes.push_back(std::move(probe));
  return found_.probes.back().holds;
}

StatusOr<bool> Search::HoldsAgain(double rate) {
  for (int i = 1; i <= kConfirmations; ++i) {
    TM_ASSIGN_OR_RETURN(const bool holds, Holds(rate, i));
    if (!holds) return false;
  }
  return true;
}

StatusOr<FoundRate> Search::Find(double first) {
  TM_ASSIGN_OR_RETURN(const bool first_holds, Holds(first));
  double low = first, high = first;  // `low` holds, `high` does not
  bool bracketed = false;
  const int most_probes = first_holds ? kMostDoublings : kMostHalvings;
  for (int i = 0; i < most_probes && !bracketed; ++i) {
    const double rate = first_holds ? high * 2 : low / 2;
    TM_ASSIGN_OR_RETURN(const bool holds, Holds(rate));
    bracketed = holds != first_holds;
    if (first_holds) {
      low = holds ? rate : low;
      high = rate;
    } else {
      high = holds ? high : rate;
      low = rate;
    }
  }
  if (!bracketed) return Nothing(first_holds ? "every rate held" : "no rate held");
  while (high / low > kCloseness) {
    const double rate = std::sqrt(low * high);
    TM_ASSIGN_OR_RETURN(const bool holds, Holds(rate));
    (holds ? low : high) = rate;
  }
  for (int i = 0; i < kMostConfirmedRates; ++i, low /= kCloseness) {
    TM_ASSIGN_OR_RETURN(const bool holds, HoldsAgain(low));
    if (!holds) continue;
    found_.rate = low;
    return std::move(found_);
  }
  return Nothing("no rate held three times");
}

}  // namespace

StatusOr<FoundRate> FindRate(double first, const MakeProbe& probe) {
  Search search(probe);
  StatusOr<FoundRate> found = search.Find(first);
  const bool was_stopped = !found.ok() && found.status().code() == StatusCode::kCancelled;
  return was_stopped ? search.Stopped() : std::move(found);
}

}  // namespace tramontane::load
