// FlashInfer's paged operations over pages in both of its layouts.
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/lse_merge.h"
#include "tests/kv_vectors/kinds.h"
#include "tests/kv_vectors/paged_run.h"

namespace tramontane::kv_vectors {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kMostPages = 1 << 16;
constexpr int64_t kMostPageSize = 1 << 12;
constexpr int64_t kMostPosition = 1 << 26;

// Tables under the names of a case, `prefix` before each.
StatusOr<HostPageTables> ReadTables(CaseReader& reader, const std::string& prefix, const char* indptr_name,
                                    int32_t page_size, int32_t num_pages) {
  std::vector<int32_t> indptr = reader.Ints(prefix + indptr_name, {-1});
  std::vector<int32_t> indices = reader.Ints(prefix + "kv_page_indices", {-1}, -1);
  std::vector<int32_t> last = reader.Ints(prefix + "kv_last_page_len", {-1}, -1);
  TM_RETURN_IF_ERROR(reader.status());
  return FlashInferTables(std::move(indptr), std::move(indices), std::move(last), page_size, num_pages);
}

std::vector<int32_t> LengthsOf(const std::vector<int32_t>& indptr) {
  std::vector<int32_t> lengths;
  for (size_t b = 1; b < indptr.size(); ++b) lengths.push_back(indptr[b] - indptr[b - 1]);
  return lengths;
}

// Ragged keys and values into the pages of tables that list exactly them.
Status Place(Machine& machine, const KvLayerView& view, const std::vector<int32_t>& ragged_indptr,
             const VectorTensor& keys, const std::vector<double>& values, HostPageTables* tables) {
  TM_RETURN_IF_ERROR(CheckIndptr("ragged_kv_indptr", ragged_indptr, tables->batch()));
  for (int32_t b = 0; b < tables->batch(); ++b) {
    const auto at = static_cast<size_t>(b);
    const int32_t rows = ragged_indptr[at + 1] - ragged_indptr[at];
    if (rows == tables->Length(b)) continue;
    return InvalidArgument("gives " + std::to_string(rows) + " keys; the table lists " +
                           std::to_string(tables->Length(b)))
        .WithField(FieldElement("in.ragged_kv_indptr", at + 1), FieldForm::kSubject);
  }
  if (ragged_indptr.back() != keys.shape[0])
    return InvalidArgument("ragged_kv_indptr does not end at k's rows");
  TM_RETURN_IF_ERROR(AddAppendSlots(ragged_indptr, view.format.page_size, tables));
  AppendRows rows;
  rows.keys = keys.values;
  rows.values = values;
  rows.slots = tables->slots;
  return Append(machine, view, rows);
}

Status CheckQueries(const std::vector<int32_t>& qo_indptr, int32_t batch, int64_t rows) {
  TM_RETURN_IF_ERROR(CheckIndptr("qo_indptr", qo_indptr, batch));
  if (qo_indptr.back() == rows) return Status::Ok();
  return InvalidArgument("ends at " + std::to_string(qo_indptr.back()) + "; q has " + std::to_string(rows) +
                         " rows")
      .WithField("in.qo_indptr", FieldForm::kSubject);
}

Status CheckHeads(int64_t query_heads, int64_t kv_heads, int64_t head_dim) {
  if (query_heads < 1 || kv_heads < 1 || query_heads % kv_heads != 0) {
    return InvalidArgument(std::to_string(query_heads) + " query heads over " + std::to_string(kv_heads) +
                           " kv heads");
  }
  if (head_dim >= 2 && head_dim % 2 == 0) return Status::Ok();
  return InvalidArgument("head_dim is " + std::to_string(head_dim) + ", not an even number from 2");
}

// The mask of a case, where it has one.
StatusOr<std::optional<RaggedMask>> ReadMask(CaseReader& reader, const std::vector<int32_t>& queries,
                                             const std::vector<int32_t>& keys) {
  const size_t form = reader.OneOf("mask", {"none", "bool", "packed"});
  TM_RETURN_IF_ERROR(reader.status());
  if (form == 0) return std::optional<RaggedMask>();
  if (form == 1) {
    const std::vector<uint8_t> bools = reader.Bytes("custom_mask", {-1});
    const std::vector<int32_t> indptr =
        reader.Ints("mask_indptr", {static_cast<int64_t>(queries.size()) + 1});
    TM_RETURN_IF_ERROR(reader.status());
    TM_ASSIGN_OR_RETURN(RaggedMask mask, MaskOfBools(queries, keys, bools));
    for (size_t b = 0; b < indptr.size(); ++b) {
      if (indptr[b] == mask.indptr[b]) continue;
      return InvalidArgument("is " + std::to_string(indptr[b]) + ", not " + std::to_string(mask.indptr[b]))
          .WithField(FieldElement("mask_indptr", b), FieldForm::kSubject);
    }
    return std::optional<RaggedMask>(std::move(mask));
  }
  const std::vector<uint8_t> bits = reader.Bytes("packed_custom_mask", {-1});
  const std::vector<int32_t> indptr =
      reader.Ints("packed_mask_indptr", {static_cast<int64_t>(queries.size()) + 1});
  TM_RETURN_IF_ERROR(reader.status());
  TM_ASSIGN_OR_RETURN(RaggedMask mask, MaskOfBits(queries, keys, bits, indptr));
  return std::optional<RaggedMask>(std::move(mask));
}

// By the window where that says it all, and by a mask.
Status ExpectAttention(CaseRun& run, const KvLayerView& view, const HostPageTables& tables,
                       AttentionCase attention, bool by_window) {
  const std::string limit = AttentionLimit(run.machine(), view.format, attention);
  if (!limit.empty()) {
    run.Skip(limit);
    return Status::Ok();
  }
  TM_ASSIGN_OR_RETURN(const AttentionResult result, Attend(run.machine(), view, tables, attention));
  TM_RETURN_IF_ERROR(run.Expect("o", result.out));
  TM_RETURN_IF_ERROR(run.Expect("lse", result.lse));
  if (!by_window) return Status::Ok();
  std::vector<int32_t> keys;
  for (int32_t b = 0; b < tables.batch(); ++b) keys.push_back(tables.Length(b));
  TM_ASSIGN_OR_RETURN(const RaggedMask mask,
                      AlignedMask(LengthsOf(attention.qo_indptr), keys, true, attention.window));
  attention.mask = &mask;
  attention.window = 0;
  if (!AttentionLimit(run.machine(), view.format, attention).empty()) return Status::Ok();
  TM_ASSIGN_OR_RETURN(const AttentionResult masked, Attend(run.machine(), view, tables, attention));
  TM_RETURN_IF_ERROR(run.Expect("o", masked.out));
  return run.Expect("lse", masked.lse);
}

// One level of a cascade: nodes, each the keys of some rows.
struct CascadeLevel {
  std::vector<int32_t> qo_indptr;       // [nodes + 1] rows of each node
  std::vector<int32_t> first_position;  // [nodes] of its first key
  HostPageTables tables;                // of the nodes
};

// Rows as sequences of one query, each with the pages of its nodes up to its position. Nothing where one row
// cannot be such: its nodes that have keys follow each other from position 0 on, all but the last in whole
// pages, and it stands at one of their keys.
std::optional<HostPageTables> TablesOfRows(const std::vector<CascadeLevel>& levels,
                                           const std::vector<int32_t>& row_position, int32_t page_size) {
  HostPageTables rows;
  for (size_t row = 0; row < row_position.size(); ++row) {
    std::vector<int32_t> pages;
    int64_t end = 0;
    for (const CascadeLevel& level : levels) {
      const auto after =
          std::upper_bound(level.qo_indptr.begin(), level.qo_indptr.end(), static_cast<int32_t>(row));
      const auto node = static_cast<size_t>(after - level.qo_indptr.begin() - 1);
      const int32_t length = level.tables.Length(static_cast<int32_t>(node));
      if (length == 0) continue;
      if (level.first_position[node] != end || end % page_size != 0) return std::nullopt;
      end += length;
      const auto first = level.tables.page_indices.begin() + level.tables.first_entry[node];
      pages.insert(pages.end(), first, first + PagesFor(length, page_size));
    }
    const int64_t position = row_position[row];
    if (position < 0 || position >= end) return std::nullopt;
    pages.resize(static_cast<size_t>(PagesFor(position + 1, page_size)));
    rows.Add(pages, 0, position + 1, page_size);
  }
  return rows;
}

// A cascade as the server has it: one call, which finds by the tables what the sequences share.
Status ExpectSharedAttention(CaseRun& run, const KvLayerView& view, const HostPageTables& rows,
                             AttentionCase attention) {
  attention.mask = nullptr;
  attention.qo_indptr.resize(static_cast<size_t>(rows.batch()) + 1);
  std::iota(attention.qo_indptr.begin(), attention.qo_indptr.end(), 0);
  TM_ASSIGN_OR_RETURN(const AttentionResult result, Attend(run.machine(), view, rows, attention));
  TM_RETURN_IF_ERROR(run.Expect("o", result.out));
  return run.Expect("lse", result.lse);
}

}  // namespace

