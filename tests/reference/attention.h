// Attention of one sequence by its definition, in double precision: every score of a visible key, one
// softmax, one weighted sum. Nothing is blocked, paged or rescaled. Any thread; pure.
#pragma once

#include <cstdint>
#include <vector>

namespace tramontane::reference {

struct AttentionProblem {
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t window = 0;  // keys a query sees, itself included; 0: all before it
  double scale = 0;
  int64_t query_begin = 0;     // position of the first query
  int64_t key_begin = 0;       // position of the first key that is given
  std::vector<double> query;   // [queries, query_heads, head_dim]
  std::vector<double> keys;    // [positions from key_begin, kv_heads, head_dim]
  std::vector<double> values;  // like keys
};

// [queries, query_heads, head_dim]. A query without a visible key gives zeros.
std::vector<double> Attention(const AttentionProblem& problem);
// [queries, query_heads] log2 of the sum of e^score over the visible keys; -inf where there is none.
std::vector<double> AttentionLse(const AttentionProblem& problem);

}  // namespace tramontane::reference
