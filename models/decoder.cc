#include "models/decoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "models/architecture.h"
#include "models/block.h"
#include "models/memory_plan.h"
#include "models/op_status.h"
#include "models/weights.h"

namespace tramontane {
namespace {

// The activation buffers of one block kind: where each lies, and its columns.
struct KindBuffers {
  const BlockKind* kind = nullptr;
  std::vector<int64_t> offsets;
  std::vector<int64_t> columns;
};

// Where each activation buffer lies in one allocation. T: tokens of the largest step.
struct ActivationMap {
  int64_t hidden = 0;              // [T, hidden] the residual stream
  std::vector<KindBuffers> kinds;  // each [T, columns], shared by all layers
  int64_t cos_sin = 0;             // [T, head_dim / 2, 2] f32
  int64_t inverse_frequency = 0;   // [head_dim / 2] f64
  int64_t query_scale = 0;         // [T] f32, where the model scales its queries
  int64_t sink_query = 0;          // [T, heads * head_dim] of rows that see sinks, and
  int64_t sink_cos_sin = 0;        // [T, head_dim / 2, 2] f32
  int64_t bytes = 0;
};

// Elements from one row to the next: rows stay 64-byte aligned.
int64_t RowStride(int64_t columns) { return (columns + 31) / 32 * 32; }

ActivationMap MapActivations(const ModelConfig& config, DType dtype, int64_t tokens) {
  ActivationMap map;
  const auto take = [&map](int64_t bytes) {
    return std::exchange(map.bytes, map.bytes + (bytes + 63) / 64 * 64);
  };
  const auto rows = [&](int64_t columns) { return take(Format(dtype).Bytes(tokens * RowStride(columns))); };
  map.hidden = rows(config.hidden_size);
  for (const BlockKind* kind : FindArchitecture(config.architecture).blocks) {
    if (std::any_of(map.kinds.begin(), map.kinds.end(), [&](const auto& k) { return k.kind == kind; }))
      continue;
    KindBuffers& buffers = map.kinds.emplace_back();
    buffers.kind = kind;
    buffers.columns = kind->buffer_columns(config);
    for (const int64_t columns : buffers.columns) buffers.offsets.push_back(rows(columns));
  }
  map.cos_sin = take(tokens * config.head_dim * static_cast<int64_t>(sizeof(float)));
  map.inverse_frequency = take(config.head_dim / 2 * static_cast<int64_t>(sizeof(double)));
  if (config.query_scaling.beta != 0.0) map.query_scale = take(tokens * static_cast<int64_t>(sizeof(float)));
  map.sink_query = rows(int64_t{config.heads} * config.head_dim);
  map.sink_cos_sin = take(tokens * config.head_dim * static_cast<int64_t>(sizeof(float)));
  return map;
}

class Decoder final : public Model {
 public:
  Decoder(ModelConfig config, KvLayout layout, Backend& backend)
      : config_(std::move(config)), layout_(std::move(layout)), backend_(backend), weights_(backend) {}
  ~Decoder() override { backend_.Free(activations_); }

  Status Load(const std::vector<WeightSpec>& specs, const WeightFiles& files, const LoadProgress& progress);

  const ModelConfig& config() const override { return config_; }
  const KvLayout& kv_layout() const override { return layout_; }
  Status Reserve(int32_t max_tokens, int32_t max_sequences, int32_t max_logit_rows) override;
  OpCode Forward(const ForwardBatch& batch, std::byte* pool) override;
  OpCode Logits(const int32_t* rows, int32_t count, const Tensor& logits) override;

 private:
  void MakeBlocks();
  Status UploadInverseFrequency();
  OpCode MakeAngles(const int32_t* positions, int32_t tokens, float* cos_sin);
  Tensor Buffer(int64_t offset, int64_t rows, int64_t columns) const {
    return {activations_ + offset, backend_.info().activation_dtype, rows, columns, RowStride(columns)};
  }
  Tensor Hidden(int64_t rows) const { return Buffer(map_.hidden, rows, config_.hidden_size); }
  float* CosSin() const { return reinterpret_cast<float*>(activations_ + map_.cos_sin); }
  float* SinkCosSin() const { return reinterpret_cast<float*>(activations_ + map_.sink_cos_sin); }
  double* InverseFrequency() const {
    return reinterpret_cast<double*>(activations_ + map_.inverse_frequency);
  }

  // [T]; null where queries are not scaled.
  float* QueryScale() const {
    return config_.query_scaling.beta == 0.0 ? nullptr
                                             : reinterpret_cast<float*>(activations_ + map_.query_scale);
  }

