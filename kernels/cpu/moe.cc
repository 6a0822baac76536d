// Moe: score the rows, choose experts, gather rows by expert, gate-up with SwiGLU, down, combine.
//
// The experts' products are Linear's own, cut into its pieces and handed to the threads together, so that a
// step with two rows of each of eight experts keeps all threads busy and meets seven times in all. An
// expert's rows are one job: they share a pass over its weights as rows of any Linear do. An output's bits
// depend on its row alone: Linear's on any number of rows, a choice on its scores, a sum on the order of ids.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "kernels/core/check.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/ops.h"

namespace tramontane {
namespace {

constexpr int64_t kMoeAlignment = 64;

// An expert that a row goes to.
struct Chosen {
  int32_t expert = 0;
  float share = 0.0f;
  int64_t pair = 0;  // where its output stands among those of all rows
};

// One product of one expert among those that run together.
struct ExpertJob {
  LinearJob job = {};
  LinearCut cut;
  int64_t first_tile = 0;   // among those of all jobs
  int64_t first_block = 0;  //
};

// Where everything lies in the workspace. A pair is a row and one of its experts; pairs stand expert by
// expert, an expert's in the order of rows.
struct MoeWorkspace {
  int64_t normalised = 0;  // [rows, hidden] f32
  int64_t scores = 0;      // [rows, experts] f32
  int64_t chosen = 0;      // [rows, experts per token], ascending in expert
  int64_t begins = 0;      // [experts + 1] the first pair of each expert
  int64_t row_of = 0;      // [pairs] i32
  int64_t jobs = 0;        // [experts]
  int64_t inner = 0;       // [pairs, intermediate] f32
  int64_t outer = 0;       // [pairs, hidden] f32
  int64_t packed_x = 0;    // rows of the product that runs, packed
  int64_t scratch = 0;     // [threads]
  int64_t bytes = 0;

  MoeWorkspace(int64_t rows, int64_t experts, int64_t per_token, int64_t hidden, int64_t intermediate,
               const LinearKernels& kernels, int32_t threads) {
    const auto take = [this](int64_t wanted) {
      const int64_t at = bytes;
      bytes += (wanted + kMoeAlignment - 1) / kMoeAlignment * kMoeAlignment;
      return at;
    };
    const int64_t pairs = rows * per_token;
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    normalised = take(rows * hidden * kFloat);
    scores = take(rows * experts * kFloat);
    chosen = take(pairs * static_cast<int64_t>(sizeof(Chosen)));
    begins = take((experts + 1) * static_cast<int64_t>(sizeof(int64_t)));
    row_of = take(pairs * static_cast<int64_t>(sizeof(int32_t)));
    jobs = take(experts * static_cast<int64_t>(sizeof(ExpertJob)));
    inner = take(pairs * intermediate * kFloat);
    outer = take(pairs * hidden * kFloat);
    packed_x = take(pairs * std::max(PackedRowBytes(hidden, kernels), PackedRowBytes(intermediate, kernels)));
    scratch = take(threads * LinearThreadBytes(kernels));
  }
};

class MoeRun {
 public:
  MoeRun(const MoeParams& params, const CpuContext& context)
      : params_(params),
        context_(context),
        kernels_(context.kernels.linear),
        hidden_(params.x.columns),
        intermediate_(static_cast<const PackedWeight*>(params.down[0].impl)->in_features),
        map_(params.rows, params.experts, params.experts_per_token, hidden_, intermediate_, kernels_,
             context.pool.threads()) {}

  void Run();

 private:
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(context_.workspace.data + offset);
  }
  Tensor Rows(int64_t offset, int64_t first, int64_t rows, int64_t columns) const {
    return MakeTensor(At<float>(offset) + first * columns, DType::kF32, rows, columns);
  }
  int64_t PairsOf(int32_t expert) const {
    return At<int64_t>(map_.begins)[expert + 1] - At<int64_t>(map_.begins)[expert];
  }

  void ChooseExperts(int64_t row) const;
  void GatherRows() const;
  LinearParams GateUp(int32_t expert) const;
  LinearParams Down(int32_t expert) const;
  void MultiplyGrouped(LinearParams (MoeRun::*product)(int32_t) const);
  void MultiplySegment(LinearParams (MoeRun::*product)(int32_t) const, int32_t segment);
  int64_t MakeJobs(LinearParams (MoeRun::*product)(int32_t) const, int32_t segment);
  bool AnyHasSegment(LinearParams (MoeRun::*product)(int32_t) const, int32_t segment) const;
  void CombineRow(int64_t row) const;

