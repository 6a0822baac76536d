// OpenPPL's KeyValueCache: views of a foreign buffer, through the same append and gather; rows of int8, which
// nothing quantises, as bytes.
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/kv_rows.h"
#include "tests/kv_vectors/kinds.h"
#include "tests/kv_vectors/paged_run.h"

namespace tramontane::kv_vectors {

using nlohmann::json;

namespace {

constexpr const char* kT1IsInt8 = "t1 is int8, and quant_bit 0";

// Where tokens, heads and X stand in a layout's shape.
struct LayoutAxes {
  size_t layers, halves, tokens, heads;
};
constexpr LayoutAxes kAxes[] = {{1, 2, 0, 3}, {0, 2, 1, 3}, {0, 1, 2, 3}, {0, 1, 3, 2}};

OpenPplAttributes ReadAttributes(CaseReader& reader) {
  constexpr int64_t kMost = 1 << 20;
  const auto read = [&](const char* name, int64_t least) {
    return static_cast<int32_t>(reader.Int(name, least, kMost));
  };
  OpenPplAttributes attributes;
  attributes.num_layer = read("num_layer", 1);
  attributes.layer_idx = read("layer_idx", 0);
  attributes.quant_bit = read("quant_bit", 0);
  if (attributes.quant_bit != 0) attributes.quant_group = read("quant_group", 1);
  attributes.num_repeat = read("num_repeat", 1);
  attributes.cache_mode = static_cast<int32_t>(reader.Int("cache_mode", 0, 1));
  attributes.cache_layout = static_cast<int32_t>(reader.Int("cache_layout", 0, 3));
  if (attributes.cache_mode == 1) attributes.page_size = read("page_size", 1);
  return attributes;
}

// Of keys and values, in the file's words or the operator's.
DType ReadT1(CaseReader& reader) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kInt8};
  return kTypes[reader.OneOf("t1", {"f32", "f16", "i8", "float32", "float16", "int8"}) % std::size(kTypes)];
}

// Of scales.
DType ReadT3(CaseReader& reader) {
  return reader.OneOf("t3", {"f32", "f16", "float32", "float16"}) % 2 == 0 ? DType::kF32 : DType::kF16;
}

// What rows are stored as where nothing is quantised. A cache that the file writes as i8 with a scale stands
// for numbers of T1.
Format PlainRows(DType t1, const VectorTensor& cache) {
  if (t1 == DType::kInt8) return kBareInt8;
  if (cache.type == ElementType::kF32) return DType::kF32;
  return cache.type == ElementType::kF16 ? DType::kF16 : t1;
}

bool IsOfBytes(const Format& row) { return row == kBareInt8 || row.companion_bytes > 0; }

// Whether each number of the tensor is one byte. `why` it has to be.
Status CheckInt8(const std::string& field, const VectorTensor& tensor, const std::string& why) {
  if (tensor.type != ElementType::kI8) {
    return InvalidArgument(std::string("is ") + ElementTypeName(tensor.type) + ", not i8: " + why)
        .WithField(field + ".dtype", FieldForm::kSubject);
  }
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const double value = tensor.values[i];
    if (value >= -128 && value <= 127 && value == static_cast<int>(value)) continue;
    return InvalidArgument("is " + NumberText(value) + ", no whole number of -128 to 127: " + why)
        .WithField(field + IndexText(tensor.shape, static_cast<int64_t>(i)), FieldForm::kSubject);
  }
  return Status::Ok();
}

std::vector<std::byte> BytesOf(const Format& row, const std::vector<double>& values) {
  if (!IsOfBytes(row)) return EncodeNumbers(row.dtype, values);
  std::vector<std::byte> bytes;
  for (const double value : values) bytes.push_back(static_cast<std::byte>(static_cast<int>(value)));
  return bytes;
}

std::vector<double> NumbersOf(const Format& row, const std::vector<std::byte>& bytes) {
  if (!IsOfBytes(row)) return DecodeNumbers(row.dtype, bytes);
  std::vector<double> values;
  for (const std::byte byte : bytes) values.push_back(static_cast<int8_t>(byte));
  return values;
}

// Rows of int8 by themselves, of memory of the host as the CPU backend's buffers are.
class Int8Rows {
 public:
  Int8Rows(const KvFormat& of, int64_t rows)
      : format_(FormatOfRows(of, rows)), bytes_(static_cast<size_t>(format_.LayerBytes())) {}

  KvLayerView View() { return KvLayerView(format_, bytes_.data(), format_.LayerBytes()); }

  // Row i from the cache's slot slots[i], or to it.
  void Load(const KvLayerView& cache, const std::vector<int64_t>& slots) { Copy(cache, slots, false); }
  void Store(const KvLayerView& cache, const std::vector<int64_t>& slots) { Copy(cache, slots, true); }

