// Endless contexts: the policy's plan and attention by it, both out of the store's tables as they roll on,
// and keys turned by positions.
#include <algorithm>
#include <limits>
#include <vector>

#include "engine/rolling_trace.h"
#include "kernels/context_policy.h"
#include "tests/kv_vectors/kinds.h"
#include "tests/kv_vectors/paged_run.h"
#include "tests/kv_vectors/stream_tables.h"

namespace tramontane::kv_vectors {
namespace {

constexpr int32_t kPageSizes[] = {1, 16};
constexpr int64_t kMostTokens = 1 << 20;

struct PlanCase {
  ContextPolicy policy;
  int64_t prompt = 0;
  int64_t tokens = 0;
};

PlanCase ReadPlan(CaseReader& reader) {
  PlanCase plan;
  plan.policy.type =
      static_cast<ContextPolicyType>(reader.OneOf("policy", {"none", "sinks", "shift", "reevaluate"}));
  plan.policy.n_ctx = reader.Int("n_ctx", 1, kMostTokens);
  plan.policy.n_keep = reader.Int("n_keep", 0, kMostTokens);
  plan.policy.n_discard = reader.Int("n_discard", 0, kMostTokens);
  plan.prompt = reader.Int("prompt", 1, kMostTokens);
  plan.tokens = reader.Int("tokens", 1, kMostTokens);
  return plan;
}

Rotation ReadRotation(CaseReader& reader, const char* style, const char* theta) {
  Rotation rotation;
  rotation.style =
      reader.OneOf(style, {"half", "interleaved"}) == 0 ? RotaryStyle::kHalfSplit : RotaryStyle::kInterleaved;
  rotation.theta = reader.Number(theta);
  if (rotation.theta <= 0)
    reader.Fail(InvalidArgument("is not above 0").WithField(theta, FieldForm::kSubject));
  return rotation;
}

int64_t LongestOf(const std::vector<ContextEvent>& events) {
  int64_t longest = 0;
  for (const ContextEvent& event : events) longest = std::max(longest, event.count);
  return longest;
}

// Rows [begin, begin + count) of a tensor.
std::vector<double> RowsOf(const VectorTensor& tensor, int64_t begin, int64_t count) {
  const int64_t columns = tensor.shape[0] == 0 ? 0 : tensor.size() / tensor.shape[0];
  return {tensor.values.begin() + begin * columns, tensor.values.begin() + (begin + count) * columns};
}

// Attention event by event, over pages of the store.
class Stream {
 public:
  Stream(CaseRun& run, const PlanCase& plan, const std::vector<ContextEvent>& events, const KvFormat& format,
         int64_t window, const Rotation& rotation, const AttentionCase& attention)
      : run_(run),
        format_(format),
        rotation_(rotation),
        attention_(attention),
        tables_(plan.policy, format, window, plan.tokens, LongestOf(events)),
        pool_(run.machine(), format, static_cast<int32_t>(tables_.pages()),
              std::numeric_limits<double>::quiet_NaN()) {
    attention_.window = static_cast<int32_t>(window);
    attention_.sinks_windowed = true;  // each by its own limit, as in a step of the engine
  }

  // Queries, keys and values of the event's rows, not turned. Where the store has lost pages of tokens in
  // front of it, `first` has their rows: those of tokens 0 and on.
  StatusOr<std::vector<double>> Evaluate(const ContextEvent& event, const AppendRows& rows,
                                         const AppendRows& first) {
    TM_ASSIGN_OR_RETURN(const StreamStep step, tables_.Begin(event));
    TM_RETURN_IF_ERROR(CopyPages(run_.machine(), pool_, step.copies));
    if (step.written < step.begin) {
      const AppendRows lost = Placed(Part(first, step.written, step.begin), step, step.written);
      TM_RETURN_IF_ERROR(Append(run_.machine(), pool_.View(), lost).status());
    }
    AppendRows placed = Placed(rows, step, step.begin);
    attention_.sink_len.clear();
    attention_.left.clear();
    attention_.sink_query_position.clear();
    for (const RowView& view : step.views) {
      if (!step.has_views) break;
      attention_.sink_len.push_back(static_cast<int32_t>(view.sink_len));
      attention_.left.push_back(static_cast<int32_t>(view.left));
      attention_.sink_query_position.push_back(static_cast<int32_t>(view.sink_limit));
      placed.rotation.sink_positions.push_back(static_cast<int32_t>(view.sink_position));
    }
    TM_ASSIGN_OR_RETURN(const TurnedQueries turned, Append(run_.machine(), pool_.View(), placed));
    attention_.queries = turned.queries;
    attention_.sink_queries = turned.sink_queries;
    attention_.qo_indptr = {0, static_cast<int32_t>(event.count)};
    attention_.sink_pages = step.table.sinks;
    HostPageTables tables;
    tables.Add(step.table.pages, step.table.kv_base, step.end, format_.page_size);
    TM_ASSIGN_OR_RETURN(AttentionResult result, Attend(run_.machine(), pool_.View(), tables, attention_));
    TM_RETURN_IF_ERROR(tables_.End());
    return std::move(result.out);
  }

