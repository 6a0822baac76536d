#include "tests/support/tiny_reference.h"

#include <algorithm>
#include <string>

#include "kernels/core/check.h"
#include "tests/reference/rounding.h"

namespace tramontane {
namespace {

std::vector<double> VectorOf(const TinyModel& model, const std::string& name) {
  const TinyTensor& tensor = model.tensors.at(name);
  std::vector<double> values(tensor.values.begin(), tensor.values.end());
  if (tensor.dtype == DType::kF32) return values;
  TM_CHECK(tensor.dtype == DType::kBf16, "tensors of another type");
  for (double& value : values) value = reference::Rounded(value, reference::kBf16);
  return values;
}

reference::Matrix MatrixOf(const TinyModel& model, const std::string& name) {
  const TinyTensor& tensor = model.tensors.at(name);
  reference::Matrix matrix(tensor.shape[0], tensor.shape[1]);
  matrix.data = VectorOf(model, name);
  return matrix;
}

}  // namespace

reference::MistralWeights ReferenceWeightsOf(const TinyModel& model) {
  reference::MistralWeights weights;
  weights.heads = model.heads;
  weights.kv_heads = model.kv_heads;
  weights.head_dim = model.head_dim;
  weights.rope_theta = model.rope_theta;
  weights.norm_epsilon = 1e-5;
  weights.embedding = MatrixOf(model, "tok_embeddings.weight");
  for (int32_t l = 0; l < model.layers; ++l) {
    const std::string prefix = "layers." + std::to_string(l) + ".";
    weights.layers.push_back({.attention_norm = VectorOf(model, prefix + "attention_norm.weight"),
                              .wq = MatrixOf(model, prefix + "attention.wq.weight"),
                              .wk = MatrixOf(model, prefix + "attention.wk.weight"),
                              .wv = MatrixOf(model, prefix + "attention.wv.weight"),
                              .wo = MatrixOf(model, prefix + "attention.wo.weight"),
                              .mlp_norm = VectorOf(model, prefix + "ffn_norm.weight"),
                              .gate = MatrixOf(model, prefix + "feed_forward.w1.weight"),
                              .up = MatrixOf(model, prefix + "feed_forward.w3.weight"),
                              .down = MatrixOf(model, prefix + "feed_forward.w2.weight"),
                              .window = model.window.empty() ? 0 : model.window[static_cast<size_t>(l)]});
  }
  weights.final_norm = VectorOf(model, "norm.weight");
  weights.lm_head = MatrixOf(model, model.tied ? "tok_embeddings.weight" : "output.weight");
  return weights;
}

reference::ContextRule ReferenceRuleOf(const ContextPolicy& policy) {
  constexpr reference::WhenFull kWhenFull[kContextPolicyTypes] = {
      reference::WhenFull::kGrow, reference::WhenFull::kSinks, reference::WhenFull::kShift,
      reference::WhenFull::kReevaluate};
  return {.when_full = kWhenFull[static_cast<size_t>(policy.type)],
          .n_ctx = policy.n_ctx,
          .n_keep = policy.n_keep,
          .n_discard = policy.n_discard};
}

reference::RowRounding ReferenceRoundingOf(DType kv_dtype) {
  const auto each = [](const reference::FloatType& type) {
    return [type](const std::vector<double>& row) {
      std::vector<double> rounded;
      for (const double value : row) rounded.push_back(reference::Rounded(value, type));
      return rounded;
    };
  };
  const auto integers = [](int bits) {
    return [bits](const std::vector<double>& row) { return reference::Quantised(row, bits); };
  };
  switch (kv_dtype) {
    case DType::kF32:
      return nullptr;
    case DType::kBf16:
      return each(reference::kBf16);
    case DType::kFp8E4M3:
      return each(reference::kFp8E4M3);
    case DType::kInt8:
      return integers(8);
    case DType::kInt4:
      return integers(4);
    default:
      TM_CHECK(false, "pages of %s", DTypeName(kv_dtype));
      return nullptr;
  }
}

std::vector<std::vector<double>> LogitsAlong(reference::Mistral decoder, const std::vector<int32_t>& text) {
  std::vector<std::vector<double>> logits;
  for (const int32_t token : text) logits.push_back(decoder.Next(token));
  return logits;
}

}  // namespace tramontane
