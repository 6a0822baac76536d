// hidden += Wdown (silu(Wgate norm(hidden)) * Wup norm(hidden))
#include "models/block.h"
#include "models/op_status.h"

namespace tramontane {
namespace {

void ListFeedForwardWeights(const ModelConfig& config, int32_t layer, WeightList& weights) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  weights.AddNorm({WeightRole::kMlpNorm, layer},
                  {".post_attention_layernorm.weight", ".ffn_norm.weight", ".ffn_norm.weight"}, hidden);
  weights.AddMatrix({WeightRole::kGateUp, layer},
                    {{{".mlp.gate_proj.weight", ".feed_forward.w1.weight", ".ffn_gate.weight"}, intermediate},
                     {{".mlp.up_proj.weight", ".feed_forward.w3.weight", ".ffn_up.weight"}, intermediate}},
                    hidden, LinearLayout::kGateUp);
  weights.AddMatrix({WeightRole::kDown, layer},
                    {{{".mlp.down_proj.weight", ".feed_forward.w2.weight", ".ffn_down.weight"}, hidden}},
                    intermediate);
}

std::vector<int64_t> FeedForwardBufferColumns(const ModelConfig& config) {
  return {config.intermediate_size};
}

class FeedForwardBlock final : public Block {
 public:
  explicit FeedForwardBlock(const BlockParts& parts)
      : backend_(parts.backend),
        norm_epsilon_(parts.config.rms_epsilon),
        norm_(parts.weights.vector(WeightRole::kMlpNorm, parts.layer)),
        gate_up_(parts.weights.matrix(WeightRole::kGateUp, parts.layer)),
        down_(parts.weights.matrix(WeightRole::kDown, parts.layer)),
        buffer_(parts.buffers[0]) {}

  OpCode Forward(const BlockStep& step, const Residual& residual) const override {
    const Tensor product = FirstRows(buffer_, step.batch.tokens);
    TM_RETURN_IF_FAILED(backend_.Linear({.x = residual.stream(),
                                         .rows = step.batch.tokens,
                                         .prologue = Prologue::kRmsNorm,
                                         .norm_weight = norm_,
                                         .norm_epsilon = norm_epsilon_,
                                         .weight = gate_up_,
                                         .epilogue = Epilogue::kSwiGlu,
                                         .out = product}));
    return residual.Add(product, down_);
  }

 private:
  Backend& backend_;
  const float norm_epsilon_;
  const float* const norm_;
  const WeightHandle gate_up_;
  const WeightHandle down_;
  const Tensor buffer_;
};

std::unique_ptr<const Block> MakeFeedForwardBlock(const BlockParts& parts) {
  return std::make_unique<FeedForwardBlock>(parts);
}

}  // namespace

const BlockKind kFeedForwardBlock = {ListFeedForwardWeights, FeedForwardBufferColumns, MakeFeedForwardBlock};

}  // namespace tramontane
