// attention_bench: how near attention comes to its bounds, and what sampling costs.
//
//   attention_bench [--variant NAME] [--threads N] [--rounds N]
//                   [--only decode|shared|discard|prefill|sampling]
//
// Decode reads the keys and values once: its bound is a plain read of as many bytes in order by the same
// threads. Prefill multiplies: its bound is the fused multiply-adds that the same threads can issue. Decode
// and its bound take turns in every round and are measured by processor time, because a shared machine is not
// the same from minute to minute; the share printed is the median of the rounds' ratios.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "kernels/backends/cpu_backend.h"
#include "kernels/core/check.h"
#include "kernels/cpu/thread_pool.h"

namespace tramontane {
namespace {

struct Options {
  CpuBackendOptions backend;
  int rounds = 21;
  std::string only;  // one table; "": all
};

struct HeadShape {
  const char* name;
  int32_t query_heads, kv_heads, head_dim;
  Format element = DType::kBf16;
  int32_t page_size = 16;
};

constexpr HeadShape kShapes[] = {{"breeze", 8, 2, 32}, {"135M", 9, 3, 64}, {"7B", 32, 8, 128}};

// Decode at 4,096 tokens in other groups, pages and types.
constexpr HeadShape kOtherShapes[] = {{"page 64", 32, 8, 128, DType::kBf16, 64},
                                      {"f16", 32, 8, 128, DType::kF16},
                                      {"f32", 32, 8, 128, DType::kF32},
                                      {"group 1", 8, 8, 128},
                                      {"group 3", 24, 8, 128},
                                      {"group 8", 64, 8, 128},
                                      {"64 x 1", 8, 8, 64},
                                      {"64 x 4", 32, 8, 64},
                                      {"64 x 8", 64, 8, 64}};

// Pages of smaller numbers, each beside bf16's of the same heads.
constexpr HeadShape kQuantisedShapes[] = {{"fp8", 32, 8, 128, Format::BareFp8()},
                                          {"int8/32", 32, 8, 128, Format::WithScalesApart(DType::kInt8, 5)},
                                          {"int8/128", 32, 8, 128, Format::WithScalesApart(DType::kInt8, 7)},
                                          {"int4/32", 32, 8, 128, Format::WithScalesApart(DType::kInt4, 5)},
                                          {"int8/32", 8, 8, 128, Format::WithScalesApart(DType::kInt8, 5)},
                                          {"int8/32", 9, 3, 64, Format::WithScalesApart(DType::kInt8, 5)}};

// Processor time of all threads of this process.
double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double BestProcessorSeconds(int rounds, int32_t threads, const std::function<void()>& body) {
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    const double begin = ProcessorSeconds();
    body();
    best = std::min(best, (ProcessorSeconds() - begin) / threads);
  }
  return best;
}

// An op and its bound that took turns.
struct Compared {
  double op_seconds = 1e30;     // best of all rounds; of each of the threads
  double bound_seconds = 1e30;  // best of all rounds
  double share = 0.0;           // bound / op, the median of all rounds
};

Compared Compare(int rounds, int32_t threads, const std::function<void()>& op,
                 const std::function<void()>& bound) {
  auto seconds_of = [threads](const std::function<void()>& body) {
    const double begin = ProcessorSeconds();
    body();
    return (ProcessorSeconds() - begin) / threads;
  };
  Compared compared;
  std::vector<double> shares;
  for (int round = 0; round < rounds; ++round) {
    const double op_seconds = seconds_of(op);
    const double bound_seconds = seconds_of(bound);
    compared.op_seconds = std::min(compared.op_seconds, op_seconds);
    compared.bound_seconds = std::min(compared.bound_seconds, bound_seconds);
    shares.push_back(bound_seconds / op_seconds);
  }
  std::nth_element(shares.begin(), shares.begin() + rounds / 2, shares.end());
  compared.share = shares[static_cast<size_t>(rounds / 2)];
  return compared;
}

// Sequences of one length over shuffled pages, in as many layers as fill `pool_bytes`.
class KvBench {
 public:
  KvBench(Backend& backend, const HeadShape& shape, int32_t sequences, int32_t context, int64_t pool_bytes)
      : backend_(backend), shape_(shape), sequences_(sequences), context_(context) {
    KvFormat format = {shape.element, shape.kv_heads, shape.head_dim, shape.page_size, KvOrder::kHnd};
    const int32_t pages_each = static_cast<int32_t>(PagesFor(context, shape.page_size));
    const int32_t pages = pages_each * sequences;
    layers_ = static_cast<int32_t>(std::max<int64_t>(1, pool_bytes / (pages * format.LayerBytes())));
    pool_bytes_ = pages * format.PageBytes(layers_);
    view_ = KvLayerView(format, static_cast<std::byte*>(backend.Allocate(pool_bytes_)),
                        format.PageBytes(layers_));
    TM_CHECK(view_.pool != nullptr, "no memory for %lld bytes", static_cast<long long>(pool_bytes_));
    auto* halves = reinterpret_cast<uint16_t*>(view_.pool);
    for (int64_t i = 0; i < pool_bytes_ / 2; ++i) halves[i] = static_cast<uint16_t>(0x3c00 + i * 37 % 512);
    for (int32_t p = 0; p < pages; ++p) page_indices_.push_back(p);
    std::shuffle(page_indices_.begin(), page_indices_.end(), std::mt19937(1));
    for (int32_t b = 0; b < sequences; ++b) first_entry_.push_back(b * pages_each);
    kv_base_.assign(static_cast<size_t>(sequences), 0);
    kv_end_.assign(static_cast<size_t>(sequences), context);
  }
  ~KvBench() { backend_.Free(view_.pool); }
  KvBench(const KvBench&) = delete;
  KvBench& operator=(const KvBench&) = delete;

