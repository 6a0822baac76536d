// Block: a part of a layer, from the residual stream and back into it. An architecture is a row of blocks
// (architecture.cc) that the decoder runs layer after layer.
//
// Engine thread, but for the lists of weights: any thread, pure. A block borrows its backend, its weights and
// its buffers. Always: a block adds to the residual stream once, by Residual::Add, and writes to nothing else
// that outlives it but its own layer's keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "models/kv_layout.h"
#include "models/model.h"
#include "models/model_config.h"
#include "models/weights.h"

namespace tramontane {

// What the blocks of a step have in common.
struct BlockStep {
  const ForwardBatch& batch;
  std::byte* pool = nullptr;
  const float* cos_sin = nullptr;      // [tokens, head_dim / 2, 2] device
  const float* query_scale = nullptr;  // [tokens] device; null: 1
  // Of queries for sink keys, where the batch has any.
  const float* sink_cos_sin = nullptr;  // [tokens, head_dim / 2, 2] device
  Tensor sink_query = {};               // [tokens, heads * head_dim] room for them
};

// The residual stream of a step.
class Residual {
 public:
  Residual(Backend& backend, const Tensor& stream) : backend_(backend), stream_(stream) {}

  const Tensor& stream() const { return stream_; }  // [tokens, hidden]

  // stream += x W^T, the way out of every block. Where a weight is cut along its inputs, each rank's product
  // is one term of a sum: what adds up the ranks stands here, behind the product and before the addition. One
  // rank has the whole sum, so its addition is the product's epilogue.
  OpCode Add(const Tensor& x, WeightHandle weight) const {
    return backend_.Linear({.x = x,
                            .rows = static_cast<int32_t>(x.rows),
                            .weight = weight,
                            .epilogue = Epilogue::kAddResidual,
                            .out = stream_});
  }
  // stream += what a mixture of experts makes of it, whose combination is its way out: the same place.
  OpCode Add(MoeParams mixture) const {
    mixture.epilogue = Epilogue::kAddResidual;
    mixture.out = stream_;
    return backend_.Moe(mixture);
  }

 private:
  Backend& backend_;
  Tensor stream_;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual OpCode Forward(const BlockStep& step, const Residual& residual) const = 0;
};

// What a block of one layer is made of.
struct BlockParts {
  const ModelConfig& config;
  const KvLayout& kv_layout;
  const ModelWeights& weights;
  Backend& backend;
  int32_t layer = 0;
  std::span<const Tensor> buffers;  // of the kind, [tokens of the largest step, columns]
};

struct BlockKind {
  // Adds the weights of one layer's block, in the order in which they are loaded.
  void (*list_weights)(const ModelConfig& config, int32_t layer, WeightList& weights);
  // The columns of each activation buffer that the kind wants; all layers share them.
  std::vector<int64_t> (*buffer_columns)(const ModelConfig& config);
  std::unique_ptr<const Block> (*make)(const BlockParts& parts);
};

extern const BlockKind kAttentionBlock;
extern const BlockKind kFeedForwardBlock;
extern const BlockKind kMoeBlock;

// The first rows of a buffer.
inline Tensor FirstRows(Tensor buffer, int64_t rows) {
  buffer.rows = rows;
  return buffer;
}

}  // namespace tramontane