Status RunFlashInferAppend(CaseRun& run) {
  CaseReader& reader = run.reader();
  const auto order = reader.OneOf("layout", {"NHD", "HND"}) == 0 ? KvOrder::kNhd : KvOrder::kHnd;
  const bool is_single = reader.OneOf("storage", {"single", "pair"}) == 0;
  const auto page_size = static_cast<int32_t>(reader.Int("page_size", 1, kMostPageSize));
  const auto pages = static_cast<int32_t>(reader.Int("num_pages", 1, kMostPages));
  const int64_t kv_heads = reader.Int("num_kv_heads", 1, 1 << 10);
  const int64_t head_dim = reader.Int("head_dim", 2, 1 << 10);
  const double fill = reader.Number("fill");
  const VectorTensor keys = reader.In("append_key", {-1, kv_heads, head_dim});
  const VectorTensor values = reader.In("append_value", keys.shape);
  const std::vector<int32_t> append_indptr = reader.Ints("append_indptr", {-1});
  TM_RETURN_IF_ERROR(reader.status());
  TM_RETURN_IF_ERROR(CheckHeads(kv_heads, kv_heads, head_dim));
  TM_ASSIGN_OR_RETURN(HostPageTables tables, ReadTables(reader, "", "kv_indptr", page_size, pages));
  TM_RETURN_IF_ERROR(AddAppendSlots(append_indptr, page_size, &tables));
  if (static_cast<int64_t>(tables.slots.size()) != keys.shape[0]) {
    return InvalidArgument("in.append_indptr does not end at append_key's rows");
  }
  const KvFormat format = {.element = run.machine().cache,
                           .kv_heads = static_cast<int32_t>(kv_heads),
                           .head_dim = static_cast<int32_t>(head_dim),
                           .page_size = page_size,
                           .order = order};
  TM_RETURN_IF_ERROR(CheckPool(format, pages));
  PagedPool pool(run.machine(), format, pages, fill);
  AppendRows rows;
  rows.keys = keys.values;
  rows.values = values.values;
  rows.slots = tables.slots;
  TM_RETURN_IF_ERROR(Append(run.machine(), is_single ? pool.View() : pool.PairView(), rows));
  std::vector<int32_t> lengths;
  for (int32_t b = 0; b < tables.batch(); ++b) lengths.push_back(tables.Length(b));
  TM_RETURN_IF_ERROR(run.Expect("kv_len", lengths));
  const std::vector<double> numbers = pool.Numbers();
  if (is_single) return run.Expect("kv_data", numbers);
  const auto half = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  TM_RETURN_IF_ERROR(run.Expect("k_data", std::vector<double>(numbers.begin(), half)));
  return run.Expect("v_data", std::vector<double>(half, numbers.end()));
}

