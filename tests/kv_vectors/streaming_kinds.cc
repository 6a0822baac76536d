// Endless contexts: the events that an engine makes of a policy, attention as it is asked of a model by them,
// and keys turned by positions.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/run/backend_model_runner.h"
#include "kernels/context_policy.h"
#include "models/model.h"
#include "models/op_status.h"
#include "tests/kv_vectors/engine_stream.h"
#include "tests/kv_vectors/kinds.h"
#include "tests/kv_vectors/paged_run.h"

namespace tramontane::kv_vectors {
namespace {

constexpr int64_t kMostTokens = 1 << 20;
constexpr int32_t kMostPosition = 1 << 29;  // of a key, and by which it is turned

// Each case is run by all of them.
constexpr struct {
  int32_t page_size;
  StreamPrompts prompts;
} kSchedules[] = {{1, StreamPrompts::kWhole}, {16, StreamPrompts::kWhole}, {1, StreamPrompts::kCut}};

StreamCase ReadStream(CaseReader& reader) {
  StreamCase stream;
  ContextPolicy& policy = stream.policy;
  policy.type =
      static_cast<ContextPolicyType>(reader.OneOf("policy", {"none", "sinks", "shift", "reevaluate"}));
  policy.n_ctx = reader.Int("n_ctx", 1, kMostTokens);
  policy.n_keep = reader.Int("n_keep", 0, kMostTokens);
  policy.n_discard = reader.Int("n_discard", 0, kMostTokens);
  reader.Fail(CheckContextPolicy(policy));
  const bool is_endless = policy.type != ContextPolicyType::kNone;
  stream.prompt = reader.Int("prompt", 1, is_endless ? policy.n_ctx : kMostTokens);
  stream.tokens = reader.Int("tokens", stream.prompt, kMostTokens);
  if (!is_endless) policy = {.n_keep = 0};
  return stream;
}

// The prompt, and one of each token behind it.
int64_t EventCount(const StreamCase& stream) { return 1 + stream.tokens - stream.prompt; }

Rotation ReadRotation(CaseReader& reader, const char* style, const char* theta) {
  Rotation rotation;
  rotation.style =
      reader.OneOf(style, {"half", "interleaved"}) == 0 ? RotaryStyle::kHalfSplit : RotaryStyle::kInterleaved;
  rotation.theta = reader.Positive(theta);
  return rotation;
}

struct AttentionCaseRows {
  VectorTensor q, k, v;  // [rows, heads, head_dim] not turned
  Rotation rotation;
  double scale = 0;
};

// One layer of attention as the engine's own runner calls a model. Its queries, keys and values are the
// case's rows in the order in which tokens are computed, but that a token of the n_keep which the engine
// computes once more, because its page is gone, has the row that it had. Behind token i it wants token i + 1.
class AttentionModel final : public Model {
 public:
  // Borrows all.
  AttentionModel(Machine& machine, const StreamSetup& setup, const AttentionCaseRows& rows)
      : machine_(machine),
        backend_(*machine.backend),
        layout_(setup.layout),
        rows_(rows),
        n_keep_(setup.stream.policy.n_keep) {
    config_.vocab_size = setup.vocab_size;
    config_.context = setup.limits.context;
    config_.heads = static_cast<int32_t>(rows.q.shape[1]);
    config_.kv_heads = layout_.format.kv_heads;
    config_.head_dim = layout_.format.head_dim;
  }

  const ModelConfig& config() const override { return config_; }
  const KvLayout& kv_layout() const override { return layout_; }
  const std::vector<double>& out() const { return out_; }  // [rows taken, query heads, head_dim]

  Status Reserve(int32_t max_tokens, int32_t max_sequences, int32_t max_logit_rows) override {
    const StepMaxima maxima = {.tokens = max_tokens,
                               .sequences = max_sequences,
                               .logit_rows = max_logit_rows,
                               .query_heads = config_.heads,
                               .kv_heads = config_.kv_heads,
                               .head_dim = config_.head_dim,
                               .vocab = config_.vocab_size,
                               .context = config_.context};
    return OpStatus(machine_, backend_.Reserve(maxima), "Reserve");
  }