  // All sequences list the first one's pages for their first `tokens` tokens. Returns the share of pages that
  // are still told apart.
  double SharePrefix(int32_t tokens) {
    const int32_t shared = tokens / shape_.page_size, each = PagesEach();
    for (int32_t b = 1; b < sequences_; ++b) {
      std::copy_n(page_indices_.begin(), shared,
                  page_indices_.begin() + first_entry_[static_cast<size_t>(b)]);
    }
    return 1.0 - 1.0 * (sequences_ - 1) * shared / (sequences_ * each);
  }

  // The first sequence's keys, in the first layer, are turned by one position each: what a cache costs that
  // moves its keys up when a token is discarded. In bf16, pairs half a head apart.
  void TurnKeys(ThreadPool& pool, const std::vector<float>& cos_sin) {
    const KvFormat& format = view_.format;
    const int32_t half = format.head_dim / 2;
    pool.ParallelFor(PagesEach(), [&](int64_t listed, int32_t) {
      const int64_t page = page_indices_[static_cast<size_t>(listed)];
      for (int32_t head = 0; head < format.kv_heads; ++head) {
        for (int32_t offset = 0; offset < format.page_size; ++offset) {
          auto* key = reinterpret_cast<uint16_t*>(view_.Key(page, head, offset));
          for (int32_t i = 0; i < half; ++i) {
            const float a = Bf16ToFloat(key[i]), b = Bf16ToFloat(key[i + half]);
            const float cos = cos_sin.data()[2 * i], sin = cos_sin.data()[2 * i + 1];
            key[i] = FloatToBf16(a * cos - b * sin);
            key[i + half] = FloatToBf16(a * sin + b * cos);
          }
        }
      }
    });
  }

  // One row of a sequence is rotated, and once more for sinks where it has any, and attends in the first
  // layer; nothing is written.
  void DecodeRow(bool sinks, int32_t n_keep, const std::vector<float>& cos_sin) {
    const int64_t columns = int64_t{shape_.query_heads} * shape_.head_dim;
    const int64_t qkv_columns = columns + int64_t{2} * shape_.kv_heads * shape_.head_dim;
    query_.resize(static_cast<size_t>(qkv_columns + columns), 0.25f);
    out_.resize(static_cast<size_t>(columns));
    const int64_t nowhere = -1;
    RopeAppendParams rope;
    rope.qkv = MakeTensor(query_.data(), DType::kF32, 1, qkv_columns);
    rope.cos_sin = cos_sin.data();
    rope.query_heads = shape_.query_heads;
    rope.kv = view_;
    rope.slots = &nowhere;
    if (sinks) {
      rope.sink_cos_sin = cos_sin.data();
      rope.sink_query = MakeTensor(query_.data() + qkv_columns, DType::kF32, 1, columns);
    }
    TM_CHECK(backend_.RopeAppend(rope) == OpCode::kOk, "%s", backend_.last_error());
    const int32_t len = n_keep, left = n_keep + 1, position = context_ - 1;
    AttentionParams params = Params(1, 0);
    params.query = rope.qkv;
    params.query.columns = columns;
    if (sinks) {
      params.sinks = {.len = &len, .left = &left, .query_position = &position, .query = rope.sink_query};
    }
    TM_CHECK(backend_.Attention(params) == OpCode::kOk, "%s", backend_.last_error());
  }

