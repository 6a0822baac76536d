#include "kernels/cuda/product_plans.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/linear_small.h"

namespace tramontane::cuda {
namespace {

// Up to `most` rows, families are `width` wide.
struct Widths {
  int32_t most;
  int32_t width;
};
constexpr int32_t kFirstRows = 16;  // of the first family
constexpr Widths kWidths[] = {{128, 8}, {1024, 64}, {INT32_MAX, 256}};

constexpr size_t kTimedCandidates = 8;  // of a family, the library's best guesses
constexpr int kRounds = 3;
constexpr int kCallsOfRound = 8;
constexpr size_t kTimedWeights = 8;  // in turn, so that the cache does not hold the one that comes next

const char* NameOf(MatmulOut out) {
  switch (out) {
    case MatmulOut::kBf16:
      return "bf16";
    case MatmulOut::kBf16Add:
      return "bf16+";
    case MatmulOut::kF32:
      return "f32";
  }
  return "";
}

int64_t BytesOf(MatmulOut out) { return out == MatmulOut::kF32 ? 4 : 2; }

}  // namespace

size_t FamilyOf(int32_t rows) {
  size_t family = 0;
  int32_t before = kFirstRows;
  if (rows <= before) return 0;
  for (const Widths& widths : kWidths) {
    const int32_t last = std::min(rows, widths.most);
    family += static_cast<size_t>((last - before + widths.width - 1) / widths.width);
    if (rows <= widths.most) break;
    before = widths.most;
  }
  return family;
}

MatmulShape FamilyShape(size_t family, int64_t in_features, int64_t out_features, MatmulOut out) {
  MatmulShape shape = {1, kFirstRows, in_features, out_features, out};
  if (family == 0) return shape;
  auto left = static_cast<int32_t>(family);
  int32_t before = kFirstRows;
  for (const Widths& widths : kWidths) {
    const int32_t here = (widths.most - before) / widths.width;
    if (left <= here) {
      shape.max_rows = before + left * widths.width;
      shape.min_rows = shape.max_rows - widths.width + 1;
      break;
    }
    left -= here;
    before = widths.most;
  }
  return shape;
}

MatmulShape ProductPlans::FamilyOfShape(const Shape& shape, size_t family, MatmulOut out) {
  MatmulShape rows = FamilyShape(family, shape.in_features, shape.out_features, out);
  rows.in = shape.in;
  return rows;
}

const ProductPlans::Table* ProductPlans::Add(int64_t in_features, int64_t out_features,
                                             const std::vector<MatmulOut>& outs, const void* weight,
                                             const float* scales) {
  const Shape shape = ShapeOf(in_features, out_features, scales);
  products_[shape].at.push_back({weight, scales});
  return Plan(shape, outs, FamilyOf(kFirstRows + 1));  // fewer rows never come here
}

const ProductPlans::Table* ProductPlans::AddDecoded(int64_t in_features, int64_t out_features,
                                                    const std::vector<MatmulOut>& outs, int32_t least_rows) {
  return Plan({MatmulIn::kBf16, in_features, out_features}, outs, FamilyOf(least_rows));
}

const ProductPlans::Table* ProductPlans::Plan(const Shape& shape, const std::vector<MatmulOut>& outs,
                                              size_t first_family) {
  Weights& weights = products_[shape];
  weights.first_family = std::min(weights.first_family, first_family);
  for (const MatmulOut out : outs) {
    std::vector<int>& plans = weights.plans[static_cast<size_t>(out)];
    if (plans.empty()) plans.push_back(kNotPlanned);
  }
  PlanAll(shape, weights);
  return &weights.plans;
}

void ProductPlans::Remove(int64_t in_features, int64_t out_features, const void* weight,
                          const float* scales) {
  std::erase_if(products_.at(ShapeOf(in_features, out_features, scales)).at,
                [weight](const Weight& known) { return known.data == weight; });
}

void ProductPlans::Reserve(int32_t rows) {
  rows_ = rows;
  for (auto& [shape, weights] : products_) PlanAll(shape, weights);
}

int ProductPlans::PlanOf(const Table& table, MatmulOut out, int32_t rows) {
  const std::vector<int>& plans = table[static_cast<size_t>(out)];
  const size_t family = FamilyOf(rows);
  return family < plans.size() ? plans[family] : kNotPlanned;
}

// For every way in which weights of this shape are used and for all rows of a step, as far as they are known:
// packing and Reserve may come in either order.
void ProductPlans::PlanAll(const Shape& shape, Weights& weights) {
  static_assert(kFirstRows == kSmallLinearRows);
  const size_t families = FamilyOf(rows_) + 1;
  for (const MatmulOut out : {MatmulOut::kBf16, MatmulOut::kBf16Add, MatmulOut::kF32}) {
    std::vector<int>& plans = weights.plans[static_cast<size_t>(out)];
    if (plans.empty()) continue;
    plans.resize(std::max(plans.size(), families), kNotPlanned);
    for (size_t family = weights.first_family; family < families; ++family) {
      if (plans[family] == kNotPlanned) PlanFamily(FamilyOfShape(shape, family, out), &plans[family]);
    }
  }
}

void ProductPlans::PlanFamily(const MatmulShape& family, int* plan) {
  *plan = runtime_.PlanMatmul(family);
  if (const auto known = choices_.find(KeyOf(family)); known != choices_.end()) {
    if (runtime_.ChooseMatmul(*plan, known->second)) return;
    choices_.erase(known);  // of a library that says it is this one and is not
  }
  if (runtime_.HasKernel(*plan)) return;
  if (family.in == MatmulIn::kFp8) {
    remarks_ += "no kernel multiplies " + std::to_string(family.min_rows) + " to " +
                std::to_string(family.max_rows) + " rows of " + std::to_string(family.in_features) + " by " +
                std::to_string(family.out_features) +
                " weights, both in fp8: these stay in bf16, and the weights are decoded\n";
    return;
  }
  remarks_ += "no one kernel multiplies " + std::to_string(family.min_rows) + " to " +
              std::to_string(family.max_rows) + " rows of " + std::to_string(family.in_features) + " by " +
              std::to_string(family.out_features) +
              " weights: each number of rows is given its own, or a kernel of ours\n";
}

// ---- tuning

// "NVIDIA_H200,cublasLt-130200 4096 6144 bf16 17 24": nothing in it is blank but between its parts. Of fp8 by
// fp8 "fp8>bf16".
std::string ProductPlans::KeyOf(const MatmulShape& family) const {
  return runtime_.tuning_key() + " " + std::to_string(family.in_features) + " " +
         std::to_string(family.out_features) + " " + (family.in == MatmulIn::kFp8 ? "fp8>" : "") +
         NameOf(family.out) + " " + std::to_string(family.min_rows) + " " + std::to_string(family.max_rows);
}

bool ProductPlans::UseTuning(std::string_view text) {
  constexpr int64_t kBlanks = 6;  // of a line: five in the key, one in front of the candidate
  std::map<std::string, std::string, std::less<>> choices;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t last = line.rfind(' ');
    if (std::count(line.begin(), line.end(), ' ') != kBlanks || last + 1 == line.size() || line[0] == ' ') {
      return false;
    }
    choices[std::string(line.substr(0, last))] = line.substr(last + 1);
  }
  choices_ = std::move(choices);
  return true;
}

