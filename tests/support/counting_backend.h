// CountingBackend: forwards to another backend, counts what is asked of it, and can refuse to pack.
// One thread. Borrows the other backend. A test may derive from it to change an op.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/backend.h"

namespace tramontane {

class CountingBackend : public Backend {
 public:
  explicit CountingBackend(Backend& inner) : inner_(inner) {}
  ~CountingBackend() = default;

  // Bytes asked for so far.
  int64_t allocated = 0;
  int64_t allocated_on_host = 0;
  int64_t packed = 0;
  int64_t reserved = 0;
  // What is held now.
  int64_t live_allocations = 0;
  int64_t live_weights = 0;
  // Ops of the forward pass so far.
  int32_t embeds = 0, rope_tables = 0, linears = 0, mixtures = 0, rope_appends = 0, attentions = 0;
  int32_t live_rows = -1;  // of the last Moe; -1: it was not told
  // The same in order, a letter each: e, t, l, m, r, a; '+' for a Linear or Moe that adds to what Embed
  // wrote,
  // '!' for any other op that writes there.
  std::string ops;
  // The pack that is refused, counted from 0; -1: none.
  int32_t refused_pack = -1;

  const BackendInfo& info() const override { return inner_.info(); }
  const char* last_error() const override { return refused_ ? "refused by the test" : inner_.last_error(); }
  const char* remarks() const override { return inner_.remarks(); }
  void* Allocate(int64_t bytes) override {
    allocated += bytes;
    ++live_allocations;
    return inner_.Allocate(bytes);
  }
  void Free(void* memory) override {
    live_allocations -= memory != nullptr;
    inner_.Free(memory);
  }
  void* AllocateHost(int64_t bytes) override {
    allocated_on_host += bytes;
    return inner_.AllocateHost(bytes);
  }
  void FreeHost(void* memory) override { inner_.FreeHost(memory); }
  OpCode Upload(void* device, const void* host, int64_t bytes) override {
    return inner_.Upload(device, host, bytes);
  }
  OpCode Download(void* host, const void* device, int64_t bytes) override {
    return inner_.Download(host, device, bytes);
  }
  uint64_t RecordFence() override { return inner_.RecordFence(); }
  OpCode WaitFence(uint64_t fence) override { return inner_.WaitFence(fence); }
  OpCode MovePages(const MovePagesParams& params) override { return inner_.MovePages(params); }
  OpCode AwaitMoves() override { return inner_.AwaitMoves(); }
  int64_t PackedBytes(const LinearSource& source) const override { return inner_.PackedBytes(source); }
  OpCode PackLinear(const LinearSource& source, WeightHandle* out) override {
    refused_ = packs_++ == refused_pack;
    if (refused_) return OpCode::kOutOfMemory;
    packed += inner_.PackedBytes(source);
    ++live_weights;
    return inner_.PackLinear(source, out);
  }
  void FreeWeight(WeightHandle weight) override {
    --live_weights;
    inner_.FreeWeight(weight);
  }
  int64_t WorkspaceBytes(const StepMaxima& maxima) const override { return inner_.WorkspaceBytes(maxima); }
  OpCode Reserve(const StepMaxima& maxima) override {
    reserved += inner_.WorkspaceBytes(maxima);
    return inner_.Reserve(maxima);
  }
  OpCode Embed(const EmbedParams& params) override {
    ++embeds;
    stream_ = params.out.data;
    ops += 'e';
    return inner_.Embed(params);
  }
  OpCode RopeTable(const RopeTableParams& params) override {
    ++rope_tables;
    ops += 't';
    return inner_.RopeTable(params);
  }
  OpCode Linear(const LinearParams& params) override {
    ++linears;
    ops += Letter(params.out, params.epilogue, 'l');
    return inner_.Linear(params);
  }
  OpCode Moe(const MoeParams& params) override {
    ++mixtures;
    live_rows = params.live_rows == nullptr ? -1 : *params.live_rows;
    ops += Letter(params.out, params.epilogue, 'm');
    return inner_.Moe(params);
  }
  OpCode RopeAppend(const RopeAppendParams& params) override {
    ++rope_appends;
    ops += params.qkv.data == stream_ ? '!' : 'r';
    return inner_.RopeAppend(params);
  }
  OpCode Attention(const AttentionParams& params) override {
    ++attentions;
    ops += params.out.data == stream_ ? '!' : 'a';
    return inner_.Attention(params);
  }
  OpCode Sample(const SampleParams& params) override { return inner_.Sample(params); }
  OpCode Advance(const AdvanceParams& params) override { return inner_.Advance(params); }
  OpCode Scatter(const ScatterParams& params) override { return inner_.Scatter(params); }
  OpCode CopyPages(const CopyPagesParams& params) override { return inner_.CopyPages(params); }
  void Destroy() override {}

 private:
  char Letter(const Tensor& out, Epilogue epilogue, char of_op) const {
    if (out.data != stream_) return of_op;
    return epilogue == Epilogue::kAddResidual ? '+' : '!';
  }

  Backend& inner_;
  int32_t packs_ = 0;
  bool refused_ = false;
  const void* stream_ = nullptr;  // what Embed wrote last
};

}  // namespace tramontane
