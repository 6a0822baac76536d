// The logits at every token of a prompt, by a model without an engine: what two models are compared by, of
// which the engine tells only the likeliest.
//
//   open -> Forward(prompt) -> Logits(rows) ... -> Forward(next prompt) ...
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/model.h"
#include "server/setup/config.h"

namespace tramontane {

class PromptLogits {
 public:
  static constexpr int32_t kMaxRows = 32;  // of one call of Logits

  // Prompts of up to `max_tokens`. `config` as for StartLocalEngine.
  static StatusOr<std::unique_ptr<PromptLogits>> Open(const ServeConfig& config, int32_t max_tokens);

  const std::string& name() const { return name_; }
  int32_t vocab_size() const { return model_->config().vocab_size; }

  // From an empty cache.
  Status Forward(std::span<const int32_t> prompt);
  // Of `count` tokens of that prompt from `begin` on, into `logits` [count, vocab_size].
  Status Logits(int32_t begin, int32_t count, std::vector<float>* logits);

 private:
  using DeviceMemory = std::unique_ptr<void, std::function<void(void*)>>;

  PromptLogits() = default;
  StatusOr<DeviceMemory> Allocate(int64_t bytes);
  template <typename T>
  StatusOr<const T*> Upload(const std::vector<T>& values);
  Status Wait(OpCode code);

  // Destroyed in reverse: memory before the backend that it is of.
  std::string name_;
  BackendPtr backend_;
  std::unique_ptr<Model> model_;
  int64_t pages_ = 0;  // of a group
  DeviceMemory pool_;
  DeviceMemory logits_;  // [kMaxRows, vocab_size] f32
  std::vector<DeviceMemory> uploads_;
};

}  // namespace tramontane
