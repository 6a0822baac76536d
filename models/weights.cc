#include "models/weights.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "kernels/core/block_types.h"
#include "models/architecture.h"
#include "models/block.h"
#include "models/gguf/gguf_file.h"
#include "models/left_over_tensors.h"
#include "models/op_status.h"
#include "models/safetensors.h"

namespace tramontane {
namespace {

constexpr TensorName kLayerPrefix = {"model.layers.", "layers.", "blk."};
constexpr TensorName kLmHead = {"lm_head.weight", "output.weight", "output.weight"};
constexpr char kGgufRotaryDivisors[] = "rope_freqs.weight";

// Names of the body start with "model." where a model is text alone.
std::string NameIn(const ModelConfig& config, const TensorName& name) {
  if (config.layout == FolderLayout::kMistral) return name.mistral;
  if (config.layout == FolderLayout::kGguf) return name.gguf;
  constexpr std::string_view kBody = "model.";
  const std::string_view plain = name.hugging_face;
  if (plain.starts_with(kBody)) return config.body_prefix + std::string(plain.substr(kBody.size()));
  return config.head_prefix + std::string(plain);
}

// What one norm vector or router takes of the shared allocation: each begins 64-byte aligned.
int64_t VectorStride(int64_t elements) { return (elements + 15) / 16 * 16; }

WeightUse UseOf(const WeightSpec& spec) {
  if (spec.key.role == WeightRole::kEmbedding) return WeightUse::kTable;
  if (spec.key.role == WeightRole::kLmHead) return WeightUse::kHead;
  return spec.key.expert == kNoExpert ? WeightUse::kLinear : WeightUse::kExpert;
}

int64_t InFeatures(const TensorSpec& spec) {
  return spec.slice.dim == 1 ? spec.slice.end - spec.slice.begin : spec.columns;
}

void ToFloat(const std::byte* data, DType dtype, int64_t count, float* out) {
  if (!Format(dtype).plain()) return DecodeBlocks(dtype, data, count, out);
  if (dtype == DType::kF32) {
    std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, data + 2 * i, sizeof(bits));
    out[i] = dtype == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
  }
}

template <typename Bits>
bool AllFinite(const std::byte* data, int64_t count, Bits exponent) {
  constexpr int64_t kBlock =
      4096;  // elements between two looks at the outcome, so that the inner loop has none
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    bool broken = false;
    for (int64_t i = begin; i < std::min(count, begin + kBlock); ++i) {
      Bits bits = 0;
      std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
      broken |= (bits & exponent) == exponent;
    }
    if (broken) return false;
  }
  return true;
}

// Of numbers in blocks only the f16 scales can be anything else than finite.
bool AllScalesFinite(const std::byte* data, DType dtype, int64_t count) {
  const Format format = dtype;
  const bool one = dtype == DType::kQ8_0 || dtype == DType::kQ4_0 || dtype == DType::kQ5_0;
  const int64_t at = dtype == DType::kQ6K ? format.block_bytes - 2 : 0;
  for (int64_t k = 0; k < count; k += format.block_size()) {
    if (!AllFinite<uint16_t>(data + format.Bytes(k) + at, one || at > 0 ? 1 : 2, 0x7c00)) return false;
  }
  return true;
}

// NaN and the infinities are the values whose exponent is all ones.
bool AllFiniteHere(const std::byte* data, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return AllFinite<uint32_t>(data, count, 0x7f800000);
    case DType::kBf16:
      return AllFinite<uint16_t>(data, count, 0x7f80);
    case DType::kF16:
      return AllFinite<uint16_t>(data, count, 0x7c00);
    default:
      return AllScalesFinite(data, dtype, count);
  }
}

// The first look at a tensor is what brings it in from the disk, so that large ones are looked at by several
// threads.
bool AllFinite(const std::byte* data, const Format& format, int64_t count) {
  constexpr int64_t kLeastOfThread = int64_t{1} << 20;
  constexpr int64_t kMaxThreads = 8;
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t threads = std::clamp<int64_t>(count / kLeastOfThread, 1, std::min(cores, kMaxThreads));
  std::atomic<bool> finite = true;
  const auto look_at = [&](int64_t part) {
    const int64_t blocks = format.Blocks(count);
    const int64_t begin = blocks * part / threads * format.block_size();
    const int64_t end = std::min(blocks * (part + 1) / threads * format.block_size(), count);
    if (!AllFiniteHere(data + format.Bytes(begin), format.dtype, end - begin)) finite = false;
  };
  {
    std::vector<std::jthread> others;
    for (int64_t part = 1; part < threads; ++part) others.emplace_back(look_at, part);
    look_at(0);
  }
  return finite;
}

