// Sampling where a step has few rows: several blocks a row, and the tokens that sampling.cu chooses.
//
// Shapes: as sampling.cu, of up to kMostSplitRows rows.
//
// Grid:   (blocks, rows) blocks of 512 threads, three launches. A block has a run of a row's tokens; of a
//         row the block that is done last joins what they found, and leaves its count at zero, so that a
//         recorded step can be replayed. A launch does nothing for rows that are settled:
//           scan    highest logit, and whether all are finite; the same after adjustments and mask, which are
//                   copied. Settles greedy and forced rows of which no logprob is wanted.
//           weigh   log-sum-exp; rank of a token that is chosen already; else the race, or where there are
//                   filters histograms of counts and of weights, which say where they cut; the histogram of
//                   top_logprobs. Settles rows without filters and top_logprobs, but the rank of what won
//                   the race.
//           finish  lists the tokens of the buckets that are cut, which the last block cuts and races in its
//                   shared memory; those in front of them stay however many they are, and blocks race their
//                   own; where a rank is wanted they are listed, too. What top_k leaves is all listed where
//                   that fits. The rank of a race's winner; lists top_logprobs.
//         The last block goes over the whole row as sampling.cu does where more than 1,024 tokens are to be
//         listed or estimates leave a doubt, and to count those above the token where more than 1,024 are in
//         front.
//
// Bytes:  a row and block read 72 (its SamplingRow) in each launch that has something to do, and 4 to learn
//         that it has not; in all a row reads passes * 4 * vocab as in sampling.cu, where filters and race
//         are 2 together, top_logprobs are 2, and 1 more each are top_p after a top_k above 1,024 and a rank
//         where not all that stay are listed. What blocks say to each other is beside it: 56 a block and
//         launch, 16 a bucket that has a token, 8 a token that is listed, 16 KiB a histogram.
// Bound:  three launches and the chain of joins, some microseconds; the passes are divided by blocks.
// Limits: as sampling.cu; up to kMostSplitRows rows and kMostSampleBlocks blocks.
// Math:   as sampling.cu. Histograms, counts, sums of weights and first keys are integers, so no order and
//         no number of blocks changes them: records and lists are, bit by bit, those of one block.
// Ideas:  the last block joins (CUB's decoupled reductions, XQA); a cut needs only the sum of what stands
//         before it, so that a list of one bucket is enough for it, and a race is one however it is divided.
#include "kernels/core/check.h"
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/sampling_row.cuh"

namespace tramontane::cuda {

namespace {

using namespace sampling;

constexpr int kSliceMultiple = 32;  // tokens: whole words of a mask
constexpr int kNoList = -1;         // instead of a bucket: the last block goes over the whole row

// What a block found in its tokens.
struct SplitPart {
  uint64_t first_raw, first;  // keys: of the logits, and after adjustments
  uint64_t sum;               // SumOfWeights
  uint64_t higher;            // logits above the chosen token's
  RaceResult race;
};

// What is settled of a row.
struct SplitState {
  uint64_t first_raw, first;
  double log_total;
  uint64_t count_before;   // tokens in front of count_bucket
  uint64_t weight_before;  // estimates in front of first_bucket
  uint64_t weight_kept;    // estimates in front of count_bucket
  int32_t settled;         // 1: its record is written
  int32_t token;           // -1: not chosen yet
  int32_t rank;            // 0: not known, or nobody asks
  int32_t count_bucket;    // that top_k cuts; kBuckets: it cuts none
  int32_t first_bucket;    // of tokens that are listed: those in front of it stay, whatever the list says
  int32_t bucket;          // the last that are listed, but for count_bucket; or kNoList
  int32_t top_bucket;      // the last of top_logprobs
};

// Of a row, in global memory.
struct SplitRow {
  // Zero between launches.
  int32_t done;          // blocks
  int32_t listed;        // tokens; may exceed kListed
  int32_t front_listed;  // the same of those in front of them, where ranks are wanted
  int32_t top_listed;    // the same of top_logprobs
  uint64_t counts[kBuckets];
  uint64_t weights[kBuckets];
  uint64_t top_counts[kBuckets];

