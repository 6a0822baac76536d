#include "server/commands/memory_bounds.h"

#include "server/base/work_queue.h"
#include "server/core/inference_core.h"
#include "server/remote/remote_client.h"
#include "server/setup/host_options.h"

namespace tramontane {
namespace {

constexpr int64_t kKiB = 1 << 10;

// Measured, and rounded up.
constexpr int64_t kHttpConnectionBytes = 4 * kKiB;  // at rest
constexpr int64_t kTlsBytes = 64 * kKiB;            // of a connection, in its handshake too
constexpr int64_t kGrpcConnectionBytes = 64 * kKiB;
constexpr int64_t kGrpcCallBytes = 32 * kKiB;  // metadata, and what is free of an answer
constexpr int64_t kRunningTokenBytes = 16;     // of a choice: its ids, and what is sampled by
constexpr int64_t kScoredTokenBytes = 384;     // with the likeliest beside it

// 0: there is none.
std::optional<int64_t> Times(int64_t count, int64_t bytes) {
  return bytes > 0 ? std::optional(count * bytes) : std::nullopt;
}

void AddHttpBounds(const HttpLimits& limits, int64_t handler_threads, bool has_tls,
                   std::vector<MemoryBound>* bounds) {
  const int64_t connection = kHttpConnectionBytes + kShortHeaderBytes + (has_tls ? kTlsBytes : 0);
  bounds->push_back({"http_max_held_body_bytes", limits.max_held_body_bytes});
  bounds->push_back({"http_handler_threads", handler_threads * kParsedTimes * limits.max_body_bytes});
  bounds->push_back({"http_max_connections", limits.max_connections * connection});
  if (has_tls) bounds->push_back({"handshakes", limits.max_handshakes * kTlsBytes});
}

}  // namespace

std::vector<MemoryBound> ServeMemoryBounds(const ServerOptions& options, const EngineLimits& engine,
                                           int64_t grammar_cache_bytes) {
  std::vector<MemoryBound> bounds;
  const bool has_http = !options.http_address.empty();
  if (has_http) {
    AddHttpBounds(options.http_limits, options.http_handler_threads, options.tls != nullptr, &bounds);
  }
  const int64_t answering_threads = options.writer_threads + (has_http ? options.http_io_threads : 0);
  const int64_t calls = int64_t{2} * (options.max_streams + kSpareCalls);
  const int64_t grpc_connection = kGrpcConnectionBytes + (options.tls != nullptr ? kTlsBytes : 0);
  const int64_t pools = 2;  // of workers, and of compilers
  const int64_t running = int64_t{engine.max_sequences} * engine.context;
  const int64_t scored = int64_t{engine.max_partial_prefills} * engine.context;
  const std::vector<MemoryBound> others = {
      {"max_unread_answer_bytes", options.max_unread_answer_bytes},
      {"max_answer_bytes", Times(answering_threads, options.field_limits.max_answer_bytes)},
      {"max_queued_work_bytes", pools * WorkerPoolOptions().max_queued_bytes},
      {"max_queued_bytes", engine.max_queued_bytes},
      {"max_sequences", running * kRunningTokenBytes},
      {"max_partial_prefills", scored * kScoredTokenBytes},
      {"max_unread_bytes", engine.max_unread_bytes},
      {"max_sessions", options.sessions.max_bytes},
      {"grammar_cache_bytes", grammar_cache_bytes},
      {"grpc_memory", options.grpc_memory_bytes},
      {"grpc_max_connections", Times(grpc_connection, options.grpc_max_connections)},
      {"max_streams", calls * kGrpcCallBytes},
  };
  bounds.insert(bounds.end(), others.begin(), others.end());
  return bounds;
}

std::vector<MemoryBound> GatewayMemoryBounds(const ServeConfig& config, int64_t servers) {
  std::vector<MemoryBound> bounds;
  const HttpLimits limits = HttpLimitsOf(config);
  AddHttpBounds(limits, config.http_handler_threads, !config.tls_cert.empty(), &bounds);
  bounds.push_back({"max_unread_answer_bytes", config.max_unread_answer_bytes});
  bounds.push_back({"max_answer_bytes", Times(config.http_io_threads, config.max_answer_bytes)});
  bounds.push_back({"messages of servers", servers * static_cast<int64_t>(kServerMemoryBytes)});
  bounds.push_back({"calls", limits.max_connections * static_cast<int64_t>(kHeldCallBytes)});
  return bounds;
}

std::string SumOf(const std::vector<MemoryBound>& bounds) {
  int64_t sum = 0;
  std::string parts;
  std::string endless;
  for (const MemoryBound& bound : bounds) {
    if (!bound.bytes) {
      endless += (endless.empty() ? "" : ", ") + bound.name;
      continue;
    }
    sum += *bound.bytes;
    parts += (parts.empty() ? "" : " + ") + bound.name + " " + FormatBytes(*bound.bytes);
  }
  if (!endless.empty()) {
    return "no bound, because there is none of " + endless + "; the others " + FormatBytes(sum) + " = " +
           parts;
  }
  return "at most " + FormatBytes(sum) + " = " + parts;
}

}  // namespace tramontane
