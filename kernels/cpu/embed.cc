// Embed: rows of a packed table, as they were in the file, in f32.
#include "kernels/core/check.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/ops.h"

namespace tramontane {

void RunEmbed(const EmbedParams& params, const CpuContext& context) {
  const auto& table = *static_cast<const PackedWeight*>(params.table.impl);
  TM_CHECK(params.out.dtype == DType::kF32, "embeddings are f32");
  TM_CHECK(params.out.columns == table.in_features, "out has %lld columns, the table %lld",
           static_cast<long long>(params.out.columns), static_cast<long long>(table.in_features));
  context.pool.ParallelFor(params.tokens, [&](int64_t token, int32_t) {
    const int32_t id = params.token_ids[token];
    TM_CHECK(id >= 0 && id < table.out_features, "token id %d of %lld", id,
             static_cast<long long>(table.out_features));
    UnpackRow(table, id, static_cast<float*>(params.out.data) + token * params.out.row_stride);
  });
}

}  // namespace tramontane
