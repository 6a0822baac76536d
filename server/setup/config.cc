#include "server/setup/config.h"

#include <algorithm>
#include <array>
#include <limits>

#include "server/base/host_port.h"
#include "server/base/peer_address.h"
#include "server/setup/setting_kinds.h"

namespace tramontane {
namespace {

std::string NameFault(const std::string&) { return {}; }

std::string OriginFault(const std::string& origin) {
  const bool is_one = origin == "*" || origin == "null" || HostOfOrigin(origin).has_value();
  return is_one ? "" : "must be SCHEME://HOST, with :PORT where it has one and nothing behind, or *";
}

std::string RangeFault(const std::string& range) {
  const Status status = AddressRange::Parse(range).status();
  return status.ok() ? "" : "must be an IP address, ADDRESS/BITS, or unix";
}

std::string HostFault(const std::string& name) {
  const auto host = HostOf(name);
  const bool is_one = name == "*" || (host && EqualsIgnoringCase(*host, name));
  return is_one ? "" : "must be a host's name without a port, or *";
}

// In the largest unit that divides it, as ParseBytes reads it: "8MiB".
std::string BytesText(int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; bytes != 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return std::to_string(bytes) + kUnits[unit];
}

// A row of the table: what follows is of this group.
Setting Group(const char* name) { return {.group = name}; }

const std::vector<Setting>* InTheirGroups(const std::vector<Setting>& rows) {
  auto* settings = new std::vector<Setting>();
  const char* group = nullptr;
  for (const Setting& row : rows) {
    if (row.key == nullptr) {
      group = row.group;
    } else {
      settings->push_back(row);
      settings->back().group = group;
    }
  }
  return settings;
}

}  // namespace

const std::vector<Setting>& ServeSettings() {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  using C = ServeConfig;
  using namespace setting_kinds;  // NOLINT(google-build-using-namespace): the table is written with them
  static const std::vector<Setting>* settings = InTheirGroups({
      Group("model"),
      Text("model", &C::model, "MODEL_DIR",
           "folder of the model, or its GGUF file; empty: the embedded model (breeze)"),
      OneOf("model_format", &C::model_format, {"auto", "native", "hf", "gguf"}, "auto|native|hf|gguf",
            "which files of a folder that holds several sets: native is params.json and "
            "consolidated*.safetensors, hf config.json and model*.safetensors, gguf one *.gguf; auto: "
            "native if it is whole, gguf where it is alone"),
      Text("tokenizer", &C::tokenizer, "PATH",
           "file of the tokenizer, or a folder with it; empty: in the model's folder"),
      Text("chat_format", &C::chat_format, "NAME|FILE",
           "how chats become prompts: v1, v2, v3, v7, v11, v13, v15, chatml, llama3, or a file with a "
           "template; empty: what the model's files say"),
      List("served_model_names", &C::served_model_names, "NAME[,NAME]", NameFault,
           "names requests may ask for; empty: breeze, or the folder's base name"),
      Group("network"),
      Address("grpc_address", &C::grpc_address, "unix:PATH",
              "where gRPC listens; port 0 picks a free one; unix:PATH: a socket of this machine"),
      Address("http_address", &C::http_address, "off",
              "where the OpenAI-style HTTP API listens; port 0 picks a free one; off: nowhere"),
      Address("admin_address", &C::admin_address, "off",
              "where /debug/*, /metrics, /health and /ready listen besides; beyond this machine /debug/* "
              "needs an API "
              "key with admin; off: nowhere"),
      List("http_cors_origin", &C::http_cors_origin, "ORIGIN[,ORIGIN]", OriginFault,
           "origins whose web pages may call the HTTP API besides those of this machine, * for any"),
      List("http_host", &C::http_host, "NAME[,NAME]", HostFault,
           "names that HTTP requests may be sent to besides localhost, * for any"),
      Integer("http_io_threads", &C::http_io_threads, 1, 64, "N", "threads of HTTP's sockets"),
      Integer("http_handler_threads", &C::http_handler_threads, 1, 256, "N",
              "threads that parse HTTP's JSON"),
      Integer("http_max_connections", &C::http_max_connections, 1, 1 << 20, "N",
              "HTTP connections; for one more the one that waits longest is closed, or the new one gets 503"),
      Bytes("http_max_header_bytes", &C::http_max_header_bytes, 1 << 10, 1 << 20,
            "longest header of a request; more is refused with 431"),
      Integer("http_max_header_fields", &C::http_max_header_fields, 1, 10'000, "N",
              "fields of a request's header, with those behind a chunked body; more is refused with 431"),
      Bytes("http_max_body_bytes", &C::http_max_body_bytes, 1 << 10, 1 << 30,
            "longest body of a request, also decompressed; more is refused with 413"),
      Bytes("http_max_held_body_bytes", &C::http_max_held_body_bytes, 1 << 20, int64_t{1} << 40,
            "headers of open requests, bodies not parsed yet and prompts that wait, together; more are "
            "refused with 503"),
      Seconds("http_read_timeout", &C::http_read_timeout, 0.01, 86400.0, "for a request to arrive; then 408"),
      Seconds("http_idle_timeout", &C::http_idle_timeout, 0.01, 86400.0,
              "between two requests of a connection; then it is closed"),
      Seconds("http_write_timeout", &C::http_write_timeout, 0.01, 86400.0,
              "for a client to take a write; then its request is cancelled"),
      Seconds("http_silence", &C::http_silence, 0, 86400.0,
              "without a write to a stream, then a comment keeps it open; 0: none"),
      Seconds("http_last_words", &C::http_last_words, 0, 86400.0,
              "for the last answers of a stopping server to leave; then it hangs up"),
      Group("security"),
      Text("api_keys", &C::api_keys, "FILE",
           "JSON file of API keys, one of which each request needs; read again when it changes; empty: none "
           "is needed"),
      Text("tls_cert", &C::tls_cert, "FILE",
           "certificate of gRPC and HTTP, with those up to its authority behind it, PEM; read again when it "
           "changes, and on SIGHUP; empty: no TLS"),
      Text("tls_key", &C::tls_key, "FILE", "private key of tls_cert, PEM, without a password"),
      Text(
          "tls_client_ca", &C::tls_client_ca, "FILE",
          "authorities, PEM, one of which must have signed a client's certificate; empty: clients need none"),
      List("trusted_proxy", &C::trusted_proxy, "CIDR[,CIDR]", RangeFault,
           "proxies whose X-Forwarded-For says who asks: addresses, ADDRESS/BITS, or unix"),
      OneOf("grpc_reflection", &C::grpc_reflection, {"auto", "on", "off"}, "auto|on|off",
            "gRPC's service that tells clients which calls there are; auto: where nobody needs a key"),
      Switch("protect_metrics", &C::protect_metrics, "GET /metrics needs an API key too"),
      Switch("legacy_metrics", &C::legacy_metrics,
             "GET /metrics has three names besides that vLLM has given up (docs/metrics.md)"),
      Group("requests"),
      Switch("any_model", &C::any_model, "HTTP takes any model's name for the one that is served"),
      Switch("per_request_metrics", &C::per_request_metrics,
             "answers of HTTP have `metrics`: times of their tokens, as vLLM tells them"),
      OneOf("strict_fields", &C::strict_fields, {"on", "off"}, "on|off",
            "HTTP refuses fields that it does not know; off: it takes them and lists them in the header "
            "x-tramontane-ignored"),
      Group("machine"),
      OneOf("device", &C::device, {"auto", "cpu", "cuda"}, "auto|cpu|cuda",
            "where the model runs; auto: on a GPU where there is one, else on the CPU"),
      OneOf("cpu_variant", &C::cpu_variant,
            {"", "portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_bf16"}, "NAME",
            "instruction set of the CPU kernels; empty: the best this machine has"),
      Text("tuning_cache", &C::tuning_cache, "FILE",
           "which of a GPU's kernels for large products were the fastest; those it lacks are timed at start, "
           "and added; empty: the library's own choice"),
      Integer("threads", &C::threads, 0, 1024, "N", "compute threads; 0: one per core"),
      Bytes("memory", &C::memory, 0, std::numeric_limits<int64_t>::max(),
            "weights, workspace and KV pages together, as 4GiB or bytes; 0: what the limits can use, at most "
            "70 % of the free memory (90 % of a GPU's)"),
      OneOf("linear", &C::linear, {"exact", "int8", "fp8"}, "exact|int8|fp8",
            "how weights in blocks are multiplied on the CPU: decoded to f32, or with rows rounded to 8 "
            "bits, a block at a time, but for the output matrix; fp8, on a GPU of compute capability 9.0 "
            "alone: weights in fp8 with rows rounded to fp8, of more than 16 rows"),
      Group("cache"),
      OneOf("kv_dtype", &C::kv_dtype, {"f32", "bf16", "fp8", "int8", "int4"}, "f32|bf16|fp8|int8|int4",
            "type of cached keys and values; f32 also keeps every other rounding to bf16 away, and is the "
            "CPU's alone"),
      Integer("kv_group", &C::kv_group, 0, 128, "N",
              "numbers that share a scale, of kv_dtype int8 and int4: a power of two from 8 that divides the "
              "model's head_dim; 0: 32, or head_dim where that is less"),
      Integer("page_size", &C::page_size, 1, 256, "N", "tokens of one KV page"),
      OneOf("kv_layout", &C::kv_layout, {"hnd", "nhd"}, "hnd|nhd",
            "within a page: each head's tokens side by side, or each token's heads"),
      OneOf("prefix_cache", &C::prefix_cache, {"on", "off"}, "on|off",
            "keep KV pages for later prompts that begin alike, until the room is needed"),
      Bytes("host_kv", &C::host_kv, 0, int64_t{1} << 50,
            "memory of the host, beside `memory`, for KV pages that the cache lets go: they come back from "
            "there instead of being computed again; 0: none"),
      Text("disk_kv", &C::disk_kv, "FOLDER",
           "where KV pages go that leave the host: into one file without a name, which is gone with the "
           "server; empty: nowhere"),
      Bytes("disk_kv_size", &C::disk_kv_size, 1, int64_t{1} << 50, "of that file at most"),
      Group("limits"),
      Integer("context", &C::context, 0, kMost, "N", "longest prompt + output in tokens; 0: the model's"),
      OneOf("context_policy", &C::context_policy, {"none", "sinks", "shift", "reevaluate"},
            "none|sinks|shift|reevaluate",
            "how texts go on when their context is full, unless a request says; none: they end"),
      Integer("max_sequences", &C::max_sequences, 1, 4096, "N", "choices running at once; later ones wait"),
      Seconds("priority_ageing", &C::priority_ageing, 0.001, 86400.0,
              "of waiting make up for one of priority"),
      Integer("max_queued_requests", &C::max_queued_requests, 1, 1 << 20, "N",
              "requests waiting to run; one more is refused with RESOURCE_EXHAUSTED"),
      Integer("max_unread_tokens", &C::max_unread_tokens, 1, int64_t{1} << 26, "N",
              "tokens of an endless text that its client has not read, at most: then RESOURCE_EXHAUSTED"),
      Integer("max_choices", &C::max_choices, 1, 128, "N", "choices (n) of one request"),
      Group("scheduling"),
      Integer("max_step_tokens", &C::max_step_tokens, 0, 65536, "N",
              "tokens of one prefill step; 0: 512 on a CPU, 2048 on a GPU"),
      Integer("max_partial_prefills", &C::max_partial_prefills, 1, 1024, "N",
              "prompts part-way through prefill at once"),
      OneOf("lane_policy", &C::lane_policy, {"fair", "prefill-first", "decode-first"},
            "fair|prefill-first|decode-first",
            "which lane goes where both could: fair shares steps by max_prefill_steps; prefill-first lets "
            "decode wait while a prompt can go on, decode-first prompts while something can decode"),
      Integer("max_prefill_steps", &C::max_prefill_steps, 1, 1024, "N",
              "prefill steps between two decode steps while something decodes; lane_policy fair"),
      Integer("decode_gap_ms", &C::decode_gap_ms, 0, 3'600'000, "N",
              "milliseconds that a stream waits for its next token at most: while something decodes, prefill "
              "steps are cut to what fits, but not to sizes that waste the machine; 0: 250 on a CPU, 50 on a "
              "GPU; lane_policy fair"),
      Group("constraints"),
      Integer("max_constraint_step_us", &C::max_constraint_step_us, 1000, 10'000'000, "N",
              "microseconds that a step waits for the masks of constraints, and that a request's choices may "
              "spend on a token each"),
      Integer("max_compile_ms", &C::max_compile_ms, 1, 600'000, "N",
              "milliseconds of a processor that compiling a constraint may take; more is refused with "
              "INVALID_ARGUMENT"),
      Bytes("grammar_cache_bytes", &C::grammar_cache_bytes, 0, int64_t{1} << 40,
            "compiled grammars that are kept, so that the same constraints and tools cost nothing again; the "
            "least recently used go first"),
      Group("limits"),
      Integer("worker_threads", &C::worker_threads, 1, 256, "N", "threads that tokenise and render chats"),
      Integer("compiler_threads", &C::compiler_threads, 1, 64, "N", "threads that compile constraints"),
      Integer("max_queued_work", &C::max_queued_work, 1, 1 << 20, "N",
              "requests waiting for threads of either kind; one more is refused with RESOURCE_EXHAUSTED"),
      Bytes("max_answer_bytes", &C::max_answer_bytes, 0, int64_t{1} << 40,
            "one answer, log probabilities and all, by what its request asks for; more is refused with "
            "INVALID_ARGUMENT; 0: no bound"),
      Bytes("max_unread_answer_bytes", &C::max_unread_answer_bytes, 1 << 20, int64_t{1} << 40,
            "answers that clients of both doors have not taken yet, together"),
      Integer("max_streams", &C::max_streams, 1, 1 << 20, "N",
              "requests that generate, open at once; one more is refused with RESOURCE_EXHAUSTED"),
      Group("sessions"),
      Integer(
          "max_sessions", &C::max_sessions, 1, 1 << 20, "N",
          "conversations kept under their `session`; of more the oldest idle one of whoever has most goes"),
      Seconds("session_ttl", &C::session_ttl, 0, 31'536'000.0,
              "a session that no request has used for so long goes; 0: never"),
      Text("session_dir", &C::session_dir, "FOLDER",
           "where sessions are saved to and restored from; without it they are not"),
      Bytes("session_dir_size", &C::session_dir_size, 0, int64_t{1} << 50,
            "of all files there: the oldest of whoever has most go for another one; 0: no bound"),
      Integer("session_dir_files", &C::session_dir_files, 0, 1 << 20, "N",
              "there at most: the oldest of whoever has most go for another one; 0: no bound"),
      Group("network"),
      Integer("writer_threads", &C::writer_threads, 1, 64, "N", "threads that hand results to gRPC"),
      Bytes("grpc_memory", &C::grpc_memory, 16 << 20, int64_t{1} << 40,
            "what messages of all gRPC calls may take while they come; calls beyond end with "
            "RESOURCE_EXHAUSTED"),
      Integer("grpc_max_connections", &C::grpc_max_connections, 0, 1 << 20, "N",
              "gRPC connections; a new one is closed unless one without a call can make room; 0: no limit"),
      Seconds("grpc_read_timeout", &C::grpc_read_timeout, 0, 86400.0,
              "for a gRPC call's message to come; then DEADLINE_EXCEEDED; 0: any time"),
      Seconds("grpc_write_timeout", &C::grpc_write_timeout, 0, 86400.0,
              "for a gRPC client to take a message, or each 4 MiB of it; then the call ends; 0: any time"),
      Group("health and stopping"),
      Seconds("step_timeout", &C::step_timeout, 0, 86400.0,
              "/health is 503 when the engine has had work and made no step for so long; 0: never"),
      Seconds(
          "drain_delay", &C::drain_delay, 0, 86400.0,
          "how long a stopping server takes requests while /ready and gRPC's health tell that it goes, so "
          "that balancers see it first"),
      Seconds("drain_timeout", &C::drain_timeout, 0, 86400.0,
              "how long a stopping server lets running requests finish"),
      Group("logging"),
      OneOf("log_level", &C::log_level, {"trace", "debug", "info", "warn", "error", "off"}, "LEVEL",
            "least level that is logged"),
      OneOf("log_format", &C::log_format, {"text", "json"}, "text|json", "text, or one JSON object a line"),
      OneOf("log_requests", &C::log_requests, {"on", "off"}, "on|off",
            "one line for each request: whose, what for, how long, and what came of it"),
      Switch("log_prompts", &C::log_prompts, "those lines have the beginning of what is asked, too"),
      Gone("debug",
           "use admin_address, as 127.0.0.1:8001: it has /debug/trace, /debug/kv and /debug/requests"),
      Text("trace_file", &C::trace_file, "FILE",
           "every step and request goes there, as trace events that Perfetto opens; empty: nowhere"),
  });
  return *settings;
}

std::string DefaultText(const Setting& setting) {
  const std::string json = setting.json(ServeConfig());
  if (json == "\"\"" || json == "[]") return "none";
  if (json.front() == '"') return json.substr(1, json.size() - 2);
  if (std::string_view(setting.metavar) != "BYTES") return json;
  return BytesText(std::stoll(json));
}

bool IsList(const Setting& setting) { return std::string_view(setting.metavar).ends_with("]"); }

std::string FlagOf(const Setting& setting) {
  std::string flag = std::string("--") + setting.key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

DType KvDTypeOf(const ServeConfig& config) {
  if (config.kv_dtype == "f32") return DType::kF32;
  if (config.kv_dtype == "fp8") return DType::kFp8E4M3;
  if (config.kv_dtype == "int8") return DType::kInt8;
  return config.kv_dtype == "int4" ? DType::kInt4 : DType::kBf16;
}

HttpLimits HttpLimitsOf(const ServeConfig& config) {
  const auto ms = [](double seconds) { return static_cast<int64_t>(seconds * 1000); };
  HttpLimits limits;
  limits.max_connections = static_cast<int32_t>(config.http_max_connections);
  limits.max_header_bytes = config.http_max_header_bytes;
  limits.max_header_fields = static_cast<int32_t>(config.http_max_header_fields);
  limits.max_body_bytes = config.http_max_body_bytes;
  limits.max_held_body_bytes = config.http_max_held_body_bytes;
  limits.read_timeout_ms = ms(config.http_read_timeout);
  limits.idle_timeout_ms = ms(config.http_idle_timeout);
  limits.write_timeout_ms = ms(config.http_write_timeout);
  limits.silence_ms = ms(config.http_silence);
  limits.last_words_ms = ms(config.http_last_words);
  return limits;
}

}  // namespace tramontane
