#include "bench/load/trace.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/load/clock.h"
#include "bench/load/distribution.h"
#include "bench/load/json_text.h"
#include "bench/load/parse.h"
#include "bench/load/record.h"

namespace tramontane::load {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

Status LineFault(int64_t line, std::string_view field, const std::string& what) {
  return InvalidArgument("line " + std::to_string(line) + ", " + std::string(field) + " " + what);
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 64;
  return "is \"" + VisibleText(text.substr(0, kShown)) + "\"; it must be ";
}

std::string WholeFrom(int64_t least, int64_t most) {
  return "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
}

std::optional<int64_t> Digits(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  const bool digits = !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) != 0;
  if (!digits || error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

// ---- Azure: TIMESTAMP,ContextTokens,GeneratedTokens
// 2023-11-16 18:15:46.6805900,374,44

// "2023-11-16 18:15:46.6805900" in ns since 1970; nothing where it is not of this form, or before 1970 or
// after 2199, which ns hold for certain.
std::optional<int64_t> StampNs(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-dd dd:dd:dd";
  if (text.size() < kForm.size()) return std::nullopt;
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(text[i])) != 0;
    if (kForm[i] == 'd' ? !digit : text[i] != kForm[i]) return std::nullopt;
  }
  const auto number = [&](size_t at, size_t size) { return *Digits(text.substr(at, size)); };
  const std::chrono::year_month_day day(std::chrono::year(static_cast<int>(number(0, 4))),
                                        std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(number(8, 2))));
  const bool is_known = number(0, 4) >= 1970 && number(0, 4) < 2200;
  if (!is_known || !day.ok() || number(11, 2) > 23 || number(14, 2) > 59 || number(17, 2) > 60)
    return std::nullopt;
  const int64_t days = std::chrono::sys_days(day).time_since_epoch().count();
  int64_t ns = ((days * 24 + number(11, 2)) * 60 + number(14, 2)) * 60 + number(17, 2);
  ns *= 1'000'000'000;
  std::string_view fraction = text.substr(kForm.size());
  if (fraction.empty()) return ns;
  if (fraction.front() != '.' || fraction.size() < 2 || fraction.size() > 10) return std::nullopt;
  int64_t unit = 100'000'000;
  for (const char c : fraction.substr(1)) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    ns += unit * (c - '0');
    unit /= 10;
  }
  return ns;
}

StatusOr<int32_t> CsvTokens(int64_t line, std::string_view field, std::string_view text) {
  const auto value = Digits(text);
  if (!value || *value < 1 || *value > kMaxTokens) {
    return LineFault(line, field, Quoted(text) + WholeFrom(1, kMaxTokens));
  }
  return static_cast<int32_t>(*value);
}

StatusOr<TraceRow> AzureRow(int64_t line, std::string_view text) {
  const size_t first = text.find(','), second = text.find(',', first + 1);
  const bool three = first != std::string_view::npos && second != std::string_view::npos &&
                     text.find(',', second + 1) == std::string_view::npos;
  if (!three) return LineFault(line, "the row", Quoted(text) + std::string(kAzureHeader));
  TraceRow row;
  const auto stamp = StampNs(text.substr(0, first));
  if (!stamp) {
    return LineFault(
        line, "TIMESTAMP",
        Quoted(text.substr(0, first)) + "like 2023-11-16 18:15:46.6805900, of a year from 1970 to 2199");
  }
  row.at_ns = *stamp;
  TM_ASSIGN_OR_RETURN(row.input_tokens,
                      CsvTokens(line, "ContextTokens", text.substr(first + 1, second - first - 1)));
  TM_ASSIGN_OR_RETURN(row.output_tokens, CsvTokens(line, "GeneratedTokens", text.substr(second + 1)));
  return row;
}

// ---- JSON lines

StatusOr<int64_t> WholeField(int64_t line, const Json& object, const char* field, int64_t least,
                             int64_t most) {
  const auto at = object.find(field);
  if (at == object.end()) return LineFault(line, field, "is missing; it must be " + WholeFrom(least, most));
  // Numbers below 0 are not unsigned to the parser.
  const bool whole = at->is_number_unsigned() && at->get<uint64_t>() <= static_cast<uint64_t>(most);
  if (!whole || at->get<int64_t>() < least) {
    return LineFault(line, field,
                     "is " + at->dump().substr(0, 64) + "; it must be " + WholeFrom(least, most));
  }
  return at->get<int64_t>();
}

StatusOr<int32_t> TokensField(int64_t line, const Json& object, const char* field) {
  TM_ASSIGN_OR_RETURN(const int64_t tokens, WholeField(line, object, field, 1, kMaxTokens));
  return static_cast<int32_t>(tokens);
}

