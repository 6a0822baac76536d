#include "server/commands/kv_listing.h"

#include <algorithm>
#include <utility>

namespace tramontane {
namespace {

// Lines of cells, each column as wide as its widest cell. ASCII.
class TextTable {
 public:
  void Add(std::vector<std::string> cells) { lines_.push_back(std::move(cells)); }

  std::string Text() const {
    std::string text;
    for (const std::vector<std::string>& cells : lines_) {
      std::string line = " ";
      for (size_t column = 0; column < cells.size(); ++column) {
        line += " " + cells[column] + std::string(Width(column) - cells[column].size() + 1, ' ');
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
  }

 private:
  size_t Width(size_t column) const {
    size_t width = 0;
    for (const std::vector<std::string>& cells : lines_) width = std::max(width, cells[column].size());
    return width;
  }

  std::vector<std::vector<std::string>> lines_;
};

std::string PadLeft(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string RangeText(int64_t first, int64_t last) {
  return std::to_string(first) + (last > first ? ".." + std::to_string(last) : "");
}

bool HasPolicy(const RollingTraceOptions& options) { return options.policy.type != ContextPolicyType::kNone; }

bool Discards(const RollingTraceOptions& options) { return options.policy.type == ContextPolicyType::kShift; }

std::string Summary(const RollingTraceOptions& options, const RollingStep& first) {
  const std::vector<int64_t> lengths(options.prompt_tokens.begin(), options.prompt_tokens.end());
  std::string text = "prompts of " + JoinNumbers(lengths, ", ") + " tokens, chunk " +
                     std::to_string(options.chunk) + ", decode steps " +
                     std::to_string(options.decode_steps) + "; ";
  text += options.window > 0 ? "window " + std::to_string(options.window) : "no window";
  if (HasPolicy(options)) {
    text += std::string(", ") + ContextPolicyName(options.policy.type) + " with n_ctx " +
            std::to_string(options.policy.n_ctx) + ", n_keep " + std::to_string(options.policy.n_keep);
    if (options.policy.n_discard > 0) text += ", n_discard " + std::to_string(options.policy.n_discard);
  }
  if (options.shared_prefix > 0) text += ", " + std::to_string(options.shared_prefix) + " tokens in common";
  return text + "; page size " + std::to_string(options.page_size) + ", pages " +
         std::to_string(first.free_pages + first.cached_pages + first.held_pages) + "\n";
}

std::string WithoutTrailingSpace(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// The mask of an iteration: columns of all sequences side by side, a bar between two; a row for each query.
class MaskText {
 public:
  MaskText(const RollingStep& step, const RaggedMask& mask) : step_(step), mask_(mask) {
    int64_t largest = 0;
    for (const RollingRow& row : step.rows) largest = std::max(largest, row.end());
    column_ = std::to_string(largest).size() + 1;
    margin_ = std::max<size_t>(std::string("query").size(), 2 + column_);
  }

  std::string Text() const {
    std::string sequences(2 + margin_, ' ');
    std::string positions = "  query" + std::string(margin_ - 5, ' ');
    for (size_t b = 0; b < step_.rows.size(); ++b) {
      sequences += " |" + Padded(" s" + std::to_string(b), b);
      std::string keys;
      for (const int64_t key : step_.rows[b].block.keys) {
        keys += PadLeft(key < 0 ? "-" : std::to_string(key), column_);
      }
      positions += " |" + Padded(keys, b);
    }
    std::string text = WithoutTrailingSpace(sequences) + "\n" + WithoutTrailingSpace(positions) + "\n";
    for (size_t b = 0; b < step_.rows.size(); ++b) {
      for (size_t query = 0; query < step_.rows[b].block.queries.size(); ++query) text += Row(b, query);
    }
    return text;
  }

 private:
  // The room of a sequence's columns: at least that of its name.
  size_t Room(size_t b) const { return std::max(size_t{3}, step_.rows[b].block.keys.size() * column_); }
  std::string Padded(const std::string& text, size_t b) const {
    return text + std::string(Room(b) - text.size(), ' ');
  }

  std::string Row(size_t b, size_t query) const {
    const std::string at = "s" + std::to_string(b) + ":" + std::to_string(step_.rows[b].block.queries[query]);
    std::string line = "  " + at + std::string(margin_ - at.size(), ' ');
    for (size_t of = 0; of < step_.rows.size(); ++of) {
      const size_t keys = step_.rows[of].block.keys.size();
      line += " |";
      for (size_t key = 0; key < keys; ++key) {
        const bool sees = of == b && mask_.Sees(b, static_cast<int64_t>(query), static_cast<int64_t>(key));
        line += std::string(column_ - 1, ' ') + (sees ? "█" : "·");
      }
      line += std::string(Room(of) - keys * column_, ' ');
    }
    return WithoutTrailingSpace(line) + "\n";
  }

  const RollingStep& step_;
  const RaggedMask& mask_;
  size_t column_ = 0;  // characters of one key
  size_t margin_ = 0;  // of a query's name
};

std::string PlaceText(const RollingTraceOptions& options, const RollingRow& row, int64_t position) {
  if (position < 0) return "-";
  const int64_t slot = PoolSlotOf(row.table, options.page_size, position);
  return std::to_string(position) + "@" + (slot < 0 ? "-" : std::to_string(slot));
}

// What the slots of the ring hold.
std::string RingText(const RollingTraceOptions& options, const RollingRow& row) {
  std::string text;
  for (const int64_t position : row.ring) {
    text += (text.empty() ? "" : " ") + PlaceText(options, row, position);
  }
  return text;
}

// "0..3 5..16": what the iteration's last query sees of its sequence. "-": there is none.
std::string SeenText(const RollingRow& row, const RaggedMask& mask, size_t b) {
  const std::vector<int64_t>& keys = row.block.keys;
  const auto last = static_cast<int64_t>(row.block.queries.size()) - 1;
  std::vector<int64_t> seen;
  for (size_t key = 0; last >= 0 && key < keys.size(); ++key) {
    if (mask.Sees(b, last, static_cast<int64_t>(key))) seen.push_back(keys[key]);
  }
  std::string text;
  for (size_t begin = 0, end = 0; begin < seen.size(); begin = end) {
    for (end = begin + 1; end < seen.size() && seen[end] == seen[end - 1] + 1;) ++end;
    text += (text.empty() ? "" : " ") + RangeText(seen[begin], seen[end - 1]);
  }
  return text.empty() ? "-" : text;
}

std::vector<std::string> HeadOf(const RollingTraceOptions& options) {
  std::vector<std::string> head = {"sequence", "tokens", "page table", "lets go", "kv_base"};
  if (HasPolicy(options)) {
    head.emplace_back("sees");
    if (Discards(options)) head.emplace_back("discarded");
  } else if (options.window > 0) {
    head.emplace_back("ring: token@slot of the pool");
  }
  return head;
}

std::vector<std::string> LineOf(const RollingTraceOptions& options, const RollingStep& step,
                                const RaggedMask& mask, size_t b) {
  const RollingRow& row = step.rows[b];
  std::string tokens = TokensText(row);
  if (row.hit_tokens > 0) tokens += ", " + std::to_string(row.hit_tokens) + " found";
  std::string base = std::to_string(row.table.kv_base);
  if (row.rolled_kv_base != row.table.kv_base) base += " -> " + std::to_string(row.rolled_kv_base);
  const std::vector<int64_t> let_go(row.let_go.begin(), row.let_go.end());
  std::vector<std::string> cells = {"s" + std::to_string(b), std::move(tokens), PageTableText(row.table),
                                    let_go.empty() ? "-" : JoinNumbers(let_go, " "), std::move(base)};
  if (HasPolicy(options)) {
    cells.push_back(SeenText(row, mask, b));
    const int64_t last = std::max<int64_t>(0, row.end() - 1);
    if (Discards(options)) cells.push_back(std::to_string(ViewAt(options.policy, last).discarded));
  } else if (options.window > 0) {
    cells.push_back(RingText(options, row));
  }
  return cells;
}

std::string SequencesText(const RollingTraceOptions& options, const RollingStep& step,
                          const RaggedMask& mask) {
  TextTable table;
  table.Add(HeadOf(options));
  for (size_t b = 0; b < step.rows.size(); ++b) table.Add(LineOf(options, step, mask, b));
  return table.Text();
}

std::string PoolText(const RollingTraceOptions& options, const RollingStep& step) {
  std::string text = "  pool: " + std::to_string(step.held_pages) + " held, ";
  if (options.shared_prefix > 0) text += std::to_string(step.cached_pages) + " cached, ";
  return text + std::to_string(step.free_pages) + " free\n";
}

}  // namespace

std::string JoinNumbers(const std::vector<int64_t>& numbers, const char* separator) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : separator) + std::to_string(number);
  return text;
}

std::string PageTableText(const PageTable& table) {
  const std::vector<int64_t> sinks(table.sinks.begin(), table.sinks.end());
  const std::vector<int64_t> pages(table.pages.begin(), table.pages.end());
  if (sinks.empty() && pages.empty()) return "-";
  return (sinks.empty() ? "" : JoinNumbers(sinks, " ") + " + ") + JoinNumbers(pages, " ");
}

std::string TokensText(const RollingRow& row) {
  const std::vector<int64_t>& queries = row.block.queries;
  if (queries.empty()) return "-";
  return RangeText(queries.front(), queries.back());
}

std::string IterationTitle(size_t index, const RollingStep& step) {
  return "iteration " + std::to_string(index + 1) + ", " + RollingPhaseName(step.phase);
}

StatusOr<std::string> ListKvTrace(const RollingTraceOptions& options, const std::vector<RollingStep>& steps) {
  std::string text = Summary(options, steps.front());
  for (size_t i = 0; i < steps.size(); ++i) {
    TM_ASSIGN_OR_RETURN(const RaggedMask mask, MaskOf(options, steps[i]));
    text += "\n" + IterationTitle(i, steps[i]) + "\n";
    text += MaskText(steps[i], mask).Text();
    text += SequencesText(options, steps[i], mask);
    text += PoolText(options, steps[i]);
  }
  return text;
}

}  // namespace tramontane
