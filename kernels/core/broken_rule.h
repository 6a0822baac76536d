// Rules of the KV cache that a test breaks in this process, to show that what is to hold them notices. Set by
// tests alone, while nothing runs; read from any thread. Code on a GPU knows none of it.
#pragma once

#include <atomic>
#include <cstdint>

namespace tramontane {

enum class KvRule : int32_t {
  kNone = 0,               // none is broken
  kWindow = 1,             // windows show one key more (FirstVisible)
  kScaleRounding = 2,      // scales in f16 are rounded down, not to the nearest (QuantizeKvRow)
  kSinkQueryPosition = 3,  // queries meet sinks where they stand in the text (ViewAt)
  kDiscard = 4,            // a discard before a re-evaluation spares one token more (LiveChoice)
  kSharedPages = 5,        // sequences that may read keys together do so without a look at their pages
};

inline std::atomic<KvRule> broken_kv_rule{KvRule::kNone};

inline bool IsBroken(KvRule rule) { return broken_kv_rule.load(std::memory_order_relaxed) == rule; }

}  // namespace tramontane
