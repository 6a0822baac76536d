// A Mistral decoder by its definition, in double precision, one token at a time over a cache of every key and
// value that it holds: nothing is paged, and a window is only a mask. A text that outgrows its context does
// to that cache what its policy says, to the letter: rows are taken out of it, keys are turned to where they
// stand then, tokens are computed again. Rotated pairs lie side by side, as in Mistral's own files. One
// thread.
#pragma once

#include <cstdint>
#include <functional>
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

// What is done before a token comes for which there is no room, n_ctx being held.
enum class WhenFull {
  kGrow,        // nothing: there is always room
  kSinks,       // the oldest token behind the first n_keep goes. Nobody moves, and each layer sees the first
                // n_keep, however narrow its window
  kShift,       // the n_discard oldest behind the first n_keep go, and the keys behind them are turned to
                // positions that are lower by as much
  kReevaluate,  // the same go, and what is left is computed again as a text of its own
};
struct ContextRule {
  WhenFull when_full = WhenFull::kGrow;
  int64_t n_ctx = 0;
  int64_t n_keep = 0;
  int64_t n_discard = 0;  // of kShift and kReevaluate
};

// What a cache makes of the row of one head, [head_dim], as it is written.
using RowRounding = std::function<std::vector<double>(const std::vector<double>&)>;

class Mistral {
 public:
  // `rounding`: of keys and values; of keys as they are turned to the token's place in the text, or, under
  // kReevaluate, in what is left of it. Null: they stay as they are.
  explicit Mistral(MistralWeights weights, const ContextRule& rule = {}, RowRounding rounding = nullptr);

  // Appends the token and returns the logits of the one after it. [vocab]
  std::vector<double> Next(int32_t token);

  int64_t tokens() const { return tokens_; }  // appended so far, gone or not
  int64_t held() const { return static_cast<int64_t>(held_.size()); }

 private:
  struct Held {
    int32_t token = 0;
    int64_t position = 0;  // by which its keys are turned
  };
  struct Cache {
    std::vector<double> keys;    // [held, kv_heads, head_dim] turned
    std::vector<double> values;  // [held, kv_heads, head_dim]
  };

  void MakeRoom();
  void Drop(int64_t count);
  void TurnBack(int64_t by);
  std::vector<double> Compute(int32_t token, int64_t position, int64_t written_at);
  Matrix Attend(const MistralLayer& layer, const Matrix& x, int64_t written_at, Cache& cache) const;
  Matrix FeedForward(const MistralLayer& layer, const Matrix& x) const;
  std::vector<double> Turned(const std::vector<double>& heads, int64_t by) const;
  std::vector<double> Rounded(const std::vector<double>& heads) const;
  std::vector<int64_t> SeenBy(const MistralLayer& layer) const;

  const MistralWeights weights_;
  const ContextRule rule_;
  const RowRounding rounding_;
  const std::vector<double> inverse_frequency_;  // [head_dim / 2]
  std::vector<Held> held_;                       // oldest first
  std::vector<Cache> caches_;                    // [layers]
  int64_t tokens_ = 0;
};

}  // namespace tramontane::reference