// {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
StatusOr<TraceRow> MooncakeRow(int64_t line, const Json& object) {
  TraceRow row;
  TM_ASSIGN_OR_RETURN(const int64_t ms, WholeField(line, object, "timestamp", 0, kMaxTraceSeconds * 1000));
  row.at_ns = ms * 1'000'000;
  TM_ASSIGN_OR_RETURN(row.input_tokens, TokensField(line, object, "input_length"));
  TM_ASSIGN_OR_RETURN(row.output_tokens, TokensField(line, object, "output_length"));
  const auto blocks = object.find("hash_ids");
  if (blocks == object.end()) return row;
  const size_t most = (static_cast<size_t>(row.input_tokens) + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (!blocks->is_array() || blocks->size() > most) {
    return LineFault(line, "hash_ids",
                     "must be a list of at most " + std::to_string(most) + " blocks of " +
                         std::to_string(kTraceBlockTokens) + " for input_length " +
                         std::to_string(row.input_tokens));
  }
  for (size_t i = 0; i < blocks->size(); ++i) {
    const Json& block = (*blocks)[i];
    if (!block.is_number_integer()) {
      return LineFault(line, "hash_ids[" + std::to_string(i) + "]",
                       "is " + block.dump().substr(0, 64) + "; it must be a whole number");
    }
    row.blocks.push_back(block.get<int64_t>());
  }
  return row;
}

// {"index": 0, "intended_ns": 12345, "input_tokens": 100, "output_tokens": 10}
StatusOr<TraceRow> OwnRow(int64_t line, const Json& object) {
  TraceRow row;
  TM_ASSIGN_OR_RETURN(row.at_ns, WholeField(line, object, "intended_ns", 0, kMaxTraceSeconds * kNsPerSecond));
  TM_ASSIGN_OR_RETURN(row.input_tokens, TokensField(line, object, "input_tokens"));
  TM_ASSIGN_OR_RETURN(row.output_tokens, TokensField(line, object, "output_tokens"));
  return row;
}

StatusOr<TraceRow> JsonRow(int64_t line, std::string_view text) {
  if (IsNestedTooDeep(text)) return LineFault(line, "the row", Quoted(text) + "nested 32 deep at most");
  const Json object = JsonOf(text);
  if (!object.is_object()) return LineFault(line, "the row", Quoted(text) + "a JSON object");
  if (object.contains("timestamp")) return MooncakeRow(line, object);
  if (object.contains("intended_ns")) return OwnRow(line, object);
  return LineFault(line, "the row", Quoted(text) + "an object with \"timestamp\" or \"intended_ns\"");
}

StatusOr<std::vector<TraceRow>> Rows(std::string_view text) {
  std::vector<TraceRow> rows;
  bool is_azure = false;
  int64_t line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view row = text.substr(at, end - at);
    at = end + 1;
    ++line;
    if (row.size() > kMaxTraceLineBytes) {
      return LineFault(
          line, "the row",
          "has " + std::to_string(row.size()) + " bytes; at most " + std::to_string(kMaxTraceLineBytes));
    }
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    if (line == 1 && row == kAzureHeader) {
      is_azure = true;
      continue;
    }
    const bool known = is_azure || row.front() == '{';
    if (!known) {
      return LineFault(
          line, "the row",
          Quoted(row) + "a JSON object, or the first line \"" + std::string(kAzureHeader) + "\"");
    }
    TM_ASSIGN_OR_RETURN(TraceRow parsed, is_azure ? AzureRow(line, row) : JsonRow(line, row));
    rows.push_back(std::move(parsed));
  }
  if (rows.empty()) return InvalidArgument("holds no requests; the least is 1");
  return rows;
}

}  // namespace

StatusOr<std::vector<TraceRow>> ParseTrace(const std::string& name, std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  auto rows = Rows(text);
  if (!rows.ok()) return std::move(rows).status().InField(name);
  const auto earlier = [](const TraceRow& a, const TraceRow& b) { return a.at_ns < b.at_ns; };
  std::stable_sort(rows->begin(), rows->end(), earlier);
  const bool is_own = text.find("\"intended_ns\"") < text.find('\n');
  const int64_t first = is_own ? 0 : rows->front().at_ns;
  const int64_t seconds = (rows->back().at_ns - first) / kNsPerSecond;
  if (seconds > kMaxTraceSeconds) {
    return InvalidArgument("spans " + std::to_string(seconds) +
                           " seconds from its first stamp to its last; at most " +
                           std::to_string(kMaxTraceSeconds))
        .WithField(name);
  }
  for (TraceRow& row : *rows) row.at_ns -= first;
  return rows;
}

StatusOr<std::vector<TraceRow>> ReadTrace(const std::string& path) {
  TM_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path, kMaxTraceBytes));
  return ParseTrace(path, text);
}

}  // namespace tramontane::load
