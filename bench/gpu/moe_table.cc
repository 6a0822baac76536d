// A mixture of experts in Mixtral 8x7B's shape for 1, 8 and 32 rows.
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench/gpu/tables.h"
#include "kernels/cuda/moe.h"

namespace tramontane::gpu {
namespace {

constexpr int32_t kExperts = 8, kPerToken = 2, kHidden = 4096, kIntermediate = 14336;
constexpr int64_t kGateUpBytes = int64_t{2} * 2 * kIntermediate * kHidden;
constexpr int64_t kDownBytes = int64_t{2} * kHidden * kIntermediate;

// The launches of one op as the backend queues them.
class Mixture {
 public:
  Mixture(Device& device, int32_t rows, const std::byte* gate_up, const std::byte* down)
      : rows_(rows), pairs_(rows * kPerToken), max_tiles_(cuda::MoeTileBound(pairs_, kExperts)) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> router(size_t{kExperts} * kHidden);
    for (float& value : router) value = normal(random);
    x_ = device.AllocateRandom(int64_t{rows} * kHidden * 2);
    norm_ = device.Upload(std::vector<float>(kHidden, 1.0f));
    router_ = device.Upload(router);
    normalised_ = device.Allocate(int64_t{rows} * kHidden * 2);
    chosen_ = static_cast<int32_t*>(device.Allocate(int64_t{pairs_} * 4));
    shares_ = static_cast<float*>(device.Allocate(int64_t{pairs_} * 4));
    order_ = static_cast<int32_t*>(device.Allocate(int64_t{pairs_} * 4));
    tiles_ = static_cast<cuda::MoeTile*>(device.Allocate(max_tiles_ * int64_t{sizeof(cuda::MoeTile)}));
    inner_ = device.Allocate(int64_t{pairs_} * kIntermediate * 2);
    outer_ = static_cast<float*>(device.Allocate(int64_t{pairs_} * kHidden * 4));
    gate_up_ = Product(gate_up, kGateUpBytes, normalised_, inner_, kPerToken, kHidden, 2 * kIntermediate);
    gate_up_.out_kind = cuda::MoeOut::kSwiGlu;
    down_ = Product(down, kDownBytes, inner_, outer_, 1, kIntermediate, kHidden);
  }

  int Queue(cudaStream_t stream) const {
    int error = cuda::LaunchMoeRoute({x_, norm_, router_, normalised_, chosen_, shares_, nullptr, kHidden,
                                      rows_, kHidden, kExperts, kPerToken, 1e-5f},
                                     stream);
    if (error == 0 && down_.order != nullptr) {
      error = cuda::LaunchMoeGroup({chosen_, order_, tiles_, pairs_, kExperts, max_tiles_}, stream);
    }
    if (error == 0) error = cuda::LaunchMoeGemm(gate_up_, stream);
    if (error == 0) error = cuda::LaunchMoeGemm(down_, stream);
    if (error != 0) return error;
    return cuda::LaunchMoeCombine(
        {outer_, shares_, normalised_, nullptr, kHidden, rows_, kHidden, kPerToken, false}, stream);
  }

  // Experts that some row chose, once it has run.
  int64_t Distinct() const {
    std::vector<int32_t> chosen(static_cast<size_t>(pairs_));
    Check(cudaMemcpy(chosen.data(), chosen_, chosen.size() * 4, cudaMemcpyDeviceToHost), "download");
    return static_cast<int64_t>(std::set<int32_t>(chosen.begin(), chosen.end()).size());
  }

 private:
  cuda::MoeGemmParams Product(const std::byte* weights, int64_t bytes, const void* x, void* out,
                              int32_t pairs_of_a_row, int32_t in, int32_t outputs) const {
    cuda::MoeGemmParams p{};
    for (int32_t e = 0; e < kExperts; ++e) p.weights[e] = weights + e * bytes;
    p.x = x;
    p.out = out;
    p.chosen = chosen_;
    if (!cuda::MoeIsSmall(rows_, kHidden, kIntermediate)) {
      p.order = order_;
      p.tiles = tiles_;
      p.max_tiles = max_tiles_;
    }
    p.rows = rows_;
    p.pairs = pairs_;
    p.pairs_of_a_row = pairs_of_a_row;
    p.experts = kExperts;
    p.in_features = in;
    p.out_features = outputs;
    return p;
  }

  const int32_t rows_, pairs_, max_tiles_;
  void *x_, *normalised_, *inner_;
  float *norm_, *router_, *shares_, *outer_;
  int32_t *chosen_, *order_;
  cuda::MoeTile* tiles_;
  cuda::MoeGemmParams gate_up_, down_;
};

}  // namespace

Table MoeTable(Device& device, const Progress& progress) {
  Table table;
  table.name = "Mixture of experts";
  table.note =
      "All launches of the op in Mixtral 8x7B's shape. The bound is the weights of the experts that the rows "
      "chose, each read once, at the rate of memory; they are far larger than the cache.";
  const auto* gate_up = static_cast<const std::byte*>(device.AllocateRandom(kExperts * kGateUpBytes, 0.02f));
  const auto* down = static_cast<const std::byte*>(device.AllocateRandom(kExperts * kDownBytes, 0.02f));
  for (const int32_t rows : {1, 8, 32}) {
    const Mixture mixture(device, rows, gate_up, down);
    const double seconds =
        device.MedianSeconds(1, [&](int, cudaStream_t stream) { return mixture.Queue(stream); });
    const int64_t distinct = mixture.Distinct();
    AddRow(table,
           {std::to_string(rows) + " rows, " + std::to_string(distinct) + " experts", seconds,
            MemoryBound(static_cast<double>(distinct * (kGateUpBytes + kDownBytes)),
                        device.memory_bytes_per_second())},
           progress);
  }
  device.FreeAll();
  return table;
}

}  // namespace tramontane::gpu