  SplitState state;
  SplitPart parts[kMostSampleBlocks];
  uint64_t keys[kListed];
  uint64_t front_keys[kListed];
  uint64_t top_keys[kListed];
};

struct SplitShared : Shared {
  int32_t is_last;
};

TM_DEVICE SplitShared* SharedOfBlock() { return reinterpret_cast<SplitShared*>(SharedBytes()); }
TM_DEVICE SplitRow* RowOfBlock(const SampleKernelParams& p) {
  return static_cast<SplitRow*>(p.split) + BlockY();
}

TM_DEVICE Logits SliceOfBlock(const SampleKernelParams& p) {
  Logits logits = WholeRow(p, BlockY());
  int tokens = (logits.vocab + GridX() - 1) / GridX();
  tokens = (tokens + kSliceMultiple - 1) / kSliceMultiple * kSliceMultiple;
  logits.begin = Min(BlockX() * tokens, logits.vocab);
  logits.end = Min(logits.begin + tokens, logits.vocab);
  return logits;
}

TM_DEVICE void ReadRow(Shared* s, const SampleKernelParams& p) {
  if (ThreadX() == 0) s->row = LoadGlobal(p.call.rows + BlockY());
  SyncThreads();
}

TM_DEVICE bool IsFiltered(const SamplingRow& row, int vocab) { return HasTopK(row, vocab) || HasTopP(row); }

// Whether all other blocks of the row are done: then what they wrote is there to be read.
TM_DEVICE bool IsLastOfRow(SplitShared* s, SplitRow* row) {
  CountDone(
      ThreadX(), 1, [row](int) { return DoneCount{&row->done, GridX()}; }, &s->is_last,
      [] { SyncThreads(); });
  return s->is_last != 0;
}

// The word of each block's part, or what stands for nobody.
TM_DEVICE uint64_t OfPart(const SplitRow* row, uint64_t SplitPart::* word, uint64_t nobody) {
  return ThreadX() < GridX() ? LoadGlobalWritten(&(row->parts[ThreadX()].*word)) : nobody;
}

// Of the tokens that blocks let race.
TM_DEVICE RaceResult RaceOfParts(Shared* s, const SplitRow* row, RaceResult own) {
  if (ThreadX() < GridX()) {
    const RaceResult part = {LoadGlobalWritten(&row->parts[ThreadX()].race.time_bits),
                             LoadGlobalWritten(&row->parts[ThreadX()].race.winner)};
    if (part.Before(own)) own = part;
  }
  return FirstOf(s, own);
}

TM_DEVICE void WriteRecord(const SampleKernelParams& p, const SampleRecord& record) {
  if (ThreadX() == 0) StoreGlobal(p.call.records + BlockY(), record);
}
TM_DEVICE void WriteFailure(const SampleKernelParams& p) {
  SampleRecord record;
  record.failed = 1;
  WriteRecord(p, record);
}
// Of a row of which all is known but top_logprobs.
TM_DEVICE SampleRecord RecordOf(const SampleKernelParams& p, const SamplingRow& asked,
                                const SplitState& state) {
  SampleRecord record;
  record.token = state.token;
  if (!asked.NeedsLogprob()) return record;
  record.logprob =
      static_cast<float>(LoadUniform(WholeRow(p, BlockY()).data + state.token) - state.log_total);
  record.rank = state.rank;
  return record;
}

// ---- histograms and lists that blocks fill together

TM_DEVICE void AddHistogram(Shared* s, uint64_t* histogram) {
  for (int i = ThreadX(); i < kBuckets; i += kThreads) {
    if (const uint64_t own = s->histogram[i]; own != 0) AtomicAddGlobal(histogram + i, own);
  }
}

// To shared memory, and zero again where it was.
TM_DEVICE void TakeHistogram(Shared* s, uint64_t* histogram) {
  SyncThreads();
  for (int i = ThreadX(); i < kBuckets; i += kThreads) {
    s->histogram[i] = LoadGlobalWritten(histogram + i);
    StoreGlobal(histogram + i, uint64_t{0});
  }
  SyncThreads();
}

// Keys of the tokens that wanted(logit, key) says.
template <typename Wanted>
TM_DEVICE void AddList(Shared* s, const Logits& logits, const Wanted& wanted, int32_t* listed,
                       uint64_t* keys) {
  const int own = ListTokens(s, logits, wanted, [](float) { return uint64_t{0}; });
  if (own == 0) return;
  if (ThreadX() == 0) s->bucket = AtomicAddGlobal(listed, own);
  SyncThreads();
  const int begin = s->bucket, end = Min(begin + own, kListed);
  for (int i = begin + ThreadX(); i < end; i += kThreads) StoreGlobal(keys + i, s->list[i - begin].key);
  SyncThreads();
}

// How many are listed, of which the first kListed come to shared memory. Counts anew from zero.
TM_DEVICE int TakeList(Shared* s, int32_t* listed, const uint64_t* keys) {
  const int count = LoadGlobalWritten(listed);
  SyncThreads();
  if (ThreadX() == 0) StoreGlobal(listed, 0);
  for (int i = ThreadX(); i < Min(count, kListed); i += kThreads)
    s->list[i] = {LoadGlobalWritten(keys + i), 1};
  SyncThreads();
  return count;
}

// ---- scan

// By the last block.
TM_DEVICE void JoinScan(Shared* s, const SampleKernelParams& p, SplitRow* row) {
  SplitState state{};
  state.first_raw = BlockMin(s, OfPart(row, &SplitPart::first_raw, kLastKey));
  state.first = BlockMin(s, OfPart(row, &SplitPart::first, kLastKey));
  state.token = -1;
  state.settled = 1;
  const bool forced = s->row.forced_token >= 0;
  if (!IsCandidate(state.first_raw) || (!forced && !IsCandidate(state.first))) {
    WriteFailure(p);
  } else {
    if (forced || s->row.temperature == 0.0f)
      state.token = forced ? s->row.forced_token : TokenOf(state.first);
    state.settled = state.token >= 0 && !s->row.NeedsLogprob() ? 1 : 0;
    if (state.settled != 0) WriteRecord(p, RecordOf(p, s->row, state));
  }
  if (ThreadX() == 0) StoreGlobal(&row->state, state);
}

// ---- weigh

// Whether top_p cuts what is not all listed, and asks for a histogram of weights.
TM_DEVICE bool WeighsAll(const SamplingRow& row, int vocab) {
  return HasTopP(row) && !(HasTopK(row, vocab) && row.top_k <= kListed);
}
// Whether blocks look for the cut together, rather than the last for all of them.
TM_DEVICE bool CutsTogether(const SamplingRow& row, int vocab, const Weights& weights) {
  return !WeighsAll(row, vocab) || weights.has_estimates();
}

TM_DEVICE void FillFilterHistograms(Shared* s, const Logits& logits, float highest, const Weights& weights,
                                    SplitRow* row) {
  const auto wanted = [](uint64_t key) { return key <= kLastCandidate; };
  const auto bucket_of = [highest](float logit, uint64_t) { return DistanceBucket(highest, logit); };
  if (HasTopK(s->row, logits.vocab)) {
    FillHistogram(s, logits, wanted, bucket_of, [](float) { return uint64_t{1}; });
    AddHistogram(s, row->counts);
  }
  if (WeighsAll(s->row, logits.vocab)) {
    FillHistogram(s, logits, wanted, bucket_of, WeightEstimates(s, weights, WeightBits(logits.vocab)));
    AddHistogram(s, row->weights);
  }
}

// By the last block: the buckets that filters cut. The limit of top_p is known but for the weights of the
// bucket that top_k cuts, so that it may lie in several.
TM_DEVICE void CutFilterHistograms(Shared* s, SplitRow* row, int vocab, const Weights& weights,
                                   SplitState* state) {
  state->bucket = kNoList;
  state->count_bucket = kBuckets;
  if (!CutsTogether(s->row, vocab, weights)) return;
  if (HasTopK(s->row, vocab)) {
    TakeHistogram(s, row->counts);
    const double count = s->row.top_k;
    FindBuckets(s, 0, [count](uint64_t) { return Bounds{count, count}; });
    state->count_bucket = s->bucket;
    if (s->bucket < kBuckets) state->count_before = s->before;
    state->first_bucket = s->row.top_k <= kListed ? 0 : s->bucket;
    state->bucket = Min(s->bucket, kBuckets - 1);
  }
  if (!WeighsAll(s->row, vocab)) return;
  TakeHistogram(s, row->weights);
  uint64_t front = 0, cut = 0;
  for (int i = ThreadX(); i < kBuckets; i += kThreads) {
    if (i < state->count_bucket) front += s->histogram[i];
    if (i == state->count_bucket) cut += s->histogram[i];
  }
  front = BlockSum(s, front);
  cut = BlockSum(s, cut);
  const double share = s->row.top_p;
  FindBuckets(s, 0, [&](uint64_t) { return BoundsOfShare(share, front, front + cut, vocab); });
  const bool is_certain = s->bucket < kBuckets && s->last_bucket < kBuckets;
  state->weight_kept = front;
  state->weight_before = s->before;
  state->first_bucket = s->bucket;
  state->bucket = is_certain ? s->last_bucket : kNoList;
}

// By the last block.
TM_DEVICE void JoinWeigh(Shared* s, const SampleKernelParams& p, SplitRow* row, int vocab,
                         const Weights& weights) {
  SplitState state = LoadUniform(&row->state);  // again: registers are few
  SyncThreads();                                // all have read it
  if (s->row.NeedsLogprob()) {
    const uint64_t sum = BlockSum(s, OfPart(row, &SplitPart::sum, 0));
    state.log_total = LogTotal(sum, LogitOf(state.first_raw), vocab);
  }
  bool settled = true;
  if (state.token >= 0) {
    state.rank = 1 + static_cast<int32_t>(BlockSum(s, OfPart(row, &SplitPart::higher, 0)));
  } else if (IsFiltered(s->row, vocab)) {
    CutFilterHistograms(s, row, vocab, weights, &state);
    settled = false;
  } else {
    state.token = RaceOfParts(s, row, {BitsOf(kForever), kLastKey}).token();
    settled = state.token < 0 || !s->row.NeedsLogprob();
  }
  if (const int asked = TopAsked(s->row); asked > 0) {
    TakeHistogram(s, row->top_counts);
    const double count = asked;
    FindBuckets(s, 0, [count](uint64_t) { return Bounds{count, count}; });
    state.top_bucket = Min(s->bucket, kBuckets - 1);  // all, of a vocabulary that is no longer
    if (state.token >= 0) settled = false;
  }
  if (settled) {
    state.settled = 1;
    if (state.token < 0) {
      WriteFailure(p);
    } else {
      WriteRecord(p, RecordOf(p, s->row, state));
    }
  }
  if (ThreadX() == 0) StoreGlobal(&row->state, state);
}

// ---- finish

// Lists the tokens among which filters cut. Those in front of them race.
TM_DEVICE RaceResult RaceAndList(Shared* s, const Logits& logits, const SplitState& state,
                                 const Weights& weights, SplitRow* row) {
  const float highest = LogitOf(state.first);
  Race race(s, weights);
  const auto wanted = [&](float logit, uint64_t key) {
    if (key > kLastCandidate) return false;
    const int bucket = DistanceBucket(highest, logit);
    if (bucket < state.first_bucket) race.Enter(s, TokenOf(key), logit);
    return (bucket >= state.first_bucket && bucket <= state.bucket) || bucket == state.count_bucket;
  };
  AddList(s, logits, wanted, &row->listed, row->keys);
  return FirstOf(s, race.best);
}

// Whether those in front are listed, too: then lists know the rank of the token that wins.
TM_DEVICE bool ListsFront(const SamplingRow& row, const SplitState& state) {
  return row.NeedsLogprob() && !IsAdjusted(row) && state.first_bucket > 0;
}

// The token among those listed and those in front of them that filters leave and that wins the race. False:
// estimates leave a doubt.
TM_DEVICE bool ChooseListed(Shared* s, const SplitRow* row, int listed, const SplitState& state, int vocab,
                            const Weights& weights, int32_t* token) {
  const auto is_of_count_bucket = [&](uint64_t key) {
    return DistanceBucket(LogitOf(state.first), LogitOf(key)) == state.count_bucket;
  };
  uint64_t last = kLastCandidate;
  if (state.count_bucket < kBuckets) {
    for (int i = ThreadX(); i < listed; i += kThreads) {
      s->list[i].measure = is_of_count_bucket(s->list[i].key) ? 1 : 0;
    }
    const double count = s->row.top_k;
    last = FindInList(s, listed, state.count_before, {count, count});
    SyncThreads();  // all have read it
  }
  if (HasTopP(s->row)) {
    const bool all_listed = !WeighsAll(s->row, vocab);
    const int bits = WeightBits(vocab);
    uint64_t sum = 0;
    for (int i = ThreadX(); i < listed; i += kThreads) {
      const uint64_t key = s->list[i].key, weight = key <= last ? weights.Fixed(LogitOf(key), bits) : 0;
      s->list[i].measure = weight;
      if (all_listed || is_of_count_bucket(key)) sum += weight;
    }
    sum = BlockSum(s, sum);
    const double share = s->row.top_p, limit = share * static_cast<double>(sum);
    Bounds bounds = {limit, limit};
    if (!all_listed) {
      bounds = BoundsOfShare(share, state.weight_kept + sum, vocab);
      bounds.Reached(state.weight_before);
    }
    const uint64_t cut = FindInList(s, listed, state.weight_before, bounds);
    if (cut == kFailedKey && !all_listed) return false;
    if (cut != kFailedKey) last = cut;
  }
  Race race(s, weights);
  for (int i = ThreadX(); i < listed; i += kThreads) {
    const uint64_t key = s->list[i].key;
    if (key <= last) race.Enter(s, TokenOf(key), LogitOf(key));
  }
  *token = RaceOfParts(s, row, race.best).token();
  return true;
}

TM_DEVICE uint64_t CountHigherListed(Shared* s, int listed, float logit) {
  uint64_t higher = 0;
  for (int i = ThreadX(); i < listed; i += kThreads) higher += LogitOf(s->list[i].key) > logit ? 1 : 0;
  return BlockSum(s, higher);
}

// By the last block: the token that filters and race leave, and its rank where it is wanted.
TM_DEVICE void ChooseFiltered(Shared* s, const SampleKernelParams& p, SplitRow* row, SplitState* state) {
  const Logits raw = WholeRow(p, BlockY()), logits = AdjustedPlace(p, BlockY(), s->row, raw);
  const float highest = LogitOf(state->first);
  const Weights weights(highest, 1.0 / static_cast<double>(s->row.temperature));
  int listed = 0;
  bool chosen = false;
  if (state->bucket != kNoList) {
    listed = TakeList(s, &row->listed, row->keys);
    chosen = listed <= kListed && ChooseListed(s, row, listed, *state, raw.vocab, weights, &state->token);
  }
  if (!chosen) state->token = FilterAndRace(s, logits, highest, weights);
  if (state->token < 0 || !s->row.NeedsLogprob()) return;
  const float logit = LoadUniform(raw.data + state->token);
  bool is_known = chosen && !IsAdjusted(s->row);
  uint64_t higher = is_known ? CountHigherListed(s, listed, logit) : 0;
  if (ListsFront(s->row, *state)) {
    const int front = TakeList(s, &row->front_listed, row->front_keys);
    is_known = is_known && front <= kListed;
    if (is_known) higher += CountHigherListed(s, front, logit);
  }
  if (!is_known) higher = CountHigher(s, raw, logit);
  state->rank = 1 + static_cast<int32_t>(higher);
}

// By the last block.
TM_DEVICE void JoinFinish(Shared* s, const SampleKernelParams& p, SplitRow* row, SplitState state) {
  if (state.token < 0) {
    ChooseFiltered(s, p, row, &state);
  } else if (state.rank == 0 && s->row.NeedsLogprob()) {
    state.rank = 1 + static_cast<int32_t>(BlockSum(s, OfPart(row, &SplitPart::higher, 0)));
  }
  SampleRecord record;
  record.failed = 1;
  if (state.token >= 0) record = RecordOf(p, s->row, state);
  if (const int asked = TopAsked(s->row); asked > 0) {
    const int listed = TakeList(s, &row->top_listed, row->top_keys);
    TokenLogprob* const top = p.call.top + int64_t{BlockY()} * kMaxTopLogprobs;
    if (state.token >= 0) {
      record.top_count = listed <= kListed ? WriteListed(s, listed, asked, state.log_total, top)
                                           : WriteTop(s, WholeRow(p, BlockY()), LogitOf(state.first_raw),
                                                      asked, state.log_total, top);
    }
  }
  WriteRecord(p, record);
}

}  // namespace

TM_KERNEL TM_BOUNDS(kThreads, 2) void SampleScanKernel(SampleKernelParams p) {
  AwaitPriorKernels();
  SplitShared* const s = SharedOfBlock();
  SplitRow* const row = RowOfBlock(p);
  ReadRow(s, p);
  const Logits raw = SliceOfBlock(p);
  const uint64_t first_raw = FirstKey(s, raw);
  uint64_t first = first_raw;
  if (s->row.forced_token < 0 && IsAdjusted(s->row))
    first = FirstKey(s, AdjustedLogits(p, BlockY(), s->row, raw));
  if (ThreadX() == 0) {
    StoreGlobal(&row->parts[BlockX()].first_raw, first_raw);
    StoreGlobal(&row->parts[BlockX()].first, first);
  }
  if (IsLastOfRow(s, row)) JoinScan(s, p, row);
}

// A block a multiprocessor is all there are (SampleBlocks): it may have the registers of two.
TM_KERNEL TM_BOUNDS(kThreads, 1) void SampleWeighKernel(SampleKernelParams p) {
  AwaitPriorKernels();
  SplitShared* const s = SharedOfBlock();
  SplitRow* const row = RowOfBlock(p);
  if (LoadUniform(&row->state.settled) != 0) return;
  ReadRow(s, p);
  const SplitState state = LoadUniform(&row->state);
  const Logits raw = SliceOfBlock(p), logits = AdjustedPlace(p, BlockY(), s->row, raw);
  const float highest_raw = LogitOf(state.first_raw), highest = LogitOf(state.first);
  SplitPart part{};
  if (s->row.NeedsLogprob()) part.sum = SumOfWeights(s, raw, highest_raw);
  const Weights weights(highest, state.token >= 0 ? 1.0 : 1.0 / static_cast<double>(s->row.temperature));
  if (state.token >= 0) {
    part.higher = CountHigher(s, raw, LoadUniform(raw.data + state.token));
  } else if (!IsFiltered(s->row, raw.vocab)) {
    part.race = RunRace(s, logits, weights, kLastCandidate);
  } else if (CutsTogether(s->row, raw.vocab, weights)) {
    FillFilterHistograms(s, logits, highest, weights, row);
  }
  if (TopAsked(s->row) > 0) {
    FillHistogram(
        s, raw, [](uint64_t) { return true; },
        [highest_raw](float logit, uint64_t) { return DistanceBucket(highest_raw, logit); },
        [](float) { return uint64_t{1}; });
    AddHistogram(s, row->top_counts);
  }
  if (ThreadX() == 0) {
    StoreGlobal(&row->parts[BlockX()].sum, part.sum);
    StoreGlobal(&row->parts[BlockX()].higher, part.higher);
    StoreGlobal(&row->parts[BlockX()].race, part.race);
  }
  if (IsLastOfRow(s, row)) JoinWeigh(s, p, row, raw.vocab, weights);
}

// As above.
TM_KERNEL TM_BOUNDS(kThreads, 1) void SampleFinishKernel(SampleKernelParams p) {
  AwaitPriorKernels();
  SplitShared* const s = SharedOfBlock();
  SplitRow* const row = RowOfBlock(p);
  if (LoadUniform(&row->state.settled) != 0) return;
  ReadRow(s, p);
  const SplitState state = LoadUniform(&row->state);
  const Logits raw = SliceOfBlock(p);
  if (state.token < 0 && state.bucket != kNoList) {
    const float highest = LogitOf(state.first);
    const Weights weights(highest, 1.0 / static_cast<double>(s->row.temperature));
    const RaceResult race = RaceAndList(s, AdjustedPlace(p, BlockY(), s->row, raw), state, weights, row);
    if (ThreadX() == 0) StoreGlobal(&row->parts[BlockX()].race, race);
    if (ListsFront(s->row, state)) {
      const auto in_front = [&](float logit, uint64_t) {
        return DistanceBucket(highest, logit) < state.first_bucket;
      };
      AddList(s, raw, in_front, &row->front_listed, row->front_keys);
    }
  } else if (state.token >= 0 && state.rank == 0 && s->row.NeedsLogprob()) {
    const uint64_t higher = CountHigher(s, raw, LoadUniform(raw.data + state.token));
    if (ThreadX() == 0) StoreGlobal(&row->parts[BlockX()].higher, higher);
  }
  if (TopAsked(s->row) > 0) {
    const float highest = LogitOf(state.first_raw);
    const auto wanted = [&](float logit, uint64_t) {
      return DistanceBucket(highest, logit) <= state.top_bucket;
    };
    AddList(s, raw, wanted, &row->top_listed, row->top_keys);
  }
  if (IsLastOfRow(s, row)) JoinFinish(s, p, row, state);
}

int64_t SplitSampleBytes() { return kMostSplitRows * int64_t{sizeof(SplitRow)}; }

int LaunchSplitSample(const SampleKernelParams& params, void* stream) {
  TM_CHECK(params.split != nullptr && params.blocks <= kMostSampleBlocks &&
               params.call.logits.rows <= kMostSplitRows,
           "%lld rows of %d blocks each", static_cast<long long>(params.call.logits.rows), params.blocks);
  const Dim3 grid = {static_cast<unsigned>(params.blocks), static_cast<unsigned>(params.call.logits.rows)};
  const auto to = static_cast<Stream>(stream);
  int error = TM_LAUNCH(SampleScanKernel, grid, Dim3{kThreads}, sizeof(SplitShared), to, params);
  if (error == 0) error = TM_LAUNCH(SampleWeighKernel, grid, Dim3{kThreads}, sizeof(SplitShared), to, params);
  if (error == 0)
    error = TM_LAUNCH(SampleFinishKernel, grid, Dim3{kThreads}, sizeof(SplitShared), to, params);
  return error;
}

}  // namespace tramontane::cuda
