// A Mistral decoder by its definition, in double precision, one token at a time over a cache of every key and
// value it ever made: nothing is paged, nothing is forgotten, the window is only a mask. Rotated pairs lie
// side by side, as in Mistral's own files. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/reference/linear.h"

namespace tramontane::reference {

struct MistralLayer {
  std::vector<double> attention_norm;  // [hidden]
  Matrix wq{0, 0};                     // [heads * head_dim, hidden]
  Matrix wk{0, 0}, wv{0, 0};           // [kv_heads * head_dim, hidden]
  Matrix wo{0, 0};                     // [hidden, heads * head_dim]
  std::vector<double> mlp_norm;        // [hidden]
  Matrix gate{0, 0}, up{0, 0};         // [intermediate, hidden]
  Matrix down{0, 0};                   // [hidden, intermediate]
  int64_t window = 0;                  // keys a query sees, itself included; 0: all
};

struct MistralWeights {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  double rope_theta = 0;
  double norm_epsilon = 0;
  Matrix embedding{0, 0};  // [vocab, hidden]
  std::vector<MistralLayer> layers;
  std::vector<double> final_norm;  // [hidden]
  Matrix lm_head{0, 0};            // [vocab, hidden]
};

class Mistral {
 public:
  explicit Mistral(MistralWeights weights);

  // Appends the token and returns the logits of the one after it. [vocab]
  std::vector<double> Next(int32_t token);

  int64_t tokens() const { return tokens_; }

 private:
  struct Cache {
    std::vector<double> keys;    // [tokens, kv_heads, head_dim] rotated
    std::vector<double> values;  // [tokens, kv_heads, head_dim]
  };

  Matrix Attend(const MistralLayer& layer, const Matrix& x, Cache& cache) const;
  Matrix FeedForward(const MistralLayer& layer, const Matrix& x) const;

  const MistralWeights weights_;
  const std::vector<double> inverse_frequency_;  // [head_dim / 2]
  std::vector<Cache> caches_;                    // [layers]
  int64_t tokens_ = 0;
};

}  // namespace tramontane::reference
