#include "models/mistral.h"

#include <cmath>
#include <utility>
#include <vector>

#include "models/memory_plan.h"
#include "models/op_status.h"
#include "models/weights.h"

namespace tramontane {
namespace {

// A step ends at the first op that fails.
#define RETURN_IF_FAILED(op)                                        \
  do {                                                              \
    if (const OpCode code = (op); code != OpCode::kOk) return code; \
  } while (false)

// Where each activation buffer lies in one allocation. T: tokens of the largest step.
struct ActivationMap {
  int64_t hidden = 0;             // [T, hidden] the residual stream
  int64_t qkv = 0;                // [T, (heads + 2 * kv_heads) * head_dim]
  int64_t attention = 0;          // [T, heads * head_dim]
  int64_t mlp = 0;                // [T, intermediate]
  int64_t cos_sin = 0;            // [T, head_dim / 2, 2] f32
  int64_t inverse_frequency = 0;  // [head_dim / 2] f64
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
  map.qkv = rows(int64_t{config.heads + 2 * config.kv_heads} * config.head_dim);
  map.attention = rows(int64_t{config.heads} * config.head_dim);
  map.mlp = rows(config.intermediate_size);
  map.cos_sin = take(tokens * config.head_dim * static_cast<int64_t>(sizeof(float)));
  map.inverse_frequency = take(config.head_dim / 2 * static_cast<int64_t>(sizeof(double)));
  return map;
}

struct LayerWeights {
  const float* attention_norm = nullptr;
  WeightHandle qkv;
  WeightHandle attention_out;
  const float* mlp_norm = nullptr;
  WeightHandle gate_up;
  WeightHandle down;
};

class Mistral final : public Model {
 public:
  Mistral(ModelConfig config, KvLayout layout, Backend& backend)
      : config_(std::move(config)), layout_(std::move(layout)), backend_(backend), weights_(backend) {}
  ~Mistral() override { backend_.Free(activations_); }

  Status Load(const std::vector<WeightSpec>& specs, const WeightFiles& files, const LoadProgress& progress);

  const ModelConfig& config() const override { return config_; }
  const KvLayout& kv_layout() const override { return layout_; }
  Status Reserve(int32_t max_tokens, int32_t max_sequences, int32_t max_logit_rows) override;
  OpCode Forward(const ForwardBatch& batch, std::byte* pool) override;
  OpCode Logits(const int32_t* rows, int32_t count, const Tensor& logits) override;

 private:
  OpCode Attend(const ForwardBatch& batch, int32_t layer, std::byte* pool);
  OpCode FeedForward(int32_t tokens, int32_t layer);
  Tensor Buffer(int64_t offset, int64_t rows, int64_t columns) const {
    return {activations_ + offset, backend_.info().activation_dtype, rows, columns, RowStride(columns)};
  }
  Tensor Hidden(int64_t rows) const { return Buffer(map_.hidden, rows, config_.hidden_size); }
  float* CosSin() const { return reinterpret_cast<float*>(activations_ + map_.cos_sin); }
  double* InverseFrequency() const {
    return reinterpret_cast<double*>(activations_ + map_.inverse_frequency);
  }

  ModelConfig config_;
  KvLayout layout_;
  Backend& backend_;
  ModelWeights weights_;
  std::vector<LayerWeights> layers_;
  int32_t max_tokens_ = 0;
  ActivationMap map_;
  std::byte* activations_ = nullptr;  // device
};

Status Mistral::Load(const std::vector<WeightSpec>& specs, const WeightFiles& files,
                     const LoadProgress& progress) {
  TM_RETURN_IF_ERROR(weights_.Load(specs, files, progress, config_));
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    layers_.push_back({.attention_norm = weights_.norm(WeightRole::kAttentionNorm, layer),
                       .qkv = weights_.matrix(WeightRole::kQkv, layer),
                       .attention_out = weights_.matrix(WeightRole::kAttentionOut, layer),
                       .mlp_norm = weights_.norm(WeightRole::kMlpNorm, layer),
                       .gate_up = weights_.matrix(WeightRole::kGateUp, layer),
                       .down = weights_.matrix(WeightRole::kDown, layer)});
  }
  return Status::Ok();
}

OpCode Mistral::Forward(const ForwardBatch& batch, std::byte* pool) {
  TM_CHECK(batch.tokens <= max_tokens_, "a step of %d tokens, reserved are %d", batch.tokens, max_tokens_);
  if (batch.tokens == 0) return OpCode::kOk;
  RETURN_IF_FAILED(backend_.Embed({.token_ids = batch.token_ids,
                                   .tokens = batch.tokens,
                                   .table = weights_.matrix(WeightRole::kEmbedding),
                                   .out = Hidden(batch.tokens)}));
  RETURN_IF_FAILED(backend_.RopeTable({.positions = batch.positions,
                                       .tokens = batch.tokens,
                                       .inverse_frequency = InverseFrequency(),
                                       .half_dim = config_.head_dim / 2,
                                       .cos_sin = CosSin()}));
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    RETURN_IF_FAILED(Attend(batch, layer, pool));
    RETURN_IF_FAILED(FeedForward(batch.tokens, layer));
  }
  return OpCode::kOk;
}