  // The last `queries` tokens of every sequence attend, in every layer.
  void Attend(int32_t queries, int32_t window) {
    const int64_t columns = int64_t{shape_.query_heads} * shape_.head_dim;
    const size_t elements = static_cast<size_t>(sequences_ * queries * columns);
    if (query_.size() < elements) {
      query_.assign(elements, 0.25f);
      out_.assign(elements, 0.0f);
    }
    AttentionParams params = Params(queries, window);
    for (int32_t layer = 0; layer < layers_; ++layer) {
      params.kv = KvLayerView(view_.format, view_.pool, view_.page_bytes, layer * view_.format.LayerBytes());
      TM_CHECK(backend_.Attention(params) == OpCode::kOk, "%s", backend_.last_error());
    }
  }

  int32_t layers() const { return layers_; }
  const std::byte* pool() const { return view_.pool; }
  int64_t pool_bytes() const { return pool_bytes_; }
  // Bytes of the keys that one query a sequence sees, all layers.
  double DecodeBytes(int32_t window) const {
    const int32_t keys = window > 0 ? std::min(window, context_) : context_;
    return 1.0 * sequences_ * keys * layers_ * view_.format.LayerBytes() / shape_.page_size;
  }
  // Multiply-adds count twice; a query at p has p + 1 keys, or the window.
  double PrefillFlops(int32_t queries, int32_t window) const {
    double keys = 0;
    for (int64_t p = context_ - queries; p < context_; ++p)
      keys += static_cast<double>(p + 1 - FirstVisible(p, window));
    return 4.0 * shape_.query_heads * shape_.head_dim * keys * sequences_ * layers_;
  }

 private:
  int32_t PagesEach() const { return static_cast<int32_t>(PagesFor(context_, shape_.page_size)); }

  AttentionParams Params(int32_t queries, int32_t window) {
    const int64_t columns = int64_t{shape_.query_heads} * shape_.head_dim;
    qo_indptr_.clear();
    for (int32_t b = 0; b <= sequences_; ++b) qo_indptr_.push_back(b * queries);
    AttentionParams params;
    params.query = MakeTensor(query_.data(), DType::kF32, sequences_ * queries, columns);
    params.out = MakeTensor(out_.data(), DType::kF32, sequences_ * queries, columns);
    params.kv = view_;
    params.table = {.page_indices = page_indices_.data(),
                    .first_entry = first_entry_.data(),
                    .kv_base = kv_base_.data(),
                    .kv_end = kv_end_.data()};
    params.qo_indptr = qo_indptr_.data();
    params.batch = sequences_;
    params.query_heads = shape_.query_heads;
    params.window = window;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    return params;
  }

  Backend& backend_;
  const HeadShape shape_;
  const int32_t sequences_, context_;
  int32_t layers_ = 0;
  int64_t pool_bytes_ = 0;
  KvLayerView view_;
  std::vector<int32_t> page_indices_, first_entry_, kv_base_, kv_end_, qo_indptr_;
  std::vector<float> query_, out_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        backend_(std::move(MakeCpuBackend(options.backend)).value()),
        pool_(backend_->info().threads) {
    StepMaxima maxima;
    maxima.tokens = 512;
    maxima.sequences = 64;
    maxima.logit_rows = 64;
    maxima.query_heads = 32;
    maxima.kv_heads = 3;  // so that the largest group is reserved for
    maxima.head_dim = 128;
    maxima.vocab = 131072;
    maxima.context = 65536;
    TM_CHECK(backend_->Reserve(maxima) == OpCode::kOk, "%s", backend_->last_error());
  }

