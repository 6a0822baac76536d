// Endless contexts: the policy's plan, attention by it out of the store's pages, and keys turned by
// positions.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/kv_store.h"
#include "kernels/context_policy.h"
#include "tests/kv_vectors/kinds.h"
#include "tests/kv_vectors/paged_run.h"

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

// The tables of one lease that holds `end` tokens, and the slots of the last `count`.
HostPageTables TablesOf(const Lease& lease, int32_t page_size, int64_t end, int64_t count) {
  const PageTable& table = lease.tables[0];
  HostPageTables tables;
  tables.Add(table.pages, /*base=*/0, end, page_size);
  for (int64_t position = end - count; position < end; ++position) {
    const auto index = static_cast<size_t>(PageOf(position, 0, page_size));
    tables.slots.push_back(SlotOf(table.pages[index], position, page_size));
  }
  return tables;
}

// Rows [begin, begin + count) of a tensor.
std::vector<double> RowsOf(const VectorTensor& tensor, int64_t begin, int64_t count) {
  const int64_t columns = tensor.shape[0] == 0 ? 0 : tensor.size() / tensor.shape[0];
  return {tensor.values.begin() + begin * columns, tensor.values.begin() + (begin + count) * columns};
}

// A sequence under a policy, event by event, over the store's pages.
class Stream {
 public:
  Stream(CaseRun& run, const PlanCase& plan, const KvFormat& format, int64_t window, const Rotation& rotation,
         const AttentionCase& attention)
      : run_(run),
        policy_(plan.policy),
        format_(format),
        window_(window),
        rotation_(rotation),
        attention_(attention),
        pages_(2 * PagesFor(plan.tokens, format.page_size) + 2),
        store_(MakeKvLayout({0}, format), pages_, PrefixCache::kOff),
        lease_(store_.NewLease()),
        pool_(run.machine(), format, static_cast<int32_t>(pages_), std::numeric_limits<double>::quiet_NaN()) {
  }

  // q, k, v: the event's rows, not turned.
  StatusOr<std::vector<double>> Evaluate(const ContextEvent& event, AppendRows rows) {
    const bool again = policy_.type == ContextPolicyType::kReevaluate;
    TM_RETURN_IF_ERROR(again ? TakeSurvivors(event) : Status::Ok());
    // Under reevaluate tokens stand where a fresh prefill would have put them.
    const int64_t moved = again ? event.view.discarded : 0;
    const int64_t begin = event.token - moved, end = begin + event.count;
    std::vector<PageCopy> copies;
    store_.Extend(lease_, begin, end, &copies);
    TM_RETURN_IF_ERROR(Copy(copies));
    const HostPageTables tables = TablesOf(lease_, format_.page_size, end, event.count);
    attention_.sink_len.clear();
    attention_.left.clear();
    attention_.sink_query_position.clear();
    rows.rotation = rotation_;
    for (int64_t i = 0; i < event.count; ++i) {
      rows.rotation.positions.push_back(static_cast<int32_t>(begin + i));
      if (again || policy_.type == ContextPolicyType::kNone) continue;
      const ContextView view = ViewAt(policy_, event.token + i);
      attention_.sink_len.push_back(static_cast<int32_t>(view.sink_len));
      attention_.left.push_back(static_cast<int32_t>(view.left));
      attention_.sink_query_position.push_back(static_cast<int32_t>(view.sink_query_position));
    }
    rows.rotation.sink_positions = attention_.sink_query_position;
    rows.slots = tables.slots;
    TM_ASSIGN_OR_RETURN(const TurnedQueries turned, Append(run_.machine(), pool_.View(), rows));
    attention_.queries = turned.queries;
    attention_.sink_queries = turned.sink_queries;
    attention_.qo_indptr = {0, static_cast<int32_t>(event.count)};
    attention_.window = static_cast<int32_t>(window_);
    attention_.sinks_windowed = policy_.type == ContextPolicyType::kShift;
    TM_ASSIGN_OR_RETURN(AttentionResult result, Attend(run_.machine(), pool_.View(), tables, attention_));
    return std::move(result.out);
  }

 private:
  // A discard: the first n_keep tokens stay, in pages that a second lease shares.
  Status TakeSurvivors(const ContextEvent& event) {
    if (event.view.discarded == discarded_) return Status::Ok();
    discarded_ = event.view.discarded;
    Lease survivors = store_.Fork(lease_, policy_.n_keep);
    store_.Release(lease_);
    lease_ = std::move(survivors);
    return Status::Ok();
  }

  Status Copy(const std::vector<PageCopy>& copies) {
    if (copies.empty()) return Status::Ok();
    std::vector<int32_t> pairs;
    for (const PageCopy& copy : copies) pairs.insert(pairs.end(), {copy.from, copy.to});
    const DeviceList<int32_t> device_pairs(run_.machine(), pairs);
    const OpCode code = run_.machine().backend->CopyPages({.pool = pool_.View().pool,
                                                           .page_bytes = format_.LayerBytes(),
                                                           .pairs = device_pairs.data(),
                                                           .count = static_cast<int32_t>(copies.size())});
    device_pairs.Get();  // the op has run before its input goes
    return OpStatus(run_.machine(), code, "CopyPages");
  }

  CaseRun& run_;
  const ContextPolicy policy_;
  const KvFormat format_;
  const int64_t window_;
  const Rotation rotation_;
  AttentionCase attention_;
  const int64_t pages_;
  KvStore store_;
  Lease lease_;
  PagedPool pool_;
  int64_t discarded_ = 0;
};

}  // namespace

Status RunStreamingPlan(CaseRun& run) {
  const PlanCase plan = ReadPlan(run.reader());
  TM_RETURN_IF_ERROR(run.reader().status());
  TM_ASSIGN_OR_RETURN(const std::vector<ContextEvent> events,
                      PlanContext(plan.policy, plan.prompt, plan.tokens));
  std::vector<double> token, count, discarded, first_row, query_position, held, left;
  double rows = 0;
  for (const ContextEvent& event : events) {
    const int64_t last = event.token + event.count - 1;
    token.push_back(static_cast<double>(event.token));
    count.push_back(static_cast<double>(event.count));
    discarded.push_back(static_cast<double>(event.view.discarded));
    first_row.push_back(rows);
    query_position.push_back(static_cast<double>(event.view.query_position));
    held.push_back(static_cast<double>(event.view.Held(last)));
    left.push_back(static_cast<double>(event.view.left));
    rows += static_cast<double>(event.count);
  }
  TM_RETURN_IF_ERROR(run.Expect("token", token));
  TM_RETURN_IF_ERROR(run.Expect("count", count));
  TM_RETURN_IF_ERROR(run.Expect("discarded", discarded));
  TM_RETURN_IF_ERROR(run.Expect("first_row", first_row));
  TM_RETURN_IF_ERROR(run.Expect("query_position", query_position));
  TM_RETURN_IF_ERROR(run.Expect("held", held));
  return run.Expect("left", left);
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
    Stream stream(run, plan, format, window, rotation, attention);
    std::vector<double> out;
    for (size_t i = 0; i < events.size(); ++i) {
      AppendRows event_rows;
      event_rows.keys = RowsOf(k, first_row[i], count[i]);
      event_rows.values = RowsOf(v, first_row[i], count[i]);
      event_rows.query_heads = attention.query_heads;
      event_rows.queries = RowsOf(q, first_row[i], count[i]);
      TM_ASSIGN_OR_RETURN(const std::vector<double> result,
                          stream.Evaluate(events[i], std::move(event_rows)));
      out.insert(out.end(), result.begin(), result.end());
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
