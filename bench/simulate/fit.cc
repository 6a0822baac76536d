#include "bench/simulate/fit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

namespace tramontane::simulate {
namespace {

using Json = nlohmann::json;

constexpr char kWholeSteps[] = "Mistral 7B";
constexpr char kPrefillAttention[] = "Prefill attention";

// A row of a table: `seconds` for `amount` bytes or FLOP, of which the device does `per_second`.
struct Row {
  double seconds = 0;
  double amount = 0;
  double per_second = 0;
};

// Of `table`, those whose name begins with `begin` and whose amount is in `unit`.
StatusOr<std::vector<Row>> RowsOf(const Json& document, const std::string& file, const std::string& table,
                                  const std::string& begin, const std::string& unit, size_t least) {
  std::vector<Row> rows;
  const Json tables = document.value("tables", Json::array());
  for (const Json& each : tables) {
    if (!each.is_object() || each.value("name", Json()) != table) continue;
    const Json entries = each.value("rows", Json::array());
    for (const Json& entry : entries) {
      if (!entry.is_object()) continue;
      const Json name = entry.value("name", Json());
      if (!name.is_string() || !name.get<std::string>().starts_with(begin)) continue;
      if (entry.value("unit", Json()) != unit) continue;
      Row row;
      bool sound = true;
      for (const auto& [key, value] : {std::pair{"seconds", &row.seconds},
                                       {"amount", &row.amount},
                                       {"bound_per_second", &row.per_second}}) {
        const Json number = entry.value(key, Json());
        sound = sound && number.is_number() && number.get<double>() > 0;
        if (sound) *value = number.get<double>();
      }
      if (!sound) {
        return InvalidArgument(file + ": row " + name.dump() + " of table " + table +
                               " needs seconds, amount and bound_per_second above 0");
      }
      rows.push_back(row);
    }
  }
  if (rows.size() >= least) return rows;
  return InvalidArgument(file + ": table " + table + " has " + std::to_string(rows.size()) + " rows \"" +
                         begin + "...\" in " + unit + ", the least is " + std::to_string(least));
}

// seconds = fixed + slope * amount, least squares of errors relative to the seconds; neither below 0.
struct Line {
  double fixed = 0;
  double slope = 0;
  double At(double amount) const { return fixed + slope * amount; }
};

Line LineThroughOrigin(const std::vector<Row>& rows) {
  double xx = 0, x = 0;
  for (const Row& row : rows) {
    const double relative = row.amount / row.seconds;
    xx += relative * relative;
    x += relative;
  }
  return {0, x / xx};
}

Line LineOf(const std::vector<Row>& rows) {
  double uu = 0, ux = 0, xx = 0, u = 0, x = 0;  // u: 1 / seconds, x: amount / seconds; the target is 1
  for (const Row& row : rows) {
    const double fixed = 1 / row.seconds, relative = row.amount / row.seconds;
    uu += fixed * fixed;
    ux += fixed * relative;
    xx += relative * relative;
    u += fixed;
    x += relative;
  }
  const double determinant = uu * xx - ux * ux;
  if (determinant <= 1e-12 * uu * xx) return LineThroughOrigin(rows);
  const Line line = {(u * xx - x * ux) / determinant, (x * uu - u * ux) / determinant};
  return line.fixed < 0 || line.slope <= 0 ? LineThroughOrigin(rows) : line;
}

// What of `peak` a slope reaches.
void SetShare(double slope, double* peak, double* share) {
  *share = 1 / (slope * *peak);
  if (*share <= 1) return;
  *peak *= *share;
  *share = 1;
}

double WorstError(const std::vector<Row>& rows, const Line& line) {
  double worst = 0;
  for (const Row& row : rows) worst = std::max(worst, std::abs(line.At(row.amount) / row.seconds - 1));
  return worst;
}

std::string SourceOf(const Json& facts) {
  std::string source;
  for (const char* key : {"device", "driver", "commit"}) {
    const Json fact = facts.value(key, Json());
    if (fact.is_string())
      source += (source.empty() ? "" : ", ") + std::string(key) + " " + fact.get<std::string>();
  }
  return source;
}

// "143771 MiB" as the facts have it; 0: not said.
double MemoryOf(const Json& facts) {
  const Json memory = facts.value("memory", Json());
  double mebibytes = 0;
  const bool said =
      memory.is_string() && std::sscanf(memory.get<std::string>().c_str(), "%lf MiB", &mebibytes) == 1;
  return said && mebibytes > 0 ? mebibytes * 1048576 : 0;
}

}  // namespace

StatusOr<FittedDevice> FitDevice(std::string_view json, const std::string& file) {
  const Json document = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return InvalidArgument(file + ": must be a JSON object");
  TM_ASSIGN_OR_RETURN(const std::vector<Row> decode,
                      RowsOf(document, file, kWholeSteps, "decode", "bytes", 2));
  TM_ASSIGN_OR_RETURN(std::vector<Row> prefill, RowsOf(document, file, kWholeSteps, "prefill", "FLOP", 1));
  TM_ASSIGN_OR_RETURN(const std::vector<Row> attention,
                      RowsOf(document, file, kPrefillAttention, "", "FLOP", 1));
  FittedDevice fitted;
  DeviceRoofline& device = fitted.device;
  const Json facts = document.value("facts", Json::object());
  const Json name = facts.is_object() ? facts.value("device", Json()) : Json();
  device.name = name.is_string() ? name.get<std::string>() : "fitted";
  if (facts.is_object()) {
    fitted.source = SourceOf(facts);
    device.memory_bytes = MemoryOf(facts);
  }

  const Line steps = LineOf(decode);
  for (Row& row : prefill) {
    if (row.seconds <= steps.fixed) {
      return InvalidArgument(file + ": a prefill of " + std::to_string(row.seconds) +
                             " s is shorter than the step overhead that decode rows show, " +
                             std::to_string(steps.fixed) + " s");
    }
    row.seconds -= steps.fixed;
  }
  const Line products = LineThroughOrigin(prefill), pairs = LineThroughOrigin(attention);
  device.step_overhead_ns = std::llround(steps.fixed * 1e9);
  device.bytes_per_s = decode.front().per_second;
  SetShare(steps.slope, &device.bytes_per_s, &device.memory_share);
  // One peak for both: the larger share has it.
  device.flops_per_s = std::max({prefill.front().per_second, 1 / products.slope, 1 / pairs.slope});
  SetShare(products.slope, &device.flops_per_s, &device.product_share);
  SetShare(pairs.slope, &device.flops_per_s, &device.attention_share);
  fitted.worst_error =
      std::max({WorstError(decode, steps), WorstError(prefill, products), WorstError(attention, pairs)});
  return fitted;
}

std::string DeviceJson(const FittedDevice& fitted) {
  const DeviceRoofline& device = fitted.device;
  nlohmann::ordered_json json;
  json["about"] = "Fitted to gpu_check (" + fitted.source + "); no row is further off than " +
                  std::to_string(std::lround(100 * fitted.worst_error)) + " % of its time.";
  json["name"] = device.name;
  if (device.memory_bytes > 0) json["memory_bytes"] = device.memory_bytes;
  json["bytes_per_s"] = device.bytes_per_s;
  json["flops_per_s"] = device.flops_per_s;
  json["memory_share"] = device.memory_share;
  json["product_share"] = device.product_share;
  json["attention_share"] = device.attention_share;
  json["step_overhead_us"] = static_cast<double>(device.step_overhead_ns) * 1e-3;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tramontane::simulate
