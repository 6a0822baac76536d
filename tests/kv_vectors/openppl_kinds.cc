// OpenPPL's KeyValueCache: views of a foreign buffer, through the same append and gather.
#include <cstring>
#include <optional>
#include <vector>

#include "tests/kv_vectors/kinds.h"
#include "tests/kv_vectors/paged_run.h"

namespace tramontane::kv_vectors {

using nlohmann::json;

namespace {

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

DType ReadType(CaseReader& reader, const char* attr) {
  return reader.OneOf(attr, {"f32", "f16"}) == 0 ? DType::kF32 : DType::kF16;
}

std::vector<std::byte> BytesOf(bool quantised, DType plain, const std::vector<double>& values) {
  if (!quantised) return EncodeNumbers(plain, values);
  std::vector<std::byte> bytes;
  for (const double value : values) bytes.push_back(static_cast<std::byte>(static_cast<int>(value)));
  return bytes;
}

std::vector<double> NumbersOf(bool quantised, DType plain, const std::vector<std::byte>& bytes) {
  if (!quantised) return DecodeNumbers(plain, bytes);
  std::vector<double> values;
  for (const std::byte byte : bytes) values.push_back(static_cast<int8_t>(byte));
  return values;
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
  shape.current_rows = keys.shape[0];
  StatusOr<HostPageTables> tables = OpenPplTables(attributes, inputs, shape);
  if (!tables.ok()) return Status(tables.status()).InField(name + ".in");

  AppendRows rows;
  rows.keys = keys.values;
  rows.values = values.values;
  rows.slots = tables->slots;
  TM_RETURN_IF_ERROR(Append(run.machine(), view, rows));
  TM_ASSIGN_OR_RETURN(const GatheredRows gathered,
                      Gather(run.machine(), view, *tables, attributes.num_repeat, t1));
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
  const DType t1 = ReadType(reader, "t1");
  const DType t3 = attributes.quant_bit == 0 ? DType::kF32 : ReadType(reader, "t3");
  const VectorTensor cache = reader.In("cache", {-1, -1, -1, -1, -1});
  TM_RETURN_IF_ERROR(reader.status());
  if (!run.machine().is_cpu) {
    run.Skip("its rows are appended from f32 or f16, the CUDA kernels take bf16");
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
  TM_ASSIGN_OR_RETURN(const Format row, OpenPplRowFormat(attributes, shape, t1, t3));
  const bool quantised = attributes.quant_bit != 0;
  if (quantised && cache.type != ElementType::kI8) {
    return InvalidArgument("is not i8, and quant_bit is " + std::to_string(attributes.quant_bit))
        .WithField("in.cache.dtype", FieldForm::kSubject);
  }
  const std::vector<std::byte> cache_bytes = BytesOf(quantised, t1, cache.values);
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
  TM_RETURN_IF_ERROR(run.Expect("cache", NumbersOf(quantised, t1, after)));
  return scale ? run.Expect("scale", scale->Get()) : Status::Ok();
}

}  // namespace tramontane::kv_vectors