// Elements [first, first + count) of a tensor.
Status CheckFinite(const WeightFiles::Found& found, const std::string& name, int64_t first, int64_t count) {
  const Format& format = *found.tensor->format;
  if (AllFinite(found.file->Data(*found.tensor) + format.Bytes(first), format, count)) return {};
  return DataLoss(found.file->path() + ": tensor " + name +
                  " holds values that are not finite (NaN or infinity)");
}

// The rows of a tensor that a slice needs: of columns, all of them.
struct RowRange {
  int64_t begin;
  int64_t end;
};
RowRange RowsOf(const TensorSpec& spec) {
  if (spec.slice.dim != 0) return {0, spec.rows};
  return {spec.slice.begin, spec.slice.end};
}

// The tensors of one weight, a few rows of each at a time: brought in from their files, checked, widened
// where that is asked for or put into blocks, and let go behind.
class TensorFeed final : public RowFeed {
 public:
  // Told of bytes that are packed.
  using Progress = std::function<void(int64_t bytes)>;

  // formats: of each part, as it is packed.
  TensorFeed(const WeightSpec& spec, std::vector<StoredWeight> stored, std::vector<Format> formats,
             const Progress& progress)
      : spec_(spec),
        stored_(std::move(stored)),
        formats_(std::move(formats)),
        progress_(progress),
        widened_(stored_.size()),
        blocks_(stored_.size()) {
    for (size_t i = 0; i < stored_.size(); ++i) {
      ReadAhead(i);
      done_.push_back(stored_[i].BytesBefore(RowsOf(spec_.parts[i]).begin, spec_.parts[i]));
    }
  }

  const void* Rows(int32_t part, int64_t begin, int64_t count) override {
    const auto i = static_cast<size_t>(part);
    const TensorSpec& spec = spec_.parts[i];
    // Of a slice of columns, whole rows: what lies between is as good a reason to refuse the file.
    const int64_t first = RowsOf(spec).begin + begin;
    Done(i, first);
    if (stored_[i].coded) return RowsInBlocks(i, first, count);
    const FoundTensor& found = stored_[i].plain;
    const Format& from = *found.tensor->format;
    const WeightRows rows = TakeSlice(found.data(), from, spec);
    status_ = CheckFinite(found, spec.name, first * spec.columns, count * spec.columns);
    if (!status_.ok()) return nullptr;
    const std::byte* data = static_cast<const std::byte*>(rows.data) + from.Bytes(begin * rows.row_stride);
    if (from == formats_[i]) return data;
    TM_CHECK(formats_[i] == DType::kF32, "weights are only ever widened to f32");
    const int64_t elements = (count - 1) * rows.row_stride + InFeatures(spec);
    widened_[i].resize(static_cast<size_t>(elements));
    ToFloat(data, from.dtype, elements, widened_[i].data());
    return widened_[i].data();
  }

  // After the last row.
  void DoneAll() {
    for (size_t i = 0; i < stored_.size(); ++i) Done(i, RowsOf(spec_.parts[i]).end);
  }
  // Why there were no rows.
  const Status& status() const { return status_; }

 private:
  void ReadAhead(size_t i) {
    const StoredWeight& stored = stored_[i];
    if (stored.coded) {
      for (const auto& [name, array] : stored.coded->arrays()) array.file->ReadAhead(*array.tensor);
      return;
    }
    const auto [begin, end] = RowsOf(spec_.parts[i]);
    TensorInfo rows = *stored.plain.tensor;
    rows.end = rows.begin + stored.BytesBefore(end, spec_.parts[i]);
    rows.begin += stored.BytesBefore(begin, spec_.parts[i]);
    stored.plain.file->ReadAhead(rows);
  }

