#include "engine/schedule/step_plan.h"

namespace tramontane {
namespace {

std::string Range(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + "," + std::to_string(end) + ")";
}

std::string RowToString(const StepRow& row) {
  std::string text = row.sequence->request->id + "." + std::to_string(row.sequence->choice) +
                     Range(row.start, row.start + row.count);
  if (row.ask.scores()) text += "?" + Range(row.ask.score_begin, row.ask.score_end);
  if (row.ask.samples > 0) text += "*";
  if (row.ask.samples > 1) text += std::to_string(row.ask.samples);
  return text;
}

}  // namespace

bool SeesSinks(const StepRow& row) { return EndOf(row) > row.sequence->lease().plain_len; }

bool IsMasked(const StepRow& row) {
  return row.sequence->tree != nullptr && EndOf(row) > row.sequence->tree->plain_len();
}

std::string StepPlan::ToString() const {
  if (lane == Lane::kIdle) return "idle";
  std::string text = "step " + std::to_string(step) + " " + LaneName(lane) + " cost " + std::to_string(cost);
  if (!copies.empty()) text += " copies " + std::to_string(copies.size());
  text += ":";
  for (const StepRow& row : rows) text += " " + RowToString(row);
  return text;
}

}  // namespace tramontane
