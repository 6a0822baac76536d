// Flags of a command line as text, and the words for what is wrong with them. What a text means is decided by
// whoever reads it, so that all faults read alike. Main thread.
#pragma once

#include <initializer_list>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/load/parse.h"
#include "kernels/core/status.h"

namespace tramontane::load {

struct FlagRow {
  const char* name;   // "--rate"
  const char* value;  // what help calls its value; "" for one without
  const char* group;
  const char* help;
  bool repeats = false;  // may be given again
};

// What was given on a command line. Errors are INVALID_ARGUMENT and name the flag, the value and the limit.
class GivenFlags {
 public:
  // Those without a value have an empty one.
  using Values = std::map<std::string, std::vector<std::string>>;

  GivenFlags() = default;
  explicit GivenFlags(Values values) : values_(std::move(values)) {}

  size_t size() const { return values_.size(); }
  bool Has(const char* flag) const { return values_.contains(flag); }
  std::string Text(const char* flag, const std::string& otherwise = "") const;
  std::vector<std::string> All(const char* flag) const;

  // `value` stays as it is where the flag was not given.
  Status Number(const char* flag, const NumberRange& range, double* value) const;
  template <typename Integer>
  Status Whole(const char* flag, const NumberRange& range, Integer* value) const {
    if (!Has(flag)) return Status::Ok();
    TM_ASSIGN_OR_RETURN(const int64_t whole, ParseWhole(flag, Text(flag), range));
    *value = static_cast<Integer>(whole);
    return Status::Ok();
  }

  // One of the flags was given that only another gives a meaning.
  Status NeedsOther(std::initializer_list<const char*> flags, bool has_other, const char* other) const;
  // Both were given, and mean different things.
  Status Excludes(const char* flag, std::initializer_list<const char*> others) const;

 private:
  Values values_;
};

// A program as its help tells it.
struct FlagProgram {
  std::string name;  // "tramontane bench"
  std::string about;
  std::vector<FlagRow> flags;
};

struct ParsedFlags {
  GivenFlags given;
  std::optional<int> exit_status;  // set: help was printed (0) or a fault named (2)
};

// Prints help to `out` and faults to `err`. Values are UTF-8.
ParsedFlags ParseFlags(int argc, const char* const* argv, const FlagProgram& program, std::ostream& out,
                       std::ostream& err);

// The command line for a report. Values of --header are left out: they may be keys.
std::string CommandLineText(const std::string& program, int argc, const char* const* argv);

}  // namespace tramontane::load
