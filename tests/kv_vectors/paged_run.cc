#include "tests/kv_vectors/paged_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "tests/kv_vectors/vector_file.h"

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

// The page tables on the machine.
class DeviceTables {
 public:
  DeviceTables(Machine& machine, const HostPageTables& tables)
      : page_indices_(machine, tables.page_indices),
        first_entry_(machine, tables.first_entry),
        kv_base_(machine, tables.kv_base),
        kv_end_(machine, tables.kv_end) {}

  PageTableView View() const {
    return {.page_indices = page_indices_.data(),
            .first_entry = first_entry_.data(),
            .kv_base = kv_base_.data(),
            .kv_end = kv_end_.data()};
  }

 private:
  DeviceList<int32_t> page_indices_, first_entry_, kv_base_, kv_end_;
};

std::vector<double> FrequenciesOf(double theta, int32_t head_dim) {
  std::vector<double> frequencies;
  for (int32_t j = 0; j < head_dim / 2; ++j) frequencies.push_back(std::pow(theta, -2.0 * j / head_dim));
  return frequencies;
}

}  // namespace

Status CheckPool(const KvFormat& format, int64_t pages) {
  const int64_t of_page = format.LayerBytes() / format.element.Bytes(1);
  if (pages <= kMaxTensorElements / of_page) return Status::Ok();
  return InvalidArgument("is " + std::to_string(pages) + " pages of " + std::to_string(of_page) +
                         " numbers; a pool has at most " + std::to_string(kMaxTensorElements))
      .WithField("num_pages", FieldForm::kSubject);
}

PagedPool::PagedPool(Machine& machine, const KvFormat& format, int32_t pages, double fill)
    : format_(format),
      pages_(pages),
      numbers_(machine, format.element.dtype,
               std::vector<double>(static_cast<size_t>(pages * format.LayerBytes() / format.element.Bytes(1)),
                                   fill)) {}

KvLayerView PagedPool::PairView() const {
  return FlashInferView(format_, numbers_.data(), numbers_.data() + pages_ * format_.HalfLayerBytes());
}

Angles::Angles(Machine& machine, double theta, int32_t head_dim, const int32_t* positions, int64_t rows)
    : inverse_frequency_(machine, FrequenciesOf(theta, head_dim)),
      cos_sin_(machine, std::vector<float>(static_cast<size_t>(rows * head_dim))),
      code_(machine.backend->RopeTable({.positions = positions,
                                        .tokens = static_cast<int32_t>(rows),
                                        .inverse_frequency = inverse_frequency_.data(),
                                        .half_dim = head_dim / 2,
                                        .cos_sin = cos_sin_.data()})) {}

Status Append(Machine& machine, const KvLayerView& view, const AppendRows& rows) {
  const KvFormat& format = view.format;
  const auto count = static_cast<int64_t>(rows.slots.size());
  const int64_t key_columns = int64_t{format.kv_heads} * format.head_dim;
  std::vector<double> kv;
  for (int64_t row = 0; row < count; ++row) {
    const auto take = [&](const std::vector<double>& from) {
      kv.insert(kv.end(), from.begin() + row * key_columns, from.begin() + (row + 1) * key_columns);
    };
    take(rows.keys);
    if (!format.latent()) take(rows.values);
  }
  if (count == 0) return Status::Ok();
  const DeviceNumbers device_rows(machine, machine.activation(), kv);
  const DeviceList<int64_t> slots(machine, rows.slots);
  const Rotation& rotation = rows.rotation;
  const DeviceList<int32_t> positions(machine, rotation.positions);
  std::optional<Angles> angles;
  if (rotation.theta > 0) {
    angles.emplace(machine, rotation.theta, format.head_dim, positions.data(), count);
    TM_RETURN_IF_ERROR(OpStatus(machine, angles->code(), "RopeTable"));
  }
  TM_RETURN_IF_ERROR(
      OpStatus(machine,
               machine.backend->RopeAppend({.qkv = device_rows.Rows(count, format.Halves() * key_columns),
                                            .cos_sin = angles ? angles->data() : nullptr,
                                            .style = rotation.style,
                                            .query_heads = 0,
                                            .kv = view,
                                            .slots = slots.data(),
                                            .query_scale = nullptr}),
               "RopeAppend"));
  device_rows.Get();  // the op has run before its inputs go
  return Status::Ok();
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
  const DeviceTables device_tables(machine, tables);
  const DeviceNumbers queries(machine, machine.activation(), attention.queries);
  const DeviceNumbers out(machine, machine.activation(),
                          std::vector<double>(static_cast<size_t>(rows * out_columns), nan));
  const DeviceNumbers lse(machine, DType::kF32,
                          std::vector<double>(static_cast<size_t>(rows * attention.query_heads), nan));
  const DeviceList<int32_t> qo_indptr(machine, attention.qo_indptr);
  const PackedMask packed = attention.mask == nullptr ? PackedMask{} : PackSegments(*attention.mask);
  const DeviceList<uint8_t> bits(machine, packed.bits);
  const DeviceList<int32_t> mask_indptr(machine, packed.indptr);

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
  params.lse = reinterpret_cast<float*>(lse.data());
  TM_RETURN_IF_ERROR(OpStatus(machine, machine.backend->Attention(params), "Attention"));
  return AttentionResult{out.Get(), lse.Get()};
}

}  // namespace tramontane::kv_vectors
