// hidden += sum over a row's experts of share * Wdown (silu(Wgate norm(hidden)) * Wup norm(hidden))
#include <vector>

#include "models/block.h"
#include "models/op_status.h"

namespace tramontane {
namespace {

void ListMoeWeights(const ModelConfig& config, int32_t layer, WeightList& weights) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  weights.AddNorm({WeightRole::kMlpNorm, layer},
                  {".post_attention_layernorm.weight", ".ffn_norm.weight", ".ffn_norm.weight"}, hidden);
  weights.AddRouter({WeightRole::kRouter, layer},
                    {".block_sparse_moe.gate.weight", ".feed_forward.gate.weight", ".ffn_gate_inp.weight"},
                    config.experts, hidden);
  for (int32_t expert = 0; expert < config.experts; ++expert) {
    weights.AddMatrix({WeightRole::kGateUp, layer, expert},
                      {{{".block_sparse_moe.experts.*.w1.weight", ".feed_forward.experts.*.w1.weight",
                         ".ffn_gate_exps.weight"},
                        intermediate},
                       {{".block_sparse_moe.experts.*.w3.weight", ".feed_forward.experts.*.w3.weight",
                         ".ffn_up_exps.weight"},
                        intermediate}},
                      hidden, LinearLayout::kGateUp);
    weights.AddMatrix({WeightRole::kDown, layer, expert},
                      {{{".block_sparse_moe.experts.*.w2.weight", ".feed_forward.experts.*.w2.weight",
                         ".ffn_down_exps.weight"},
                        hidden}},
                      intermediate);
  }
}

// The op keeps what lies between in the backend's workspace.
std::vector<int64_t> MoeBufferColumns(const ModelConfig&) { return {}; }

class MoeBlock final : public Block {
 public:
  explicit MoeBlock(const BlockParts& parts)
      : config_(parts.config),
        norm_(parts.weights.vector(WeightRole::kMlpNorm, parts.layer)),
        router_(parts.weights.vector(WeightRole::kRouter, parts.layer)) {
    for (int32_t expert = 0; expert < config_.experts; ++expert) {
      gate_up_.push_back(parts.weights.matrix(WeightRole::kGateUp, parts.layer, expert));
      down_.push_back(parts.weights.matrix(WeightRole::kDown, parts.layer, expert));
    }
  }

  OpCode Forward(const BlockStep& step, const Residual& residual) const override {
    return residual.Add({.x = residual.stream(),
                         .rows = step.batch.tokens,
                         .live_rows = step.batch.qo_indptr + step.batch.sequences,
                         .norm_weight = norm_,
                         .norm_epsilon = config_.rms_epsilon,
                         .router = router_,
                         .experts = config_.experts,
                         .experts_per_token = config_.experts_per_token,
                         .gate_up = gate_up_.data(),
                         .down = down_.data()});
  }

 private:
  const ModelConfig& config_;
  const float* const norm_;
  const float* const router_;
  std::vector<WeightHandle> gate_up_;  // [experts]; the op reads both where they stand
  std::vector<WeightHandle> down_;     // [experts]
};

std::unique_ptr<const Block> MakeMoeBlock(const BlockParts& parts) {
  return std::make_unique<MoeBlock>(parts);
}

}  // namespace

const BlockKind kMoeBlock = {ListMoeWeights, MoeBufferColumns, MakeMoeBlock};

}  // namespace tramontane
