#include "models/weights.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <set>
#include <thread>

#include "models/architecture.h"
#include "models/block.h"
#include "models/op_status.h"

namespace tramontane {
namespace {

constexpr TensorName kLayerPrefix = {"model.layers.", "layers."};
constexpr TensorName kLmHead = {"lm_head.weight", "output.weight"};

// Names of the body start with "model." where a model is text alone.
std::string NameIn(const ModelConfig& config, const TensorName& name) {
  if (config.layout == FolderLayout::kMistral) return name.mistral;
  constexpr std::string_view kBody = "model.";
  const std::string_view plain = name.hugging_face;
  if (plain.starts_with(kBody)) return config.body_prefix + std::string(plain.substr(kBody.size()));
  return config.head_prefix + std::string(plain);
}

// What one norm vector or router takes of the shared allocation: each begins 64-byte aligned.
int64_t VectorStride(int64_t elements) { return (elements + 15) / 16 * 16; }

int64_t InFeatures(const TensorSpec& spec) {
  return spec.slice.dim == 1 ? spec.slice.end - spec.slice.begin : spec.columns;
}

void ToFloat(const std::byte* data, DType dtype, int64_t count, float* out) {
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

// A tensor's elements in the format `to`, aligned for it: in the mapping itself if they are so already, else
// in `copy`.
const void* Elements(const std::byte* data, const Format& from, const Format& to, int64_t count,
                     std::vector<float>& copy) {
  const bool aligned = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(to.block_bytes) == 0;
  if (from == to && aligned) return data;
  const int64_t bytes = to.Bytes(count);
  copy.resize(static_cast<size_t>((bytes + 3) / 4));
  if (from == to) {
    std::memcpy(copy.data(), data, static_cast<size_t>(bytes));
  } else {
    TM_CHECK(to == DType::kF32, "weights are only ever widened to f32");
    ToFloat(data, from.dtype, count, copy.data());
  }
  return copy.data();
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

// NaN and the infinities are the values whose exponent is all ones.
bool AllFiniteHere(const std::byte* data, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return AllFinite<uint32_t>(data, count, 0x7f800000);
    case DType::kBf16:
      return AllFinite<uint16_t>(data, count, 0x7f80);
    case DType::kF16:
      return AllFinite<uint16_t>(data, count, 0x7c00);
  }
  return false;
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
    const int64_t begin = count * part / threads, end = count * (part + 1) / threads;
    if (!AllFiniteHere(data + format.Bytes(begin), format.dtype, end - begin)) finite = false;
  };
  {
    std::vector<std::jthread> others;
    for (int64_t part = 1; part < threads; ++part) others.emplace_back(look_at, part);
    look_at(0);
  }
  return finite;
}

Status CheckFinite(const WeightFiles::Found& found, const TensorSpec& spec) {
  const int64_t count = spec.rows * std::max<int64_t>(1, spec.columns);
  if (AllFinite(found.file->Data(*found.tensor), *found.tensor->format, count)) return {};
  return DataLoss(found.file->path() + ": tensor " + spec.name +
                  " holds values that are not finite (NaN or infinity)");
}

class Loader {
 public:
  Loader(const WeightFiles& files, Backend& backend, const LoadProgress& progress)
      : files_(files), backend_(backend), progress_(progress) {}

  Status CheckAll(const std::vector<WeightSpec>& specs);
  Status Pack(const WeightSpec& spec, WeightHandle* to);
  Status CopyVector(const WeightSpec& spec, float* host);
  const std::set<std::string>& used() const { return used_; }

 private:
  void Done(const std::string& name, const WeightFiles::Found& found);

