// What `tramontane serve` can be told: one table of settings that the JSON file, the flags, --print-config
// and the documentation are all made from. Main thread, before the server starts; a plain value afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backends/cpu_backend.h"
#include "kernels/core/dtype.h"
#include "kernels/core/status.h"
#include "server/call/answer_cost.h"
#include "server/http/limits.h"

namespace tramontane {

// Of max_step_tokens. A GPU's products are bound by arithmetic only from a few hundred rows on, and
// decode_gap_ms cuts steps that would keep a stream waiting.
inline constexpr int64_t kCpuStepTokens = 512;
inline constexpr int64_t kGpuStepTokens = 2048;
// Of decode_gap_ms.
inline constexpr int64_t kCpuDecodeGapMs = 250;
inline constexpr int64_t kGpuDecodeGapMs = 50;

struct ServeConfig {
  std::string model;                            // folder; "": the embedded model
  std::string model_format = "auto";            // auto, native, hf, gguf
  std::string tokenizer;                        // file or folder; "": in the model's folder
  std::string chat_format;                      // a name, or a file; "": what the model's files say
  std::vector<std::string> served_model_names;  // empty: "breeze", or the folder's base name
  std::string grpc_address = "127.0.0.1:50051";
  std::string http_address = "127.0.0.1:8000";  // "off": no HTTP
  std::vector<std::string> http_cors_origin;    // "*": any
  std::vector<std::string> http_host;           // "*": any
  int64_t http_io_threads = kDefaultIoThreads;
  int64_t http_handler_threads = kDefaultHandlerThreads;
  int64_t http_max_connections = HttpLimits{}.max_connections;
  int64_t http_max_header_bytes = HttpLimits{}.max_header_bytes;
  int64_t http_max_header_fields = HttpLimits{}.max_header_fields;
  int64_t http_max_body_bytes = HttpLimits{}.max_body_bytes;
  int64_t http_max_held_body_bytes = HttpLimits{}.max_held_body_bytes;
  double http_read_timeout =
      static_cast<double>(HttpLimits{}.read_timeout_ms) / 1000;  // seconds, as the next four
  double http_idle_timeout = static_cast<double>(HttpLimits{}.idle_timeout_ms) / 1000;
  double http_write_timeout = static_cast<double>(HttpLimits{}.write_timeout_ms) / 1000;
  double http_silence = static_cast<double>(HttpLimits{}.silence_ms) / 1000;  // 0: no comments
  double http_last_words = static_cast<double>(HttpLimits{}.last_words_ms) / 1000;
  std::string api_keys;  // file; "": nobody needs a key
  std::string tls_cert;  // file; "": no TLS
  std::string tls_key;
  std::string tls_client_ca;               // "": clients need no certificate
  std::vector<std::string> trusted_proxy;  // whose X-Forwarded-For is believed
  std::string grpc_reflection = "auto";    // auto: without keys; on, off
  bool protect_metrics = false;
  bool legacy_metrics = false;
  bool any_model = false;
  bool per_request_metrics = false;
  std::string strict_fields = "on";  // on, off
  std::string device = "auto";       // auto, cpu, cuda
  std::string cpu_variant;           // "": the best this machine has
  std::string tuning_cache;          // file; "": the library's own choice of a GPU's kernels
  int64_t threads = 0;               // compute threads; 0: one per core
  int64_t memory = 0;  // bytes in all; 0: what the limits below can use, at most 70 % of what is free
  std::string linear = kDefaultLinearMode == LinearMode::kInt8 ? "int8" : "exact";  // exact, int8, fp8
  std::string kv_dtype = "bf16";  // f32, bf16, fp8, int8, int4
  int64_t kv_group = 0;           // of int8 and int4; 0: 32, or the model's head_dim where that is less
  int64_t page_size = 16;
  std::string kv_layout = "hnd";    // hnd, nhd
  std::string prefix_cache = "on";  // on, off
  int64_t host_kv = 0;              // bytes for evicted pages; 0: none
  std::string disk_kv;              // folder for those that leave the host; "": none
  int64_t disk_kv_size = int64_t{4} << 30;
  int64_t context = 0;                  // 0: the model's
  std::string context_policy = "none";  // none, sinks, shift, reevaluate: of requests that bring none
  int64_t max_sequences = 64;
  double priority_ageing = 10.0;  // seconds
  int64_t max_queued_requests = 2048;
  int64_t max_unread_tokens = 32'768;  // of a choice; or the context where that is more
  int64_t max_choices = 16;
  int64_t max_step_tokens = 0;  // 0: kCpuStepTokens or kGpuStepTokens
  int64_t max_partial_prefills = 4;
  std::string lane_policy = "fair";  // fair, prefill-first, decode-first
  int64_t max_prefill_steps = 1;
  int64_t decode_gap_ms = 0;  // 0: kCpuDecodeGapMs or kGpuDecodeGapMs
  int64_t max_constraint_step_us = 20'000;
  int64_t max_compile_ms = 1500;
  int64_t grammar_cache_bytes = int64_t{512} << 20;
  int64_t worker_threads = 2;
  int64_t compiler_threads = 4;
  int64_t max_queued_work = 2048;
  int64_t max_streams = 2048;
  int64_t max_answer_bytes = kDefaultMaxAnswerBytes;  // 0: no bound
  int64_t max_unread_answer_bytes = int64_t{256} << 20;
  int64_t max_sessions = 256;
  double session_ttl = 3600.0;                  // seconds; 0: none
  std::string session_dir;                      // "": none are saved
  int64_t session_dir_size = int64_t{4} << 30;  // 0: no bound; so the next
  int64_t session_dir_files = 4096;
  int64_t writer_threads = 1;
  int64_t grpc_memory = 256 << 20;
  int64_t grpc_max_connections = 1024;  // 0: no limit
  double grpc_read_timeout = 30.0;      // seconds, as the next; 0: any time
  double grpc_write_timeout = 30.0;
  double step_timeout = 300.0;  // seconds; 0: none
  double drain_delay = 0;       // seconds
  double drain_timeout = 30.0;  // seconds
  std::string log_level = "info";
  std::string log_format = "text";
  std::string log_requests = "on";  // on, off
  bool log_prompts = false;
  std::string admin_address = "off";  // HOST:PORT
  std::string trace_file;             // "": none
};

// One setting: its JSON key (its flag is the same with dashes), what it means, and how to read and print it.
struct Setting {
  const char* key = nullptr;
  const char* help = nullptr;  // meaning, unit, limits
  const char* metavar =
      nullptr;  // "BYTES", "N", "NAME[,NAME]"; "true|false": the flag stands alone and means true
  // Sets from text (a flag, or a JSON scalar's text). "" when fine, else what is wrong: "is 0, the least is
  // 1".
  std::function<std::string(ServeConfig&, std::string_view text)> set = {};
  std::function<std::string(const ServeConfig&)> json =
      {};                       // the value as JSON text; null: it has none any more
  const char* group = nullptr;  // "network": under which help and documentation have it
};
const std::vector<Setting>& ServeSettings();

// A list: as a flag with commas or given several times, in JSON a list or one string.
bool IsList(const Setting& setting);

// Its default for people: "8MiB", "none". REQUIRES: it has a value.
std::string DefaultText(const Setting& setting);

// "--max-sequences" for max_sequences.
std::string FlagOf(const Setting& setting);

// Applies a JSON document. Every problem is found before this returns, one line each: key, value, limit, and
// for an unknown key the nearest known one.
std::vector<std::string> ApplyConfigJson(std::string_view json_text, ServeConfig* config);

HttpLimits HttpLimitsOf(const ServeConfig& config);
// The type that kv_dtype names.
DType KvDTypeOf(const ServeConfig& config);

// The effective settings as a JSON document that ApplyConfigJson accepts.
std::string PrintConfig(const ServeConfig& config);

// "4GiB", "512 MB", "1073741824" -> bytes.
StatusOr<int64_t> ParseBytes(std::string_view text);

}  // namespace tramontane
