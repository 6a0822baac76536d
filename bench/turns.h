// How the CPU benchmarks measure: what is compared takes turns, best of all turns each, because a shared
// machine is not the same from minute to minute; and the bound of what reads weights, a plain read. One
// thread calls.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace tramontane {

inline double Seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Bodies take turns, `rounds` times, each as often as fits some ms; the best seconds of one call of each.
inline std::vector<double> BestSeconds(int rounds, const std::vector<std::function<void()>>& bodies) {
  constexpr double kTurnSeconds = 0.02;
  std::vector<double> best(bodies.size(), 1e30);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));  // a BLAS's workers spin for a while
      double spent = 0.0;
      while (spent < kTurnSeconds) {
        const double seconds = Seconds(bodies[i]);
        spent += seconds;
        best[i] = std::min(best[i], seconds);
      }
    }
  }
  return best;
}

// Reads `bytes` of `memory` once with all threads.
inline void ReadMemory(ThreadPool& pool, const std::byte* memory, int64_t bytes) {
  constexpr int64_t kPiece = 1 << 18;
  using Vector = int64_t __attribute__((vector_size(16)));
  pool.ParallelFor((bytes + kPiece - 1) / kPiece, [&](int64_t piece, int32_t) {
    const auto* at = reinterpret_cast<const Vector*>(memory + piece * kPiece);
    const auto* end =
        reinterpret_cast<const Vector*>(memory + std::min((piece + 1) * kPiece, bytes / 128 * 128));
    Vector sums[8] = {};
    for (; at < end; at += 8) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(at) + 2048);
      __builtin_prefetch(reinterpret_cast<const std::byte*>(at) + 2048 + 64);
      for (int i = 0; i < 8; ++i) sums[i] ^= at[i];
    }
    for (int i = 1; i < 8; ++i) sums[0] ^= sums[i];
    [[maybe_unused]] volatile Vector wanted = sums[0];  // or the compiler would read nothing
  });
}

}  // namespace tramontane
