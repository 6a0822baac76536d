#include "bench/load/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace tramontane::load {
namespace {

constexpr double kWidth = 640, kHeight = 300, kLeft = 64, kRight = 12, kTop = 10, kBottom = 40;
constexpr size_t kMostPoints = 1500;  // of a series

struct Axis {
  double low = 0, high = 1;
  bool is_logarithmic = false;

  double Share(double value) const {
    if (is_logarithmic) return (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low));
    return (value - low) / (high - low);
  }
  std::vector<double> Ticks() const;
};

std::vector<double> Axis::Ticks() const {
  std::vector<double> ticks;
  if (is_logarithmic) {
    const auto first = static_cast<int>(std::ceil(std::log10(low) - 1e-9));
    const auto last = static_cast<int>(std::floor(std::log10(high * 1.0001)));
    for (int power = first; power <= last; ++power) ticks.push_back(std::pow(10, power));
    return ticks;
  }
  double step = std::pow(10, std::floor(std::log10((high - low) / 2)));
  if ((high - low) / step > 10) step *= 2.5;
  const double first = std::ceil(low / step);
  const auto count = static_cast<int>(std::floor(high / step + 1e-6 - first)) + 1;
  for (int i = 0; i < count; ++i) ticks.push_back((first + i) * step);
  return ticks;
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

std::string At(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

ChartPoints Shown(const Chart& chart, const ChartSeries& series) {
  ChartPoints kept;
  for (const auto& point : series.points) {
    if (!chart.x_is_logarithmic || point.first > 0) kept.push_back(point);
  }
  if (kept.size() <= kMostPoints) return kept;
  ChartPoints thinned;
  for (size_t i = 0; i < kMostPoints; ++i) thinned.push_back(kept[i * (kept.size() - 1) / (kMostPoints - 1)]);
  return thinned;
}

Axis Around(const std::vector<ChartPoints>& all, bool of_x, bool logarithmic) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const ChartPoints& points : all) {
    for (const auto& [x, y] : points) {
      low = std::min(low, of_x ? x : y);
      high = std::max(high, of_x ? x : y);
    }
  }
  if (low > high) return {logarithmic ? 0.1 : 0.0, 1, logarithmic};
  if (logarithmic) return {std::pow(10, std::floor(std::log10(low))), high * 1.05 + low * 1e-6, true};
  low = std::min(low, 0.0);
  return {low, high > low ? high * 1.05 : low + 1, false};
}

}  // namespace

std::string HtmlText(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string ChartSvg(const Chart& chart) {
  std::vector<ChartPoints> all;
  for (const ChartSeries& series : chart.series) all.push_back(Shown(chart, series));
  const Axis x = Around(all, true, chart.x_is_logarithmic), y = Around(all, false, false);
  const auto across = [&](double value) { return kLeft + x.Share(value) * (kWidth - kLeft - kRight); };
  const auto up = [&](double value) {
    return kHeight - kBottom - y.Share(value) * (kHeight - kTop - kBottom);
  };
  std::string svg = "<figure><figcaption>" + HtmlText(chart.title);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    svg +=
        " <span class=\"key series" + std::to_string(i) + "\">" + HtmlText(chart.series[i].name) + "</span>";
  }
  svg += "</figcaption><svg viewBox=\"0 0 " + At(kWidth) + " " + At(kHeight) + "\" role=\"img\">\n";
  for (const double tick : x.Ticks()) {
    svg += "<path class=\"grid\" d=\"M" + At(across(tick)) + " " + At(kTop) + "V" + At(kHeight - kBottom) +
           "\"/>";
    svg += "<text x=\"" + At(across(tick)) + "\" y=\"" + At(kHeight - kBottom + 16) + "\" class=\"x\">" +
           Short(tick) + "</text>\n";
  }
  for (const double tick : y.Ticks()) {
    svg += "<path class=\"grid\" d=\"M" + At(kLeft) + " " + At(up(tick)) + "H" + At(kWidth - kRight) + "\"/>";
    svg += "<text x=\"" + At(kLeft - 6) + "\" y=\"" + At(up(tick) + 4) + "\" class=\"y\">" + Short(tick) +
           "</text>\n";
  }
  svg += "<text x=\"" + At((kLeft + kWidth) / 2) + "\" y=\"" + At(kHeight - 6) + "\" class=\"x\">" +
         HtmlText(chart.x_label) + "</text><text x=\"" + At(-kHeight / 2 + 15) +
         "\" y=\"14\" class=\"x\" transform=\"rotate(-90)\">" + HtmlText(chart.y_label) + "</text>\n";
  for (size_t i = 0; i < all.size(); ++i) {
    std::string path;
    for (const auto& [px, py] : all[i]) {
      const std::string place = At(across(px)) + " " + At(up(py));
      // A dot is a line of no length with round ends.
      path += chart.series[i].is_line ? (path.empty() ? "M" : "L") + place : "M" + place + "h0";
    }
    svg += "<path class=\"" + std::string(chart.series[i].is_line ? "line" : "dots") + " series" +
           std::to_string(i) + "\" d=\"" + path + "\"/>\n";
  }
  return svg + "</svg></figure>\n";
}

}  // namespace tramontane::load