  const WeightFiles& files_;
  Backend& backend_;
  const LoadProgress& progress_;
  std::set<std::string> used_;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

// Everything is found and checked before anything is packed: a bad file costs no time.
Status Loader::CheckAll(const std::vector<WeightSpec>& specs) {
  for (const WeightSpec& spec : specs) {
    for (const TensorSpec& part : spec.parts) {
      TM_ASSIGN_OR_RETURN(const WeightFiles::Found found, files_.Find(part));
      total_bytes_ += found.tensor->end - found.tensor->begin;
    }
  }
  return Status::Ok();
}

Status Loader::Pack(const WeightSpec& spec, WeightHandle* to) {
  std::vector<WeightFiles::Found> found;
  std::vector<Format> formats;
  for (const TensorSpec& part : spec.parts) {
    TM_ASSIGN_OR_RETURN(found.emplace_back(), files_.Find(part));
    formats.push_back(*found.back().tensor->format);
  }
  const Format format = CommonFormat(formats);
  std::vector<std::vector<float>> copies(spec.parts.size());
  std::vector<WeightRows> parts;
  for (size_t i = 0; i < spec.parts.size(); ++i) {
    const TensorSpec& part = spec.parts[i];
    TM_RETURN_IF_ERROR(CheckFinite(found[i], part));
    const void* whole = Elements(found[i].file->Data(*found[i].tensor), formats[i], format,
                                 part.rows * part.columns, copies[i]);
    parts.push_back(TakeSlice(whole, format, part));
  }
  const LinearSource source = {parts.data(), static_cast<int32_t>(parts.size()), InFeatures(spec.parts[0]),
                               spec.layout};
  TM_RETURN_IF_ERROR(
      OpStatus(backend_.PackLinear(source, to), backend_,
               found[0].file->path() + ": tensor " + spec.parts[0].name + " cannot be packed"));
  for (size_t i = 0; i < spec.parts.size(); ++i) Done(spec.parts[i].name, found[i]);
  return Status::Ok();
}

Status Loader::CopyVector(const WeightSpec& spec, float* host) {
  TM_ASSIGN_OR_RETURN(const WeightFiles::Found found, files_.Find(spec.parts[0]));
  TM_RETURN_IF_ERROR(CheckFinite(found, spec.parts[0]));
  ToFloat(found.file->Data(*found.tensor), found.tensor->format->dtype, spec.elements(), host);
  Done(spec.parts[0].name, found);
  return Status::Ok();
}

void Loader::Done(const std::string& name, const WeightFiles::Found& found) {
  found.file->Release(*found.tensor);
  used_.insert(name);
  done_bytes_ += found.tensor->end - found.tensor->begin;
  if (progress_) progress_(done_bytes_, total_bytes_);
}

// Whether `name` lies in a layer that the model runs.
bool InsideALayer(const std::string& name, const ModelConfig& config) {
  const std::string prefix = NameIn(config, kLayerPrefix);
  if (!name.starts_with(prefix)) return false;
  int32_t layer = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layer >= 0 && layer < config.layers;
}

// Whether `name` is of the part for images, in either layout.
bool IsOfVision(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {
      "model.vision_tower.", "model.multi_modal_projector.", "vision_tower.", "multi_modal_projector.",
      "vision_encoder.",     "vision_language_adapter.",     "patch_merger.", "pre_mm_projector_norm."};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [name](std::string_view prefix) { return name.starts_with(prefix); });
}

Status CheckLeftOver(const WeightFiles& files, const std::set<std::string>& used, ModelConfig& config) {
  constexpr size_t kMaxWarnings = 8;
  size_t left_over = 0;
  for (const auto& [name, found] : files.all()) {
    // Rotary frequencies that old releases stored follow from rope_theta.
    if (used.count(name) != 0 || name.ends_with(".inv_freq") || name == "rope.freqs") continue;
    if (config.tied_embeddings && name == NameIn(config, kLmHead)) continue;
    if (!config.wrapper.empty() && IsOfVision(name)) continue;
    if (InsideALayer(name, config)) {
      return Unimplemented(found.file->path() + ": tensor " + name +
                           " is no part of this architecture: leaving it out would change the computation");
    }
    if (++left_over <= kMaxWarnings) {
      config.warnings.push_back(found.file->path() + ": tensor " + name + " is not used");
    }
  }
  if (left_over > kMaxWarnings) {
    config.warnings.push_back("and " + std::to_string(left_over - kMaxWarnings) +
                              " more tensors are not used");
  }
  return Status::Ok();
}

}  // namespace

std::string WeightList::NameOf(const WeightKey& key, const TensorName& name) const {
  if (key.layer == kNoLayer) return NameIn(config_, name);
  std::string in_layer = config_.layout == FolderLayout::kHuggingFace ? name.hugging_face : name.mistral;
  if (key.expert != kNoExpert) in_layer.replace(in_layer.find('*'), 1, std::to_string(key.expert));
  return NameIn(config_, kLayerPrefix) + std::to_string(key.layer) + in_layer;
}

void WeightList::AddNorm(WeightKey key, const TensorName& name, int64_t length) {
  specs_.push_back({.key = key, .parts = {{NameOf(key, name), length, 0, {0, 0, length}}}, .packed = false});
}

void WeightList::AddRouter(WeightKey key, const TensorName& name, int64_t experts, int64_t hidden) {
  specs_.push_back(
      {.key = key, .parts = {{NameOf(key, name), experts, hidden, {0, 0, experts}}}, .packed = false});
}

void WeightList::AddMatrix(WeightKey key, const std::vector<MatrixPart>& parts, int64_t columns,
                           LinearLayout layout) {
  WeightSpec& spec = specs_.emplace_back();
  spec.key = key;
  spec.layout = layout;
  for (const MatrixPart& part : parts) {
    spec.parts.push_back({NameOf(key, part.name), part.rows, columns, {0, 0, part.rows}});
  }
}

void AdoptTensorNames(const WeightFiles& files, ModelConfig& config) {
  if (config.layout == FolderLayout::kHuggingFace && !config.wrapper.empty()) {
    const auto first = files.all().lower_bound("language_model.");
    const bool old = first != files.all().end() && first->first.starts_with("language_model.");
    config.body_prefix = old ? "language_model.model." : "model.language_model.";
    config.head_prefix = old ? "language_model." : "";
  }
  if (config.tied_if_no_head) config.tied_embeddings = files.all().count(NameIn(config, kLmHead)) == 0;
}

std::vector<WeightSpec> ListWeights(const ModelConfig& config) {
  WeightList list(config);
  list.AddMatrix({WeightRole::kEmbedding},
                 {{{"model.embed_tokens.weight", "tok_embeddings.weight"}, config.vocab_size}},
                 config.hidden_size);
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    for (const BlockKind* kind : FindArchitecture(config.architecture).blocks) {
      kind->list_weights(config, layer, list);
    }
  }
  list.AddNorm({WeightRole::kFinalNorm}, {"model.norm.weight", "norm.weight"}, config.hidden_size);
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

StatusOr<WeightFiles> WeightFiles::Open(const ModelFolder& folder) {
  if (folder.weight_files.empty()) {
    std::string message =
        folder.path + ": no " +
        (folder.layout == FolderLayout::kHuggingFace ? "model*.safetensors" : "consolidated*.safetensors") +
        " is there";
    if (!folder.unreadable_weights.empty()) {
      message += "; " + folder.unreadable_weights[0] + " cannot be read: only safetensors files can";
    }
    return NotFound(message);
  }
  WeightFiles opened;
  opened.where_ = folder.weight_files.size() == 1 ? folder.PathOf(folder.weight_files[0]) : folder.path;
  for (const std::string& name : folder.weight_files) {
    TM_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(folder.PathOf(name)));
    opened.files_.push_back(std::move(file));
  }
  for (const SafetensorsFile& file : opened.files_) {
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

StatusOr<WeightFiles::Found> WeightFiles::Find(const TensorSpec& spec) const {
  const auto entry = all_.find(spec.name);
  if (entry == all_.end()) return NotFound(where_ + ": tensor " + spec.name + " is missing");
  const Found& found = entry->second;
  std::vector<int64_t> shape = {spec.rows};
  if (spec.columns != 0) shape.push_back(spec.columns);
  const std::string where = found.file->path() + ": tensor " + spec.name;
  if (found.tensor->shape != shape) {
    return InvalidArgument(where + " has shape " + ShapeText(found.tensor->shape) +
                           "; by the config it must be " + ShapeText(shape));
  }
  if (!found.tensor->format) {
    return Unimplemented(where + " has dtype " + found.tensor->dtype_name +
                         "; F32, BF16 and F16 can be read");
  }
  return found;
}

Format CommonFormat(const std::vector<Format>& formats) {
  const bool same =
      std::all_of(formats.begin(), formats.end(), [&](const Format& format) { return format == formats[0]; });
  return same ? formats[0] : DType::kF32;
}

int64_t WeightBytes(const WeightSpec& spec, const Format& format, const Backend& backend) {
  if (!spec.packed) return Format(DType::kF32).Bytes(VectorStride(spec.elements()));
  std::vector<WeightRows> parts;
  for (const TensorSpec& part : spec.parts) parts.push_back(TakeSlice(nullptr, format, part));
  return backend.PackedBytes(
      {parts.data(), static_cast<int32_t>(parts.size()), InFeatures(spec.parts[0]), spec.layout});
}

ModelWeights::~ModelWeights() {
  for (const auto& [key, handle] : matrices_) {
    if (handle.impl != nullptr) backend_.FreeWeight(handle);
  }
  if (vector_memory_ != nullptr) backend_.Free(vector_memory_);
}

Status ModelWeights::Load(const std::vector<WeightSpec>& specs, const WeightFiles& files,
                          const LoadProgress& progress, ModelConfig& config) {
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
  const std::string copying = "copying the norm vectors and routers to the device";
  TM_RETURN_IF_ERROR(
      OpStatus(backend_.Upload(vector_memory_, vectors.data(), vector_bytes), backend_, copying));
  TM_RETURN_IF_ERROR(OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, copying));
  return CheckLeftOver(files, loader.used(), config);
}

}  // namespace tramontane
