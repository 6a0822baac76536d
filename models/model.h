// Model: an architecture as a sequence of Backend calls. Files and architectures, not requests.
// Engine thread after loading. A model borrows its backend and never outlives it.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"
#include "models/model_config.h"

namespace tramontane {

// What rows see of a context that never ends (AttentionSinks), all [T] on the device. Null: nothing of it.
struct SinkRows {
  const int32_t* len = nullptr;
  const int32_t* left = nullptr;
  const int32_t* positions = nullptr;  // where queries stand for sink keys
  const int32_t* limits = nullptr;     // what a window away from which hides a sink
};

// One step's input, all pointers device memory (one packed upload). The order of tokens is sequence by
// sequence.
struct ForwardBatch {
  int32_t tokens = 0;                  // T, padded rows included
  int32_t sequences = 0;               // B
  const int32_t* token_ids = nullptr;  // [T]
  const int32_t* positions = nullptr;  // [T] absolute
  const int32_t* qo_indptr = nullptr;  // [B + 1]
  SinkRows sinks = {};
  const PageTableView* groups =
      nullptr;  // host array [KvLayout::groups]; the views' pointers are device memory
  // Host array [KvLayout::groups], likewise: a mask for some of the sequences. Null: windows decide.
  const AttentionMaskView* masks = nullptr;
  AttentionPlain plain = {};   // where some have sinks or a mask
  int32_t layers = INT32_MAX;  // fewer: only so many of the first ones are run, to time them
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const KvLayout& kv_layout() const = 0;

  // Takes the activation buffers and the backend's workspace for steps up to these maxima. Once, before
  // Forward.
  virtual Status Reserve(int32_t max_tokens, int32_t max_sequences, int32_t max_logit_rows) = 0;

  // Runs every layer over the batch and appends its keys and values to the pages of `pool`.
  // The final hidden states stay in the model until the next Forward.
  virtual OpCode Forward(const ForwardBatch& batch, std::byte* pool) = 0;

  // Logits of some rows of the last Forward, which may have been a recorded one. rows: [count] device;
  // logits: [count, vocab] f32 device.
  virtual OpCode Logits(const int32_t* rows, int32_t count, const Tensor& logits) = 0;
};

// Called while weights load: bytes done of bytes in all.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

}  // namespace tramontane
