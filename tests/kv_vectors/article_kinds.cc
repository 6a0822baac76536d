// The article's rolling buffer: its trace, and attention by its schedule, both out of page tables that roll.
#include <algorithm>
#include <limits>
#include <vector>

#include "server/commands/rolling_trace.h"
#include "tests/kv_vectors/kinds.h"
#include "tests/kv_vectors/paged_run.h"

namespace tramontane::kv_vectors {

using nlohmann::json;

namespace {

constexpr int32_t kPageSizes[] = {1, 16};
constexpr int64_t kMaxNumber = 1 << 20;

RollingTraceOptions ReadOptions(CaseRun& run) {
  CaseReader& reader = run.reader();
  RollingTraceOptions options;
  options.window = static_cast<int32_t>(reader.Int("window", 1, kMaxNumber));
  options.chunk = static_cast<int32_t>(reader.Int("chunk", 1, kMaxNumber));
  options.decode_steps = static_cast<int32_t>(reader.Int("decode_steps", 0, kMaxNumber));
  const json& attrs = run.body().contains("attrs") ? run.body()["attrs"] : json::object();
  if (!attrs.contains("seqlens") || !attrs["seqlens"].is_array()) {
    reader.Fail(InvalidArgument("is no list").WithField("attrs.seqlens", FieldForm::kSubject));
    return options;
  }
  for (const json& length : attrs["seqlens"]) {
    if (!length.is_number_unsigned() || length.get<uint64_t>() > uint64_t{kMaxNumber}) {
      reader.Fail(InvalidArgument("is " + length.dump() + ", not a length").WithField("attrs.seqlens"));
      return options;
    }
    options.prompt_tokens.push_back(length.get<int32_t>());
  }
  return options;
}

// The iteration as the file writes it.
StatusOr<json> StepJson(const RollingStep& step, int32_t window) {
  json shown = {{"phase", RollingPhaseName(step.phase)},
                {"seen", json::array()},
                {"q_len", json::array()},
                {"kv_len", json::array()},
                {"positions", json::array()},
                {"cache_positions", json::array()},
                {"key_positions", json::array()},
                {"ring", json::array()}};
  for (const RollingRow& row : step.rows) {
    const std::vector<int64_t>& keys = row.block.keys;
    shown["seen"].push_back(row.seen);
    shown["q_len"].push_back(row.block.queries.size());
    shown["kv_len"].push_back(keys.size() - static_cast<size_t>(std::count(keys.begin(), keys.end(), -1)));
    shown["positions"].push_back(row.block.queries);
    for (const int64_t slot : row.cache_slots) shown["cache_positions"].push_back(slot);
    shown["key_positions"].push_back(keys);
    shown["ring"].push_back(row.ring);
  }
  TM_ASSIGN_OR_RETURN(const RaggedMask mask, RollingMask(BlocksOf(step), window));
  shown["mask"] = BlockDiagonalRows(mask);
  return shown;
}

// The slot that the next token overwrites is free afterwards: with pages of one token the table lists nothing
// that no later query sees.
Status CheckFreed(const RollingStep& step, const RollingTraceOptions& options) {
  for (size_t b = 0; b < step.rows.size(); ++b) {
    const RollingRow& row = step.rows[b];
    const int64_t end = row.seen + static_cast<int64_t>(row.block.queries.size());
    if (options.page_size > 1 || end < options.window || row.rolled_kv_base > end - options.window) continue;
    return Internal("sequence " + std::to_string(b) + " still lists position " +
                    std::to_string(end - options.window) + ", which the next token overwrites");
  }
  return Status::Ok();
}

// Whether the case has as many iterations as its attributes make, before they are made.
Status CheckIterations(CaseRun& run, const RollingTraceOptions& options) {
  int64_t longest = 0;
  for (const int32_t prompt : options.prompt_tokens) longest = std::max<int64_t>(longest, prompt);
  const int64_t iterations = (longest + options.chunk - 1) / options.chunk + options.decode_steps;
  const json steps = run.Expects("steps") ? run.body()["out"]["steps"] : json::array();
  if (steps.is_array() && std::ssize(steps) == iterations) return Status::Ok();
  return InvalidArgument("has " + std::to_string(steps.size()) +
                         " iterations; seqlens, chunk and decode_steps make " + std::to_string(iterations))
      .WithField("out.steps", FieldForm::kSubject);
}

// Page tables of the sequences that take part in an iteration, and the slots of their new tokens.
HostPageTables TablesOf(const RollingStep& step, int32_t page_size) {
  HostPageTables tables;
  for (const RollingRow& row : step.rows) {
    const std::vector<int64_t>& queries = row.block.queries;
    const int64_t end = row.seen + static_cast<int64_t>(queries.size());
    tables.Add(row.table.pages, row.table.kv_base, end, page_size);
    for (const int64_t position : queries) {
      const int64_t index = PageOf(position, row.table.kv_base, page_size);
      tables.slots.push_back(SlotOf(row.table.pages[static_cast<size_t>(index)], position, page_size));
    }
  }
  return tables;
}

}  // namespace

Status RunArticleTrace(CaseRun& run) {
  RollingTraceOptions options = ReadOptions(run);
  TM_RETURN_IF_ERROR(run.reader().status());
  TM_RETURN_IF_ERROR(CheckIterations(run, options));
  for (const int32_t page_size : kPageSizes) {
    options.page_size = page_size;
    TM_ASSIGN_OR_RETURN(const std::vector<RollingStep> steps, TraceRolling(options));
    json shown = json::array();
    for (const RollingStep& step : steps) {
      TM_ASSIGN_OR_RETURN(json row, StepJson(step, options.window));
      shown.push_back(std::move(row));
      TM_RETURN_IF_ERROR(CheckFreed(step, options));
    }
    TM_RETURN_IF_ERROR(run.ExpectJson("steps", shown));
  }
  return Status::Ok();
}

Status RunArticleAttention(CaseRun& run) {
  RollingTraceOptions options = ReadOptions(run);
  CaseReader& reader = run.reader();
  const double scale = reader.Positive("sm_scale");
  const VectorTensor q = reader.In("q", {-1, -1, -1});
  const VectorTensor k = reader.In("k", {q.shape[0], -1, q.shape[2]});
  const VectorTensor v = reader.In("v", k.shape);
  const std::vector<int32_t> indptr =
      reader.Ints("indptr", {static_cast<int64_t>(options.prompt_tokens.size()) + 1});
  TM_RETURN_IF_ERROR(reader.status());
  for (size_t b = 0; b < options.prompt_tokens.size(); ++b) {
    if (indptr[b + 1] - indptr[b] == options.prompt_tokens[b] + options.decode_steps) continue;
    return InvalidArgument("does not hold the prompt and decode_steps")
        .WithField(FieldElement("in.indptr", b), FieldForm::kSubject);
  }
  if (indptr.back() != q.shape[0]) return InvalidArgument("in.indptr does not end at the rows of q");
  const auto query_heads = static_cast<int32_t>(q.shape[1]);
  const size_t query_columns = static_cast<size_t>(q.shape[1] * q.shape[2]);
  const size_t key_columns = static_cast<size_t>(k.shape[1] * k.shape[2]);

  for (const int32_t page_size : kPageSizes) {
    options.page_size = page_size;
    TM_ASSIGN_OR_RETURN(const std::vector<RollingStep> steps, TraceRolling(options));
    const KvFormat format = {.element = run.machine().cache,
                             .kv_heads = static_cast<int32_t>(k.shape[1]),
                             .head_dim = static_cast<int32_t>(k.shape[2]),
                             .page_size = page_size};
    if (query_heads % format.kv_heads != 0) return InvalidArgument("q has no whole groups of k's heads");
    AttentionCase attention = {.query_heads = query_heads, .window = options.window, .scale = scale};
    if (std::string limit = AttentionLimit(run.machine(), format, attention); !limit.empty()) {
      run.Skip(std::move(limit));
      return Status::Ok();
    }
    int32_t pages = 1;
    for (const RollingStep& step : steps) {
      for (const RollingRow& row : step.rows) {
        for (const PageId page : row.table.pages) pages = std::max(pages, page + 1);
      }
    }
    PagedPool pool(run.machine(), format, pages, std::numeric_limits<double>::quiet_NaN());
    std::vector<double> out(q.values.size());
    for (const RollingStep& step : steps) {
      const HostPageTables tables = TablesOf(step, page_size);
      AppendRows rows;
      rows.slots = tables.slots;
      attention.queries.clear();
      attention.qo_indptr = {0};
      std::vector<size_t> tokens;  // rows of the case, in order
      for (size_t b = 0; b < step.rows.size(); ++b) {
        for (const int64_t position : step.rows[b].block.queries) {
          tokens.push_back(static_cast<size_t>(indptr[b] + position));
        }
        attention.qo_indptr.push_back(static_cast<int32_t>(tokens.size()));
      }
      for (const size_t token : tokens) {
        const auto take = [token](const VectorTensor& from, size_t columns, std::vector<double>* to) {
          const auto begin = from.values.begin() + static_cast<std::ptrdiff_t>(token * columns);
          to->insert(to->end(), begin, begin + static_cast<std::ptrdiff_t>(columns));
        };
        take(k, key_columns, &rows.keys);
        take(v, key_columns, &rows.values);
        take(q, query_columns, &attention.queries);
      }
      TM_RETURN_IF_ERROR(Append(run.machine(), pool.View(), rows));
      TM_ASSIGN_OR_RETURN(const AttentionResult result,
                          Attend(run.machine(), pool.View(), tables, attention));
      for (size_t i = 0; i < tokens.size(); ++i) {
        std::copy_n(result.out.begin() + static_cast<std::ptrdiff_t>(i * query_columns), query_columns,
                    out.begin() + static_cast<std::ptrdiff_t>(tokens[i] * query_columns));
      }
    }
    TM_RETURN_IF_ERROR(run.Expect("o", out));
  }
  return Status::Ok();
}

}  // namespace tramontane::kv_vectors
