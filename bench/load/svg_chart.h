// Small charts as SVG inside a page: points, lines and steps over two linear or logarithmic axes. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tramontane::load {

using ChartPoints = std::vector<std::pair<double, double>>;

struct ChartSeries {
  std::string name;
  ChartPoints points;   // ascending by x where it is a line
  bool is_line = true;  // else dots
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool x_is_logarithmic = false;  // points at 0 and below are left out
  std::vector<ChartSeries> series;
};

// A <figure>; colours are the page's classes `series0`, `series1`... Long series are thinned to what can be
// seen.
std::string ChartSvg(const Chart& chart);

// Text for between tags and in attributes.
std::string HtmlText(const std::string& text);

}  // namespace tramontane::load
