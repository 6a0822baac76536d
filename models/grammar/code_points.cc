#include "models/grammar/code_points.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/code_point.h"
#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

constexpr uint32_t kFirstSurrogate = 0xD800;
constexpr uint32_t kLastSurrogate = 0xDFFF;

}  // namespace

std::vector<uint32_t> CodePointsOf(std::string_view utf8) {
  std::vector<uint32_t> code_points;
  while (!utf8.empty()) {
    const Utf8Unit unit = NextUtf8(utf8);
    TM_CHECK(unit.kind == Utf8Kind::kValid, "not UTF-8");
    code_points.push_back(CodePointOf(utf8.substr(0, unit.bytes)));
    utf8.remove_prefix(unit.bytes);
  }
  return code_points;
}

CodePoints::CodePoints(std::initializer_list<CodePointRange> ranges) : ranges_(ranges) { Normalize(); }

CodePoints CodePoints::All() { return {{0, kMost}}; }

void CodePoints::Add(const CodePoints& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  Normalize();
}

CodePoints CodePoints::Complement() const {
  CodePoints result;
  uint32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) result.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMost) result.ranges_.push_back({next, kMost});
  result.Normalize();
  return result;
}

CodePoints CodePoints::Within(const CodePoints& other) const {
  CodePoints result = Complement();
  result.Add(other.Complement());
  return result.Complement();
}

CodePoints CodePoints::Without(const CodePoints& other) const { return Within(other.Complement()); }

bool CodePoints::Contains(uint32_t code_point) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [code_point](const CodePointRange& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

int64_t CodePoints::count() const {
  int64_t total = 0;
  for (const CodePointRange& range : ranges_) total += int64_t{range.last} - range.first + 1;
  return total;
}

// In order, joined where they touch, surrogates cut out.
void CodePoints::Normalize() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  std::vector<CodePointRange> joined;
  for (const CodePointRange& range : ranges_) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  ranges_.clear();
  for (const CodePointRange& range : joined) {
    if (range.first < kFirstSurrogate) {
      ranges_.push_back({range.first, std::min(range.last, kFirstSurrogate - 1)});
    }
    if (range.last > kLastSurrogate) {
      ranges_.push_back({std::max(range.first, kLastSurrogate + 1), range.last});
    }
  }
}

}  // namespace tramontane
