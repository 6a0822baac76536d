// hidden += Wo attention(rope(Wqkv norm(hidden)))
#include <cmath>

#include "models/block.h"
#include "models/op_status.h"

namespace tramontane {
namespace {

int64_t QueryColumns(const ModelConfig& config) { return int64_t{config.heads} * config.head_dim; }
int64_t KeyColumns(const ModelConfig& config) { return int64_t{config.kv_heads} * config.head_dim; }

void ListAttentionWeights(const ModelConfig& config, int32_t layer, WeightList& weights) {
  const int64_t hidden = config.hidden_size;
  weights.AddNorm({WeightRole::kAttentionNorm, layer},
                  {".input_layernorm.weight", ".attention_norm.weight", ".attn_norm.weight"}, hidden);
  weights.AddMatrix(
      {WeightRole::kQkv, layer},
      {{{".self_attn.q_proj.weight", ".attention.wq.weight", ".attn_q.weight"}, QueryColumns(config)},
       {{".self_attn.k_proj.weight", ".attention.wk.weight", ".attn_k.weight"}, KeyColumns(config)},
       {{".self_attn.v_proj.weight", ".attention.wv.weight", ".attn_v.weight"}, KeyColumns(config)}},
      hidden);
  weights.AddMatrix({WeightRole::kAttentionOut, layer},
                    {{{".self_attn.o_proj.weight", ".attention.wo.weight", ".attn_output.weight"}, hidden}},
                    QueryColumns(config));
  if (!config.quantization.has_kv_scales) return;
  weights.AddScale({WeightRole::kKeyScale, layer},
                   {".self_attn.k_scale", ".attention.k_scale", ".attn_k.scale"});
  weights.AddScale({WeightRole::kValueScale, layer},
                   {".self_attn.v_scale", ".attention.v_scale", ".attn_v.scale"});
}

// The file's scales, where keys and values are kept in fp8: the same for all heads, wherever the two lie.
KvScaleView ScalesOfTheFile(const BlockParts& parts) {
  const bool is_fp8 = parts.kv_layout.format.element.dtype == DType::kFp8E4M3;
  if (!parts.config.quantization.has_kv_scales || !is_fp8) return {};
  const float* keys = parts.weights.vector(WeightRole::kKeyScale, parts.layer);
  const float* values = parts.weights.vector(WeightRole::kValueScale, parts.layer);
  return {.scales = reinterpret_cast<std::byte*>(const_cast<float*>(keys)),
          .strides = {.kv = (values - keys) * static_cast<int64_t>(sizeof(float))}};
}

std::vector<int64_t> AttentionBufferColumns(const ModelConfig& config) {
  return {QueryColumns(config) + 2 * KeyColumns(config), QueryColumns(config)};
}

class AttentionBlock final : public Block {
 public:
  explicit AttentionBlock(const BlockParts& parts)
      : backend_(parts.backend),
        config_(parts.config),
        layout_(parts.kv_layout),
        place_(layout_.places[static_cast<size_t>(parts.layer)]),
        window_(config_.window[static_cast<size_t>(parts.layer)]),
        norm_(parts.weights.vector(WeightRole::kAttentionNorm, parts.layer)),
        qkv_(parts.weights.matrix(WeightRole::kQkv, parts.layer)),
        out_(parts.weights.matrix(WeightRole::kAttentionOut, parts.layer)),
        scales_(ScalesOfTheFile(parts)),
        qkv_buffer_(parts.buffers[0]),
        attention_buffer_(parts.buffers[1]) {}

  OpCode Forward(const BlockStep& step, const Residual& residual) const override;

 private:
  Backend& backend_;
  const ModelConfig& config_;
  const KvLayout& layout_;
  const KvLayout::Place place_;
  const int32_t window_;
  const float* const norm_;
  const WeightHandle qkv_;
  const WeightHandle out_;
  const KvScaleView scales_;
  const Tensor qkv_buffer_;
  const Tensor attention_buffer_;
};

OpCode AttentionBlock::Forward(const BlockStep& step, const Residual& residual) const {
  const int32_t tokens = step.batch.tokens;
  const PageTableView& table = step.batch.groups[place_.group];
  KvLayerView kv = layout_.LayerView(step.pool, place_.layer_in_group);
  if (scales_.scales != nullptr) kv.scale = scales_;
  const Tensor qkv = FirstRows(qkv_buffer_, tokens);
  const Tensor attention = FirstRows(attention_buffer_, tokens);
  Tensor query = qkv;
  query.columns = attention.columns;

  TM_RETURN_IF_FAILED(backend_.Linear({.x = residual.stream(),
                                       .rows = tokens,
                                       .prologue = Prologue::kRmsNorm,
                                       .norm_weight = norm_,
                                       .norm_epsilon = config_.rms_epsilon,
                                       .weight = qkv_,
                                       .out = qkv}));
  TM_RETURN_IF_FAILED(backend_.RopeAppend({.qkv = qkv,
                                           .cos_sin = step.cos_sin,
                                           .style = config_.rotary_style,
                                           .query_heads = config_.heads,
                                           .kv = kv,
                                           .slots = table.slots,
                                           .query_scale = step.query_scale,
                                           .sink_cos_sin = step.sink_cos_sin,
                                           .sink_query = step.sink_query}));
  const SinkRows& rows = step.batch.sinks;
  AttentionSinks sinks;
  if (rows.len != nullptr) {
    sinks = {.len = rows.len,
             .left = rows.left,
             .query_position = rows.limits,
             .query = step.sink_query,
             .windowed = 1};
  }
  const AttentionMaskView* masks = step.batch.masks;
  TM_RETURN_IF_FAILED(
      backend_.Attention({.query = query,
                          .out = attention,
                          .kv = kv,
                          .table = table,
                          .qo_indptr = step.batch.qo_indptr,
                          .batch = step.batch.sequences,
                          .query_heads = config_.heads,
                          .window = window_,
                          .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                          .mask = masks == nullptr ? AttentionMaskView{} : masks[place_.group],
                          .sinks = sinks,
                          .plain = step.batch.plain}));
  return residual.Add(attention, out_);
}

std::unique_ptr<const Block> MakeAttentionBlock(const BlockParts& parts) {
  return std::make_unique<AttentionBlock>(parts);
}

}  // namespace

const BlockKind kAttentionBlock = {ListAttentionWeights, AttentionBufferColumns, MakeAttentionBlock};

}  // namespace tramontane
