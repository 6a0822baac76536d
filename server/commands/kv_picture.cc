#include "server/commands/kv_picture.h"

#include <algorithm>
#include <utility>

#include "server/commands/kv_listing.h"

namespace tramontane {
namespace {

// Of the picture, in its own units.
constexpr int64_t kCell = 12;       // of a mask, a query and a key each
constexpr int64_t kPageWidth = 26;  // of a page
constexpr int64_t kPageHeight = 22;
constexpr int64_t kMargin = 10;
constexpr int64_t kNames = 44;   // for the names of queries and of sequences
constexpr int64_t kLine = 14;    // of text
constexpr int64_t kBetween = 6;  // two sequences

std::string Digits(int64_t number) { return std::to_string(number); }

// Elements in the order in which they are drawn, and the room that they take.
class Canvas {
 public:
  void Rect(const char* kind, int64_t x, int64_t y, int64_t width, int64_t height) {
    Grow(x + width, y + height);
    body_ += std::string("<rect class=\"") + kind + "\" x=\"" + Digits(x) + "\" y=\"" + Digits(y) +
             "\" width=\"" + Digits(width) + "\" height=\"" + Digits(height) + "\"/>\n";
  }
  // All of a kind that lie on one grid: a path costs a tenth of as many rectangles.
  void Cells(const char* kind, const std::vector<std::pair<int64_t, int64_t>>& corners) {
    if (corners.empty()) return;
    body_ += std::string("<path class=\"") + kind + "\" d=\"";
    for (const auto& [x, y] : corners) {
      Grow(x + kCell, y + kCell);
      body_ += "M" + Digits(x + 1) + " " + Digits(y + 1) + "h10v10h-10z";
    }
    body_ += "\"/>\n";
  }
  void Text(int64_t x, int64_t y, const std::string& text) {
    Grow(x + 7 * static_cast<int64_t>(text.size()), y);
    body_ += "<text x=\"" + Digits(x) + "\" y=\"" + Digits(y) + "\">" + text + "</text>\n";
  }

  std::string Svg() const {
    const std::string size = Digits(width_ + kMargin) + "\" height=\"" + Digits(height_ + kMargin);
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + size +
           "\">\n<style>text{font:11px monospace;fill:#222}.paper{fill:#fff}.sees{fill:#1f6feb}"
           ".hidden{fill:#e4e7eb}.page{fill:#dbeafe;stroke:#1f6feb}.sink{fill:#fde68a;stroke:#b45309}"
           ".gone{fill:#f3f4f6;stroke:#9ca3af;stroke-dasharray:3 2}</style>\n"
           "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n" +
           body_ + "</svg>\n";
  }

 private:
  void Grow(int64_t x, int64_t y) {
    width_ = std::max(width_, x);
    height_ = std::max(height_, y);
  }

  std::string body_;
  int64_t width_ = 0, height_ = 0;
};

// Where the columns of each sequence begin; last, where the mask ends.
std::vector<int64_t> ColumnsOf(const RollingStep& step) {
  std::vector<int64_t> columns;
  int64_t x = kMargin + kNames;
  for (const RollingRow& row : step.rows) {
    columns.push_back(x);
    x += static_cast<int64_t>(row.block.keys.size()) * kCell + kBetween;
  }
  columns.push_back(x);
  return columns;
}

// A row for each query from `y` on; returns where it ends.
int64_t DrawMask(const RollingStep& step, const RaggedMask& mask, const std::vector<int64_t>& columns,
                 int64_t y, Canvas* canvas) {
  std::vector<std::pair<int64_t, int64_t>> seen, hidden;
  for (size_t b = 0; b < step.rows.size(); ++b) {
    const std::vector<int64_t>& queries = step.rows[b].block.queries;
    for (size_t query = 0; query < queries.size(); ++query, y += kCell) {
      canvas->Text(kMargin, y + 10, "s" + Digits(static_cast<int64_t>(b)) + ":" + Digits(queries[query]));
      for (size_t of = 0; of < step.rows.size(); ++of) {
        for (size_t key = 0; key < step.rows[of].block.keys.size(); ++key) {
          const auto column = static_cast<int64_t>(key);
          const bool sees = of == b && mask.Sees(b, static_cast<int64_t>(query), column);
          (sees ? seen : hidden).emplace_back(columns[of] + column * kCell, y);
        }
      }
    }
  }
  canvas->Cells("hidden", hidden);
  canvas->Cells("sees", seen);
  return y;
}

// A line of pages; returns where it ends.
int64_t DrawPages(const RollingTraceOptions& options, const RollingRow& row, int64_t x, int64_t y,
                  Canvas* canvas) {
  const auto draw = [&](const char* kind, PageId page, int64_t token) {
    canvas->Rect(kind, x, y, kPageWidth - 4, kPageHeight);
    canvas->Text(x + 2, y + 9, Digits(page));
    canvas->Text(x + 2, y + 19, Digits(token));
    x += kPageWidth;
  };
  int64_t token = 0;
  for (const PageId page : row.table.sinks) {
    draw("sink", page, token);
    token += options.page_size;
  }
  token = row.table.kv_base;
  for (const PageId page : row.table.pages) {
    const bool gone = std::count(row.let_go.begin(), row.let_go.end(), page) > 0;
    draw(gone ? "gone" : "page", page, token);
    token += options.page_size;
  }
  return x;
}

// From `y` on; returns where it ends.
int64_t DrawStep(const RollingTraceOptions& options, const RollingStep& step, const RaggedMask& mask,
                 int64_t pages_x, int64_t y, Canvas* canvas) {
  const std::vector<int64_t> columns = ColumnsOf(step);
  for (size_t b = 0; b < step.rows.size(); ++b) {
    canvas->Text(columns[b], y + 10,
                 step.rows[b].block.keys.empty() ? "" : "s" + Digits(static_cast<int64_t>(b)));
  }
  const int64_t mask_end = DrawMask(step, mask, columns, y + kLine, canvas);
  int64_t line = y + kLine;
  for (size_t b = 0; b < step.rows.size(); ++b, line += kPageHeight + 4) {
    canvas->Text(pages_x, line + 14, "s" + Digits(static_cast<int64_t>(b)));
    DrawPages(options, step.rows[b], pages_x + kNames / 2, line, canvas);
  }
  return std::max(mask_end, line);
}

}  // namespace

StatusOr<std::string> DrawKvTrace(const RollingTraceOptions& options, const std::vector<RollingStep>& steps) {
  Canvas canvas;
  int64_t pages_x = 0;
  for (const RollingStep& step : steps) pages_x = std::max(pages_x, ColumnsOf(step).back() + kMargin);
  int64_t y = kMargin;
  for (size_t i = 0; i < steps.size(); ++i) {
    TM_ASSIGN_OR_RETURN(const RaggedMask mask, MaskOf(options, steps[i]));
    canvas.Text(kMargin, y + 10, IterationTitle(i, steps[i]));
    y = DrawStep(options, steps[i], mask, pages_x, y + kLine + 2, &canvas) + kMargin;
  }
  return canvas.Svg();
}

}  // namespace tramontane