  const MoeParams& params_;
  const CpuContext& context_;
  const LinearKernels& kernels_;
  const int64_t hidden_;
  const int64_t intermediate_;
  const MoeWorkspace map_;
};

void CheckMoe(const MoeParams& params) {
  TM_CHECK(params.x.dtype == DType::kF32 && params.out.dtype == DType::kF32,
           "activations are f32 on the CPU");
  TM_CHECK(params.rows <= params.x.rows && params.rows <= params.out.rows, "%d rows, x has %lld, out %lld",
           params.rows, static_cast<long long>(params.x.rows), static_cast<long long>(params.out.rows));
  TM_CHECK(params.experts >= 1 && params.experts <= kMaxExperts, "%d experts", params.experts);
  TM_CHECK(params.experts_per_token >= 1 && params.experts_per_token <= params.experts, "%d of %d experts",
           params.experts_per_token, params.experts);
  TM_CHECK(params.epilogue != Epilogue::kSwiGlu, "a mixture ends plain or in an addition");
}

// The highest scores, of equal ones the lower expert, and their softmax.
void MoeRun::ChooseExperts(int64_t row) const {
  const float* scores = At<float>(map_.scores) + row * params_.experts;
  const int32_t count = params_.experts_per_token;
  Chosen* const chosen = At<Chosen>(map_.chosen) + row * count;
  bool taken[kMaxExperts] = {};
  float highest = 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    int32_t best = -1;
    for (int32_t expert = 0; expert < params_.experts; ++expert) {
      if (!taken[expert] && (best < 0 || scores[expert] > scores[best])) best = expert;
    }
    taken[best] = true;
    if (i == 0) highest = scores[best];
  }
  float sum = 0.0f;
  int32_t found = 0;
  for (int32_t expert = 0; expert < params_.experts; ++expert) {
    if (!taken[expert]) continue;
    const float weight = std::exp(scores[expert] - highest);
    sum += weight;
    chosen[found++] = {.expert = expert, .share = weight};
  }
  for (int32_t i = 0; i < count; ++i) chosen[i].share /= sum;
}

