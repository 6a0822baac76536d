#include "tests/kv_vectors/paged_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace tramontane::kv_vectors {
namespace {

// Memory of the attention op for one case, and no more rows than there are.
Status ReserveFor(Machine& machine, const KvFormat& format, const HostPageTables& tables, int32_t query_heads,
                  int64_t rows) {
  StepMaxima maxima;
  maxima.tokens = static_cast<int32_t>(std::max<int64_t>(rows, 1));
  maxima.sequences = std::max(tables.batch(), 1);
  maxima.query_heads = std::max(query_heads, format.kv_heads);
  maxima.kv_heads = format.kv_heads;
  maxima.head_dim = format.head_dim;
  maxima.context = 1;
  for (int32_t b = 0; b < tables.batch(); ++b) {
    maxima.context = std::max<int64_t>(maxima.context, tables.Length(b));
  }
  return OpStatus(machine, machine.backend->Reserve(maxima), "Reserve");
}

// The page tables on the machine; pages of sinks behind all others.
class DeviceTables {
 public:
  DeviceTables(Machine& machine, const HostPageTables& tables, const std::vector<int32_t>& sink_pages = {})
      : page_indices_(machine, Joined(tables.page_indices, sink_pages)),
        first_entry_(machine, tables.first_entry),
        kv_base_(machine, tables.kv_base),
        kv_end_(machine, tables.kv_end),
        sink_entry_(machine, {static_cast<int32_t>(tables.page_indices.size())}),
        has_sinks_(!sink_pages.empty()) {}

  PageTableView View() const {
    return {.page_indices = page_indices_.data(),
            .first_entry = first_entry_.data(),
            .kv_base = kv_base_.data(),
            .kv_end = kv_end_.data(),
            .sink_entry = has_sinks_ ? sink_entry_.data() : nullptr};
  }

 private:
  static std::vector<int32_t> Joined(std::vector<int32_t> pages, const std::vector<int32_t>& more) {
    pages.insert(pages.end(), more.begin(), more.end());
    return pages;
  }

  DeviceList<int32_t> page_indices_, first_entry_, kv_base_, kv_end_, sink_entry_;
  const bool has_sinks_;
};

// cos and sin of the rows' positions.
class Angles {
 public:
  Angles(Machine& machine, double theta, int32_t head_dim, const std::vector<int32_t>& positions)
      : cos_sin_(machine, std::vector<float>(positions.size() * static_cast<size_t>(head_dim))) {
    std::vector<double> frequencies;
    for (int32_t j = 0; j < head_dim / 2; ++j) {
      frequencies.push_back(std::pow(theta, -2.0 * j / head_dim));
    }
    const DeviceList<int32_t> where(machine, positions);
    const DeviceList<double> inverse_frequency(machine, frequencies);
    status_ = OpStatus(machine,
                       machine.backend->RopeTable({.positions = where.data(),
                                                   .tokens = static_cast<int32_t>(positions.size()),
                                                   .inverse_frequency = inverse_frequency.data(),
                                                   .half_dim = head_dim / 2,
                                                   .cos_sin = cos_sin_.data()}),
                       "RopeTable");
    cos_sin_.Get();  // the op has run before its inputs go
  }
  const Status& status() const { return status_; }
  const float* data() const { return cos_sin_.data(); }

 private:
  DeviceList<float> cos_sin_;
  Status status_;
};

}  // namespace

PagedPool::PagedPool(Machine& machine, const KvFormat& format, int32_t pages, double fill)
    : format_(format),
      pages_(pages),
      numbers_(machine, format.element.dtype,
               std::vector<double>(static_cast<size_t>(pages * format.LayerBytes() / format.element.Bytes(1)),
                                   fill)) {}

KvLayerView PagedPool::PairView() const {
  return FlashInferView(format_, numbers_.data(), numbers_.data() + pages_ * format_.HalfLayerBytes());
}

