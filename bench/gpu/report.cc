#include "bench/gpu/report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tramontane::gpu {
namespace {

using nlohmann::json;

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

const std::map<std::string, double>* PeersOf(const Report& report, const Table& table, const Row& row) {
  const auto rows = report.peers.find(table.name);
  if (rows == report.peers.end()) return nullptr;
  const auto peers = rows->second.find(row.name);
  return peers == rows->second.end() ? nullptr : &peers->second;
}

json JsonOf(const Report& report) {
  json out;
  out["facts"] = report.facts;
  out["checks"] = report.checks;
  out["peers_left_out"] = report.peers_left_out;
  out["tables"] = json::array();
  for (const Table& table : report.tables) {
    json rows = json::array();
    for (const Row& row : table.rows) {
      json entry = {{"name", row.name},
                    {"seconds", row.seconds},
                    {"amount", row.bound.amount},
                    {"unit", row.bound.unit},
                    {"bound_per_second", row.bound.per_second},
                    {"share", row.share()}};
      if (row.bound.bytes_after > 0) {
        entry["bytes_after"] = row.bound.bytes_after;
        entry["bytes_after_per_second"] = row.bound.bytes_per_second;
      }
      if (!row.kernel.empty()) entry["kernel"] = row.kernel;
      if (const auto* peers = PeersOf(report, table, row)) entry["peer_seconds"] = *peers;
      rows.push_back(std::move(entry));
    }
    out["tables"].push_back({{"name", table.name}, {"note", table.note}, {"rows", std::move(rows)}});
  }
  return out;
}

std::string RateOf(const Row& row) {
  const double rate = row.bound.amount / row.seconds;
  if (row.bound.unit == "bytes") return Format("%.0f GB/s", rate / 1e9);
  std::string text = Format("%.1f TFLOP/s", rate / 1e12);
  if (row.bound.bytes_after > 0) text += Format(" and %.0f GB/s", row.bound.bytes_after / row.seconds / 1e9);
  return text;
}

std::string BytesAt(double bytes, double per_second) {
  return Format("%.1f MB at %.0f GB/s", bytes / 1e6, per_second / 1e9);
}

std::string BoundOf(const Row& row) {
  const Bound& bound = row.bound;
  if (bound.unit == "bytes") return BytesAt(bound.amount, bound.per_second);
  std::string text = Format("%.2f GFLOP at %.0f TFLOP/s", bound.amount / 1e9, bound.per_second / 1e12);
  if (bound.bytes_after > 0) text += ", then " + BytesAt(bound.bytes_after, bound.bytes_per_second);
  return text;
}

// "FlashAttention 41.6 us, ours takes 97 %".
std::string PeerText(const Report& report, const Table& table, const Row& row) {
  std::string text;
  const auto* peers = PeersOf(report, table, row);
  if (peers == nullptr) return "-";
  const auto in_turn = peers->find(kOursInTurn);
  const double ours = in_turn == peers->end() ? row.seconds : in_turn->second;
  for (const auto& [peer, seconds] : *peers) {
    if (peer == kOursInTurn) continue;
    if (!text.empty()) text += "; ";
    text += Format("%s %.1f us, ours takes %.0f %%", peer.c_str(), seconds * 1e6, 100 * ours / seconds);
  }
  if (in_turn != peers->end()) text += Format(" (%.1f us in turn with it)", ours * 1e6);
  return text;
}

Row RowOf(const json& entry) {
  return {entry.at("name"),
          entry.at("seconds"),
          {entry.at("amount"), entry.at("bound_per_second"), entry.at("unit").get<std::string>(),
           entry.value("bytes_after", 0.0), entry.value("bytes_after_per_second", 0.0)},
          entry.value("kernel", std::string())};
}

Report ReportOf(const json& document) {
  Report report;
  report.facts = document.at("facts").get<std::map<std::string, std::string>>();
  report.checks = document.at("checks").get<std::vector<std::string>>();
  report.peers_left_out = document.value("peers_left_out", PeersLeftOut());
  for (const json& entry : document.at("tables")) {
    Table table = {entry.at("name"), entry.at("note"), {}};
    for (const json& row : entry.at("rows")) {
      table.rows.push_back(RowOf(row));
      if (row.contains("peer_seconds"))
        report.peers[table.name][table.rows.back().name] =
            row.at("peer_seconds").get<std::map<std::string, double>>();
    }
    report.tables.push_back(std::move(table));
  }
  return report;
}

// Names of rows have commas.
std::string Joined(const std::vector<std::string>& rows) {
  std::string text;
  for (const std::string& row : rows) text += (text.empty() ? "" : "; ") + row;
  return text;
}

void WriteMarkdown(const Report& report, std::ostream& out) {
  out << "# gpu_check\n\n";
  for (const auto& [name, value] : report.facts) out << "- " << name << ": " << value << "\n";
  out << "\n## Checks\n\n";
  for (const std::string& check : report.checks) out << "- " << check << "\n";
  for (const auto& [table, reasons] : report.peers_left_out) {
    for (const auto& [why, rows] : reasons)
      out << "- beside " << table << ": left out, " << why << ": " << Joined(rows) << "\n";
  }
  for (const Table& table : report.tables) {
    out << "\n## " << table.name << "\n\n" << table.note << "\n\n";
    out << "| what | time | rate | bound | share | beside it |\n|---|---|---|---|---|---|\n";
    for (const Row& row : table.rows) {
      out << "| " << row.name << (row.kernel.empty() ? "" : " (" + row.kernel + ")") << " | "
          << Format("%.1f us", row.seconds * 1e6) << " | " << RateOf(row) << " | " << BoundOf(row) << " | "
          << Format("%.0f %%", 100 * row.share()) << " | " << PeerText(report, table, row) << " |\n";
    }
  }
}

// Whoever ends the program meanwhile leaves the file as it was before.
bool WriteWhole(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".unfinished";
  std::ofstream file(unfinished, std::ios::binary);
  file << text;
  file.close();
  return file.good() && std::rename(unfinished.c_str(), path.c_str()) == 0;
}

}  // namespace

void TakePeers(const std::string& path, Report& report) {
  std::ifstream file(path);
  if (!file) return;
  try {
    const json document = json::parse(file);
    auto seconds = document.at("seconds").get<Peers>();
    report.peers_left_out = document.at("left_out").get<PeersLeftOut>();
    for (auto& [table, rows] : seconds) report.peers[table] = std::move(rows);
  } catch (const json::exception& error) {
    std::fprintf(stderr, "%s is not what peers.py writes: %s\n", path.c_str(), error.what());
  }
}

Report ReadReport(const std::string& folder) {
  std::ifstream file(folder + "/gpu_check.json");
  if (!file) return {};
  try {
    return ReportOf(json::parse(file));
  } catch (const json::exception& error) {
    std::fprintf(stderr, "%s/gpu_check.json is none of ours, and is written anew: %s\n", folder.c_str(),
                 error.what());
    return {};
  }
}

void AddTable(Report& report, Table table) {
  const auto old = std::ranges::find(report.tables, table.name, &Table::name);
  if (old == report.tables.end()) {
    report.tables.push_back(std::move(table));
  } else {
    *old = std::move(table);
  }
}

bool WriteReport(const Report& report, const std::string& folder) {
  std::ostringstream markdown;
  WriteMarkdown(report, markdown);
  const bool as_json = WriteWhole(folder + "/gpu_check.json", JsonOf(report).dump(1) + "\n");
  return WriteWhole(folder + "/gpu_check.md", markdown.str()) && as_json;
}

}  // namespace tramontane::gpu
