// The kinds of cases: each a function that runs the project's own code on a case's inputs and holds the
// outcome to the case's outputs. The first difference is the error. One thread.
#pragma once

#include <string_view>

#include "kernels/core/status.h"
#include "tests/kv_vectors/case_run.h"

namespace tramontane::kv_vectors {

using RunKind = Status (*)(CaseRun&);

// Null where there is no such kind.
RunKind FindKind(std::string_view kind);

// mask_kinds.cc
Status RunAscendMask(CaseRun& run);
Status RunAscendTiles(CaseRun& run);
Status RunFlashInferMask(CaseRun& run);

// article_kinds.cc
Status RunArticleTrace(CaseRun& run);
Status RunArticleAttention(CaseRun& run);

// flashinfer_kinds.cc
Status RunFlashInferAppend(CaseRun& run);
Status RunFlashInferAttention(CaseRun& run);
Status RunFlashInferMla(CaseRun& run);
Status RunFlashInferCascade(CaseRun& run);

// openppl_kinds.cc
Status RunOpenPplKeyValueCache(CaseRun& run);

// streaming_kinds.cc
Status RunStreamingPlan(CaseRun& run);
Status RunStreamingAttention(CaseRun& run);
Status RunRopeShift(CaseRun& run);

// prefix_kinds.cc
Status RunPrefixHit(CaseRun& run);

// number_kinds.cc
Status RunFp8E4M3(CaseRun& run);

}  // namespace tramontane::kv_vectors
