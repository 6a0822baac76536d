// RelaxedParts: the parts of a schema that its grammar does not hold a text to, each with the keyword that is
// why: ".properties.x (patternProperties)". At most kMost of them, and the number of the others.
//
// A plain value; any thread. Always: what is added can be taken back as far as a mark.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tramontane {

class RelaxedParts {
 public:
  static constexpr size_t kMost = 1024;

  struct Mark {
    size_t parts;
    size_t more;
  };
  Mark mark() const { return {parts_.size(), more_}; }
  void ReturnTo(const Mark& mark) {
    parts_.resize(mark.parts);
    more_ = mark.more;
  }

  void Add(std::string part) {
    if (std::find(parts_.begin(), parts_.end(), part) != parts_.end()) return;
    if (parts_.size() < kMost) {
      parts_.push_back(std::move(part));
    } else {
      ++more_;
    }
  }

  // The last one may be " (and 12 more)".
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines = parts_;
    if (more_ > 0) lines.push_back(" (and " + std::to_string(more_) + " more)");
    return lines;
  }

 private:
  std::vector<std::string> parts_;
  size_t more_ = 0;
};

}  // namespace tramontane
