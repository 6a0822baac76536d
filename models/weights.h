// The weights of a decoder: which tensors its files must hold, and how they get from there into a backend.
// Loading thread. ModelWeights owns what the backend gave it and gives it back at its end.
//
// Each matrix is one LinearSource: query, key and value rows stacked, gate and up interleaved as the backend
// likes. Parts of one source that differ in plain format are widened to f32,
// which is exact; one in blocks stays as it is, and so do those beside it. Norm vectors and
// routers become f32.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/files/tensor_file.h"
#include "models/model.h"
#include "models/model_config.h"
#include "models/model_folder.h"
#include "models/quantized/coded_matrix.h"

namespace tramontane {

// What a weight does in the model.
enum class WeightRole : int32_t {
  kEmbedding,      // [vocab, hidden]
  kAttentionNorm,  // [hidden]
  kQkv,            // [(heads + 2 * kv_heads) * head_dim, hidden]
  kAttentionOut,   // [hidden, heads * head_dim]
  kKeyScale,       // [1] of keys in fp8; where the file has them
  kValueScale,     // [1]
  kMlpNorm,        // [hidden]
  kRouter,         // [experts, hidden]
  kGateUp,         // [2 * intermediate, hidden]; of each expert, where there are any
  kDown,           // [hidden, intermediate]
  kFinalNorm,      // [hidden]
  kLmHead,         // [vocab, hidden]; absent where the embedding is tied
};

inline constexpr int32_t kNoLayer = -1;
inline constexpr int32_t kNoExpert = -1;

struct WeightKey {
  WeightRole role = WeightRole::kEmbedding;
  int32_t layer = kNoLayer;    // none for what is there once
  int32_t expert = kNoExpert;  // none for what a layer has once

  friend auto operator<=>(const WeightKey&, const WeightKey&) = default;
};

// Which part of a tensor this process takes: indices [begin, end) of dimension `dim`. Today always the whole;
// tensor parallelism changes only what WeightList writes here.
struct Slice {
  int32_t dim = 0;  // 0: rows (outputs), 1: columns (inputs)
  int64_t begin = 0;
  int64_t end = 0;
};

struct TensorSpec {
  std::string name;
  int64_t rows = 0;     // of the whole tensor in the file
  int64_t columns = 0;  // 0: a vector [rows]
  Slice slice;
  // 0: the tensor is [rows, columns]. Else it is a stack of so many matrices, [matrices, rows / matrices,
  // columns], which lie one after another as if they were rows of one.
  int64_t matrices = 0;

  // Of the slice.
  int64_t elements() const {
    const int64_t cut = slice.end - slice.begin;
    return slice.dim == 0 ? cut * (columns == 0 ? 1 : columns) : rows * cut;
  }
};

// One matrix to pack, or one tensor to copy as f32: a norm vector or a router.
struct WeightSpec {
  WeightKey key;
  std::vector<TensorSpec> parts;
  LinearLayout layout = LinearLayout::kStacked;
  bool packed = true;

  // Of the first part, which is all of one that is not packed.
  int64_t elements() const { return parts[0].rows * (parts[0].columns == 0 ? 1 : parts[0].columns); }
};

// A tensor's name in each layout of files; of one in a layer, what follows the layer's number, with a star
// for an expert's. GGUF has no star: the experts of a layer are a stack.
struct TensorName {
  const char* hugging_face;
  const char* mistral;
  const char* gguf;
};

// One of the tensors that are packed together.
struct MatrixPart {
  TensorName name;
  int64_t rows = 0;
};

// A list in the making: whoever runs a weight names its tensors, whole.
class WeightList {
 public:
  explicit WeightList(const ModelConfig& config) : config_(config) {}

  void AddNorm(WeightKey key, const TensorName& name, int64_t length);
  void AddScale(WeightKey key, const TensorName& name);  // one number above 0
  void AddRouter(WeightKey key, const TensorName& name, int64_t experts, int64_t hidden);
  void AddMatrix(WeightKey key, const std::vector<MatrixPart>& parts, int64_t columns,
                 LinearLayout layout = LinearLayout::kStacked);
  std::vector<WeightSpec> Take() { return std::move(specs_); }

 private:
  std::string NameOf(const WeightKey& key, const TensorName& name) const;
  TensorSpec PartOf(const WeightKey& key, const MatrixPart& part, int64_t columns) const;