Status RunFlashInferAttention(CaseRun& run) {
  CaseReader& reader = run.reader();
  const auto page_size = static_cast<int32_t>(reader.Int("page_size", 1, kMostPageSize));
  const auto pages = static_cast<int32_t>(reader.Int("num_pages", 1, kMostPages));
  const bool causal = reader.Bool("causal");
  const auto window = static_cast<int32_t>(reader.Int("window_left", -1, kMostPosition) + 1);
  const double scale = reader.Positive("sm_scale");
  const VectorTensor q = reader.In("q", {-1, -1, -1});
  TM_RETURN_IF_ERROR(reader.status());
  const VectorTensor k = reader.In("k", {-1, -1, q.shape[2]});
  TM_RETURN_IF_ERROR(reader.status());
  const VectorTensor v = reader.In("v", k.shape);
  const std::vector<int32_t> qo_indptr = reader.Ints("qo_indptr", {-1});
  const std::vector<int32_t> ragged = reader.Ints("ragged_kv_indptr", {-1});
  TM_ASSIGN_OR_RETURN(const HostPageTables listed, ReadTables(reader, "", "kv_indptr", page_size, pages));
  TM_RETURN_IF_ERROR(CheckHeads(q.shape[1], k.shape[1], q.shape[2]));
  TM_RETURN_IF_ERROR(CheckQueries(qo_indptr, listed.batch(), q.shape[0]));
  TM_RETURN_IF_ERROR(CheckIndptr("ragged_kv_indptr", ragged, listed.batch()));
  TM_ASSIGN_OR_RETURN(std::optional<RaggedMask> mask,
                      ReadMask(reader, LengthsOf(qo_indptr), LengthsOf(ragged)));
  const bool by_window = !mask && causal;
  if (!mask && !causal) {
    TM_ASSIGN_OR_RETURN(mask, AlignedMask(LengthsOf(qo_indptr), LengthsOf(ragged), false, window));
  }
  for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
    const KvFormat format = {.element = run.machine().cache,
                             .kv_heads = static_cast<int32_t>(k.shape[1]),
                             .head_dim = static_cast<int32_t>(q.shape[2]),
                             .page_size = page_size,
                             .order = order};
    TM_RETURN_IF_ERROR(CheckPool(format, pages));
    PagedPool pool(run.machine(), format, pages, kNan);
    HostPageTables tables = listed;
    TM_RETURN_IF_ERROR(Place(run.machine(), pool.View(), ragged, k, v.values, &tables));
    TM_RETURN_IF_ERROR(ExpectAttention(run, pool.View(), tables,
                                       {.query_heads = static_cast<int32_t>(q.shape[1]),
                                        .queries = q.values,
                                        .qo_indptr = qo_indptr,
                                        .window = by_window ? window : 0,
                                        .scale = scale,
                                        .mask = mask ? &*mask : nullptr},
                                       by_window));
  }
  return Status::Ok();
}

