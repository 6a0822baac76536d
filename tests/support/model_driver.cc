#include "tests/support/model_driver.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "kernels/core/check.h"

namespace tramontane {

ModelDriver::ModelDriver(Model& model, Backend& backend, const Options& options)
    : model_(model), backend_(backend), options_(options) {
  const Status reserved = model.Reserve(options.max_tokens, options.max_sequences, options.max_tokens);
  TM_CHECK(reserved.ok(), "%s", reserved.message().c_str());
  pool_ = Allocate(options.pool_pages * model.kv_layout().page_bytes());
  logits_ =
      Allocate(int64_t{options.max_tokens} * model.config().vocab_size * static_cast<int64_t>(sizeof(float)));
  std::vector<int32_t> pages(static_cast<size_t>(options.pool_pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(options.seed));
  for (const int32_t page : pages) FreePage(page);
}

int ModelDriver::AddSequence() {
  sequences_[next_sequence_].tables.resize(model_.kv_layout().groups.size());
  return next_sequence_++;
}

void ModelDriver::EndSequence(int sequence) {
  for (Table& table : sequences_.at(sequence).tables) {
    for (const int32_t page : table.pages) FreePage(page);
  }
  sequences_.erase(sequence);
}

std::vector<std::vector<float>> ModelDriver::Step(const std::vector<Row>& rows) {
  const KvLayout& layout = model_.kv_layout();
  const int32_t page_size = layout.format.page_size;
  std::vector<int32_t> token_ids, positions, qo_indptr = {0};
  for (const Row& row : rows) {
    Sequence& sequence = sequences_.at(row.sequence);
    Grow(sequence, static_cast<int64_t>(row.tokens.size()));
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      token_ids.push_back(row.tokens[i]);
      positions.push_back(static_cast<int32_t>(sequence.length + static_cast<int64_t>(i)));
    }
    qo_indptr.push_back(static_cast<int32_t>(token_ids.size()));
  }
  const auto tokens = static_cast<int32_t>(token_ids.size());

  std::vector<PageTableView> groups;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    std::vector<int32_t> page_indices, first_entry, kv_base, kv_end;
    std::vector<int64_t> slots;
    for (const Row& row : rows) {
      const Sequence& sequence = sequences_.at(row.sequence);
      const Table& table = sequence.tables[g];
      const int64_t end = sequence.length + static_cast<int64_t>(row.tokens.size());
      first_entry.push_back(
          static_cast<int32_t>(std::ssize(page_indices) - PageOf(table.kv_base, 0, page_size)));
      page_indices.insert(page_indices.end(), table.pages.begin(), table.pages.end());
      kv_base.push_back(static_cast<int32_t>(table.kv_base));
      kv_end.push_back(static_cast<int32_t>(end));
      for (int64_t position = sequence.length; position < end; ++position) {
        slots.push_back(SlotOf(table.pages[PageOf(position, table.kv_base, page_size)], position, page_size));
      }
    }
    groups.push_back({.page_indices = Upload(page_indices),
                      .first_entry = Upload(first_entry),
                      .kv_base = Upload(kv_base),
                      .kv_end = Upload(kv_end),
                      .slots = Upload(slots)});
  }

  ForwardBatch batch;
  batch.tokens = tokens;
  batch.sequences = static_cast<int32_t>(rows.size());
  batch.token_ids = Upload(token_ids);
  batch.positions = Upload(positions);
  batch.qo_indptr = Upload(qo_indptr);
  batch.groups = groups.data();
  OpCode code = model_.Forward(batch, static_cast<std::byte*>(pool_.get()));
  TM_CHECK(code == OpCode::kOk, "%s", backend_.last_error());

