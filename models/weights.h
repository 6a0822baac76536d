// The weights of a decoder: which tensors its files must hold, and how they get from there into a backend.
// Loading thread. ModelWeights owns what the backend gave it and gives it back at its end.
//
// Each matrix is one LinearSource: query, key and value rows stacked, gate and up interleaved as the backend
// likes. Parts of one source that differ in dtype are widened to f32, which is exact. Norm vectors become
// f32.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/model.h"
#include "models/model_config.h"
#include "models/model_folder.h"
#include "models/safetensors.h"

namespace tramontane {

struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden] device
  WeightHandle qkv;                       // [(heads + 2 * kv_heads) * head_dim, hidden]
  WeightHandle attention_out;             // [hidden, heads * head_dim]
  const float* mlp_norm = nullptr;        // [hidden] device
  WeightHandle gate_up;                   // [2 * intermediate, hidden]
  WeightHandle down;                      // [hidden, intermediate]
};

struct WeightTable {
  WeightHandle embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;  // [hidden] device
  WeightHandle lm_head;               // [vocab, hidden]; the embedding itself where they are tied
};

class ModelWeights : public WeightTable {
 public:
  explicit ModelWeights(Backend& backend) : backend_(&backend) {}
  ~ModelWeights();
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

 private:
  friend Status LoadWeights(const ModelFolder&, ModelConfig&, const LoadProgress&, ModelWeights&);

  Backend* backend_;
  void* norms_ = nullptr;  // every norm vector, one allocation
};

// Which part of a tensor this process takes: indices [begin, end) of dimension `dim`. Today always the whole;
// tensor parallelism changes only what ListWeights writes here.
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
};

// One matrix to pack or one norm vector to copy, and where its handle or pointer goes.
struct WeightSpec {
  std::vector<TensorSpec> parts;
  LinearLayout layout = LinearLayout::kStacked;
  WeightHandle* matrix = nullptr;  // exactly one of these two is set
  const float** norm = nullptr;
};

// Every weight of the model, in the order in which it is loaded; destinations lie in `into`, whose layers are
// sized here.
std::vector<WeightSpec> ListWeights(const ModelConfig& config, WeightTable& into);

// The part of the tensor at `whole` ([spec.rows, spec.columns], contiguous) that its slice names.
WeightRows TakeSlice(const void* whole, DType dtype, const TensorSpec& spec);

// The files of a folder, opened and their headers checked against each other.
class WeightFiles {
 public:
  static StatusOr<WeightFiles> Open(const ModelFolder& folder);

  struct Found {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
  };
  // Its shape and dtype checked; missing or wrong is an error that names file and tensor.
  StatusOr<Found> Find(const TensorSpec& spec) const;
  // Every tensor there is.
  const std::map<std::string, Found>& all() const { return all_; }

 private:
  std::string where_;  // for messages: the one file, or the folder
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Found> all_;
};

// dtype of a spec's packed source, given the dtypes of its parts.
DType CommonDType(const std::vector<DType>& dtypes);

// Bytes that the spec takes in the backend when its parts have this dtype.
int64_t WeightBytes(const WeightSpec& spec, DType dtype, const Backend& backend);

// Packs every weight of the folder into the backend and lets go of the files. Tensors that nothing asks for
// become warnings in the config; inside a layer that runs they are refused, since they would change the
// computation.
Status LoadWeights(const ModelFolder& folder, ModelConfig& config, const LoadProgress& progress,
                   ModelWeights& into);

}  // namespace tramontane
