// What gpu_tables found, as one JSON and one Markdown file: every row has its bytes or FLOPs, the bound, and
// the share of the bound it reached. One thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tramontane::gpu {

// What limits a row: the amount of it that the work must move or compute, and how much of it the device does
// a second; and the bytes that it must move after that, where these are not of its unit.
struct Bound {
  double amount = 0;      // bytes or floating-point operations
  double per_second = 0;  // of the device
  std::string unit;       // "bytes" or "FLOP"
  double bytes_after = 0;
  double bytes_per_second = 0;  // of bytes_after

  // Without what nobody knows how much of the device does a second.
  double seconds() const {
    return (per_second > 0 ? amount / per_second : 0) +
           (bytes_per_second > 0 ? bytes_after / bytes_per_second : 0);
  }
};

inline Bound MemoryBound(double bytes, double bytes_per_second) { return {bytes, bytes_per_second, "bytes"}; }
inline Bound ArithmeticBound(double flops, double flops_per_second) {
  return {flops, flops_per_second, "FLOP"};
}

// The one that takes longer.
inline Bound Slower(const Bound& a, const Bound& b) { return a.seconds() > b.seconds() ? a : b; }

// What `first` bounds, then the moving of bytes.
inline Bound Then(Bound first, double bytes, double bytes_per_second) {
  if (first.unit == "bytes") return MemoryBound(first.amount + bytes, bytes_per_second);
  first.bytes_after = bytes;
  first.bytes_per_second = bytes_per_second;
  return first;
}

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Row {
  std::string name;  // unique in its table; peers are matched by (table, name)
  double seconds = 0;
  Bound bound;
  std::string kernel = {};  // that was measured, where several do the same work

  double share() const { return bound.seconds() / seconds; }
};

struct Table {
  std::string name;
  std::string note;  // how it was measured
  std::vector<Row> rows;
};

// Told of a table each time it has another row: what is measured stays, whatever becomes of the rows behind.
using Progress = std::function<void(const Table& so_far)>;
inline void AddRow(Table& table, Row row, const Progress& progress) {
  table.rows.push_back(std::move(row));
  progress(table);
}

// Seconds of other programs for the same rows: peers[table][row][peer]. kOursInTurn among them: our kernel,
// timed in turn with the others in their process, which is what they are compared with then.
inline constexpr char kOursInTurn[] = "ours, in turn";
using Peers = std::map<std::string, std::map<std::string, std::map<std::string, double>>>;
// Rows of which they have no seconds, or those of one of them not: left_out[table][why] are their names.
using PeersLeftOut = std::map<std::string, std::map<std::string, std::vector<std::string>>>;

struct Report {
  std::map<std::string, std::string> facts;  // device, driver, clocks, commit, ...
  std::vector<std::string> checks;           // "op tests: passed", "racecheck: not on this machine"
  std::vector<Table> tables;
  Peers peers;
  PeersLeftOut peers_left_out;  // written below the checks
};

// What the file that peers.py wrote has, in place of what the report has of the same tables, and what it left
// out. Nothing where there is no such file.
void TakePeers(const std::string& path, Report& report);
// What WriteReport left in folder/gpu_check.json; an empty report where there is none.
Report ReadReport(const std::string& folder);
// Puts a table where one of its name stands, else at the end.
void AddTable(Report& report, Table table);
// Writes folder/gpu_check.json and folder/gpu_check.md, each whole or not at all. False where that failed.
bool WriteReport(const Report& report, const std::string& folder);

}  // namespace tramontane::gpu
