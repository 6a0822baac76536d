// Runs a Model over a Backend without an engine: pages, tables and steps by the shortest way that is right.
//
// Pages are handed out in a random order from the seed. In a group with a window, pages that no later query
// can see go back after each step; every page that nobody holds is filled with NaN, so that a read of it
// shows. It is an aborting error (TM_CHECK) if a sequence ever holds more pages than KvLayout::PagesForGroup
// allows. One thread. Borrows model and backend.
//
//   ModelDriver driver(*model, *backend, {});
//   const int a = driver.AddSequence();
//   driver.Step({{a, prompt}});                      // prefill, in one chunk or several
//   const auto logits = driver.Step({{a, {token}}}); // decode: logits of one token
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "models/model.h"

namespace tramontane {

class ModelDriver {
 public:
  struct Options {
    int32_t pool_pages = 256;
    int32_t max_tokens = 256;  // of one step
    int32_t max_sequences = 16;
    uint64_t seed = 1;
  };
  struct Row {
    int sequence = 0;
    std::vector<int32_t> tokens;
  };

  ModelDriver(Model& model, Backend& backend, const Options& options);

  int AddSequence();
  void EndSequence(int sequence);

  // One forward pass: each row's tokens follow what its sequence has seen; a sequence stands in at most one
  // row. Logits of every token, in the order of the rows: [tokens][vocab].
  std::vector<std::vector<float>> Step(const std::vector<Row>& rows);

  int64_t Length(int sequence) const { return sequences_.at(sequence).length; }
  int64_t PagesHeld(int sequence, int32_t group) const {
    return static_cast<int64_t>(sequences_.at(sequence).tables[group].pages.size());
  }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }

 private:
  struct Table {
    std::vector<int32_t> pages;  // oldest first
    int64_t kv_base = 0;         // absolute position of pages[0]'s first token
  };
  struct Sequence {
    int64_t length = 0;         // tokens seen
    std::vector<Table> tables;  // [groups]
  };
  using DeviceMemory = std::unique_ptr<void, std::function<void(void*)>>;

  void Grow(Sequence& sequence, int64_t tokens);
  void DropUnseen(Sequence& sequence);
  int32_t TakePage();
  void FreePage(int32_t page);
  DeviceMemory Allocate(int64_t bytes);
  template <typename T>
  const T* Upload(const std::vector<T>& values);

  Model& model_;
  Backend& backend_;
  Options options_;
  DeviceMemory pool_;
  DeviceMemory logits_;
  std::vector<int32_t> free_;
  std::map<int, Sequence> sequences_;
  int next_sequence_ = 0;
  std::vector<DeviceMemory> uploads_;  // of the step that runs
};

}  // namespace tramontane