  const void* RowsInBlocks(size_t i, int64_t first, int64_t count) {
    const TensorSpec& spec = spec_.parts[i];
    const CodedMatrix& matrix = *stored_[i].coded;
    blocks_[i].resize(static_cast<size_t>(matrix.format().Bytes(count * spec.columns)));
    status_ = matrix.Read(first, count, blocks_[i].data());
    if (!status_.ok()) return nullptr;
    return blocks_[i].data() + matrix.format().Bytes(spec.slice.dim == 0 ? 0 : spec.slice.begin);
  }

  // The rows of a tensor before `end` are packed.
  void Done(size_t i, int64_t end) {
    const StoredWeight& stored = stored_[i];
    const int64_t bytes = stored.BytesBefore(end, spec_.parts[i]);
    if (stored.coded) {
      stored.coded->Release(end);
    } else {
      const int64_t begin = stored.plain.tensor->begin;
      stored.plain.file->Release(begin + done_[i], begin + bytes);
    }
    progress_(bytes - std::exchange(done_[i], bytes));
  }

  const WeightSpec& spec_;
  const std::vector<StoredWeight> stored_;
  const std::vector<Format> formats_;
  const Progress& progress_;
  std::vector<std::vector<float>> widened_;     // of each part, the rows that were asked for last
  std::vector<std::vector<std::byte>> blocks_;  // likewise, of one that is coded
  std::vector<int64_t> done_;                   // of each part, the bytes before the first that is not packed
  Status status_;
};

// Every tensor of the files that a weight is made of.
void AddNames(const StoredWeight& stored, std::set<std::string>& names) {
  if (!stored.coded) {
    names.insert(stored.name);
    return;
  }
  for (const auto& [name, array] : stored.coded->arrays()) names.insert(name);
}

class Loader {
 public:
  Loader(const WeightFiles& files, Backend& backend, const LoadProgress& progress)
      : files_(files), backend_(backend), progress_([this, &progress](int64_t bytes) {
          done_bytes_ += bytes;
          if (progress && bytes > 0) progress(done_bytes_, total_bytes_);
        }) {}

  Status CheckAll(const std::vector<WeightSpec>& specs);
  Status Pack(const WeightSpec& spec, WeightHandle* to);
  int64_t quantised_numbers() const { return quantised_numbers_; }  // of all that are packed
  Status CopyVector(const WeightSpec& spec, float* host);

 private:
  Status CopyCoded(const TensorSpec& part, const CodedMatrix& matrix, float* host);

  const WeightFiles& files_;
  Backend& backend_;
  const TensorFeed::Progress progress_;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
  int64_t quantised_numbers_ = 0;
};

// Everything is found and checked before anything is packed: a bad file costs no time.
Status Loader::CheckAll(const std::vector<WeightSpec>& specs) {
  for (const WeightSpec& spec : specs) {
    for (const TensorSpec& part : spec.parts) {
      TM_ASSIGN_OR_RETURN(const StoredWeight stored, files_.Find(part));
      const auto [begin, end] = RowsOf(part);
      total_bytes_ += stored.BytesBefore(end, part) - stored.BytesBefore(begin, part);
    }
  }
  return Status::Ok();
}

Status Loader::Pack(const WeightSpec& spec, WeightHandle* to) {
  std::vector<StoredWeight> stored;
  for (const TensorSpec& part : spec.parts) {
    TM_ASSIGN_OR_RETURN(stored.emplace_back(), files_.Find(part));
  }
  const std::vector<WeightRows> parts = PackedParts(spec, stored);
  quantised_numbers_ = std::max(quantised_numbers_, QuantisedNumbers(spec, parts));
  std::vector<Format> formats;
  for (const WeightRows& part : parts) formats.push_back(part.format);
  const std::string what = stored[0].file().path() + ": tensor " + spec.parts[0].name + " cannot be packed";
  TensorFeed feed(spec, std::move(stored), std::move(formats), progress_);
  const OpCode code = backend_.PackLinear({.parts = parts.data(),
                                           .part_count = static_cast<int32_t>(parts.size()),
                                           .in_features = InFeatures(spec.parts[0]),
                                           .layout = spec.layout,
                                           .feed = &feed,
                                           .use = UseOf(spec)},
                                          to);
  TM_RETURN_IF_ERROR(feed.status());
  TM_RETURN_IF_ERROR(OpStatus(code, backend_, what));
  feed.DoneAll();
  return Status::Ok();
}