  OpCode Forward(const ForwardBatch& batch, std::byte* pool) override {
    const int32_t head_dim = config_.head_dim;
    const int64_t query_columns = int64_t{config_.heads} * head_dim;
    const int64_t key_columns = int64_t{config_.kv_heads} * head_dim;
    const DType activation = machine_.activation();
    std::vector<int32_t> token_ids(static_cast<size_t>(batch.tokens));
    TM_RETURN_IF_FAILED(backend_.Download(token_ids.data(), batch.token_ids,
                                          static_cast<int64_t>(token_ids.size() * sizeof(int32_t))));
    TM_RETURN_IF_FAILED(backend_.WaitFence(backend_.RecordFence()));
    last_token_ = token_ids.back();
    const int64_t taken_before = next_row_;
    const DeviceNumbers rows(machine_, activation, TakeRows(token_ids));
    const Tensor qkv = rows.Rows(batch.tokens, query_columns + 2 * key_columns);
    const std::vector<double> zeros(static_cast<size_t>(batch.tokens * query_columns));
    const DeviceNumbers sink_query(machine_, activation, zeros), out(machine_, activation, zeros);
    Tensor query = qkv;
    query.columns = query_columns;

    const Rotation& rotation = rows_.rotation;
    const bool has_sinks = batch.sinks.len != nullptr;
    const Angles angles(machine_, rotation.theta, head_dim, batch.positions, batch.tokens);
    const Angles sink_angles(machine_, rotation.theta, head_dim,
                             has_sinks ? batch.sinks.positions : batch.positions, batch.tokens);
    TM_RETURN_IF_FAILED(angles.code());
    TM_RETURN_IF_FAILED(sink_angles.code());
    const KvLayerView kv = layout_.LayerView(pool, 0);
    AttentionParams params = {.query = query,
                              .out = out.Rows(batch.tokens, query_columns),
                              .kv = kv,
                              .table = batch.groups[0],
                              .qo_indptr = batch.qo_indptr,
                              .batch = batch.sequences,
                              .query_heads = config_.heads,
                              .window = layout_.groups[0].window,
                              .scale = static_cast<float>(rows_.scale),
                              .plain = batch.plain};
    RopeAppendParams append = {.qkv = qkv,
                               .cos_sin = angles.data(),
                               .style = rotation.style,
                               .query_heads = config_.heads,
                               .kv = kv,
                               .slots = batch.groups[0].slots};
    if (has_sinks) {
      append.sink_cos_sin = sink_angles.data();
      append.sink_query = sink_query.Rows(batch.tokens, query_columns);
      params.sinks = {.len = batch.sinks.len,
                      .left = batch.sinks.left,
                      .query_position = batch.sinks.limits,
                      .query = append.sink_query,
                      .windowed = 1};
    }
    TM_RETURN_IF_FAILED(backend_.RopeAppend(append));
    TM_RETURN_IF_FAILED(backend_.Attention(params));
    const std::vector<double> numbers = out.Get();  // all of it has run before its inputs go
    const int64_t again = batch.tokens - (next_row_ - taken_before);  // in front of the others
    out_.insert(out_.end(), numbers.begin() + again * query_columns, numbers.end());
    return OpCode::kOk;
  }

  OpCode Logits(const int32_t*, int32_t count, const Tensor& logits) override {
    TM_CHECK(count == 1, "%d rows are sampled", count);
    logits_.assign(static_cast<size_t>(config_.vocab_size), 0.0f);
    logits_.at(static_cast<size_t>(last_token_) + 1) = 1.0f;
    return backend_.Upload(logits.data, logits_.data(), static_cast<int64_t>(logits_.size() * sizeof(float)));
  }

 private:
  // Of q, k and v side by side. Where the case has too few, its last one again and again.
  std::vector<double> TakeRows(const std::vector<int32_t>& token_ids) {
    std::vector<double> qkv;
    for (const int32_t token : token_ids) {
      const bool is_again = token < std::min(n_keep_, next_row_);
      const int64_t row = is_again ? token : next_row_++;
      for (const VectorTensor* from : {&rows_.q, &rows_.k, &rows_.v}) {
        const int64_t columns = from->shape[1] * from->shape[2];
        const auto begin = from->values.begin() + std::min(row, from->shape[0] - 1) * columns;
        qkv.insert(qkv.end(), begin, begin + columns);
      }
    }
    return qkv;
  }

