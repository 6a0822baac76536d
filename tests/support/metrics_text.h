// A page of /metrics, read as Prometheus reads it. Pure functions.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace tramontane {

// Values by name and labels, as they are spelled: "up{job=\"a\"}".
using MetricSeries = std::map<std::string, double>;

inline MetricSeries SeriesOf(const std::string& text) {
  MetricSeries series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t blank = line.rfind(' ');
    if (line.empty() || line[0] == '#' || blank == std::string::npos) continue;
    const bool is_new =
        series.emplace(line.substr(0, blank), std::strtod(line.c_str() + blank, nullptr)).second;
    EXPECT_TRUE(is_new) << "twice: " << line;
  }
  return series;
}

// Of families whose names begin so, those that are not 0.
inline MetricSeries NotZero(const MetricSeries& all, std::string_view name) {
  MetricSeries some;
  for (const auto& [key, value] : all) {
    if (key.starts_with(name) && value != 0) some.emplace(key, value);
  }
  return some;
}

inline double SumOf(const MetricSeries& all, std::string_view begin, std::string_view with = "") {
  double sum = 0;
  for (const auto& [key, value] : all) {
    if (key.starts_with(begin) && key.find(with) != std::string::npos) sum += value;
  }
  return sum;
}

// Each family says once what it is, before its rows, which stand together; buckets are cumulative, and the
// last one is the count.
inline void ExpectWellFormed(const std::string& text) {
  std::set<std::string> families;
  std::string family, kind;
  double last = 0;
  std::string histogram;  // its labels, while its buckets come
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << line;
      EXPECT_GT(line.size(), 8 + family.size()) << "no help: " << line;
      continue;
    }
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(line.starts_with("# TYPE " + family + " ")) << line;
      kind = line.substr(8 + family.size());
      continue;
    }
    const std::string name = line.substr(0, line.find_first_of("{ "));
    const double value = std::strtod(line.c_str() + line.rfind(' '), nullptr);
    if (kind != "histogram") {
      EXPECT_EQ(name, family) << line;
      EXPECT_EQ(name.ends_with("_total"), kind == "counter") << line;
    } else if (name == family + "_bucket") {
      const size_t bound = line.find("le=\"");
      const std::string labels = line.substr(0, bound);
      if (labels != histogram) last = 0;
      histogram = labels;
      EXPECT_GE(value, last) << line;
      last = value;
    } else if (name == family + "_count") {
      EXPECT_EQ(value, last) << line;
    } else {
      EXPECT_EQ(name, family + "_sum") << line;
    }
  }
}

}  // namespace tramontane