Status Loader::CopyVector(const WeightSpec& spec, float* host) {
  const TensorSpec& part = spec.parts[0];
  TM_ASSIGN_OR_RETURN(const StoredWeight stored, files_.Find(part));
  if (stored.coded) {
    TM_RETURN_IF_ERROR(CopyCoded(part, *stored.coded, host));
  } else {
    const FoundTensor& found = stored.plain;
    TM_RETURN_IF_ERROR(CheckFinite(found, part.name, 0, spec.elements()));
    ToFloat(found.data(), found.tensor->format->dtype, spec.elements(), host);
    found.file->Release(found.tensor->begin, found.tensor->end);
  }
  const bool is_scale = spec.key.role == WeightRole::kKeyScale || spec.key.role == WeightRole::kValueScale;
  if (is_scale && host[0] <= 0.0f) {
    return InvalidArgument(stored.file().path() + ": tensor " + part.name + " is " + std::to_string(host[0]) +
                           "; a scale must be above 0");
  }
  progress_(stored.bytes());
  return Status::Ok();
}

// A router that is quantised as the matrices are.
Status Loader::CopyCoded(const TensorSpec& part, const CodedMatrix& matrix, float* host) {
  TM_RETURN_IF_ERROR(matrix.ReadValues(0, part.rows, host));
  matrix.Release(part.rows);
  return {};
}