// hidden += Wo attention(rope(Wqkv norm(hidden)))
OpCode Mistral::Attend(const ForwardBatch& batch, int32_t layer, std::byte* pool) {
  const LayerWeights& weights = layers_[layer];
  const KvLayout::Place place = layout_.places[layer];
  const PageTableView& table = batch.groups[place.group];
  const KvLayerView kv = layout_.LayerView(pool, place.layer_in_group);
  const int64_t queries = int64_t{config_.heads} * config_.head_dim;
  const Tensor hidden = Hidden(batch.tokens);
  const Tensor qkv =
      Buffer(map_.qkv, batch.tokens, queries + int64_t{2 * config_.kv_heads} * config_.head_dim);
  const Tensor attention = Buffer(map_.attention, batch.tokens, queries);

  RETURN_IF_FAILED(backend_.Linear({.x = hidden,
                                    .rows = batch.tokens,
                                    .prologue = Prologue::kRmsNorm,
                                    .norm_weight = weights.attention_norm,
                                    .norm_epsilon = config_.rms_epsilon,
                                    .weight = weights.qkv,
                                    .out = qkv}));
  RETURN_IF_FAILED(backend_.RopeAppend({.qkv = qkv,
                                        .cos_sin = CosSin(),
                                        .style = config_.rotary_style,
                                        .query_heads = config_.heads,
                                        .kv = kv,
                                        .slots = table.slots}));
  RETURN_IF_FAILED(backend_.Attention({.query = {qkv.data, qkv.dtype, qkv.rows, queries, qkv.row_stride},
                                       .out = attention,
                                       .kv = kv,
                                       .table = table,
                                       .qo_indptr = batch.qo_indptr,
                                       .batch = batch.sequences,
                                       .query_heads = config_.heads,
                                       .window = config_.window[layer],
                                       .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim))}));
  return backend_.Linear({.x = attention,
                          .rows = batch.tokens,
                          .weight = weights.attention_out,
                          .epilogue = Epilogue::kAddResidual,
                          .out = hidden});
}

// hidden += Wdown (silu(Wgate norm(hidden)) * Wup norm(hidden))
OpCode Mistral::FeedForward(int32_t tokens, int32_t layer) {
  const LayerWeights& weights = layers_[layer];
  const Tensor hidden = Hidden(tokens);
  const Tensor mlp = Buffer(map_.mlp, tokens, config_.intermediate_size);
  RETURN_IF_FAILED(backend_.Linear({.x = hidden,
                                    .rows = tokens,
                                    .prologue = Prologue::kRmsNorm,
                                    .norm_weight = weights.mlp_norm,
                                    .norm_epsilon = config_.rms_epsilon,
                                    .weight = weights.gate_up,
                                    .epilogue = Epilogue::kSwiGlu,
                                    .out = mlp}));
  return backend_.Linear(
      {.x = mlp, .rows = tokens, .weight = weights.down, .epilogue = Epilogue::kAddResidual, .out = hidden});
}

OpCode Mistral::Logits(const int32_t* rows, int32_t count, const Tensor& logits) {
  return backend_.Linear(
      {.x = Hidden(max_tokens_),
       .x_rows = rows,
       .rows = count,
       .prologue = Prologue::kRmsNorm,
       .norm_weight = weights_.norm(WeightRole::kFinalNorm),
       .norm_epsilon = config_.rms_epsilon,
       .weight = weights_.matrix(config_.tied_embeddings ? WeightRole::kEmbedding : WeightRole::kLmHead),
       .out = logits});
}

Status Mistral::Reserve(int32_t max_tokens, int32_t max_sequences, int32_t max_logit_rows) {
  TM_CHECK(activations_ == nullptr, "Reserve is called once");
  TM_RETURN_IF_ERROR(OpStatus(backend_.Reserve(MaximaOf(config_, {.max_tokens = max_tokens,
                                                                  .max_sequences = max_sequences,
                                                                  .max_logit_rows = max_logit_rows})),
                              backend_, "reserving the backend's workspace"));
  map_ = MapActivations(config_, backend_.info().activation_dtype, max_tokens);
  activations_ = static_cast<std::byte*>(backend_.Allocate(map_.bytes));
  if (activations_ == nullptr) {
    return ResourceExhausted("no memory for " + std::to_string(map_.bytes) + " bytes of activations");
  }
  max_tokens_ = max_tokens;

  std::vector<double> inverse_frequency(static_cast<size_t>(config_.head_dim / 2));
  for (int32_t i = 0; i < config_.head_dim / 2; ++i) {
    inverse_frequency[i] = std::pow(config_.rope_theta, -2.0 * i / config_.head_dim);
  }
  const auto bytes = static_cast<int64_t>(inverse_frequency.size() * sizeof(double));
  TM_RETURN_IF_ERROR(OpStatus(backend_.Upload(InverseFrequency(), inverse_frequency.data(), bytes), backend_,
                              "copying the rotary frequencies to the device"));
  return OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_,
                  "copying the rotary frequencies to the device");
}

}  // namespace

StatusOr<std::unique_ptr<Model>> MakeMistral(OpenedModel opened, Backend& backend,
                                             const LoadProgress& progress) {
  TM_ASSIGN_OR_RETURN(const WeightFiles files, std::move(opened.weight_files));
  auto model = std::make_unique<Mistral>(std::move(opened.config), std::move(opened.kv_layout), backend);
  TM_RETURN_IF_ERROR(model->Load(opened.weights, files, progress));
  return std::unique_ptr<Model>(std::move(model));
}

int64_t MistralActivationBytes(const ModelConfig& config, DType activation_dtype, int32_t max_tokens) {
  return MapActivations(config, activation_dtype, max_tokens).bytes;
}

}  // namespace tramontane