// Counts, first pairs, and each pair's row: by the thread that called, one look at each pair.
void MoeRun::GatherRows() const {
  int64_t* const begins = At<int64_t>(map_.begins);
  Chosen* const chosen = At<Chosen>(map_.chosen);
  const int64_t pairs = int64_t{params_.rows} * params_.experts_per_token;
  std::fill_n(begins, params_.experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++begins[chosen[i].expert + 1];
  for (int32_t expert = 0; expert < params_.experts; ++expert) begins[expert + 1] += begins[expert];
  int64_t next[kMaxExperts];
  std::copy_n(begins, params_.experts, next);
  for (int64_t i = 0; i < pairs; ++i) {
    chosen[i].pair = next[chosen[i].expert]++;
    At<int32_t>(map_.row_of)[chosen[i].pair] = static_cast<int32_t>(i / params_.experts_per_token);
  }
}

LinearParams MoeRun::GateUp(int32_t expert) const {
  const int64_t first = At<int64_t>(map_.begins)[expert], rows = PairsOf(expert);
  return {.x = Rows(map_.normalised, 0, params_.rows, hidden_),
          .x_rows = At<int32_t>(map_.row_of) + first,
          .rows = static_cast<int32_t>(rows),
          .weight = params_.gate_up[expert],
          .epilogue = Epilogue::kSwiGlu,
          .out = Rows(map_.inner, first, rows, intermediate_)};
}

LinearParams MoeRun::Down(int32_t expert) const {
  const int64_t first = At<int64_t>(map_.begins)[expert], rows = PairsOf(expert);
  return {.x = Rows(map_.inner, first, rows, intermediate_),
          .rows = static_cast<int32_t>(rows),
          .weight = params_.down[expert],
          .out = Rows(map_.outer, first, rows, hidden_)};
}

// A job for each expert that has rows and such a segment. How many there are.
int64_t MoeRun::MakeJobs(LinearParams (MoeRun::*product)(int32_t) const, int32_t segment) {
  auto* const jobs = At<ExpertJob>(map_.jobs);
  std::byte* packed_x = At<std::byte>(map_.packed_x);
  int64_t count = 0, tiles = 0, blocks = 0;
  for (int32_t expert = 0; expert < params_.experts; ++expert) {
    if (PairsOf(expert) == 0) continue;
    const LinearJobs of_expert = MakeLinearJobs((this->*product)(expert), context_, packed_x);
    if (segment >= of_expert.count) continue;
    const LinearJob& job = of_expert.of[segment];
    const LinearCut cut(job, kernels_, context_.pool.threads());
    new (jobs + count) ExpertJob{.job = job, .cut = cut, .first_tile = tiles, .first_block = blocks};
    packed_x += job.rows * PackedRowBytes(job.in_features, kernels_);
    tiles += job.tiles;
    blocks += cut.Blocks();
    ++count;
  }
  return count;
}

// Segment by segment: an up whose gate has another format needs the gate's outputs.
void MoeRun::MultiplyGrouped(LinearParams (MoeRun::*product)(int32_t) const) {
  MultiplySegment(product, 0);
  for (int32_t segment = 1; AnyHasSegment(product, segment); ++segment) MultiplySegment(product, segment);
}

bool MoeRun::AnyHasSegment(LinearParams (MoeRun::*product)(int32_t) const, int32_t segment) const {
  for (int32_t expert = 0; expert < params_.experts; ++expert) {
    const WeightHandle weight = (this->*product)(expert).weight;
    const auto segments = static_cast<const PackedWeight*>(weight.impl)->segments.size();
    if (PairsOf(expert) > 0 && segment < static_cast<int32_t>(segments)) return true;
  }
  return false;
}

void MoeRun::MultiplySegment(LinearParams (MoeRun::*product)(int32_t) const, int32_t segment) {
  const auto* const jobs = At<ExpertJob>(map_.jobs);
  const int64_t count = MakeJobs(product, segment);
  const ExpertJob& last = jobs[count - 1];
  // The job that an item among those of all jobs belongs to.
  const auto job_of = [&](int64_t item, int64_t ExpertJob::* first) -> const ExpertJob& {
    return *(std::upper_bound(jobs, jobs + count, item,
                              [first](int64_t i, const ExpertJob& job) { return i < job.*first; }) -
             1);
  };
  context_.pool.ParallelFor(last.first_tile + last.job.tiles, [&](int64_t tile, int32_t) {
    const ExpertJob& of = job_of(tile, &ExpertJob::first_tile);
    kernels_.pack_tile(of.job, tile - of.first_tile);
  });
  context_.pool.ParallelFor(last.first_block + last.cut.Blocks(), [&](int64_t block, int32_t thread) {
    const ExpertJob& of = job_of(block, &ExpertJob::first_block);
    kernels_.multiply(of.job, of.cut.Block(of.job, block - of.first_block),
                      At<std::byte>(map_.scratch) + thread * LinearThreadBytes(kernels_));
  });
}

// In ascending expert, each product and each sum rounded.
void MoeRun::CombineRow(int64_t row) const {
  const Chosen* chosen = At<Chosen>(map_.chosen) + row * params_.experts_per_token;
  float* const out = static_cast<float*>(params_.out.data) + row * params_.out.row_stride;
  float* const first = At<float>(map_.outer) + chosen[0].pair * hidden_;
  for (int64_t c = 0; c < hidden_; ++c) first[c] *= chosen[0].share;
  for (int32_t i = 1; i < params_.experts_per_token; ++i) {
    const float* const y = At<float>(map_.outer) + chosen[i].pair * hidden_;
    for (int64_t c = 0; c < hidden_; ++c) first[c] += chosen[i].share * y[c];
  }
  if (params_.epilogue == Epilogue::kNone) {
    std::copy_n(first, hidden_, out);
  } else {
    for (int64_t c = 0; c < hidden_; ++c) out[c] += first[c];
  }
}

void MoeRun::Run() {
  TM_CHECK(map_.bytes <= context_.workspace.bytes,
           "Moe of %d rows needs %lld bytes of workspace, reserved are %lld", params_.rows,
           static_cast<long long>(map_.bytes), static_cast<long long>(context_.workspace.bytes));
  const MoeRouter router = {.norm_weight = params_.norm_weight,
                            .norm_epsilon = params_.norm_epsilon,
                            .weight = params_.router,
                            .hidden = hidden_,
                            .experts = params_.experts};
  context_.pool.ParallelFor(params_.rows, [&](int64_t row, int32_t) {
    const float* x = static_cast<const float*>(params_.x.data) + row * params_.x.row_stride;
    context_.kernels.moe.score(router, x, At<float>(map_.normalised) + row * hidden_,
                               At<float>(map_.scores) + row * params_.experts);
    ChooseExperts(row);
  });
  GatherRows();
  MultiplyGrouped(&MoeRun::GateUp);
  MultiplyGrouped(&MoeRun::Down);
  context_.pool.ParallelFor(params_.rows, [&](int64_t row, int32_t) { CombineRow(row); });
}

}  // namespace

int64_t MoeWorkspaceBytes(const StepMaxima& maxima, const CpuKernels& kernels, int32_t threads) {
  if (maxima.experts == 0) return 0;
  return MoeWorkspace(maxima.tokens, maxima.experts, maxima.experts_per_token, maxima.hidden,
                      maxima.expert_intermediate, kernels.linear, threads)
      .bytes;
}

void RunMoe(const MoeParams& params, const CpuContext& context) {
  CheckMoe(params);
  MoeParams live = params;
  if (params.live_rows != nullptr) live.rows = std::min(params.rows, *params.live_rows);
  if (live.rows > 0) MoeRun(live, context).Run();
}

}  // namespace tramontane