  ModelConfig config_;
  const KvLayout layout_;
  Backend& backend_;
  ModelWeights weights_;
  WeightHandle embedding_;
  const float* final_norm_ = nullptr;
  WeightHandle lm_head_;  // the embedding where they are tied
  int32_t max_tokens_ = 0;
  ActivationMap map_;
  std::byte* activations_ = nullptr;                  // device
  std::vector<std::unique_ptr<const Block>> blocks_;  // layer after layer
};

Status Decoder::Load(const std::vector<WeightSpec>& specs, const WeightFiles& files,
                     const LoadProgress& progress) {
  TM_RETURN_IF_ERROR(weights_.Load(specs, files, progress));
  embedding_ = weights_.matrix(WeightRole::kEmbedding);
  final_norm_ = weights_.vector(WeightRole::kFinalNorm);
  lm_head_ = config_.tied_embeddings ? embedding_ : weights_.matrix(WeightRole::kLmHead);
  return Status::Ok();
}

OpCode Decoder::Forward(const ForwardBatch& batch, std::byte* pool) {
  TM_CHECK(batch.tokens <= max_tokens_, "a step of %d tokens, reserved are %d", batch.tokens, max_tokens_);
  if (batch.tokens == 0) return OpCode::kOk;
  const Residual residual(backend_, Hidden(batch.tokens));
  TM_RETURN_IF_FAILED(backend_.Embed(
      {.token_ids = batch.token_ids, .tokens = batch.tokens, .table = embedding_, .out = residual.stream()}));
  TM_RETURN_IF_FAILED(MakeAngles(batch.positions, batch.tokens, CosSin()));
  BlockStep step = {.batch = batch, .pool = pool, .cos_sin = CosSin(), .query_scale = QueryScale()};
  if (batch.sinks.len != nullptr) {
    // Second, so that queries are scaled by where they stand among the tokens held.
    TM_RETURN_IF_FAILED(MakeAngles(batch.sinks.positions, batch.tokens, SinkCosSin()));
    step.sink_cos_sin = SinkCosSin();
    step.sink_query = Buffer(map_.sink_query, batch.tokens, int64_t{config_.heads} * config_.head_dim);
  }
  const size_t blocks_per_layer = blocks_.size() / static_cast<size_t>(config_.layers);
  const size_t blocks = blocks_per_layer * static_cast<size_t>(std::min(batch.layers, config_.layers));
  for (size_t i = 0; i < blocks; ++i) TM_RETURN_IF_FAILED(blocks_[i]->Forward(step, residual));
  return OpCode::kOk;
}

// The rotation at each position, and how much longer the queries there become.
OpCode Decoder::MakeAngles(const int32_t* positions, int32_t tokens, float* cos_sin) {
  return backend_.RopeTable({.positions = positions,
                             .tokens = tokens,
                             .inverse_frequency = InverseFrequency(),
                             .half_dim = config_.head_dim / 2,
                             .cos_sin = cos_sin,
                             .magnitude = config_.rope_scaling.magnitude,
                             .query_scale = QueryScale(),
                             .query_scale_beta = config_.query_scaling.beta,
                             .query_scale_positions = config_.query_scaling.positions});
}

OpCode Decoder::Logits(const int32_t* rows, int32_t count, const Tensor& logits) {
  return backend_.Linear({.x = Hidden(max_tokens_),
                          .x_rows = rows,
                          .rows = count,
                          .prologue = Prologue::kRmsNorm,
                          .norm_weight = final_norm_,
                          .norm_epsilon = config_.rms_epsilon,
                          .weight = lm_head_,
                          .out = logits});
}

Status Decoder::Reserve(int32_t max_tokens, int32_t max_sequences, int32_t max_logit_rows) {
  TM_CHECK(activations_ == nullptr, "Reserve is called once");
  const StepMaxima maxima =
      MaximaOf(config_, layout_.format,
               {.max_tokens = max_tokens, .max_sequences = max_sequences, .max_logit_rows = max_logit_rows},
               weights_.quantised_numbers());
  TM_RETURN_IF_ERROR(OpStatus(backend_.Reserve(maxima), backend_, "reserving the backend's workspace"));
  map_ = MapActivations(config_, backend_.info().activation_dtype, max_tokens);
  activations_ = static_cast<std::byte*>(backend_.Allocate(map_.bytes));
  if (activations_ == nullptr) {
    return ResourceExhausted("no memory for " + std::to_string(map_.bytes) + " bytes of activations");
  }
  max_tokens_ = max_tokens;
  MakeBlocks();
  return UploadInverseFrequency();
}

void Decoder::MakeBlocks() {
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    for (const BlockKind* kind : FindArchitecture(config_.architecture).blocks) {
      const KindBuffers& placed =
          *std::find_if(map_.kinds.begin(), map_.kinds.end(), [&](const auto& k) { return k.kind == kind; });
      std::vector<Tensor> buffers;
      for (size_t i = 0; i < placed.columns.size(); ++i) {
        buffers.push_back(Buffer(placed.offsets[i], max_tokens_, placed.columns[i]));
      }
      blocks_.push_back(kind->make({.config = config_,
                                    .kv_layout = layout_,
                                    .weights = weights_,
                                    .backend = backend_,
                                    .layer = layer,
                                    .buffers = buffers}));
    }
  }
}

Status Decoder::UploadInverseFrequency() {
  const std::vector<double> inverse_frequency =
      RotaryFrequencies(config_.rope_theta, config_.head_dim, config_.rope_scaling);
  const auto bytes = static_cast<int64_t>(inverse_frequency.size() * sizeof(double));
  TM_RETURN_IF_ERROR(OpStatus(backend_.Upload(InverseFrequency(), inverse_frequency.data(), bytes), backend_,
                              "copying the rotary frequencies to the device"));
  return OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_,
                  "copying the rotary frequencies to the device");
}

}  // namespace

StatusOr<std::unique_ptr<Model>> LoadModel(OpenedModel opened, Backend& backend,
                                           const LoadProgress& progress) {
  TM_ASSIGN_OR_RETURN(const WeightFiles files, std::move(opened.weight_files));
  auto model = std::make_unique<Decoder>(std::move(opened.config), std::move(opened.kv_layout), backend);
  TM_RETURN_IF_ERROR(model->Load(opened.weights, files, progress));
  return std::unique_ptr<Model>(std::move(model));
}

int64_t ActivationBytes(const ModelConfig& config, DType activation_dtype, int32_t max_tokens) {
  return MapActivations(config, activation_dtype, max_tokens).bytes;
}

}  // namespace tramontane
