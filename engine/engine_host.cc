#include "engine/engine_host.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/engine_thread.h"
#include "engine/kv/kv_store.h"
#include "engine/run/backend_model_runner.h"
#include "engine/schedule/costs.h"
#include "engine/threads/signal.h"
#include "models/chat/choose_chat_format.h"
#include "models/decoder.h"
#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/load.h"

namespace tramontane {
namespace {

constexpr int64_t kWarmUpPromptTokens = 16;

struct FreePool {
  Backend* backend;
  void operator()(std::byte* pool) const { backend->Free(pool); }
};
using PoolMemory = std::unique_ptr<std::byte, FreePool>;

StatusOr<PoolMemory> AllocatePool(Backend& backend, const EngineHostPlan& plan) {
  const int64_t bytes = plan.limits.pool_pages * plan.layout.page_bytes();
  PoolMemory pool(static_cast<std::byte*>(backend.Allocate(bytes)), FreePool{&backend});
  if (pool == nullptr) {
    return ResourceExhausted("no memory for " + std::to_string(plan.limits.pool_pages) + " pages, " +
                             std::to_string(bytes) + " bytes");
  }
  return pool;
}

EngineModel ModelFor(const Model& model, const StepCosts& costs) {
  return {.vocab_size = model.config().vocab_size,
          .eos_ids = model.config().eos_ids,
          .kv_layout = model.kv_layout(),
          .costs = costs};
}

// What a prefill step is not cut below, and what the engine knows of steps' times before its first.
Status DecideLeastStep(const Model& model, BackendModelRunner& runner, const Clock& clock,
                       EngineHostPlan* plan) {
  EngineLimits& limits = plan->limits;
  const bool is_cut = limits.decode_gap_ns > 0 && limits.lane_policy == LanePolicy::kFair;
  if (!is_cut || limits.least_step_tokens > 0) return {};
  const int64_t begin_ns = clock.NowNs();
  TM_ASSIGN_OR_RETURN(plan->row_speeds,
                      MeasureRowSpeeds(model, plan->memory.weight_bytes, limits, runner, clock));
  plan->measuring_ns = clock.NowNs() - begin_ns;
  // A pool too small for a step of 32 tokens has steps small enough.
  limits.least_step_tokens =
      plan->row_speeds.empty() ? limits.max_step_tokens : LeastFastRows(plan->row_speeds);
  return {};
}

StepCosts CostsOf(const EngineHostPlan& plan) {
  const PrefillCost keys(plan.layout, plan.limits.attended_keys_per_token);
  StepCosts costs;
  for (const RowSpeed& speed : plan.row_speeds) {
    costs.prefill.Learn({.tokens = speed.rows, .attended_keys = keys.AttendedKeys(0, speed.rows)}, speed.ns);
  }
  return costs;
}

// In whole pages. A tier needs two on the host, so that one can leave while another comes.
Status PlanTier(const KvTierOptions& tier, EngineHostPlan* plan) {
  plan->limits.host_kv_bytes = 0;
  plan->limits.disk_kv_bytes = 0;
  if (!tier.wanted()) return {};
  const auto refuse = [](const char* field, const std::string& what) {
    return InvalidArgument(what).WithField(field, FieldForm::kSubject);
  };
  const char* const asked = tier.host_bytes > 0 ? "host_kv" : "disk_kv";
  if (!plan->limits.prefix_cache) {
    return refuse(asked, "is set, and prefix_cache is off: pages are found there by their tokens");
  }
  const int64_t page_bytes = plan->layout.page_bytes();
  const auto pages_in = [page_bytes](int64_t bytes) { return std::min(bytes / page_bytes, kMaxTierPages); };
  const int64_t host_bytes =
      tier.host_bytes > 0 ? tier.host_bytes : std::max(kDiskStagingBytes, 2 * page_bytes);
  if (pages_in(host_bytes) < 2) {
    return refuse("host_kv", "is " + std::to_string(tier.host_bytes) + " bytes, the least is 2 pages of " +
                                 std::to_string(page_bytes));
  }
  plan->limits.host_kv_bytes = pages_in(host_bytes) * page_bytes;
  if (tier.disk_folder.empty()) return {};
  if (pages_in(tier.disk_bytes) < 1) {
    return refuse("disk_kv_size", "is " + std::to_string(tier.disk_bytes) +
                                      " bytes, the least is a page of " + std::to_string(page_bytes));
  }
  plan->limits.disk_kv_bytes = pages_in(tier.disk_bytes) * page_bytes;
  return {};
}

// Out and in, on memory that was used before.
StatusOr<double> MeasurePageCopyNs(ModelRunner& runner, std::byte* host, const EngineHostPlan& plan,
                                   const Clock& clock) {
  const int64_t page_bytes = plan.layout.page_bytes();
  const int64_t pages =
      std::min({int64_t{8}, plan.limits.host_kv_bytes / page_bytes, plan.limits.pool_pages});
  std::vector<PageImage> images;
  for (int64_t page = 0; page < pages; ++page) {
    images.push_back({.page = static_cast<PageId>(page), .bytes = host + page * page_bytes});
  }
  TM_RETURN_IF_ERROR(runner.ReadPages(images));
  const int64_t begin_ns = clock.NowNs();
  TM_RETURN_IF_ERROR(runner.ReadPages(images));
  TM_RETURN_IF_ERROR(runner.WritePages(images));
  return static_cast<double>(clock.NowNs() - begin_ns) / static_cast<double>(2 * pages);
}

// Null: none is wanted.
StatusOr<std::unique_ptr<KvTier>> MakeTier(Backend& backend, ModelRunner& runner, const KvTierOptions& asked,
                                           const Clock& clock, EngineHostPlan* plan) {
  if (!asked.wanted()) return std::unique_ptr<KvTier>();
  const EngineLimits& limits = plan->limits;
  KvTier::Options options;
  options.page_bytes = plan->layout.page_bytes();
  options.host_pages = limits.host_kv_bytes / options.page_bytes;
  options.warn = asked.warn;
  options.host = {static_cast<std::byte*>(backend.AllocateHost(limits.host_kv_bytes)),
                  [&backend](std::byte* host) {
                    backend.AwaitMoves();
                    backend.WaitFence(backend.RecordFence());
                    backend.FreeHost(host);
                  }};
  if (options.host == nullptr) {
    return ResourceExhausted("is " + std::to_string(limits.host_kv_bytes) + " bytes, which there are not")
        .WithField("host_kv", FieldForm::kSubject);
  }
  TM_ASSIGN_OR_RETURN(options.copy_ns, MeasurePageCopyNs(runner, options.host.get(), *plan, clock));
  plan->page_copy_ns = options.copy_ns;
  if (!asked.disk_folder.empty()) {
    TM_ASSIGN_OR_RETURN(options.disk, KvDisk::Open(asked.disk_folder, options.page_bytes,
                                                   limits.disk_kv_bytes / options.page_bytes,
                                                   KvTier::MostJobs(options.host_pages)));
  }
  return std::make_unique<KvTier>(std::move(options));
}

// One prefill and one decode through an engine of their own, so that the first user's first token pays for
// nothing and no counter has seen them. A model whose logits are not finite would fail every request: it
// fails here.
Status WarmUp(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner, const Clock& clock) {
  Engine engine(limits, model, runner, nullptr, clock);
  Request request;
  request.id = "warm-up";
  request.prompt.assign(static_cast<size_t>(std::clamp<int64_t>(limits.context - 2, 1, kWarmUpPromptTokens)),
                        0);
  request.stopping.max_tokens =
      std::min<int64_t>(2, limits.context - static_cast<int64_t>(request.prompt.size()));
  request.stopping.ignore_eos = true;
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<TokenStream> stream, engine.Submit(std::move(request), nullptr));
  for (StepOutcome step = engine.Step(); step != StepOutcome::kNothingToDo; step = engine.Step()) {
    if (step == StepOutcome::kNoRoom) engine.WaitForWork(Signal::kForever);  // the output thread is behind
  }
  TM_RETURN_IF_ERROR(engine.fatal());
  if (engine.Load().failed_rows == 0) return {};
  return DataLoss("the model's logits are not finite: its weights are damaged, or those of another config");
}

// What is asked for, before anything is computed from it; what 0 leaves open is decided, and checked, later.
Status CheckAsked(EngineLimits asked) {
  if (asked.context <= 0) asked.context = 1;
  if (asked.pool_pages <= 0) asked.pool_pages = 1;
  return asked.Validate();
}

}  // namespace