  std::vector<int32_t> every_row(static_cast<size_t>(tokens));
  std::iota(every_row.begin(), every_row.end(), 0);
  const int64_t vocab = model_.config().vocab_size;
  code = model_.Logits(Upload(every_row), tokens, MakeTensor(logits_.get(), DType::kF32, tokens, vocab));
  TM_CHECK(code == OpCode::kOk, "%s", backend_.last_error());
  std::vector<std::vector<float>> logits(static_cast<size_t>(tokens),
                                         std::vector<float>(static_cast<size_t>(vocab)));
  for (int32_t i = 0; i < tokens; ++i) {
    backend_.Download(logits[i].data(), static_cast<float*>(logits_.get()) + i * vocab,
                      vocab * static_cast<int64_t>(sizeof(float)));
  }
  TM_CHECK(backend_.WaitFence(backend_.RecordFence()) == OpCode::kOk, "%s", backend_.last_error());

  uploads_.clear();
  for (const Row& row : rows) {
    Sequence& sequence = sequences_.at(row.sequence);
    sequence.length += static_cast<int64_t>(row.tokens.size());
    DropUnseen(sequence);
  }
  return logits;
}

// Pages for `tokens` more tokens in every group.
void ModelDriver::Grow(Sequence& sequence, int64_t tokens) {
  const KvLayout& layout = model_.kv_layout();
  const int64_t end = sequence.length + tokens;
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    Table& table = sequence.tables[g];
    const int64_t needed = PagesFor(end - table.kv_base, layout.format.page_size);
    while (static_cast<int64_t>(table.pages.size()) < needed) table.pages.push_back(TakePage());
    const int64_t bound = layout.PagesForGroup(static_cast<int32_t>(g), end, tokens);
    TM_CHECK(static_cast<int64_t>(table.pages.size()) <= bound, "%zu pages held, the bound is %lld",
             table.pages.size(), static_cast<long long>(bound));
  }
}

// Gives back the pages that the next query, at position `length`, cannot see any part of.
void ModelDriver::DropUnseen(Sequence& sequence) {
  const KvLayout& layout = model_.kv_layout();
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    Table& table = sequence.tables[g];
    const int64_t first_visible = FirstVisible(sequence.length, layout.groups[g].window);
    const int64_t unseen = std::min(PageOf(first_visible, table.kv_base, layout.format.page_size),
                                    static_cast<int64_t>(table.pages.size()));
    for (int64_t i = 0; i < unseen; ++i) FreePage(table.pages[i]);
    table.pages.erase(table.pages.begin(), table.pages.begin() + unseen);
    table.kv_base += unseen * layout.format.page_size;
  }
}

int32_t ModelDriver::TakePage() {
  TM_CHECK(!free_.empty(), "the pool of %d pages is used up", options_.pool_pages);
  const int32_t page = free_.front();
  free_.erase(free_.begin());
  return page;
}

void ModelDriver::FreePage(int32_t page) {
  const int64_t bytes = model_.kv_layout().page_bytes();
  const std::vector<std::byte> poison(static_cast<size_t>(bytes), std::byte{0xff});  // NaN in every dtype
  backend_.Upload(static_cast<std::byte*>(pool_.get()) + page * bytes, poison.data(), bytes);
  TM_CHECK(backend_.WaitFence(backend_.RecordFence()) == OpCode::kOk, "%s", backend_.last_error());
  free_.push_back(page);
}

ModelDriver::DeviceMemory ModelDriver::Allocate(int64_t bytes) {
  void* memory = backend_.Allocate(bytes);
  TM_CHECK(memory != nullptr, "no memory for %lld bytes", static_cast<long long>(bytes));
  return DeviceMemory(memory, [this](void* owned) { backend_.Free(owned); });
}

template <typename T>
const T* ModelDriver::Upload(const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  DeviceMemory memory = Allocate(std::max<int64_t>(bytes, 1));
  backend_.Upload(memory.get(), values.data(), bytes);
  TM_CHECK(backend_.WaitFence(backend_.RecordFence()) == OpCode::kOk, "%s", backend_.last_error());
  uploads_.push_back(std::move(memory));
  return static_cast<const T*>(uploads_.back().get());
}

}  // namespace tramontane