 private:
  // Rows [begin, end) of some.
  AppendRows Part(const AppendRows& rows, int64_t begin, int64_t end) const {
    const int64_t columns = int64_t{format_.kv_heads} * format_.head_dim;
    const auto part = [&](const std::vector<double>& from) {
      return std::vector<double>(from.begin() + begin * columns, from.begin() + end * columns);
    };
    AppendRows some;
    some.keys = part(rows.keys);
    some.values = part(rows.values);
    return some;
  }

  // Where the table has the positions from `begin` on.
  AppendRows Placed(AppendRows rows, const StreamStep& step, int64_t begin) const {
    const int64_t columns = int64_t{format_.kv_heads} * format_.head_dim;
    const int64_t end = begin + std::ssize(rows.keys) / columns;
    rows.rotation = rotation_;
    for (int64_t position = begin; position < end; ++position) {
      rows.rotation.positions.push_back(static_cast<int32_t>(position));
      rows.slots.push_back(PoolSlotOf(step.table, format_.page_size, position));
    }
    return rows;
  }

  CaseRun& run_;
  const KvFormat format_;
  const Rotation rotation_;
  AttentionCase attention_;
  StreamTables tables_;
  PagedPool pool_;
};

}  // namespace

Status RunStreamingPlan(CaseRun& run) {
  const PlanCase plan = ReadPlan(run.reader());
  TM_RETURN_IF_ERROR(run.reader().status());
  TM_ASSIGN_OR_RETURN(const std::vector<ContextEvent> events,
                      PlanContext(plan.policy, plan.prompt, plan.tokens));
  for (const int32_t page_size : kPageSizes) {
    const KvFormat format = {.kv_heads = 1, .head_dim = 2, .page_size = page_size};
    StreamTables tables(plan.policy, format, /*window=*/0, plan.tokens, LongestOf(events));
    std::vector<double> token, count, discarded, first_row, query_position, held, left;
    double rows = 0;
    for (const ContextEvent& event : events) {
      token.push_back(static_cast<double>(event.token));
      count.push_back(static_cast<double>(event.count));
      discarded.push_back(static_cast<double>(event.view.discarded));
      first_row.push_back(rows);
      rows += static_cast<double>(event.count);
      // Of what the table lists, what its last row sees.
      TM_ASSIGN_OR_RETURN(const StreamStep step, tables.Begin(event));
      const RowView& view = step.views.back();
      const std::vector<int64_t> listed = PositionsOf(step.table, page_size, step.end);
      held.push_back(
          static_cast<double>(std::count_if(listed.begin(), listed.end(), [&view](int64_t position) {
            return position < view.sink_len || position >= view.left;
          })));
      // A lease that begins again knows nothing of what was discarded.
      query_position.push_back(static_cast<double>(view.sink_limit > 0 ? view.sink_limit : step.end - 1));
      left.push_back(step.has_views ? static_cast<double>(std::max(view.left, plan.policy.n_keep))
                                    : static_cast<double>(event.view.left));
      TM_RETURN_IF_ERROR(tables.End());
    }
    TM_RETURN_IF_ERROR(run.Expect("token", token));
    TM_RETURN_IF_ERROR(run.Expect("count", count));
    TM_RETURN_IF_ERROR(run.Expect("discarded", discarded));
    TM_RETURN_IF_ERROR(run.Expect("first_row", first_row));
    TM_RETURN_IF_ERROR(run.Expect("query_position", query_position));
    TM_RETURN_IF_ERROR(run.Expect("held", held));
    TM_RETURN_IF_ERROR(run.Expect("left", left));
  }
  return Status::Ok();
}

Status RunStreamingAttention(CaseRun& run) {
  CaseReader& reader = run.reader();
  const PlanCase plan = ReadPlan(reader);
  const int64_t window = reader.Int("window", 0, kMostTokens);
  const Rotation rotation = ReadRotation(reader, "rope_style", "rope_theta");
  const double scale = reader.Number("sm_scale");
  const VectorTensor q = reader.In("q", {-1, -1, -1});
  const VectorTensor k = reader.In("k", {q.shape[0], -1, q.shape[2]});
  const VectorTensor v = reader.In("v", k.shape);
  const std::vector<int32_t> token = reader.Ints("token", {-1});
  const auto events_given = static_cast<int64_t>(token.size());
  const std::vector<int32_t> count = reader.Ints("count", {events_given});
  const std::vector<int32_t> discarded = reader.Ints("discarded", {events_given});
  const std::vector<int32_t> first_row = reader.Ints("first_row", {events_given});
  TM_RETURN_IF_ERROR(reader.status());
  TM_ASSIGN_OR_RETURN(const std::vector<ContextEvent> events,
                      PlanContext(plan.policy, plan.prompt, plan.tokens));
  // The events of the file are those of the plan.
  int64_t rows = 0;
  for (size_t i = 0; i < std::max(events.size(), token.size()); ++i) {
    const bool same = i < events.size() && i < token.size() && events[i].token == token[i] &&
                      events[i].count == count[i] && events[i].view.discarded == discarded[i] &&
                      first_row[i] == rows;
    if (!same) return InvalidArgument("is not the policy's").WithField(FieldElement("in.token", i));
    rows += count[i];
  }
  if (rows != q.shape[0]) return InvalidArgument("the events have other rows than in.q");

  const AttentionCase attention = {.query_heads = static_cast<int32_t>(q.shape[1]), .scale = scale};
  for (const int32_t page_size : kPageSizes) {
    const KvFormat format = {.element = run.machine().cache,
                             .kv_heads = static_cast<int32_t>(k.shape[1]),
                             .head_dim = static_cast<int32_t>(k.shape[2]),
                             .page_size = page_size};
    if (format.kv_heads < 1 || attention.query_heads % format.kv_heads != 0 || format.head_dim % 2 != 0) {
      return InvalidArgument("q has no whole groups of k's heads, or head_dim is odd");
    }
    if (std::string limit = AttentionLimit(run.machine(), format, attention); !limit.empty()) {
      run.Skip(std::move(limit));
      return Status::Ok();
    }
    Stream stream(run, plan, events, format, window, rotation, attention);
    AppendRows kept;  // of tokens 0 and on, as they were evaluated
    std::vector<double> out;
    for (size_t i = 0; i < events.size(); ++i) {
      AppendRows event_rows;
      event_rows.keys = RowsOf(k, first_row[i], count[i]);
      event_rows.values = RowsOf(v, first_row[i], count[i]);
      event_rows.query_heads = attention.query_heads;
      event_rows.queries = RowsOf(q, first_row[i], count[i]);
      TM_ASSIGN_OR_RETURN(const std::vector<double> result, stream.Evaluate(events[i], event_rows, kept));
      out.insert(out.end(), result.begin(), result.end());
      if (events[i].view.discarded > 0) continue;
      kept.keys.insert(kept.keys.end(), event_rows.keys.begin(), event_rows.keys.end());
      kept.values.insert(kept.values.end(), event_rows.values.begin(), event_rows.values.end());
    }
    TM_RETURN_IF_ERROR(run.Expect("o", out));
  }
  return Status::Ok();
}

Status RunRopeShift(CaseRun& run) {
  CaseReader& reader = run.reader();
  Rotation rotation = ReadRotation(reader, "style", "theta");
  const auto delta = static_cast<int32_t>(reader.Int("delta", -kMostTokens, kMostTokens));
  const VectorTensor k = reader.In("k", {-1, -1, -1});
  const VectorTensor position = reader.In("position", {k.shape[0]});
  TM_RETURN_IF_ERROR(reader.status());
  const std::vector<int32_t> positions = position.As<int32_t>();
  const KvFormat format = {.element = run.machine().cache,
                           .kv_heads = static_cast<int32_t>(k.shape[1]),
                           .head_dim = static_cast<int32_t>(k.shape[2]),
                           .page_size = 1};
  if (format.kv_heads < 1 || format.head_dim < 2 || format.head_dim % 2 != 0) {
    return InvalidArgument("k has no heads of an even dimension");
  }
  const auto rows = static_cast<int32_t>(k.shape[0]);
  // Keys as an append leaves them in their pages, one token a page.
  const auto turned = [&](const std::vector<double>& keys,
                          const std::vector<int32_t>& by) -> StatusOr<std::vector<double>> {
    PagedPool pool(run.machine(), format, rows, 0);
    AppendRows append;
    append.keys = keys;
    append.values = keys;
    append.rotation = rotation;
    append.rotation.positions = by;
    for (int32_t row = 0; row < rows; ++row) append.slots.push_back(row);
    TM_RETURN_IF_ERROR(Append(run.machine(), pool.View(), append).status());
    const std::vector<double> numbers = pool.Numbers();
    const auto columns = static_cast<std::ptrdiff_t>(k.shape[1] * k.shape[2]);
    std::vector<double> out;  // a page is its keys, then its values
    for (std::ptrdiff_t row = 0; row < rows; ++row) {
      out.insert(out.end(), numbers.begin() + 2 * row * columns, numbers.begin() + (2 * row + 1) * columns);
    }
    return out;
  };
  std::vector<int32_t> moved = positions;
  for (int32_t& at : moved) at += delta;
  TM_ASSIGN_OR_RETURN(const std::vector<double> rotated, turned(k.values, positions));
  TM_RETURN_IF_ERROR(run.Expect("rotated", rotated));
  TM_ASSIGN_OR_RETURN(const std::vector<double> shifted, turned(k.values, moved));
  TM_RETURN_IF_ERROR(run.Expect("shifted", shifted));
  TM_ASSIGN_OR_RETURN(const std::vector<double> turned_again,
                      turned(rotated, std::vector<int32_t>(positions.size(), delta)));
  return run.Expect("shifted", turned_again);
}

}  // namespace tramontane::kv_vectors
