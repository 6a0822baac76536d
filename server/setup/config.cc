#include "server/setup/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/core/nearest_name.h"
#include "server/base/host_port.h"

namespace tramontane {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSwitch[] = "true|false";

std::string Quoted(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Number>
bool ParseNumber(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// ---- makers of settings, one per kind of value --------------------------------------------------

Setting Text(const char* key, std::string ServeConfig::* member, const char* metavar, const char* help) {
  return {key, help, metavar,
          [member](ServeConfig& config, std::string_view text) {
            config.*member = std::string(text);
            return std::string();
          },
          [member](const ServeConfig& config) { return Quoted(config.*member); }};
}

Setting OneOf(const char* key, std::string ServeConfig::* member, const std::vector<std::string>& allowed,
              const char* metavar, const char* help) {
  return {key, help, metavar,
          [member, allowed](ServeConfig& config, std::string_view text) {
            config.*member = std::string(text);
            if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return std::string();
            std::string list;
            for (const std::string& word : allowed) list += (list.empty() ? "" : ", ") + Quoted(word);
            return "is " + Quoted(text) + ", it must be one of " + list;
          },
          [member](const ServeConfig& config) { return Quoted(config.*member); }};
}

Setting Integer(const char* key, int64_t ServeConfig::* member, int64_t least, int64_t most,
                const char* metavar, const char* help) {
  return {key, help, metavar,
          [=](ServeConfig& config, std::string_view text) -> std::string {
            int64_t value = 0;
            if (!ParseNumber(text, &value)) return "is " + Quoted(text) + ", it must be a whole number";
            if (value < least) {
              return "is " + std::to_string(value) + ", the least is " + std::to_string(least);
            }
            if (value > most) return "is " + std::to_string(value) + ", the most is " + std::to_string(most);
            config.*member = value;
            return {};
          },
          [member](const ServeConfig& config) { return std::to_string(config.*member); }};
}

Setting Switch(const char* key, bool ServeConfig::* member, const char* help) {
  return {key, help, kSwitch,
          [member](ServeConfig& config, std::string_view text) -> std::string {
            if (text != "true" && text != "false") return "is " + Quoted(text) + ", it must be true or false";
            config.*member = text == "true";
            return {};
          },
          [member](const ServeConfig& config) { return config.*member ? "true" : "false"; }};
}

Setting Seconds(const char* key, double ServeConfig::* member, double least, double most, const char* help) {
  return {key, help, "SECONDS",
          [=](ServeConfig& config, std::string_view text) -> std::string {
            double value = 0;
            if (!ParseNumber(text, &value) || !std::isfinite(value)) {
              return "is " + Quoted(text) + ", it must be a number of seconds";
            }
            if (value < least || value > most) {
              return "is " + std::string(text) + ", it must lie in " +
                     (least == 0 ? "0" : Json(least).dump()) + " .. " + Json(most).dump();
            }
            config.*member = value;
            return {};
          },
          [member](const ServeConfig& config) { return Json(config.*member).dump(); }};
}

Setting Bytes(const char* key, int64_t ServeConfig::* member, int64_t least, int64_t most, const char* help) {
  return {key, help, "BYTES",
          [=](ServeConfig& config, std::string_view text) -> std::string {
            const StatusOr<int64_t> bytes = ParseBytes(text);
            if (!bytes.ok()) return bytes.status().message();
            if (*bytes < least || *bytes > most) {
              return "is " + std::to_string(*bytes) + " bytes, it must lie in " + std::to_string(least) +
                     " .. " + std::to_string(most);
            }
            config.*member = *bytes;
            return {};
          },
          [member](const ServeConfig& config) { return std::to_string(config.*member); }};
}

// Where a server listens; `or_else` is what may stand there besides, "off" or "unix:PATH".
Setting Address(const char* key, std::string ServeConfig::* member, const char* or_else, const char* help) {
  return {key, help, "HOST:PORT",
          [=](ServeConfig& config, std::string_view text) -> std::string {
            const std::string_view other(or_else);
            const bool is_other = other == "off" ? text == other : text.starts_with("unix:");
            if (!is_other) {
              const Status status = ParseHostPort(text).status();
              if (!status.ok()) return status.message() + ", or it is " + or_else;
            }
            config.*member = std::string(text);
            return {};
          },
          [member](const ServeConfig& config) { return Quoted(config.*member); }};
}

// A comma-separated flag, a JSON list of strings or one string. `fault` says what is wrong with one: "must be
// ...", or "".
Setting List(const char* key, std::vector<std::string> ServeConfig::* member, const char* metavar,
             std::string (*fault)(const std::string&), const char* help) {
  return {key, help, metavar,
          [=](ServeConfig& config, std::string_view text) -> std::string {
            std::vector<std::string> names;
            while (!text.empty()) {
              const size_t comma = std::min(text.find(','), text.size());
              if (comma == 0) return "has an empty name";
              names.emplace_back(text.substr(0, comma));
              const std::string wrong = fault(names.back());
              if (!wrong.empty()) return "is " + Quoted(names.back()) + ", it " + wrong;
              text.remove_prefix(std::min(comma + 1, text.size()));
            }
            config.*member = names;
            return {};
          },
          [member](const ServeConfig& config) { return Json(config.*member).dump(); }};
}

std::string NameFault(const std::string&) { return {}; }

std::string OriginFault(const std::string& origin) {
  const bool is_one = origin == "*" || origin == "null" || HostOfOrigin(origin).has_value();
  return is_one ? "" : "must be SCHEME://HOST, with :PORT where it has one and nothing behind, or *";
}

std::string HostFault(const std::string& name) {
  const auto host = HostOf(name);
  const bool is_one = name == "*" || (host && EqualsIgnoringCase(*host, name));
  return is_one ? "" : "must be a host's name without a port, or *";
}

const Setting& NearestSetting(std::string_view key) {
  const std::vector<Setting>& settings = ServeSettings();
  return *std::min_element(settings.begin(), settings.end(), [key](const Setting& a, const Setting& b) {
    return EditDistance(key, a.key) < EditDistance(key, b.key);
  });
}

// The text a setting is set from, or false for a JSON value of the wrong kind.
bool TextOf(const Json& value, std::string* text) {
  if (value.is_string()) {
    *text = value.get<std::string>();
    return true;
  }
  if (value.is_number() || value.is_boolean()) {
    *text = value.dump();
    return true;
  }
  if (value.is_array()) {
    text->clear();
    for (const Json& element : value) {
      if (!element.is_string() || element.get<std::string>().find(',') != std::string::npos) return false;
      *text += (text->empty() ? "" : ",") + element.get<std::string>();
    }
    return true;
  }
  return false;
}

// A string where a number belongs is a mistake worth naming; memory may be "4GiB" or a number.
bool KindFits(const Setting& setting, const Json& value) {
  const std::string kind = setting.metavar;
  if (kind == kSwitch) return value.is_boolean();
  if (kind == "N" || kind == "SECONDS") return value.is_number();
  if (kind == "BYTES") return value.is_number() || value.is_string();
  if (IsList(setting)) return value.is_array() || value.is_string();
  return value.is_string();
}

}  // namespace

const std::vector<Setting>& ServeSettings() {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  using C = ServeConfig;
  static const std::vector<Setting>* settings = new std::vector<Setting>{
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
      Address("grpc_address", &C::grpc_address, "unix:PATH",
              "where gRPC listens; port 0 picks a free one; unix:PATH: a socket of this machine"),
      Address("http_address", &C::http_address, "off",
              "where the OpenAI-style HTTP API listens; port 0 picks a free one; off: nowhere"),
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
      Bytes("http_max_body_bytes", &C::http_max_body_bytes, 1 << 10, 1 << 30,
            "longest body of a request, also decompressed; more is refused with 413"),
      Bytes("http_max_held_body_bytes", &C::http_max_held_body_bytes, 1 << 20, int64_t{1} << 40,
            "requests that are not parsed yet, together; more are refused with 503"),
      Seconds("http_read_timeout", &C::http_read_timeout, 0.01, 86400.0, "for a request to arrive; then 408"),
      Seconds("http_idle_timeout", &C::http_idle_timeout, 0.01, 86400.0,
              "between two requests of a connection; then it is closed"),
      Seconds("http_write_timeout", &C::http_write_timeout, 0.01, 86400.0,
              "for a client to take a write; then its request is cancelled"),
      Seconds("http_silence", &C::http_silence, 0, 86400.0,
              "without a write to a stream, then a comment keeps it open; 0: none"),
      Seconds("http_last_words", &C::http_last_words, 0, 86400.0,
              "for the last answers of a stopping server to leave; then it hangs up"),
      Switch("any_model", &C::any_model, "HTTP takes any model's name for the one that is served"),
      OneOf("strict_fields", &C::strict_fields, {"on", "off"}, "on|off",
            "HTTP refuses fields that it does not know; off: it takes them and lists them in the header "
            "x-tramontane-ignored"),
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
      Integer("context", &C::context, 0, kMost, "N", "longest prompt + output in tokens; 0: the model's"),
      OneOf("context_policy", &C::context_policy, {"none", "sinks", "shift", "reevaluate"},
            "none|sinks|shift|reevaluate",
            "how texts go on when their context is full, unless a request says; none: they end"),
      Integer("max_sequences", &C::max_sequences, 1, 4096, "N", "choices running at once; later ones wait"),
      Integer("max_queued_requests", &C::max_queued_requests, 1, 1 << 20, "N",
              "requests waiting to run; one more is refused with RESOURCE_EXHAUSTED"),
      Integer("max_unread_tokens", &C::max_unread_tokens, 1, int64_t{1} << 26, "N",
              "tokens of an endless text that its client has not read, at most: then RESOURCE_EXHAUSTED"),
      Integer("max_choices", &C::max_choices, 1, 128, "N", "choices (n) of one request"),
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
      Integer("max_constraint_step_us", &C::max_constraint_step_us, 1000, 10'000'000, "N",
              "microseconds that a step waits for the masks of constraints, and that a request's choices may "
              "spend on a token each"),
      Integer("max_compile_ms", &C::max_compile_ms, 1, 600'000, "N",
              "milliseconds of a processor that compiling a constraint may take; more is refused with "
              "INVALID_ARGUMENT"),
      Integer("worker_threads", &C::worker_threads, 1, 256, "N", "threads that tokenise and render chats"),
      Integer("compiler_threads", &C::compiler_threads, 1, 64, "N", "threads that compile constraints"),
      Integer("max_queued_work", &C::max_queued_work, 1, 1 << 20, "N",
              "requests waiting for threads of either kind; one more is refused with RESOURCE_EXHAUSTED"),
      Bytes("max_unread_answer_bytes", &C::max_unread_answer_bytes, 1 << 20, int64_t{1} << 40,
            "answers that clients of both doors have not taken yet, together"),
      Integer("max_streams", &C::max_streams, 1, 1 << 20, "N",
              "requests that generate, open at once; one more is refused with RESOURCE_EXHAUSTED"),
      Integer("max_sessions", &C::max_sessions, 1, 1 << 20, "N",
              "conversations kept under their `session`; of more the one that was used longest ago goes"),
      Seconds("session_ttl", &C::session_ttl, 0, 31'536'000.0,
              "a session that no request has used for so long goes; 0: never"),
      Text("session_dir", &C::session_dir, "FOLDER",
           "where sessions are saved to and restored from; without it they are not"),
      Integer("writer_threads", &C::writer_threads, 1, 64, "N", "threads that hand results to gRPC"),
      Bytes("grpc_memory", &C::grpc_memory, 16 << 20, int64_t{1} << 40,
            "what messages of all gRPC calls may take while they come; calls beyond end with "
            "RESOURCE_EXHAUSTED"),
      Seconds("step_timeout", &C::step_timeout, 0, 86400.0,
              "/health is 503 when the engine has had work and made no step for so long; 0: never"),
      Seconds("drain_timeout", &C::drain_timeout, 0, 86400.0,
              "how long a stopping server lets running requests finish"),
      OneOf("log_level", &C::log_level, {"trace", "debug", "info", "warn", "error", "off"}, "LEVEL",
            "least level that is logged"),
      OneOf("log_format", &C::log_format, {"text", "json"}, "text|json", "text, or one JSON object a line"),
      Switch("debug", &C::debug,
             "HTTP has /debug/trace and /debug/kv; http_address must be a loopback address"),
      Text("trace_file", &C::trace_file, "FILE",
           "every step and request goes there, as trace events that Perfetto opens; empty: nowhere"),
  };
  return *settings;
}

bool IsList(const Setting& setting) { return std::string_view(setting.metavar).ends_with("]"); }

std::string FlagOf(const Setting& setting) {
  std::string flag = std::string("--") + setting.key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::vector<std::string> ApplyConfigJson(std::string_view json_text, ServeConfig* config) {
  std::vector<std::string> problems;
  Json document;
  std::vector<std::string> keys;  // of the top level, to find repeated ones
  try {
    document = Json::parse(json_text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth == 1 && event == Json::parse_event_t::key) keys.push_back(parsed.get<std::string>());
      return depth <= 8;
    });
  } catch (const nlohmann::json::exception& error) {
    return {std::string("not valid JSON: ") + error.what()};
  }
  if (!document.is_object()) return {"the document must be a JSON object of settings"};
  std::sort(keys.begin(), keys.end());
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i] == keys[i - 1] && (i < 2 || keys[i] != keys[i - 2])) {
      problems.push_back(Quoted(keys[i]) + " is given more than once");
    }
  }
  for (const auto& [key, value] : document.items()) {
    const std::vector<Setting>& settings = ServeSettings();
    const auto setting = std::find_if(settings.begin(), settings.end(),
                                      [&key = key](const Setting& s) { return key == s.key; });
    if (setting == settings.end()) {
      problems.push_back(Quoted(key) + " is not a setting; the nearest is " +
                         Quoted(NearestSetting(key).key));
      continue;
    }
    std::string text;
    if (!KindFits(*setting, value) || !TextOf(value, &text)) {
      problems.push_back(Quoted(key) + " is " + value.dump(-1, ' ', false, Json::error_handler_t::replace) +
                         ", it must be of the kind " + setting->metavar);
      continue;
    }
    const std::string problem = setting->set(*config, text);
    if (!problem.empty()) problems.push_back(Quoted(key) + " " + problem);
  }
  return problems;
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
  limits.max_body_bytes = config.http_max_body_bytes;
  limits.max_held_body_bytes = config.http_max_held_body_bytes;
  limits.read_timeout_ms = ms(config.http_read_timeout);
  limits.idle_timeout_ms = ms(config.http_idle_timeout);
  limits.write_timeout_ms = ms(config.http_write_timeout);
  limits.silence_ms = ms(config.http_silence);
  limits.last_words_ms = ms(config.http_last_words);
  return limits;
}