 private:
  void Copy(const KvLayerView& cache, const std::vector<int64_t>& slots, bool to_cache) {
    const KvPagesFrom own = {.pages = View()};
    for (int64_t row = 0; row < std::ssize(slots); ++row) {
      const KvPagesFrom there = {.pages = cache, .base = row - slots[static_cast<size_t>(row)]};
      CopyKvRows(to_cache ? own : there, to_cache ? there : own, row, row + 1);
    }
  }

  KvFormat format_;
  std::vector<std::byte> bytes_;
};

void StoreInt8(const KvLayerView& cache, const AppendRows& rows) {
  if (rows.slots.empty()) return;
  const KvFormat& format = cache.format;
  Int8Rows stored(format, std::ssize(rows.slots));
  const KvLayerView view = stored.View();
  // FormatOfRows: the heads of a row, and the rows, lie side by side.
  std::memcpy(view.Key(0, 0, 0), BytesOf(format.element, rows.keys).data(), rows.keys.size());
  std::memcpy(view.Value(0, 0, 0), BytesOf(format.element, rows.values).data(), rows.values.size());
  stored.Store(cache, rows.slots);
}

GatheredRows LoadInt8(const KvLayerView& cache, const HostPageTables& tables, int32_t repeat) {
  const KvFormat& format = cache.format;
  std::vector<int64_t> slots;
  for (int32_t b = 0; b < tables.batch(); ++b) {
    const PagesOfSequence pages = PagesOf(tables.View(), b);
    for (int64_t position = 0; position < tables.Length(b); ++position) {
      slots.push_back(SlotOf(pages[PageOf(position, 0, format.page_size)], position, format.page_size));
    }
  }
  GatheredRows gathered;
  if (slots.empty()) return gathered;
  Int8Rows loaded(format, std::ssize(slots));
  loaded.Load(cache, slots);
  const KvLayerView view = loaded.View();
  const auto add = [&](const std::byte* vector, std::vector<double>* numbers) {
    for (int32_t d = 0; d < format.head_dim; ++d) numbers->push_back(static_cast<int8_t>(vector[d]));
  };
  for (int32_t row = 0; row < std::ssize(slots); ++row) {
    for (int64_t head = 0; head < int64_t{format.kv_heads} * repeat; ++head) {
      const auto kv_head = static_cast<int32_t>(head / repeat);
      add(view.Key(0, kv_head, row), &gathered.key);
      add(view.Value(0, kv_head, row), &gathered.value);
    }
  }
  return gathered;
}

StatusOr<GatheredRows> AppendAndGather(CaseRun& run, const KvLayerView& view, const AppendRows& rows,
                                       const HostPageTables& tables, int32_t repeat, DType t1) {
  if (t1 == DType::kInt8) {
    StoreInt8(view, rows);
    return LoadInt8(view, tables, repeat);
  }
  TM_RETURN_IF_ERROR(Append(run.machine(), view, rows));
  return Gather(run.machine(), view, tables, repeat, t1);
}

Status RunCall(CaseRun& run, const OpenPplAttributes& attributes, OpenPplShape shape, DType t1,
               const KvLayerView& view, const json& call, size_t index) {
  static const json kNothing = json::object();
  const std::string name = FieldElement("calls", index);
  if (!call.is_object() || !call.contains("in") || !call.contains("out")) {
    return InvalidArgument("has no in and out").WithField(name, FieldForm::kSubject);
  }
  CaseReader reader(kNothing, call["in"]);
  const VectorTensor keys = reader.In("current_key", {-1, shape.kv_heads, shape.head_dim});
  const VectorTensor values = reader.In("current_value", keys.shape);
  OpenPplInputs inputs;
  inputs.start_pos = reader.Longs("start_pos", {-1});
  const auto batch = static_cast<int64_t>(inputs.start_pos.size());
  inputs.seqstarts = reader.Longs("seqstarts", {batch + 1});
  inputs.kvstarts = reader.Longs("kvstarts", {batch + 1});
  inputs.cachestarts = attributes.cache_mode == 0 ? reader.Longs("cachestarts", {batch})
                                                  : reader.Longs("cachestarts", {batch, -1});
  const std::vector<int64_t> max_seqlen = reader.Longs("max_seqlen", {});
  const std::vector<int64_t> max_kvlen = reader.Longs("max_kvlen", {});
  if (!reader.status().ok()) return Status(reader.status()).InField(name);
  inputs.max_seqlen = max_seqlen[0];
  inputs.max_kvlen = max_kvlen[0];
  if (t1 == DType::kInt8) {
    TM_RETURN_IF_ERROR(CheckInt8(name + ".in.current_key", keys, kT1IsInt8));
    TM_RETURN_IF_ERROR(CheckInt8(name + ".in.current_value", values, kT1IsInt8));
  }
  shape.current_rows = keys.shape[0];
  StatusOr<HostPageTables> tables = OpenPplTables(attributes, inputs, shape);
  if (!tables.ok()) return Status(tables.status()).InField(name + ".in");

  AppendRows rows;
  rows.keys = keys.values;
  rows.values = values.values;
  rows.slots = tables->slots;
  TM_ASSIGN_OR_RETURN(const GatheredRows gathered,
                      AppendAndGather(run, view, rows, *tables, attributes.num_repeat, t1));
  for (const auto& [key, value] : call["out"].items()) {
    const std::string field = name + ".out." + key;
    if (key != "key" && key != "value") {
      return InvalidArgument("is no output of this kind").WithField(field, FieldForm::kSubject);
    }
    StatusOr<VectorTensor> want = ReadTensor(value);
    if (!want.ok()) return Status(want.status()).InField(field);
    TM_RETURN_IF_ERROR(Compare(field, *want, key == "key" ? gathered.key : gathered.value, {}));
  }
  return call["out"].size() == 2
             ? Status::Ok()
             : InvalidArgument("lacks key or value").WithField(name + ".out", FieldForm::kSubject);
}

}  // namespace

