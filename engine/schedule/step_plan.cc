#include "engine/schedule/step_plan.h"

#include <algorithm>

namespace tramontane {
namespace {

std::string Range(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + "," + std::to_string(end) + ")";
}

std::string RowToString(const StepPlan& plan, const StepRow& row) {
  std::string text = row.sequence->request->id + "." + std::to_string(row.sequence->choice) +
                     Range(row.start, row.start + row.count);
  const int64_t draws = plan.Draws(row);
  const auto scores = plan.WantsOf(row).first(plan.WantsOf(row).size() - static_cast<size_t>(draws));
  if (!scores.empty()) text += "?" + Range(scores.front().position, scores.back().position + 1);
  if (draws > 0) text += "*";
  if (draws > 1) text += std::to_string(draws);
  return text;
}

}  // namespace

bool SeesSinks(const StepRow& row) { return EndOf(row) > row.sequence->lease().plain_len; }

int64_t StepPlan::Draws(const StepRow& row) const {
  const std::span<const Want> asked = WantsOf(row);
  return std::count_if(asked.begin(), asked.end(),
                       [](const Want& want) { return want.kind == Want::Kind::kDraw; });
}

std::string StepPlan::ToString() const {
  if (lane == Lane::kIdle) return "idle";
  std::string text = "step " + std::to_string(step) + " " + LaneName(lane) + " cost " + std::to_string(cost);
  if (!copies.empty()) text += " copies " + std::to_string(copies.size());
  text += ":";
  for (const StepRow& row : rows) text += " " + RowToString(*this, row);
  return text;
}

}  // namespace tramontane
