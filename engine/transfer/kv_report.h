// KvReport: the KV cache's tables between two steps, for whoever wants to look; KvQuestions: how one asks
// for them. Bounded: so many sequences and pages are told of, and how many more there are. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/request/sequence.h"
#include "engine/threads/question.h"
#include "kernels/context_policy.h"

namespace tramontane {

struct KvReport {
  static constexpr size_t kSequences = 64;
  static constexpr size_t kPagesOfTable = 256;  // its sinks and oldest ones first

  struct Group {
    int32_t window = 0;  // 0: none
    int64_t layers = 0;
    int64_t held_pages = 0, cached_pages = 0;
    KvTier::Contents beyond;  // images in the tier
  };
  // A place beyond the pool: the host, or a disk behind it.
  struct Place {
    int64_t pages = 0;  // that it has room for; 0: there is none
    int64_t taken = 0;  // of them, by images, those that are on their way included
    int64_t page_bytes = 0;
    bool works = true;  // false: it was turned off
  };
  struct Table {
    int64_t kv_base = 0;
    std::vector<PageId> sinks;
    std::vector<PageId> pages;
    int64_t pages_left_out = 0;
  };
  struct OfSequence {
    std::string id;  // of its request
    int32_t choice = 0;
    SequenceState state = SequenceState::kWaiting;
    int64_t tokens = 0;         // accepted, since the text began or was re-evaluated
    int64_t prefix_tokens = 0;  // of these, found in the prefix cache
    ContextPolicy policy;       // re-evaluation, too
    TextIdentity identity;
    std::vector<Table> tables;  // [groups]
  };

  int64_t page_size = 0;   // tokens
  int64_t page_bytes = 0;  // of all layers of a group
  int64_t total_pages = 0, free_pages = 0, cached_pages = 0, held_pages = 0;
  Place host, disk;
  std::vector<Group> groups;
  std::vector<OfSequence> sequences;  // those that hold pages, as given
  int64_t sequences_left_out = 0;
};

KvReport ReportKv(const KvStore& store, std::span<const Sequence* const> sequences);

using KvQuestion = Question<KvReport>;
using KvQuestions = Questions<KvReport>;

}  // namespace tramontane