Status RunFlashInferMla(CaseRun& run) {
  CaseReader& reader = run.reader();
  const auto page_size = static_cast<int32_t>(reader.Int("page_size", 1, kMostPageSize));
  const auto pages = static_cast<int32_t>(reader.Int("num_pages", 1, kMostPages));
  const int64_t ckv_dim = reader.Int("head_dim_ckv", 2, 1 << 10);
  const int64_t kpe_dim = reader.Int("head_dim_kpe", 0, 1 << 10);
  const bool causal = reader.Bool("causal");
  const double scale = reader.Positive("sm_scale");
  const double fill = reader.Has("fill") ? reader.Number("fill") : kNan;
  const VectorTensor q_nope = reader.In("q_nope", {-1, -1, ckv_dim});
  const VectorTensor q_pe = reader.In("q_pe", {q_nope.shape[0], q_nope.shape[1], kpe_dim});
  const VectorTensor ckv = reader.In("ckv", {-1, ckv_dim});
  const VectorTensor kpe = reader.In("kpe", {ckv.shape[0], kpe_dim});
  const std::vector<int32_t> qo_indptr = reader.Ints("qo_indptr", {-1});
  const std::vector<int32_t> ragged = reader.Ints("ragged_kv_indptr", {-1});
  TM_ASSIGN_OR_RETURN(HostPageTables tables, ReadTables(reader, "", "kv_indptr", page_size, pages));
  TM_RETURN_IF_ERROR(CheckHeads(q_nope.shape[1], 1, ckv_dim + kpe_dim));
  TM_RETURN_IF_ERROR(CheckQueries(qo_indptr, tables.batch(), q_nope.shape[0]));
  // Both parts of a row side by side.
  const auto joined = [](const VectorTensor& first, const VectorTensor& second, int64_t a, int64_t b) {
    std::vector<double> rows;
    const int64_t count = a == 0 ? 0 : first.size() / a;
    for (int64_t row = 0; row < count; ++row) {
      rows.insert(rows.end(), first.values.begin() + row * a, first.values.begin() + (row + 1) * a);
      rows.insert(rows.end(), second.values.begin() + row * b, second.values.begin() + (row + 1) * b);
    }
    return rows;
  };
  const KvFormat format = {.element = run.machine().cache,
                           .kv_heads = 1,
                           .head_dim = static_cast<int32_t>(ckv_dim + kpe_dim),
                           .page_size = page_size,
                           .order = KvOrder::kNhd,
                           .latent_value_dim = static_cast<int32_t>(ckv_dim)};
  AttentionCase attention = {.query_heads = static_cast<int32_t>(q_nope.shape[1]),
                             .queries = joined(q_nope, q_pe, ckv_dim, kpe_dim),
                             .qo_indptr = qo_indptr,
                             .scale = scale};
  if (std::string limit = AttentionLimit(run.machine(), format, attention); !limit.empty()) {
    run.Skip(std::move(limit));
    return Status::Ok();
  }
  TM_RETURN_IF_ERROR(CheckPool(format, pages));
  PagedPool pool(run.machine(), format, pages, fill);
  const VectorTensor keys = {
      .type = ckv.type, .shape = {ckv.shape[0]}, .values = joined(ckv, kpe, ckv_dim, kpe_dim)};
  TM_RETURN_IF_ERROR(Place(run.machine(), pool.View(), ragged, keys, {}, &tables));
  TM_RETURN_IF_ERROR(run.ExpectIfGiven("mla_paged_kv_cache", pool.Numbers()));
  RaggedMask mask;
  if (!causal) {
    TM_ASSIGN_OR_RETURN(mask, AlignedMask(LengthsOf(qo_indptr), LengthsOf(ragged), false, 0));
    attention.mask = &mask;
  }
  return ExpectAttention(run, pool.View(), tables, attention, causal);
}