StatusOr<EngineHostPlan> PlanEngineHost(const OpenedModel& model, const Backend& backend,
                                        const EngineHostOptions& options) {
  EngineHostPlan plan;
  plan.layout = model.kv_layout;
  plan.limits = options.limits;
  plan.limits.page_size = plan.layout.format.page_size;
  plan.limits.steps_in_flight = backend.info().asynchronous != 0 ? kMaxStepsInFlight : 1;
  TM_RETURN_IF_ERROR(CheckAsked(plan.limits));
  PlanLimits sizes;
  sizes.max_tokens = plan.limits.max_tokens();
  sizes.max_sequences = plan.limits.max_sequences;
  sizes.max_logit_rows = plan.limits.logit_rows();
  sizes.max_step_tokens = plan.limits.max_step_tokens;
  const bool records = backend.info().records_steps != 0;
  if (records) sizes.recorded_steps = plan.limits.recorded_steps();
  sizes.max_recording_bytes = plan.limits.max_recording_bytes;
  // A backend whose ops are done when they return is the processor itself: the host's copies are in the same
  // memory, and so are the names of live texts.
  const BackendModelRunner::BufferBytes buffers =
      BackendModelRunner::CountBuffers(plan.layout, plan.limits, model.config);
  const int64_t context = plan.limits.context > 0 ? plan.limits.context : model.config.context;
  const int64_t names =
      plan.limits.prefix_cache
          ? KvStore::NameBytes(plan.layout,
                               KvStore::LiveBlocks(plan.layout, plan.limits.max_sequences, context))
          : 0;
  sizes.step_buffer_bytes = buffers.device + (backend.info().asynchronous != 0 ? 0 : buffers.host + names);
  TM_ASSIGN_OR_RETURN(plan.memory, PlanMemory(model, backend, sizes, options.memory_bytes));

  if (plan.memory.unrecorded_steps > 0) {  // a shorter list may have fewer than fit
    const int32_t wanted = sizes.recorded_steps;
    plan.limits.BoundRecordings(plan.memory.recorded_steps);
    sizes.recorded_steps = plan.limits.recorded_steps();
    TM_ASSIGN_OR_RETURN(plan.memory, PlanMemory(model, backend, sizes, options.memory_bytes));
    plan.memory.unrecorded_steps = wanted - plan.memory.recorded_steps;
  }
  if (records) plan.limits.max_recording_bytes = plan.memory.recording_bytes;
  const auto at_most = [](int64_t asked, int64_t most) { return asked > 0 ? std::min(asked, most) : most; };
  plan.limits.pool_pages = at_most(plan.limits.pool_pages, plan.memory.pool_pages);
  const int64_t fits = ContextThatFits(plan.layout, plan.limits.pool_pages, plan.limits.max_step_tokens);
  plan.limits.context = at_most(plan.limits.context, std::min(model.config.context, fits));
  TM_RETURN_IF_ERROR(PlanTier(options.tier, &plan));
  TM_RETURN_IF_ERROR(plan.limits.Validate());
  return plan;
}

