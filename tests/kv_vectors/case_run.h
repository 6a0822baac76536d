// A case while it runs: its inputs, the machine, and the comparison of what came out. One thread.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "tests/kv_vectors/machine.h"
#include "tests/kv_vectors/vector_file.h"

namespace tramontane::kv_vectors {

// How far a number may lie from the expected one: |got - want| <= t * (1 + |want|), infinities equal, and NaN
// where NaN is expected.
struct Tolerance {
  double t = 0;  // 0: exactly equal
};

class CaseRun {
 public:
  // Borrows both.
  CaseRun(const VectorCase& vector_case, Machine& machine);

  CaseReader& reader() { return reader_; }
  Machine& machine() { return machine_; }
  const nlohmann::json& body() const { return body_; }

  // The first number of `got` that is not what the case expects as out.NAME, or that the case expects nothing
  // of that name. The tolerance is the case's own.
  Status Expect(const std::string& name, const std::vector<double>& got);
  Status Expect(const std::string& name, const std::vector<int32_t>& got) {
    return Expect(name, std::vector<double>(got.begin(), got.end()));
  }
  // Whether out.NAME has so many elements: before work that is in vain otherwise.
  Status ExpectSize(const std::string& name, int64_t size) const;
  // Where the case has such an output.
  bool Expects(const std::string& name) const { return out_.contains(name); }
  Status ExpectIfGiven(const std::string& name, const std::vector<double>& got) {
    return Expects(name) ? Expect(name, got) : Status::Ok();
  }
  // Of a value that is plain JSON.
  Status ExpectJson(const std::string& name, const nlohmann::json& got);
  // Outputs of the case that nothing was held against.
  Status EverythingWasCompared() const;

  // What forbids the case on this machine: a limit of its kernels. Never on the CPU.
  void Skip(std::string limit) { skipped_ = std::move(limit); }
  const std::string& skipped() const { return skipped_; }

 private:
  StatusOr<VectorTensor> Wanted(const std::string& name) const;

  const nlohmann::json& body_;
  const nlohmann::json& out_;
  Machine& machine_;
  CaseReader reader_;
  std::set<std::string> compared_;
  std::string skipped_;
};

std::string NumberText(double number);

// The first difference of `got` from `want`, as an error in `field`.
Status Compare(const std::string& field, const VectorTensor& want, const std::vector<double>& got,
               Tolerance tolerance);

}  // namespace tramontane::kv_vectors