StatusOr<std::vector<TensorFile>> OpenTensorFiles(const ModelFolder& folder) {
  std::vector<TensorFile> files;
  if (folder.layout == FolderLayout::kGguf) {
    TM_ASSIGN_OR_RETURN(std::vector<GgufFile> parts, OpenGgufParts(folder.PathOf(folder.config_file)));
    for (GgufFile& part : parts) files.push_back(std::move(part.file));
    return files;
  }
  for (const std::string& name : folder.weight_files) {
    TM_ASSIGN_OR_RETURN(TensorFile file, OpenSafetensors(folder.PathOf(name)));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

std::string WeightList::NameOf(const WeightKey& key, const TensorName& name) const {
  if (key.layer == kNoLayer) return NameIn(config_, name);
  std::string in_layer = config_.layout == FolderLayout::kHuggingFace ? name.hugging_face
                         : config_.layout == FolderLayout::kMistral   ? name.mistral
                                                                      : name.gguf;
  const size_t star = in_layer.find('*');
  if (star != std::string::npos) in_layer.replace(star, 1, std::to_string(key.expert));
  return NameIn(config_, kLayerPrefix) + std::to_string(key.layer) + in_layer;
}

void WeightList::AddNorm(WeightKey key, const TensorName& name, int64_t length) {
  specs_.push_back({.key = key, .parts = {{NameOf(key, name), length, 0, {0, 0, length}}}, .packed = false});
}

void WeightList::AddScale(WeightKey key, const TensorName& name) { AddNorm(key, name, 1); }

void WeightList::AddRouter(WeightKey key, const TensorName& name, int64_t experts, int64_t hidden) {
  specs_.push_back(
      {.key = key, .parts = {{NameOf(key, name), experts, hidden, {0, 0, experts}}}, .packed = false});
}

void WeightList::AddMatrix(WeightKey key, const std::vector<MatrixPart>& parts, int64_t columns,
                           LinearLayout layout) {
  WeightSpec& spec = specs_.emplace_back();
  spec.key = key;
  spec.layout = layout;
  for (const MatrixPart& part : parts) spec.parts.push_back(PartOf(key, part, columns));
}

TensorSpec WeightList::PartOf(const WeightKey& key, const MatrixPart& part, int64_t columns) const {
  const std::string name = NameOf(key, part.name);
  if (config_.layout != FolderLayout::kGguf || key.expert == kNoExpert) {
    return {name, part.rows, columns, {0, 0, part.rows}};
  }
  const int64_t first = key.expert * part.rows;
  return {.name = name,
          .rows = config_.experts * part.rows,
          .columns = columns,
          .slice = {0, first, first + part.rows},
          .matrices = config_.experts};
}

namespace {

// The type of most bytes.
DType MainType(const WeightFiles& files) {
  std::map<DType, int64_t> bytes;
  for (const auto& [name, found] : files.all()) {
    if (found.tensor->format) bytes[found.tensor->format->dtype] += found.tensor->end - found.tensor->begin;
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? DType::kF32 : most->first;
}

// What Llama 3.1 and its kin have in place of a kind of scaling.
Status ReadRotaryDivisors(const WeightFiles& files, ModelConfig& config) {
  if (files.all().count(kGgufRotaryDivisors) == 0) return {};
  const int64_t pairs = config.head_dim / 2;
  TM_ASSIGN_OR_RETURN(const StoredWeight stored, files.Find({kGgufRotaryDivisors, pairs, 0, {0, 0, pairs}}));
  const FoundTensor& found = stored.plain;
  const std::string where = found.file->path() + ": tensor " + kGgufRotaryDivisors;
  if (*found.tensor->format != Format(DType::kF32)) {
    return Unimplemented(where + " has type " + found.tensor->dtype_name + "; it must be F32");
  }
  if (config.rope_scaling.kind != RopeScaling::Kind::kNone) {
    return Unimplemented(where + " divides frequencies that rope.scaling.type scales too");
  }
  std::vector<float>& divisors = config.rope_scaling.divisors;
  divisors.resize(static_cast<size_t>(pairs));
  ToFloat(found.file->Data(*found.tensor), DType::kF32, pairs, divisors.data());
  for (const float divisor : divisors) {
    if (!std::isfinite(divisor) || divisor <= 0.0f) {
      return DataLoss(where + " holds " + std::to_string(divisor) + "; frequencies are divided by it");
    }
  }
  config.rope_scaling.kind = RopeScaling::Kind::kDivided;
  return {};
}

}  // namespace

Status AdoptTensors(const WeightFiles& files, ModelConfig& config) {
  if (config.layout == FolderLayout::kHuggingFace && !config.wrapper.empty()) {
    const auto first = files.all().lower_bound("language_model.");
    const bool old = first != files.all().end() && first->first.starts_with("language_model.");
    config.body_prefix = old ? "language_model.model." : "model.language_model.";
    config.head_prefix = old ? "language_model." : "";
  }
  if (config.tied_if_no_head) config.tied_embeddings = files.all().count(NameIn(config, kLmHead)) == 0;
  if (config.layout != FolderLayout::kGguf) return {};
  config.weight_dtype = MainType(files);
  return ReadRotaryDivisors(files, config);
}

std::vector<WeightSpec> ListWeights(const ModelConfig& config) {
  WeightList list(config);
  list.AddMatrix(
      {WeightRole::kEmbedding},
      {{{"model.embed_tokens.weight", "tok_embeddings.weight", "token_embd.weight"}, config.vocab_size}},
      config.hidden_size);
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    for (const BlockKind* kind : FindArchitecture(config.architecture).blocks) {
      kind->list_weights(config, layer, list);
    }
  }
  list.AddNorm({WeightRole::kFinalNorm}, {"model.norm.weight", "norm.weight", "output_norm.weight"},
               config.hidden_size);
  if (!config.tied_embeddings) {
    list.AddMatrix({WeightRole::kLmHead}, {{kLmHead, config.vocab_size}}, config.hidden_size);
  }
  return list.Take();
}

WeightRows TakeSlice(const void* whole, const Format& format, const TensorSpec& spec) {
  const Slice& slice = spec.slice;
  const int64_t rows = slice.dim == 0 ? slice.end - slice.begin : spec.rows;
  const int64_t first = slice.dim == 0 ? slice.begin * spec.columns : slice.begin;  // element
  const auto* data = static_cast<const std::byte*>(whole);
  if (data != nullptr) data += format.Bytes(first);
  return {data, format, rows, spec.columns};
}

StatusOr<WeightFiles> WeightFiles::Open(const ModelFolder& folder, const Quantization& quantization) {
  if (folder.weight_files.empty()) {
    std::string message =
        folder.path + ": no " +
        (folder.layout == FolderLayout::kHuggingFace ? "model*.safetensors" : "consolidated*.safetensors") +
        " is there";
    if (!folder.unreadable_weights.empty()) {
      message += "; " + folder.unreadable_weights[0] + " cannot be read: only safetensors and GGUF files can";
    }
    return NotFound(message);
  }
  WeightFiles opened;
  opened.quantization_ = quantization;
  opened.where_ = folder.weight_files.size() == 1 ? folder.PathOf(folder.weight_files[0]) : folder.path;
  TM_ASSIGN_OR_RETURN(opened.files_, OpenTensorFiles(folder));
  for (const TensorFile& file : opened.files_) {
    for (const auto& [name, tensor] : file.tensors()) {
      const auto [other, added] = opened.all_.insert({name, {&file, &tensor}});
      if (!added) {
        return InvalidArgument(file.path() + ": tensor " + name + " also stands in " +
                               other->second.file->path());
      }
    }
  }
  for (const auto& [name, file] : folder.index) {
    const auto found = opened.all_.find(name);
    if (found == opened.all_.end() || found->second.file->path() != folder.PathOf(file)) {
      return InvalidArgument(folder.PathOf(file) + ": tensor " + name +
                             " is not there, though the index says so");
    }
  }
  return opened;
}

int64_t StoredWeight::BytesBefore(int64_t row, const TensorSpec& spec) const {
  if (coded) return coded->bytes() * row / spec.rows;
  return plain.tensor->format->Bytes(row * std::max<int64_t>(1, spec.columns));
}

namespace {

// Of a type that no weight has by itself: by what stands beside it, whose form it is.
std::string WhyUnreadable(const std::map<std::string, FoundTensor>& all, const std::string& name,
                          const TensorInfo& tensor) {
  const auto beside = [&](const char* suffix) {
    return all.count(name.substr(0, name.rfind('.') + 1) + suffix) != 0;
  };
  if (beside("weight_scale_2"))
    return " is in NVFP4, as NVIDIA's ModelOpt writes it (weight_scale_2 is beside it), which is not "
           "implemented";
  std::string why = " has dtype " + tensor.dtype_name + "; F32, BF16 and F16 can be read";
  for (const char* scale : {"weight_scale", "weight_scale_inv", "qscale_weight"}) {
    if (beside(scale))
      return why + ", and the config does not say of what form it and the " + scale + " beside it are";
  }
  return why;
}

}  // namespace

StatusOr<StoredWeight> WeightFiles::Find(const TensorSpec& spec) const {
  TM_ASSIGN_OR_RETURN(std::optional<CodedMatrix> coded,
                      CodedMatrix::Find(all_, quantization_, spec.name, spec.rows, spec.columns));
  if (coded) return StoredWeight{.name = spec.name, .plain = {}, .coded = std::move(coded)};
  const auto entry = all_.find(spec.name);
  if (entry == all_.end()) {
    return NotFound(where_ + ": tensor " + spec.name + " is missing" +
                    (quantization_.schemes.empty() ? "" : ", quantised or not"));
  }
  const Found& found = entry->second;
  std::vector<int64_t> shape = {spec.rows};
  if (spec.columns != 0) shape.push_back(spec.columns);
  if (spec.matrices != 0) shape = {spec.matrices, spec.rows / spec.matrices, spec.columns};
  const std::string where = found.file->path() + ": tensor " + spec.name;
  if (!found.tensor->format) return Unimplemented(where + WhyUnreadable(all_, spec.name, *found.tensor));
  const bool is_number = spec.rows == 1 && spec.columns == 0 && found.tensor->shape.empty();
  if (found.tensor->shape != shape && !is_number) {
    return InvalidArgument(where + " has shape " + ShapeText(found.tensor->shape) +
                           "; by the config it must be " + ShapeText(shape));
  }
  return StoredWeight{.name = spec.name, .plain = found, .coded = std::nullopt};
}

Status CheckTensors(const std::vector<WeightSpec>& specs, const WeightFiles& files, ModelConfig& config) {
  std::set<std::string> used;
  for (const WeightSpec& spec : specs) {
    for (const TensorSpec& part : spec.parts) {
      TM_ASSIGN_OR_RETURN(const StoredWeight stored, files.Find(part));
      AddNames(stored, used);
    }
  }
  const LeftOverNames names = {.layers = NameIn(config, kLayerPrefix),
                               .head = NameIn(config, kLmHead),
                               .divisors = kGgufRotaryDivisors};
  return CheckLeftOver(files.all(), used, names, config);
}

namespace {

// Given those in the files: widened to f32 where plain ones differ, and as they are where any stands in
// blocks.
std::vector<Format> PackedFormats(const std::vector<Format>& formats) {
  const bool same =
      std::all_of(formats.begin(), formats.end(), [&](const Format& format) { return format == formats[0]; });
  const bool plain =
      std::all_of(formats.begin(), formats.end(), [](const Format& format) { return format.plain(); });
  if (same || !plain) return formats;
  return std::vector<Format>(formats.size(), DType::kF32);
}

}  // namespace

std::vector<WeightRows> PackedParts(const WeightSpec& spec, const std::vector<StoredWeight>& stored) {
  std::vector<Format> formats;
  for (const StoredWeight& part : stored) formats.push_back(part.format());
  formats = PackedFormats(formats);
  std::vector<WeightRows> parts;
  for (size_t i = 0; i < spec.parts.size(); ++i) {
    parts.push_back(TakeSlice(nullptr, formats[i], spec.parts[i]));
    if (!stored[i].coded) continue;
    parts.back().scale_of_row = stored[i].coded->has_scale_of_row() ? 1 : 0;
    parts.back().column_order = stored[i].coded->column_order();
    TM_CHECK(parts.back().column_order == nullptr || spec.parts[i].slice.dim == 0,
             "a slice of columns in an order of their own");
  }
  return parts;
}

int64_t WeightBytes(const WeightSpec& spec, const std::vector<WeightRows>& parts, const Backend& backend) {
  if (!spec.packed) return Format(DType::kF32).Bytes(VectorStride(spec.elements()));
  return backend.PackedBytes({.parts = parts.data(),
                              .part_count = static_cast<int32_t>(parts.size()),
                              .in_features = InFeatures(spec.parts[0]),
                              .layout = spec.layout,
                              .use = UseOf(spec)});
}

int64_t QuantisedNumbers(const WeightSpec& spec, const std::vector<WeightRows>& parts) {
  if (!spec.packed || UseOf(spec) == WeightUse::kExpert) return 0;
  const bool plain =
      std::all_of(parts.begin(), parts.end(), [](const WeightRows& part) { return part.format.plain(); });
  int64_t rows = 0;
  for (const WeightRows& part : parts) rows += part.rows;
  return plain ? 0 : rows * InFeatures(spec.parts[0]);
}

ModelWeights::~ModelWeights() {
  for (const auto& [key, handle] : matrices_) {
    if (handle.impl != nullptr) backend_.FreeWeight(handle);
  }
  if (vector_memory_ != nullptr) backend_.Free(vector_memory_);
}

Status ModelWeights::Load(const std::vector<WeightSpec>& specs, const WeightFiles& files,
                          const LoadProgress& progress) {
  int64_t elements = 0;
  for (const WeightSpec& spec : specs) elements += spec.packed ? 0 : VectorStride(spec.elements());
  std::vector<float> vectors(static_cast<size_t>(elements));
  const auto vector_bytes = static_cast<int64_t>(vectors.size() * sizeof(float));
  vector_memory_ = backend_.Allocate(vector_bytes);
  if (vector_memory_ == nullptr) {
    return ResourceExhausted(files.where() + ": no memory for " + std::to_string(vector_bytes) +
                             " bytes of norm vectors and routers");
  }
  Loader loader(files, backend_, progress);
  TM_RETURN_IF_ERROR(loader.CheckAll(specs));
  int64_t next = 0;  // where the next one begins
  for (const WeightSpec& spec : specs) {
    if (spec.packed) {
      TM_RETURN_IF_ERROR(loader.Pack(spec, &matrices_[spec.key]));
    } else {
      TM_RETURN_IF_ERROR(loader.CopyVector(spec, vectors.data() + next));
      vectors_[spec.key] = static_cast<const float*>(vector_memory_) + next;
      next += VectorStride(spec.elements());
    }
  }
  quantised_numbers_ = loader.quantised_numbers();
  const std::string copying = "copying the norm vectors and routers to the device";
  TM_RETURN_IF_ERROR(
      OpStatus(backend_.Upload(vector_memory_, vectors.data(), vector_bytes), backend_, copying));
  TM_RETURN_IF_ERROR(OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, copying));
  return {};
}

}  // namespace tramontane
