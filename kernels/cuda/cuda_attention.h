// CudaAttention: the attention of a step: by which kernels, planned once for each (table, window, left), over
// pages whose tensor map is made once, and which are decoded first where they are quantised and rows are
// many. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/decoded_pages.h"
#include "kernels/cuda/tensor_map.h"

namespace tramontane::cuda {

class CudaAttention {
 public:
  explicit CudaAttention(CudaContext& context) : context_(context) {}  // borrowed

  // Whether heads have kernels.
  OpCode CheckHeads(const StepMaxima& maxima);
  // And what pages may hold.
  OpCode CheckPages(const KvLayerView& kv);
  // Behind that of the context.
  void Reserve();
  // Tables may have changed: what is planned is planned anew.
  void BeginStep() {
    plans_.clear();
    decoded_pages_.ForgetLists();
  }
  OpCode Run(const AttentionParams& params);

 private:
  // A work list that attention calls of one step share, and what it was made for.
  struct AttentionPlan {
    const int32_t* page_indices = nullptr;
    const int32_t* first_entry = nullptr;
    const int32_t* kv_end = nullptr;
    const int32_t* qo_indptr = nullptr;
    const int32_t* left = nullptr;
    bool by_mask = false;
    int32_t window = 0;
    int32_t batch = 0;
    int32_t tokens = 0;
    AttentionKernels kernels = AttentionKernels::kMmaSync;
    int32_t tile_rows = 0;
    int32_t max_items = 0;
    AttentionItem* items = nullptr;
    AttentionMerge* merges = nullptr;
    AttentionWork* work = nullptr;
    AttentionShare* shares = nullptr;  // null: nobody shares

    bool Serves(const AttentionParams& p, AttentionKernels by) const {
      return kernels == by && kv_end == p.table.kv_end && qo_indptr == p.qo_indptr && window == p.window &&
             batch == p.batch && tokens == p.query.rows && left == p.sinks.left &&
             by_mask == (p.mask.bits != nullptr) &&
             (shares == nullptr ||
              (page_indices == p.table.page_indices && first_entry == p.table.first_entry));
    }
  };

  // The tensor map of a pool of pages, and what it was made for.
  struct PoolMap {
    const std::byte* pool = nullptr;
    int64_t page_bytes = 0;
    KvFormat format;
    TensorMap map;

    bool Describes(const KvLayerView& kv) const {
      return pool == kv.pool && page_bytes == kv.page_bytes && format.kv_heads == kv.format.kv_heads &&
             format.head_dim == kv.format.head_dim && format.page_size == kv.format.page_size &&
             format.order == kv.format.order;
    }
  };

  OpCode Attend(const AttentionParams& params);
  // Over pages as they are.
  OpCode AttendOver(const AttentionParams& params);
  OpCode PlanFor(const AttentionParams& params, const AttentionPlan** plan);
  OpCode MapOfPool(const KvLayerView& kv, TensorMap* map);

  CudaContext& context_;
  std::vector<AttentionPlan> plans_;  // plan i lies in slot i % kAttentionPlans
  DecodedPages decoded_pages_;
  std::vector<PoolMap> pool_maps_;  // at most kMostPoolMaps, oldest first
};

}  // namespace tramontane::cuda
