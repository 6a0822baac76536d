// Where a run's requests go and what each of them carries besides its prompt. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tramontane::load {

enum class Endpoint { kCompletions, kChat };

struct TargetOptions {
  std::string url;  // http://, https://, grpc:// or grpcs://HOST:PORT, a path before /v1 allowed with HTTP
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;  // never empty when Connect is called
  std::vector<std::pair<std::string, std::string>> headers;
  std::string ca_file;    // PEM; empty: the system's
  std::string cert_file;  // PEM; empty: none is shown
  std::string key_file;
  bool insecure = false;   // the server's certificate is not looked at
  std::string extra_body;  // a JSON object whose keys join each request's; empty: none
  std::string api_key;     // sent as `Authorization: Bearer`; stands in no output and no error
  double timeout_s = 600;  // for what is asked outside of a run
  bool ignore_eos = true;
  bool timing = false;  // asks for the server's `timing` object
  int32_t threads = 1;  // of the transport
  // It answers on a clock that is not real: prompts need no ids, and what the client itself costs is no part
  // of a result.
  bool simulated = false;
  std::vector<std::pair<std::string, std::string>> about;  // what a report says of it: name and value
  // Counts the tokens of an output's text where the server tells no count; any thread. Null: there is none.
  std::function<int32_t(const std::string& text)> count_tokens;
};

}  // namespace tramontane::load