std::string PrintConfig(const ServeConfig& config) {
  std::string out = "{\n";
  const std::vector<Setting>& settings = ServeSettings();
  for (size_t i = 0; i < settings.size(); ++i) {
    out += "  " + Quoted(settings[i].key) + ": " + settings[i].json(config);
    out += i + 1 < settings.size() ? ",\n" : "\n";
  }
  return out + "}\n";
}

StatusOr<int64_t> ParseBytes(std::string_view text) {
  struct Unit {
    const char* name;
    int64_t bytes;
  };
  constexpr Unit kUnits[] = {{"", 1},
                             {"B", 1},
                             {"KB", 1000},
                             {"MB", 1000 * 1000},
                             {"GB", 1000 * 1000 * 1000},
                             {"KiB", 1ll << 10},
                             {"MiB", 1ll << 20},
                             {"GiB", 1ll << 30},
                             {"TiB", 1ll << 40}};
  const Status bad =
      InvalidArgument("is " + Quoted(text) +
                      ", it must be a number of bytes with an optional unit: B, KB, MB, GB, KiB, "
                      "MiB, GiB, TiB");
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return bad;
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = number * static_cast<double>(known.bytes);
    if (bytes > 0x1p60) return InvalidArgument("is " + Quoted(text) + ", the most is 1048576TiB");
    return static_cast<int64_t>(bytes);
  }
  return bad;
}

}  // namespace tramontane