Status CopyPages(Machine& machine, const PagedPool& pool, const std::vector<PageCopy>& copies) {
  if (copies.empty()) return Status::Ok();
  std::vector<int32_t> pairs;
  for (const PageCopy& copy : copies) pairs.insert(pairs.end(), {copy.from, copy.to});
  const DeviceList<int32_t> device_pairs(machine, pairs);
  return OpStatus(machine,
                  machine.backend->CopyPages({.pool = pool.View().pool,
                                              .page_bytes = pool.format().LayerBytes(),
                                              .pairs = device_pairs.data(),
                                              .count = static_cast<int32_t>(copies.size())}),
                  "CopyPages");
}

StatusOr<TurnedQueries> Append(Machine& machine, const KvLayerView& view, const AppendRows& rows) {
  const KvFormat& format = view.format;
  const auto count = static_cast<int64_t>(rows.slots.size());
  const int64_t query_columns = int64_t{rows.query_heads} * format.head_dim;
  const int64_t key_columns = int64_t{format.kv_heads} * format.head_dim;
  std::vector<double> qkv;
  for (int64_t row = 0; row < count; ++row) {
    const auto take = [&](const std::vector<double>& from, int64_t columns) {
      qkv.insert(qkv.end(), from.begin() + row * columns, from.begin() + (row + 1) * columns);
    };
    if (rows.query_heads > 0) take(rows.queries, query_columns);
    take(rows.keys, key_columns);
    if (!format.latent()) take(rows.values, key_columns);
  }
  TurnedQueries turned;
  if (count == 0) return turned;
  const int64_t columns = query_columns + format.Halves() * key_columns;
  const DeviceNumbers device_rows(machine, machine.activation(), qkv);
  const DeviceList<int64_t> slots(machine, rows.slots);
  const DeviceNumbers sink_queries(
      machine, machine.activation(),
      std::vector<double>(rows.rotation.sink_positions.empty() ? 0
                                                               : static_cast<size_t>(count * query_columns)));
  std::optional<Angles> angles, sink_angles;
  const Rotation& rotation = rows.rotation;
  if (rotation.theta > 0) {
    angles.emplace(machine, rotation.theta, format.head_dim, rotation.positions);
    TM_RETURN_IF_ERROR(angles->status());
  }
  if (!rotation.sink_positions.empty()) {
    sink_angles.emplace(machine, rotation.theta, format.head_dim, rotation.sink_positions);
    TM_RETURN_IF_ERROR(sink_angles->status());
  }
  TM_RETURN_IF_ERROR(
      OpStatus(machine,
               machine.backend->RopeAppend({.qkv = device_rows.Rows(count, columns),
                                            .cos_sin = angles ? angles->data() : nullptr,
                                            .style = rotation.style,
                                            .query_heads = rows.query_heads,
                                            .kv = view,
                                            .slots = slots.data(),
                                            .query_scale = nullptr,
                                            .sink_cos_sin = sink_angles ? sink_angles->data() : nullptr,
                                            .sink_query = sink_queries.Rows(count, query_columns)}),
               "RopeAppend"));
  const std::vector<double> out = device_rows.Get();
  for (int64_t row = 0; row < count; ++row) {
    turned.queries.insert(turned.queries.end(), out.begin() + row * columns,
                          out.begin() + row * columns + query_columns);
  }
  turned.sink_queries = sink_queries.Get();
  return turned;
}

StatusOr<GatheredRows> Gather(Machine& machine, const KvLayerView& view, const HostPageTables& tables,
                              int32_t repeat, DType out) {
  std::vector<int32_t> indptr = {0};
  for (int32_t b = 0; b < tables.batch(); ++b) {
    indptr.push_back(indptr.back() + tables.Length(b));
  }
  const int64_t rows = indptr.back(), heads = int64_t{view.format.kv_heads} * repeat;
  const int64_t key_columns = heads * view.format.head_dim, value_columns = heads * view.format.ValueDim();
  const DeviceTables device_tables(machine, tables);
  const DeviceList<int32_t> out_indptr(machine, indptr);
  const DeviceNumbers key(machine, out, std::vector<double>(static_cast<size_t>(rows * key_columns)));
  const DeviceNumbers value(machine, out, std::vector<double>(static_cast<size_t>(rows * value_columns)));
  TM_RETURN_IF_ERROR(OpStatus(machine,
                              machine.backend->GatherKv({.kv = view,
                                                         .table = device_tables.View(),
                                                         .out_indptr = out_indptr.data(),
                                                         .batch = tables.batch(),
                                                         .repeat = repeat,
                                                         .key = key.Rows(rows, key_columns),
                                                         .value = value.Rows(rows, value_columns)}),
                              "GatherKv"));
  return GatheredRows{key.Get(), value.Get()};
}