  Machine& machine_;
  Backend& backend_;
  const KvLayout layout_;
  const AttentionCaseRows& rows_;
  ModelConfig config_;
  const int64_t n_keep_;
  int64_t next_row_ = 0;
  std::vector<double> out_;
  int32_t last_token_ = 0;     // of the last step
  std::vector<float> logits_;  // until they are uploaded
};

struct AttendedStream {
  std::vector<StreamEvent> events;
  std::vector<double> out;
};

// The engine over its own runner on the machine, in a pool whose every number is NaN until it is written.
StatusOr<AttendedStream> AttendStream(Machine& machine, const StreamSetup& setup,
                                      const AttentionCaseRows& rows) {
  TM_RETURN_IF_ERROR(CheckPool(setup.layout.format, setup.limits.pool_pages));
  PagedPool pool(machine, setup.layout.format, static_cast<int32_t>(setup.limits.pool_pages),
                 std::numeric_limits<double>::quiet_NaN());
  AttentionModel model(machine, setup, rows);
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<BackendModelRunner> runner,
                      BackendModelRunner::Create(*machine.backend, model, setup.limits, pool.View().pool));
  TM_ASSIGN_OR_RETURN(std::vector<StreamEvent> events, RunStream(setup, runner.get()));
  return AttendedStream{std::move(events), model.out()};
}

}  // namespace

Status RunStreamingPlan(CaseRun& run) {
  const StreamCase stream = ReadStream(run.reader());
  TM_RETURN_IF_ERROR(run.reader().status());
  TM_RETURN_IF_ERROR(run.ExpectSize("token", EventCount(stream)));
  for (const auto& [page_size, prompts] : kSchedules) {
    const KvFormat format = {.kv_heads = 1, .head_dim = 2, .page_size = page_size};
    TM_ASSIGN_OR_RETURN(const std::vector<StreamEvent> events,
                        RunStream(MakeStreamSetup(stream, format, /*window=*/0, prompts), nullptr));
    std::vector<double> token, count, discarded, first_row, query_position, held, left;
    int64_t rows = 0;
    for (const StreamEvent& event : events) {
      token.push_back(static_cast<double>(event.token));
      count.push_back(static_cast<double>(event.count));
      discarded.push_back(static_cast<double>(event.Discarded()));
      first_row.push_back(static_cast<double>(rows));
      rows += event.count;
      query_position.push_back(static_cast<double>(event.query_position));
      held.push_back(static_cast<double>(event.held));
      left.push_back(static_cast<double>(event.left));
    }
    TM_RETURN_IF_ERROR(run.Expect("token", token));
    TM_RETURN_IF_ERROR(run.Expect("count", count));
    TM_RETURN_IF_ERROR(run.Expect("discarded", discarded));
    TM_RETURN_IF_ERROR(run.Expect("first_row", first_row));
    TM_RETURN_IF_ERROR(run.Expect("query_position", query_position));
    TM_RETURN_IF_ERROR(run.Expect("held", held));
    TM_RETURN_IF_ERROR(run.Expect("left", left));
  }
  return Status::Ok();
}

Status RunStreamingAttention(CaseRun& run) {
  CaseReader& reader = run.reader();
  const StreamCase stream = ReadStream(reader);
  const int64_t window = reader.Int("window", 0, kMostTokens);
  AttentionCaseRows rows;
  rows.rotation = ReadRotation(reader, "rope_style", "rope_theta");
  rows.scale = reader.Positive("sm_scale");
  rows.q = reader.In("q", {-1, -1, -1});
  rows.k = reader.In("k", {rows.q.shape[0], -1, rows.q.shape[2]});
  rows.v = reader.In("v", rows.k.shape);
  const std::vector<int32_t> token = reader.Ints("token", {-1});
  const auto events_given = static_cast<int64_t>(token.size());
  const std::vector<int32_t> count = reader.Ints("count", {events_given});
  const std::vector<int32_t> discarded = reader.Ints("discarded", {events_given});
  const std::vector<int32_t> first_row = reader.Ints("first_row", {events_given});
  TM_RETURN_IF_ERROR(reader.status());
  if (events_given != EventCount(stream)) {
    return InvalidArgument("has " + std::to_string(events_given) + " events; prompt and tokens make " +
                           std::to_string(EventCount(stream)))
        .WithField("in.token", FieldForm::kSubject);
  }
  if (rows.q.shape[0] < stream.tokens) {
    return InvalidArgument("has " + std::to_string(rows.q.shape[0]) + " rows; " +
                           std::to_string(stream.tokens) + " tokens are computed")
        .WithField("in.q", FieldForm::kSubject);
  }

  for (const auto& [page_size, prompts] : kSchedules) {
    const KvFormat format = {.element = run.machine().cache,
                             .kv_heads = static_cast<int32_t>(rows.k.shape[1]),
                             .head_dim = static_cast<int32_t>(rows.k.shape[2]),
                             .page_size = page_size};
    const AttentionCase attention = {.query_heads = static_cast<int32_t>(rows.q.shape[1])};
    if (format.kv_heads < 1 || attention.query_heads % format.kv_heads != 0 || format.head_dim % 2 != 0) {
      return InvalidArgument("q has no whole groups of k's heads, or head_dim is odd");
    }
    if (std::string limit = AttentionLimit(run.machine(), format, attention); !limit.empty()) {
      run.Skip(std::move(limit));
      return Status::Ok();
    }
    TM_ASSIGN_OR_RETURN(const AttendedStream attended,
                        AttendStream(run.machine(), MakeStreamSetup(stream, format, window, prompts), rows));
    // The events of the file are those of the engine.
    int64_t first = 0;
    for (size_t i = 0; i < std::max(attended.events.size(), token.size()); ++i) {
      const StreamEvent event = i < attended.events.size() ? attended.events[i] : StreamEvent();
      const bool same = i < attended.events.size() && i < token.size() && event.token == token[i] &&
                        event.count == count[i] && event.Discarded() == discarded[i] && first_row[i] == first;
      if (!same) return InvalidArgument("is not the policy's").WithField(FieldElement("in.token", i));
      first += count[i];
    }
    if (first != rows.q.shape[0]) return InvalidArgument("the events have other rows than in.q");
    TM_RETURN_IF_ERROR(run.Expect("o", attended.out));
  }
  return Status::Ok();
}