  void Run() {
    std::printf("%s, %d threads\n", backend_->info().variant, backend_->info().threads);
    if (Wanted("decode")) {
      std::printf(
          "\nDecode: one query a sequence. GB/s of keys and values, and of a plain read, by processor "
          "time.\n");
      std::printf("  %-8s %9s %9s %9s %9s %7s\n", "heads", "sequences", "context", "GB/s", "read", "share");
      for (const HeadShape& shape : kShapes) {
        Decode(shape, 1, 65536, 0);
        Decode(shape, 1, 4096, 0);
        Decode(shape, 16, 2048, 0);
        Decode(shape, 64, 256, 0);
      }
      for (const HeadShape& shape : kOtherShapes) Decode(shape, 1, 4096, 0);
      std::printf("\nDecode over quantised pages, 4,096 tokens. Bytes of a token, and speed, over bf16's.\n");
      std::printf("  %-8s %12s %9s %9s\n", "pages", "heads", "bytes", "speed");
      for (const HeadShape& shape : kQuantisedShapes) DecodeQuantised(shape);
    }
    if (Wanted("shared")) SharedTable();
    if (Wanted("discard")) DiscardTable();
    if (Wanted("prefill")) PrefillTable();
    if (Wanted("sampling")) Sampling();
  }

 private:
  bool Wanted(const char* table) const { return options_.only.empty() || options_.only == table; }

  void PrefillTable() {
    std::printf("\nPrefill: a chunk of 512. GFLOP/s of visible keys, and ms a layer, by processor time.\n");
    std::printf("  %-8s %9s %9s %9s %9s\n", "heads", "context", "window", "GFLOP/s", "ms");
    for (const HeadShape& shape : kShapes) {
      Prefill(shape, 512, 0);
      Prefill(shape, 2048, 0);
      Prefill(shape, 8192, 0);
      Prefill(shape, 8192, 256);
    }
  }

  void SharedTable() {
    std::printf(
        "\nDecode over a prefix of 8,192 tokens in shared pages and 64 more: pages told apart, and time by\n"
        "processor, over those of the same batch with pages of its own.\n");
    std::printf("  %-8s %9s %9s %9s\n", "heads", "sequences", "pages", "time");
    for (const int32_t sequences : {2, 3, 4, 8, 16, 32}) Shared(kShapes[2], sequences);
    for (const HeadShape& shape : {kShapes[0], kShapes[1], kOtherShapes[5]}) {
      for (const int32_t sequences : {2, 4, 32}) Shared(shape, sequences);
    }
  }

  void Shared(const HeadShape& shape, int32_t sequences) {
    constexpr int32_t kPrefix = 8192, kOwn = 64;
    KvBench own(*backend_, shape, sequences, kPrefix + kOwn, 0);
    KvBench shared(*backend_, shape, sequences, kPrefix + kOwn, 0);
    const double pages = shared.SharePrefix(kPrefix);
    const Compared compared =
        Compare(options_.rounds, pool_.threads(), [&] { own.Attend(1, 0); }, [&] { shared.Attend(1, 0); });
    std::printf("  %-8s %9d %9.3f %9.3f\n", shape.name, sequences, pages, compared.share);
  }

  // Of a text that shifts by one token at each step.
  void DiscardTable() {
    constexpr int32_t kKept = 4;
    std::printf(
        "\nA token in one layer of a text that shifts with each: us of its row without sinks, more for\n"
        "four of them, more for turning every key instead; that as GB/s of keys read and written.\n");
    std::printf("  %-8s %9s %9s %9s %9s %9s\n", "heads", "context", "row", "+ sinks", "+ turns", "GB/s");
    for (const int32_t context : {512, 4096}) {
      const HeadShape& shape = kShapes[2];
      KvBench kv(*backend_, shape, 1, context, 0);
      std::vector<float> cos_sin;
      for (int32_t i = 0; i < shape.head_dim / 2; ++i) {
        const double angle = -std::pow(1e4, -2.0 * i / shape.head_dim);
        cos_sin.push_back(static_cast<float>(std::cos(angle)));
        cos_sin.push_back(static_cast<float>(std::sin(angle)));
      }
      const std::vector<double> seconds =
          BestSeconds(options_.rounds,
                      {[&] { kv.DecodeRow(false, kKept, cos_sin); },
                       [&] { kv.DecodeRow(true, kKept, cos_sin); }, [&] { kv.TurnKeys(pool_, cos_sin); }});
      const double key_bytes = 2.0 * context * shape.kv_heads * shape.head_dim;
      std::printf("  %-8s %9d %9.1f %9.1f %9.1f %9.2f\n", shape.name, context, seconds[0] * 1e6,
                  (seconds[1] - seconds[0]) * 1e6, seconds[2] * 1e6, 2 * key_bytes / seconds[2] / 1e9);
    }
  }