  const ModelConfig& config_;
  std::vector<WeightSpec> specs_;
};

// A tensor of a spec as the files hold it: one array of numbers, or one that is coded in several.
struct StoredWeight {
  std::string name;   // the spec's
  FoundTensor plain;  // none where it is coded
  std::optional<CodedMatrix> coded;

  // Of its rows as a backend is given them.
  const Format& format() const { return coded ? coded->format() : *plain.tensor->format; }
  const TensorFile& file() const { return coded ? *coded->arrays()[0].second.file : *plain.file; }
  int64_t bytes() const { return coded ? coded->bytes() : plain.tensor->end - plain.tensor->begin; }
  // Bytes in the files of the rows before `row`, of the spec's whole tensor.
  int64_t BytesBefore(int64_t row, const TensorSpec& spec) const;
};

class WeightFiles;

// Settles what a config leaves to the files: under which names the text part of a larger model stands there,
// and, where it does not say, whether there is an output matrix. Of a GGUF file also the type of most of its
// weights, and the tensor by which rotary frequencies are divided; that this is none is the one error.
Status AdoptTensors(const WeightFiles& files, ModelConfig& config);

// Every weight of the model, in the order in which it is loaded.
std::vector<WeightSpec> ListWeights(const ModelConfig& config);

// The part of the tensor at `whole` ([spec.rows, spec.columns], contiguous) that its slice names.
WeightRows TakeSlice(const void* whole, const Format& format, const TensorSpec& spec);

// The files of a folder, opened and their headers checked against each other.
class WeightFiles {
 public:
  // quantization: what the config says of weights in several arrays.
  static StatusOr<WeightFiles> Open(const ModelFolder& folder, const Quantization& quantization = {});

  using Found = FoundTensor;
  // Its shape and dtype checked; missing or wrong is an error that names file and tensor.
  StatusOr<StoredWeight> Find(const TensorSpec& spec) const;
  // For messages: the one file, or the folder.
  const std::string& where() const { return where_; }
  // Every tensor there is.
  const std::map<std::string, Found>& all() const { return all_; }

 private:
  std::string where_;
  Quantization quantization_;
  std::vector<TensorFile> files_;
  std::map<std::string, Found> all_;
};

// The parts of a spec's packed source as a backend is given them, without their data. Borrows `stored`.
std::vector<WeightRows> PackedParts(const WeightSpec& spec, const std::vector<StoredWeight>& stored);

// Bytes that the spec takes in the backend when these are its parts, whose data is not read.
int64_t WeightBytes(const WeightSpec& spec, const std::vector<WeightRows>& parts, const Backend& backend);

// Rows by inputs of a weight that is not plain throughout and that Linear may be asked for; of others 0.
int64_t QuantisedNumbers(const WeightSpec& spec, const std::vector<WeightRows>& parts);

// Whether the files hold every tensor of the list and, in a layer that runs and beside what is used, no
// other; of a GGUF file, no other at all. Others become warnings in the config.
Status CheckTensors(const std::vector<WeightSpec>& specs, const WeightFiles& files, ModelConfig& config);

// The weights as the backend has them.
class ModelWeights {
 public:
  explicit ModelWeights(Backend& backend) : backend_(backend) {}
  ~ModelWeights();
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  // Packs every weight of the list into the backend. Once.
  Status Load(const std::vector<WeightSpec>& specs, const WeightFiles& files, const LoadProgress& progress);

  // REQUIRES: loaded, and of the list.
  WeightHandle matrix(WeightRole role, int32_t layer = kNoLayer, int32_t expert = kNoExpert) const {
    return matrices_.at({role, layer, expert});
  }
  const float* vector(WeightRole role, int32_t layer = kNoLayer) const {
    return vectors_.at({role, layer});
  }  // device, a norm or a router
  // StepMaxima::quantised_numbers of what was loaded.
  int64_t quantised_numbers() const { return quantised_numbers_; }

 private:
  Backend& backend_;
  std::map<WeightKey, WeightHandle> matrices_;
  std::map<WeightKey, const float*> vectors_;
  int64_t quantised_numbers_ = 0;
  void* vector_memory_ = nullptr;  // every norm vector and router, one allocation
};

}  // namespace tramontane