Status RunRopeShift(CaseRun& run) {
  CaseReader& reader = run.reader();
  Rotation rotation = ReadRotation(reader, "style", "theta");
  const auto delta = static_cast<int32_t>(reader.Int("delta", -kMostPosition, kMostPosition));
  const VectorTensor k = reader.In("k", {-1, -1, -1});
  const std::vector<int32_t> positions = reader.Ints("position", {k.shape[0]}, -kMostPosition);
  TM_RETURN_IF_ERROR(reader.status());
  for (size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] <= kMostPosition) continue;
    return InvalidArgument("is " + std::to_string(positions[row]) + ", the most is " +
                           std::to_string(kMostPosition))
        .WithField(FieldElement("in.position", row), FieldForm::kSubject);
  }
  const KvFormat format = {.element = run.machine().cache,
                           .kv_heads = static_cast<int32_t>(k.shape[1]),
                           .head_dim = static_cast<int32_t>(k.shape[2]),
                           .page_size = 1};
  if (format.kv_heads < 1 || format.head_dim < 2 || format.head_dim % 2 != 0) {
    return InvalidArgument("k has no heads of an even dimension");
  }
  const auto rows = static_cast<int32_t>(k.shape[0]);
  // Keys as an append leaves them in their pages, one token a page.
  const auto turned = [&](const std::vector<double>& keys,
                          const std::vector<int32_t>& by) -> StatusOr<std::vector<double>> {
    PagedPool pool(run.machine(), format, rows, 0);
    AppendRows append;
    append.keys = keys;
    append.values = keys;
    append.rotation = rotation;
    append.rotation.positions = by;
    for (int32_t row = 0; row < rows; ++row) append.slots.push_back(row);
    TM_RETURN_IF_ERROR(Append(run.machine(), pool.View(), append));
    const std::vector<double> numbers = pool.Numbers();
    const auto columns = static_cast<std::ptrdiff_t>(k.shape[1] * k.shape[2]);
    std::vector<double> out;  // a page is its keys, then its values
    for (std::ptrdiff_t row = 0; row < rows; ++row) {
      out.insert(out.end(), numbers.begin() + 2 * row * columns, numbers.begin() + (2 * row + 1) * columns);
    }
    return out;
  };
  std::vector<int32_t> moved = positions;
  for (int32_t& at : moved) at += delta;  // within 32 bits, as both are
  TM_ASSIGN_OR_RETURN(const std::vector<double> rotated, turned(k.values, positions));
  TM_RETURN_IF_ERROR(run.Expect("rotated", rotated));
  TM_ASSIGN_OR_RETURN(const std::vector<double> shifted, turned(k.values, moved));
  TM_RETURN_IF_ERROR(run.Expect("shifted", shifted));
  TM_ASSIGN_OR_RETURN(const std::vector<double> turned_again,
                      turned(rotated, std::vector<int32_t>(positions.size(), delta)));
  return run.Expect("shifted", turned_again);
}

}  // namespace tramontane::kv_vectors
