// Sampling without a sort, and handing the sampled tokens on.
//
// Shapes: logits [rows, vocab] f32; a row: one SamplingRow in, a SampleRecord and up to 20 TokenLogprobs out.
//
// Grid:   (rows) blocks of 512 threads; thread i takes tokens i, i + 512, ... Where rows are few and long,
//         several blocks a row: sampling_split.cu.
//
// Passes: a pass reads the row once, 4 * vocab bytes; after the first it comes from the L2 cache.
//           every row      1: highest logit and whether all are finite
//           logprob wanted 2: log-sum-exp; rank
//           adjusted       2: copied with mask and adjustments, looked at again
//           temperature    1: the race
//           top_k, top_p   2 each: a histogram, and the tokens of the bucket that the filter cuts
//           top_logprobs   3: the same, and the tokens that are left
//         A filter adds 3 for each time that more than 1,024 tokens share the bucket that is cut; top_p adds
//         1 or 2 where its histogram of estimates leaves a doubt.
//
// Bytes:  a row reads passes * 4 * vocab, 72 (its SamplingRow) and, where a logprob is wanted, 4 (the chosen
//         token's logit); with a mask 4 * vocab more (each token its word, from the caches), and 20 an
//         adjustment. It writes 20 (its record), 8 a TokenLogprob; adjusted rows 4 * vocab, and 4 an
//         adjustment.
//
// Bound:  arithmetic on one SM a row, not memory: where a logprob or top_p is wanted an exponential a
//         token, and the hash of the race. f64 has half the rate of f32 on sm_80 and sm_90, a 64th on sm_89.
//
// Limits: vocab below 2^31; sm_80 and later.
//
// Math:   as on the CPU: logits f32, weights and race in f64. A filter adds up weights as integers (of
//         weight 2^-k, k = 62 less the bits of vocab), so its sums are exact and no order of threads changes
//         them; it differs from a sum in f64 only where the two sides of the cut are within 2^-40 or so.
//         The log-sum-exp adds up estimates in the same way and takes one logarithm in f64: what a logprob is
//         off by is in sampling.h.
//         f64 is for finalists: top_p first adds up estimates of weights, whose errors have a bound, and
//         where that leaves no doubt in which bucket the limit is reached, and at which of its tokens,
//         weighed in f64, the cut is the one that exact sums give; else those are taken. The race compares in
//         f32 what cannot win.
//
// Ideas:  radix selection by histograms instead of a sort (RadiK, AIR top-k; here the first digit is the
//         distance from the highest logit, which spreads logits evenly); the exponential race (Gumbel-max).
#include "kernels/cuda/sampling.h"

#include "kernels/cuda/sampling_row.cuh"

namespace tramontane::cuda {

namespace {

using namespace sampling;

constexpr int kAdvanceThreads = 128;

TM_DEVICE SampleRecord Report(Shared* s, const SampleKernelParams& p, const Logits& raw, float highest,
                              int32_t token) {
  SampleRecord record;
  record.token = token;
  if (!s->row.NeedsLogprob()) return record;
  const double log_total = LogTotal(SumOfWeights(s, raw, highest), highest, raw.vocab);
  const float logit = LoadUniform(raw.data + token);
  record.logprob = static_cast<float>(logit - log_total);
  record.rank = 1 + static_cast<int32_t>(CountHigher(s, raw, logit));
  const int asked = TopAsked(s->row);
  if (asked > 0) {
    TokenLogprob* top = p.call.top + int64_t{BlockX()} * kMaxTopLogprobs;
    record.top_count = WriteTop(s, raw, highest, asked, log_total, top);
  }
  return record;
}

}  // namespace

TM_KERNEL TM_BOUNDS(kThreads, 2) void SampleKernel(SampleKernelParams p) {
  AwaitPriorKernels();
  auto* s = reinterpret_cast<Shared*>(SharedBytes());
  const Logits raw = WholeRow(p, BlockX());
  if (ThreadX() == 0) s->row = LoadGlobal(p.call.rows + BlockX());
  SyncThreads();

  SampleRecord record;
  record.failed = 1;
  const uint64_t first = FirstKey(s, raw);
  if (IsCandidate(first)) {
    const float highest = LogitOf(first);
    const int32_t token = s->row.forced_token >= 0 ? s->row.forced_token : ChooseToken(s, p, raw, first);
    if (token >= 0) record = Report(s, p, raw, highest, token);
  }
  if (ThreadX() == 0) StoreGlobal(p.call.records + BlockX(), record);
}

// Grid: (count / 128). Bytes: read count * (8 + 4), written count * 4.
TM_KERNEL TM_BOUNDS(kAdvanceThreads) void AdvanceKernel(AdvanceParams p) {
  AwaitPriorKernels();
  const int i = BlockX() * BlockSizeX() + ThreadX();
  if (i >= p.count) return;
  const int32_t from = LoadGlobal(p.pairs + 2 * i), to = LoadGlobal(p.pairs + 2 * i + 1);
  const int32_t token = LoadGlobal(&p.records[from].token);
  StoreGlobal(p.token_ids + to, token < 0 ? 0 : token);
}

int LaunchSample(const SampleKernelParams& params, void* stream) {
  if (params.call.logits.rows == 0) return 0;
  if (params.blocks > 1) return LaunchSplitSample(params, stream);
  return TM_LAUNCH(SampleKernel, Dim3{static_cast<unsigned>(params.call.logits.rows)}, Dim3{kThreads},
                   sizeof(Shared), static_cast<Stream>(stream), params);
}

int LaunchAdvance(const AdvanceParams& params, void* stream) {
  if (params.count == 0) return 0;
  const auto blocks = static_cast<unsigned>((params.count + kAdvanceThreads - 1) / kAdvanceThreads);
  return TM_LAUNCH(AdvanceKernel, Dim3{blocks}, Dim3{kAdvanceThreads}, 0, static_cast<Stream>(stream),
                   params);
}

}  // namespace tramontane::cuda
