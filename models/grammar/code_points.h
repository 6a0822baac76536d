// CodePoints: a set of characters. Surrogates are in none: they are no characters.
// A plain value; any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace tramontane {

struct CodePointRange {
  uint32_t first = 0;
  uint32_t last = 0;  // inclusive
};

class CodePoints {
 public:
  static constexpr uint32_t kMost = 0x10FFFF;

  CodePoints() = default;
  CodePoints(std::initializer_list<CodePointRange> ranges);
  static CodePoints All();

  void Add(const CodePoints& other);
  CodePoints Complement() const;
  CodePoints Without(const CodePoints& other) const;  // what is here and not there
  CodePoints Within(const CodePoints& other) const;   // what is in both

  bool Contains(uint32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  int64_t count() const;
  const std::vector<CodePointRange>& ranges() const { return ranges_; }  // in order, apart from each other

 private:
  void Normalize();
  std::vector<CodePointRange> ranges_;
};

// The characters of a text. REQUIRES: UTF-8.
std::vector<uint32_t> CodePointsOf(std::string_view utf8);

}  // namespace tramontane