std::string ProductPlans::Tuning() const {
  std::string text;
  for (const auto& [key, candidate] : choices_) text.append(key).append(" ").append(candidate).append("\n");
  return text;
}

int ProductPlans::Tune(const Scratch& scratch) {
  for (const auto& [shape, weights] : products_) {
    for (const MatmulOut out : {MatmulOut::kBf16, MatmulOut::kBf16Add, MatmulOut::kF32}) {
      const std::vector<int>& plans = weights.plans[static_cast<size_t>(out)];
      for (size_t family = 0; family < plans.size(); ++family) {
        if (plans[family] == kNotPlanned) continue;
        const MatmulShape rows = FamilyOfShape(shape, family, out);
        const Weight decoded = {.data = scratch.decoded};
        const bool fits = shape.in == MatmulIn::kBf16 &&
                          shape.in_features * shape.out_features * 2 <= scratch.decoded_bytes;
        const std::span<const Weight> timed =
            weights.at.empty() && fits ? std::span(&decoded, 1) : std::span(weights.at);
        if (const int error = TuneFamily(rows, plans[family], timed, scratch)) return error;
      }
    }
  }
  return 0;
}

int ProductPlans::TuneFamily(const MatmulShape& family, int plan, std::span<const Weight> weights,
                             const Scratch& scratch) {
  const int32_t rows = std::min(family.max_rows, rows_);
  if (weights.empty() || choices_.contains(KeyOf(family)) ||
      rows * family.in_features * (family.in == MatmulIn::kFp8 ? 1 : 2) > scratch.x_bytes ||
      rows * family.out_features * BytesOf(family.out) > scratch.out_bytes) {
    return 0;
  }
  const MatmulParams product = {.x = scratch.x,
                                .out = scratch.out,
                                .x_stride = family.in_features,
                                .out_stride = family.out_features,
                                .rows = rows,
                                .x_scales = scratch.x_scales};
  std::vector<std::string> candidates = runtime_.MatmulCandidates(plan);
  candidates.resize(std::min(candidates.size(), kTimedCandidates));
  const std::string* fastest = nullptr;
  int64_t least_ns = INT64_MAX;
  for (const std::string& candidate : candidates) {
    if (!runtime_.ChooseMatmul(plan, candidate)) continue;
    int64_t ns = 0;
    const int error = TimeProducts(plan, product, weights, &ns);
    if (error == Runtime::kNoMatmul) continue;
    if (error != 0) return error;
    if (ns < least_ns) fastest = &candidate;
    least_ns = std::min(least_ns, ns);
  }
  if (fastest == nullptr) return 0;
  runtime_.ChooseMatmul(plan, *fastest);
  choices_[KeyOf(family)] = *fastest;
  return 0;
}

// The least of some rounds, of which one more goes before to load the kernel.
int ProductPlans::TimeProducts(int plan, const MatmulParams& product, std::span<const Weight> weights,
                               int64_t* ns) {
  MatmulParams call = product;
  *ns = INT64_MAX;
  size_t next = 0;
  for (int round = -1; round < kRounds; ++round) {
    const int64_t begin = runtime_.NowNs();
    for (int i = 0; i < kCallsOfRound; ++i) {
      const Weight& weight = weights[next++ % std::min(weights.size(), kTimedWeights)];
      call.weight = weight.data;
      call.weight_scales = weight.scales;
      if (const int error = runtime_.Matmul(plan, call)) return error;
    }
    if (const int error = runtime_.Synchronize()) return error;
    if (round >= 0) *ns = std::min(*ns, runtime_.NowNs() - begin);
  }
  return 0;
}

}  // namespace tramontane::cuda
