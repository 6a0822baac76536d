// ProductPlans: which of the library's kernels multiplies how many rows of which weight, of bf16 or of fp8.
// Settled before the first step, so a step asks nobody.
//
// Row counts that are near each other are a family and share a plan; the fewer the rows, the narrower. A plan
// is the library's own guess, unless a choice is known: one that was timed on such a device, by such a
// library, here or by another process (tuning). Nothing is timed unless Tune is called, so without it no bit
// depends on a clock.
//
// Engine thread; borrows the runtime.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace tramontane::cuda {

// Families of row counts: 1-16, then eights up to 128, 64s up to 1,024, 256s beyond.
size_t FamilyOf(int32_t rows);
MatmulShape FamilyShape(size_t family, int64_t in_features, int64_t out_features, MatmulOut out);

class ProductPlans {
 public:
  // Plans of every weight of one shape: [MatmulOut][family]. Empty: nothing asks for that.
  using Table = std::array<std::vector<int>, 3>;

  // Where products go while they are timed.
  struct Scratch {
    void* x = nullptr;  // [rows, in_features] of every shape
    int64_t x_bytes = 0;
    void* out = nullptr;
    int64_t out_bytes = 0;
    const float* x_scales = nullptr;  // [rows] of those in fp8
    const void* decoded = nullptr;    // a weight of a shape that stands nowhere but where it is decoded
    int64_t decoded_bytes = 0;
  };

  explicit ProductPlans(Runtime& runtime) : runtime_(runtime) {}

  // A weight [out_features, in_features] at `weight`, whose products may be asked to do `outs`. Of fp8 where
  // there are scales [out_features], else of bf16. The table stays where it is.
  const Table* Add(int64_t in_features, int64_t out_features, const std::vector<MatmulOut>& outs,
                   const void* weight, const float* scales = nullptr);
  // The same of a weight in bf16 that is made when its product comes, of at least so many rows.
  const Table* AddDecoded(int64_t in_features, int64_t out_features, const std::vector<MatmulOut>& outs,
                          int32_t least_rows);
  // The weight is no more.
  void Remove(int64_t in_features, int64_t out_features, const void* weight, const float* scales = nullptr);
  // Steps have up to so many rows from now on.
  void Reserve(int32_t rows);
  // kNotPlanned: beyond what was reserved, or of a kind that was not asked for.
  static constexpr int kNotPlanned = -1;
  static int PlanOf(const Table& table, MatmulOut out, int32_t rows);

  // Families that no one kernel serves, a line each.
  const std::string& remarks() const { return remarks_; }

  // ---- tuning: lines of text, one a choice; those of other devices and libraries are kept as they are.
  // Before any weight is added. False: a line is no choice, and nothing was taken.
  bool UseTuning(std::string_view text);
  // Times the candidates of every planned family that has no choice yet, and takes the fastest. An error of
  // the runtime, or 0. Families whose rows do not fit the scratch are left as they are.
  int Tune(const Scratch& scratch);
  std::string Tuning() const;

 private:
  struct Weight {
    const void* data = nullptr;
    const float* scales = nullptr;  // of fp8
  };
  struct Weights {
    Table plans;
    size_t first_family = SIZE_MAX;  // that anybody asks for
    std::vector<Weight> at;          // weights of this shape; none where all are decoded
  };
  struct Shape {
    MatmulIn in = MatmulIn::kBf16;
    int64_t in_features = 0;
    int64_t out_features = 0;

    friend auto operator<=>(const Shape&, const Shape&) = default;
  };

  static Shape ShapeOf(int64_t in_features, int64_t out_features, const float* scales) {
    return {scales == nullptr ? MatmulIn::kBf16 : MatmulIn::kFp8, in_features, out_features};
  }
  static MatmulShape FamilyOfShape(const Shape& shape, size_t family, MatmulOut out);

  const Table* Plan(const Shape& shape, const std::vector<MatmulOut>& outs, size_t first_family);
  void PlanAll(const Shape& shape, Weights& weights);
  void PlanFamily(const MatmulShape& family, int* plan);
  int TuneFamily(const MatmulShape& family, int plan, std::span<const Weight> weights,
                 const Scratch& scratch);
  int TimeProducts(int plan, const MatmulParams& product, std::span<const Weight> weights, int64_t* ns);
  std::string KeyOf(const MatmulShape& family) const;

  Runtime& runtime_;
  std::map<Shape, Weights> products_;
  int32_t rows_ = 0;
  std::map<std::string, std::string, std::less<>> choices_;  // candidates by key, of every device
  std::string remarks_;
};

}  // namespace tramontane::cuda