std::string AttentionLimit(const Machine& machine, const KvFormat& format, const AttentionCase& attention) {
  if (machine.is_cpu) return "";
  constexpr int32_t kMostGroup = 16;
  const int32_t dim = format.head_dim;
  if (format.latent()) {
    const int32_t value_dim = format.latent_value_dim;
    if (dim % 8 == 0 && value_dim % 8 == 0 && dim <= 576 && value_dim <= 512) return "";
    return "latent rows of " + std::to_string(dim) + " lanes with values of " + std::to_string(value_dim) +
           ", not multiples of 8 up to 576 and 512";
  }
  if (dim != 32 && dim != 64 && dim != 96 && dim != 128) {
    return "head_dim is " + std::to_string(dim) + ", not 32, 64, 96 or 128";
  }
  const int32_t group = attention.query_heads / format.kv_heads;
  if (group > kMostGroup) return "a group of " + std::to_string(group) + " query heads, the most is 16";
  return "";
}

StatusOr<AttentionResult> Attend(Machine& machine, const KvLayerView& view, const HostPageTables& tables,
                                 const AttentionCase& attention) {
  const KvFormat& format = view.format;
  const int64_t rows = attention.qo_indptr.back();
  TM_RETURN_IF_ERROR(ReserveFor(machine, format, tables, attention.query_heads, rows));
  const int64_t columns = int64_t{attention.query_heads} * format.head_dim;
  const int64_t out_columns = int64_t{attention.query_heads} * format.ValueDim();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const DeviceTables device_tables(machine, tables, attention.sink_pages);
  const DeviceNumbers queries(machine, machine.activation(), attention.queries);
  const DeviceNumbers sink_queries(machine, machine.activation(), attention.sink_queries);
  const DeviceNumbers out(machine, machine.activation(),
                          std::vector<double>(static_cast<size_t>(rows * out_columns), nan));
  const DeviceNumbers lse(machine, DType::kF32,
                          std::vector<double>(static_cast<size_t>(rows * attention.query_heads), nan));
  const DeviceList<int32_t> qo_indptr(machine, attention.qo_indptr);
  const PackedMask packed = attention.mask == nullptr ? PackedMask{} : PackSegments(*attention.mask);
  const DeviceList<uint8_t> bits(machine, packed.bits);
  const DeviceList<int32_t> mask_indptr(machine, packed.indptr);
  const DeviceList<int32_t> sink_len(machine, attention.sink_len), left(machine, attention.left),
      sink_query_position(machine, attention.sink_query_position);

  AttentionParams params;
  params.query = queries.Rows(rows, columns);
  params.out = out.Rows(rows, out_columns);
  params.kv = view;
  params.table = device_tables.View();
  params.qo_indptr = qo_indptr.data();
  params.batch = tables.batch();
  params.query_heads = attention.query_heads;
  params.window = attention.window;
  params.scale = static_cast<float>(attention.scale);
  if (attention.mask != nullptr) params.mask = {.bits = bits.data(), .indptr = mask_indptr.data()};
  if (!attention.sink_len.empty()) {
    params.sinks = {.len = sink_len.data(),
                    .left = left.data(),
                    .query_position = sink_query_position.data(),
                    .query = sink_queries.Rows(rows, columns),
                    .windowed = attention.sinks_windowed ? 1 : 0};
  }
  params.lse = reinterpret_cast<float*>(lse.data());
  TM_RETURN_IF_ERROR(OpStatus(machine, machine.backend->Attention(params), "Attention"));
  return AttentionResult{out.Get(), lse.Get()};
}

}  // namespace tramontane::kv_vectors