  void Decode(const HeadShape& shape, int32_t sequences, int32_t context, int32_t window) {
    KvBench kv(*backend_, shape, sequences, context, int64_t{192} << 20);
    const Compared compared = Compare(
        options_.rounds, pool_.threads(), [&] { kv.Attend(1, window); },
        [&] { ReadMemory(pool_, kv.pool(), kv.pool_bytes()); });
    std::printf("  %-8s %9d %9d %9.2f %9.2f %6.0f%%\n", shape.name, sequences, context,
                kv.DecodeBytes(window) / compared.op_seconds / 1e9,
                static_cast<double>(kv.pool_bytes()) / compared.bound_seconds / 1e9, 100 * compared.share);
  }

  // Beside bf16, in turn.
  void DecodeQuantised(const HeadShape& shape) {
    HeadShape plain_shape = shape;
    plain_shape.element = DType::kBf16;
    KvBench kv(*backend_, shape, 1, 4096, int64_t{192} << 20);
    KvBench plain(*backend_, plain_shape, 1, 4096, int64_t{192} << 20);
    const Compared compared =
        Compare(options_.rounds, pool_.threads(), [&] { kv.Attend(1, 0); }, [&] { plain.Attend(1, 0); });
    const std::string heads = std::to_string(shape.query_heads) + "/" + std::to_string(shape.kv_heads) +
                              " x " + std::to_string(shape.head_dim);
    std::printf("  %-8s %12s %9.3f %9.2f\n", shape.name, heads.c_str(),
                kv.DecodeBytes(0) / kv.layers() / (plain.DecodeBytes(0) / plain.layers()),
                compared.share * kv.layers() / plain.layers());
  }

  void Prefill(const HeadShape& shape, int32_t context, int32_t window) {
    KvBench kv(*backend_, shape, 1, context, 0);
    const double best =
        BestProcessorSeconds(options_.rounds, pool_.threads(), [&] { kv.Attend(512, window); });
    std::printf("  %-8s %9d %9d %9.1f %9.3f\n", shape.name, context, window,
                kv.PrefillFlops(512, window) / best / 1e9, best * 1e3 / kv.layers());
  }

  void Sampling() {
    constexpr int32_t kVocabs[] = {2048, 32768, 131072};
    std::printf("\nSampling: us a row of that many logits.\n  %-16s", "");
    for (const int32_t vocab : kVocabs) std::printf(" %9d", vocab);
    std::printf("\n");
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> logits(kVocabs[2]);
    for (float& logit : logits) logit = normal(random);
    SamplingRow plain;
    SamplingRow greedy = plain, cool = plain, top_k = plain, top_p = plain, top = plain;
    greedy.temperature = 0.0f;
    SamplingRow unread = greedy;
    unread.wants_logprob = 0;
    cool.temperature = 0.7f;
    top_k.top_k = 40;
    top_p.top_p = 0.9f;
    top.top_logprobs = 20;
    const std::pair<const char*, SamplingRow> cases[] = {
        {"no logprob", unread}, {"greedy", greedy},   {"temperature 1", plain}, {"temperature .7", cool},
        {"top_k 40", top_k},    {"top_p 0.9", top_p}, {"20 logprobs", top}};
    for (const auto& [name, row] : cases) {
      std::printf("  %-16s", name);
      for (const int32_t vocab : kVocabs)
        std::printf(" %9.1f", SampleSeconds(row, logits.data(), vocab) * 1e6);
      std::printf("\n");
    }
  }

  double SampleSeconds(const SamplingRow& row, float* logits, int32_t vocab) {
    SampleRecord record;
    TokenLogprob top_logprobs[kMaxTopLogprobs];
    SampleParams params;
    params.logits = MakeTensor(logits, DType::kF32, 1, vocab);
    params.rows = &row;
    params.records = &record;
    params.top = top_logprobs;
    return BestSeconds(options_.rounds, {[&] { backend_->Sample(params); }})[0];
  }

  const Options options_;
  BackendPtr backend_;
  ThreadPool pool_;
};

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  tramontane::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--variant") {
      options.backend.variant = argv[i + 1];
    } else if (flag == "--threads") {
      options.backend.threads = std::atoi(argv[i + 1]);
    } else if (flag == "--rounds") {
      options.rounds = std::max(std::atoi(argv[i + 1]), 1);
    } else if (flag == "--only") {
      options.only = argv[i + 1];
    } else {
      std::fprintf(stderr,
                   "usage: attention_bench [--variant NAME] [--threads N] [--rounds N] [--only "
                   "decode|shared|discard|prefill|sampling]\n");
      return 2;
    }
  }
  tramontane::Bench(options).Run();
  return 0;
}
