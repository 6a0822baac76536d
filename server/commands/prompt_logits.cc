#include "server/commands/prompt_logits.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "models/decoder.h"
#include "models/opened_model.h"
#include "server/setup/host_options.h"
#include "server/setup/model_source.h"

namespace tramontane {

StatusOr<std::unique_ptr<PromptLogits>> PromptLogits::Open(const ServeConfig& config, int32_t max_tokens) {
  TM_ASSIGN_OR_RETURN(ModelSource source, FindModel(config.model));
  TM_ASSIGN_OR_RETURN(OpenedModel opened,
                      OpenModel(source.folder, KvOptionsOf(config), FileChoiceOf(config)));
  TM_ASSIGN_OR_RETURN(Device device, MakeDevice(config));
  std::unique_ptr<PromptLogits> made(new PromptLogits());
  made->name_ = std::move(source.name);
  made->backend_ = std::move(device.backend);
  TM_ASSIGN_OR_RETURN(made->model_, LoadModel(std::move(opened), *made->backend_, nullptr));
  const KvLayout& layout = made->model_->kv_layout();
  const auto groups = static_cast<int64_t>(layout.groups.size());
  made->pages_ = PagesFor(max_tokens, layout.format.page_size);
  TM_RETURN_IF_ERROR(made->model_->Reserve(max_tokens, 1, kMaxRows));
  TM_ASSIGN_OR_RETURN(made->pool_, made->Allocate(groups * made->pages_ * layout.page_bytes()));
  TM_ASSIGN_OR_RETURN(made->logits_, made->Allocate(int64_t{kMaxRows} * made->vocab_size() *
                                                    static_cast<int64_t>(sizeof(float))));
  return made;
}

// Every group keeps every page, also those that no later token sees.
Status PromptLogits::Forward(std::span<const int32_t> prompt) {
  uploads_.clear();
  const KvLayout& layout = model_->kv_layout();
  const int32_t page_size = layout.format.page_size;
  const auto tokens = static_cast<int32_t>(prompt.size());
  const auto pages = static_cast<int32_t>(PagesFor(tokens, page_size));
  std::vector<int32_t> positions(prompt.size());
  std::iota(positions.begin(), positions.end(), 0);
  TM_ASSIGN_OR_RETURN(const int32_t* zero, Upload<int32_t>({0}));
  TM_ASSIGN_OR_RETURN(const int32_t* kv_end, Upload<int32_t>({tokens}));
  std::vector<PageTableView> groups;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    std::vector<int32_t> indices(static_cast<size_t>(pages));
    std::iota(indices.begin(), indices.end(), static_cast<int32_t>(static_cast<int64_t>(g) * pages_));
    std::vector<int64_t> slots;
    for (int64_t position = 0; position < tokens; ++position) {
      const auto page = indices[static_cast<size_t>(PageOf(position, 0, page_size))];
      slots.push_back(SlotOf(page, position, page_size));
    }
    TM_ASSIGN_OR_RETURN(const int32_t* page_indices, Upload(indices));
    TM_ASSIGN_OR_RETURN(const int64_t* slot_mapping, Upload(slots));
    groups.push_back({.page_indices = page_indices,
                      .first_entry = zero,
                      .kv_base = zero,
                      .kv_end = kv_end,
                      .slots = slot_mapping});
  }
  ForwardBatch batch;
  batch.tokens = tokens;
  batch.sequences = 1;
  TM_ASSIGN_OR_RETURN(batch.token_ids, Upload(std::vector<int32_t>(prompt.begin(), prompt.end())));
  TM_ASSIGN_OR_RETURN(batch.positions, Upload(positions));
  TM_ASSIGN_OR_RETURN(batch.qo_indptr, Upload<int32_t>({0, tokens}));
  batch.groups = groups.data();
  return Wait(model_->Forward(batch, static_cast<std::byte*>(pool_.get())));
}

Status PromptLogits::Logits(int32_t begin, int32_t count, std::vector<float>* logits) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), begin);
  TM_ASSIGN_OR_RETURN(const int32_t* uploaded, Upload(rows));
  TM_RETURN_IF_ERROR(
      Wait(model_->Logits(uploaded, count, MakeTensor(logits_.get(), DType::kF32, count, vocab_size()))));
  logits->resize(static_cast<size_t>(count) * static_cast<size_t>(vocab_size()));
  return Wait(backend_->Download(logits->data(), logits_.get(),
                                 static_cast<int64_t>(logits->size() * sizeof(float))));
}

StatusOr<PromptLogits::DeviceMemory> PromptLogits::Allocate(int64_t bytes) {
  void* memory = backend_->Allocate(bytes);
  if (memory == nullptr) return ResourceExhausted("no memory for " + std::to_string(bytes) + " bytes");
  return DeviceMemory(memory, [backend = backend_.get()](void* owned) { backend->Free(owned); });
}

// Lives until the next Forward.
template <typename T>
StatusOr<const T*> PromptLogits::Upload(const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  TM_ASSIGN_OR_RETURN(DeviceMemory memory, Allocate(bytes));
  TM_RETURN_IF_ERROR(Wait(backend_->Upload(memory.get(), values.data(), bytes)));
  uploads_.push_back(std::move(memory));
  return static_cast<const T*>(uploads_.back().get());
}

Status PromptLogits::Wait(OpCode code) {
  if (code == OpCode::kOk) code = backend_->WaitFence(backend_->RecordFence());
  return code == OpCode::kOk ? Status::Ok() : Internal(name_ + ": " + backend_->last_error());
}

}  // namespace tramontane