Status RunFlashInferCascade(CaseRun& run) {
  CaseReader& reader = run.reader();
  const int64_t levels = reader.Int("num_levels", 1, 64);
  const auto page_size = static_cast<int32_t>(reader.Int("page_size", 1, kMostPageSize));
  const auto pages = static_cast<int32_t>(reader.Int("num_pages", 1, kMostPages));
  const auto window = static_cast<int32_t>(reader.Int("window", 0, kMostPosition));
  const double scale = reader.Positive("sm_scale");
  const VectorTensor q = reader.In("q", {-1, -1, -1});
  const std::vector<int32_t> row_position = reader.Ints("row_position", {q.shape[0]});
  TM_RETURN_IF_ERROR(reader.status());
  const int64_t rows = q.shape[0];
  const auto query_heads = static_cast<int32_t>(q.shape[1]);
  std::optional<PagedPool> pool;  // one of all levels
  std::vector<CascadeLevel> nodes;
  std::vector<std::vector<float>> outs, lses;
  for (int64_t level = 0; level < levels; ++level) {
    const std::string prefix = "level" + std::to_string(level) + ".";
    const std::vector<int32_t> qo_indptr = reader.Ints(prefix + "qo_indptr", {-1});
    const std::vector<int32_t> first_position = reader.Ints(prefix + "first_position", {-1});
    const std::vector<int32_t> ragged = reader.Ints(prefix + "ragged_kv_indptr", {-1});
    const VectorTensor k = reader.In(prefix + "k", {-1, -1, q.shape[2]});
    TM_RETURN_IF_ERROR(reader.status());
    const VectorTensor v = reader.In(prefix + "v", k.shape);
    TM_ASSIGN_OR_RETURN(HostPageTables tables,
                        ReadTables(reader, prefix, "kv_page_indptr", page_size, pages));
    TM_RETURN_IF_ERROR(CheckHeads(query_heads, k.shape[1], q.shape[2]));
    TM_RETURN_IF_ERROR(CheckQueries(qo_indptr, tables.batch(), rows));
    TM_RETURN_IF_ERROR(CheckIndptr("ragged_kv_indptr", ragged, tables.batch()));
    const KvFormat format = {.element = run.machine().cache,
                             .kv_heads = static_cast<int32_t>(k.shape[1]),
                             .head_dim = static_cast<int32_t>(q.shape[2]),
                             .page_size = page_size};
    std::vector<std::vector<int32_t>> positions;
    for (size_t node = 1; node < qo_indptr.size(); ++node) {
      positions.emplace_back(row_position.begin() + qo_indptr[node - 1],
                             row_position.begin() + qo_indptr[node]);
    }
    TM_ASSIGN_OR_RETURN(const RaggedMask mask,
                        PositionMask(positions, first_position, LengthsOf(ragged), window));
    const AttentionCase attention = {.query_heads = query_heads,
                                     .queries = q.values,
                                     .qo_indptr = qo_indptr,
                                     .scale = scale,
                                     .mask = &mask};
    if (std::string limit = AttentionLimit(run.machine(), format, attention); !limit.empty()) {
      run.Skip(std::move(limit));
      return Status::Ok();
    }
    TM_RETURN_IF_ERROR(CheckPool(format, pages));
    if (!pool) pool.emplace(run.machine(), format, pages, kNan);
    if (format.kv_heads != pool->format().kv_heads) {
      return InvalidArgument("has other heads than the level before").WithField("in." + prefix + "k");
    }
    TM_RETURN_IF_ERROR(Place(run.machine(), pool->View(), ragged, k, v.values, &tables));
    TM_ASSIGN_OR_RETURN(const AttentionResult result, Attend(run.machine(), pool->View(), tables, attention));
    TM_RETURN_IF_ERROR(run.ExpectIfGiven(prefix + "lse", result.lse));
    outs.emplace_back(result.out.begin(), result.out.end());
    lses.emplace_back(result.lse.begin(), result.lse.end());
    nodes.push_back({qo_indptr, first_position, std::move(tables)});
  }
  std::vector<PartialAttention> parts;
  for (size_t level = 0; level < outs.size(); ++level) {
    parts.push_back({outs[level].data(), lses[level].data()});
  }
  std::vector<float> out(q.values.size()), lse(static_cast<size_t>(rows * query_heads));
  MergeByLse(parts, rows * query_heads, static_cast<int32_t>(q.shape[2]), out.data(), lse.data());
  TM_RETURN_IF_ERROR(run.Expect("o", std::vector<double>(out.begin(), out.end())));
  TM_RETURN_IF_ERROR(run.Expect("lse", std::vector<double>(lse.begin(), lse.end())));
  const std::optional<HostPageTables> tables_of_rows = TablesOfRows(nodes, row_position, page_size);
  if (!tables_of_rows || rows == 0) return Status::Ok();
  return ExpectSharedAttention(
      run, pool->View(), *tables_of_rows,
      {.query_heads = query_heads, .queries = q.values, .window = window, .scale = scale});
}

}  // namespace tramontane::kv_vectors