Status RunOpenPplKeyValueCache(CaseRun& run) {
  CaseReader& reader = run.reader();
  const OpenPplAttributes attributes = ReadAttributes(reader);
  const DType t1 = ReadT1(reader);
  const DType t3 = attributes.quant_bit == 0 ? DType::kF32 : ReadT3(reader);
  const VectorTensor cache = reader.In("cache", {-1, -1, -1, -1, -1});
  TM_RETURN_IF_ERROR(reader.status());
  if (!run.machine().is_cpu) {
    run.Skip("its rows are f32, f16 or int8, the CUDA kernels take bf16");
    return Status::Ok();
  }
  const LayoutAxes axes = kAxes[attributes.cache_layout];
  OpenPplShape shape;
  shape.cache_tokens = cache.shape[axes.tokens];
  shape.kv_heads = static_cast<int32_t>(cache.shape[axes.heads]);
  shape.head_dim = static_cast<int32_t>(cache.shape[4] * (attributes.quant_bit == 4 ? 2 : 1));
  shape.has_scale = reader.HasIn("scale");
  if (cache.shape[axes.layers] != attributes.num_layer || cache.shape[axes.halves] != 2 ||
      shape.kv_heads < 1 || shape.head_dim < 2 || shape.head_dim % 2 != 0) {
    return InvalidArgument("is no cache of " + std::to_string(attributes.num_layer) + " layers in layout " +
                           std::to_string(attributes.cache_layout))
        .WithField("in.cache.shape", FieldForm::kSubject);
  }
  TM_ASSIGN_OR_RETURN(const Format row, OpenPplRowFormat(attributes, shape, PlainRows(t1, cache), t3));
  const bool quantised = attributes.quant_bit != 0;
  if (IsOfBytes(row)) {
    const std::string why = quantised ? "quant_bit is " + std::to_string(attributes.quant_bit) : kT1IsInt8;
    TM_RETURN_IF_ERROR(CheckInt8("in.cache", cache, why));
  }
  const std::vector<std::byte> cache_bytes = BytesOf(row, cache.values);
  const DeviceBytes device_cache(run.machine(), cache_bytes.data(), static_cast<int64_t>(cache_bytes.size()));
  std::optional<DeviceNumbers> scale;
  if (quantised) {
    std::vector<int64_t> scale_shape = cache.shape;
    scale_shape[4] = shape.head_dim / attributes.quant_group;
    const VectorTensor scales = reader.In("scale", scale_shape);
    TM_RETURN_IF_ERROR(reader.status());
    scale.emplace(run.machine(), t3, scales.values);
  }
  TM_ASSIGN_OR_RETURN(const KvLayerView view, OpenPplView(attributes, shape, row, device_cache.data(),
                                                          scale ? scale->data() : nullptr));
  const json calls = run.body().contains("calls") ? run.body()["calls"] : json();
  if (!calls.is_array() || calls.empty()) return InvalidArgument("calls is no list of calls");
  for (size_t i = 0; i < calls.size(); ++i) {
    TM_RETURN_IF_ERROR(RunCall(run, attributes, shape, t1, view, calls[i], i));
  }
  std::vector<std::byte> after(cache_bytes.size());
  device_cache.Download(after.data(), static_cast<int64_t>(after.size()));
  TM_RETURN_IF_ERROR(run.Expect("cache", NumbersOf(row, after)));
  return scale ? run.Expect("scale", scale->Get()) : Status::Ok();
}

}  // namespace tramontane::kv_vectors