StatusOr<ChatFormatPtr> ChatFormatOf(const OpenedModel& model, const Tokenizer& tokenizer,
                                     const std::string& asked) {
  // A tokenizer that lies elsewhere has its template in it or beside it.
  const std::filesystem::path at = model.folder.tokenizer;
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(at, error);
  const std::string beside = is_file ? at.parent_path().string() : at.string();
  ChatFormatChoice choice;
  choice.asked = asked;
  if (IsGgufFile(at.string())) choice.places.push_back(at.string());
  choice.places.push_back(beside);
  if (model.folder.layout == FolderLayout::kGguf) {
    choice.places.push_back(model.folder.PathOf(model.folder.config_file));
  }
  choice.places.push_back(model.folder.path);
  return ChooseChatFormat(tokenizer, choice);
}

void AddEndOfTurn(const ChatFormat& format, ModelConfig* config) {
  const int32_t end = format.answer_syntax().end;
  const auto& ends = config->eos_ids;
  if (end < 0 || end >= config->vocab_size || std::find(ends.begin(), ends.end(), end) != ends.end()) return;
  config->eos_ids.push_back(end);
  config->eos_source += ", and the end of a turn in chat format " + format.name();
}

int32_t PaddingBegin(const Tokenizer& tokenizer, const ModelConfig& config) {
  int32_t begin = tokenizer.padding_begin();
  for (const int32_t end : config.eos_ids) begin = std::max(begin, end + 1);
  return std::min(begin, config.vocab_size);
}

// In the order in which the parts are made: the thread stops first, the pool goes last.
struct EngineHost::Impl {
  const std::string weight_sample;
  const EngineHostPlan plan;
  const std::unique_ptr<Model> model;
  const std::unique_ptr<const Tokenizer> tokenizer;
  const ChatFormatPtr chat_format;
  const PoolMemory pool;
  const std::unique_ptr<BackendModelRunner> runner;
  Engine engine;
  EngineThread thread{engine};
};

StatusOr<std::unique_ptr<EngineHost>> EngineHost::Start(OpenedModel opened, Backend& backend,
                                                        const EngineHostOptions& options,
                                                        const Clock& clock) {
  const std::string folder = opened.folder.path;
  TM_ASSIGN_OR_RETURN(EngineHostPlan plan, PlanEngineHost(opened, backend, options));
  TM_ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer,
                      LoadTokenizer(opened.folder.tokenizer, opened.config.vocab_size));
  TM_ASSIGN_OR_RETURN(ChatFormatPtr chat_format, ChatFormatOf(opened, *tokenizer, options.chat_format));
  AddEndOfTurn(*chat_format, &opened.config);
  opened.config.padding_begin = PaddingBegin(*tokenizer, opened.config);
  std::string weight_sample = SampleOfWeights(opened);
  TM_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, LoadModel(std::move(opened), backend, options.progress));
  TM_ASSIGN_OR_RETURN(PoolMemory pool, AllocatePool(backend, plan));
  TM_ASSIGN_OR_RETURN(std::unique_ptr<BackendModelRunner> runner,
                      BackendModelRunner::Create(backend, *model, plan.limits, pool.get()));
  if (options.tune && backend.Tune() != OpCode::kOk) return Internal(backend.last_error());
  TM_RETURN_IF_ERROR(runner->RecordDecodeSteps());
  TM_RETURN_IF_ERROR(DecideLeastStep(*model, *runner, clock, &plan));
  const Status warm = WarmUp(plan.limits, ModelFor(*model, {}), *runner, clock);
  if (!warm.ok()) return Status(warm.code(), folder + ": " + warm.message());
  TM_ASSIGN_OR_RETURN(std::unique_ptr<KvTier> tier, MakeTier(backend, *runner, options.tier, clock, &plan));
  const EngineLimits limits = plan.limits;
  const EngineModel engine_model = ModelFor(*model, CostsOf(plan));
  const Tokenizer* const text = tokenizer.get();
  BackendModelRunner& steps = *runner;
  return std::unique_ptr<EngineHost>(new EngineHost(std::unique_ptr<Impl>(
      new Impl{std::move(weight_sample), std::move(plan), std::move(model), std::move(tokenizer),
               std::move(chat_format), std::move(pool), std::move(runner),
               Engine(limits, engine_model, steps, text, clock, std::move(tier))})));
}

EngineHost::EngineHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EngineHost::~EngineHost() = default;

Engine& EngineHost::engine() { return impl_->engine; }
const Model& EngineHost::model() const { return *impl_->model; }
const Tokenizer& EngineHost::tokenizer() const { return *impl_->tokenizer; }
const ChatFormat& EngineHost::chat_format() const { return *impl_->chat_format; }
const EngineHostPlan& EngineHost::plan() const { return impl_->plan; }
const std::string& EngineHost::weight_sample() const { return impl_->weight_sample; }

}  // namespace tramontane
