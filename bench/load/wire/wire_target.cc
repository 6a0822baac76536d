#include "bench/load/wire/wire_target.h"

#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "bench/load/wire/tls_session.h"
#include "server/base/host_port.h"

namespace tramontane::load {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchemes = "http, https, grpc or grpcs";

bool IsHeaderText(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
  });
}

bool IsHeaderName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return c > 0x20 && c < 0x7f && std::string_view("\"(),/:;<=>?@[\\]{}").find(c) == std::string_view::npos;
  });
}

// As a JSON string, with its quotes; what is not UTF-8 in it is replaced.
std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void AppendNumber(int64_t number, std::string* out) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  out->append(digits.data(), end);
}

void AppendPrompt(const OutgoingRequest& request, Endpoint endpoint, std::string* body) {
  if (endpoint == Endpoint::kChat) {
    *body += R"("messages":[{"role":"user","content":)" + Quoted(request.text) + "}]";
    return;
  }
  *body += "\"prompt\":";
  if (!request.text.empty()) {
    *body += Quoted(request.text);
    return;
  }
  *body += '[';
  for (size_t i = 0; i < request.ids.size(); ++i) {
    if (i > 0) *body += ',';
    AppendNumber(request.ids[i], body);
  }
  *body += ']';
}

}  // namespace

StatusOr<std::shared_ptr<const WireTarget>> WireTarget::Parse(const TargetOptions& options) {
  const std::shared_ptr<WireTarget> target(new WireTarget(options));
  TM_RETURN_IF_ERROR(target->ParseUrl());
  TM_RETURN_IF_ERROR(target->CheckHeaders());
  TM_RETURN_IF_ERROR(target->ReadExtraBody());
  if (!target->is_grpc()) {
    if (target->has_tls()) TM_RETURN_IF_ERROR(target->PrepareTls());
    target->Resolve();
  }
  return std::shared_ptr<const WireTarget>(target);
}

Status WireTarget::ParseUrl() {
  const std::string_view url = options_.url;
  const auto wrong = [&](const std::string& why) {
    return InvalidArgument("is \"" + options_.url + "\": " + why).WithField("--target", FieldForm::kSubject);
  };
  const size_t colon = url.find("://");
  if (colon == std::string_view::npos) return wrong("it must be SCHEME://HOST:PORT");
  scheme_ = std::string(url.substr(0, colon));
  if (scheme_ != "http" && scheme_ != "https" && scheme_ != "grpc" && scheme_ != "grpcs") {
    return wrong("its scheme must be " + std::string(kSchemes));
  }
  const std::string_view rest = url.substr(colon + 3);
  const size_t slash = std::min(rest.find('/'), rest.size());
  authority_ = std::string(rest.substr(0, slash));
  prefix_ = std::string(rest.substr(slash));
  while (prefix_.ends_with('/')) prefix_.pop_back();
  if (is_grpc() && !prefix_.empty()) return wrong("a gRPC target has no path");
  // As other clients have their base URL.
  if (prefix_ == "/v1" || prefix_.ends_with("/v1")) prefix_.resize(prefix_.size() - 3);
  if (prefix_.find_first_of(" \t\r\n?#") != std::string::npos) return wrong("its path is no path");
  const size_t last = authority_.rfind(':');
  const bool has_port = last != std::string::npos && authority_.find(']', last) == std::string::npos;
  const std::string default_port = scheme_ == "https" ? ":443" : ":80";
  if (!has_port && is_grpc()) return wrong("it must be SCHEME://HOST:PORT");
  const StatusOr<HostPort> parsed = ParseHostPort(authority_ + (has_port ? "" : default_port));
  if (!parsed.ok()) return wrong("its host and port: " + parsed.status().sentence());
  if (parsed->port == 0) return wrong("its port must be 1 to 65535");
  host_ = parsed->host;
  port_ = parsed->port;
  return Status::Ok();
}

Status WireTarget::CheckHeaders() const {
  for (const auto& [name, value] : options_.headers) {
    if (!IsHeaderName(name) || !IsHeaderText(value)) {
      // The value may be a secret.
      return InvalidArgument("is \"" + VisibleText(name) +
                             ": ...\", which is no header: NAME: VALUE on one line")
          .WithField("--header", FieldForm::kSubject);
    }
    for (const char* ours : {"content-length", "transfer-encoding", "connection", "x-request-id"}) {
      if (EqualsIgnoringCase(name, ours)) {
        return InvalidArgument("is \"" + name + "\", which is not free to set")
            .WithField("--header", FieldForm::kSubject);
      }
    }
  }
  if (!IsHeaderText(options_.api_key)) {
    return InvalidArgument("has a control character in it").WithField("the API key", FieldForm::kSubject);
  }
  return Status::Ok();
}

Status WireTarget::ReadExtraBody() {
  Json body = {{"model", options_.model}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (options_.ignore_eos) body["ignore_eos"] = true;
  if (!options_.extra_body.empty()) {
    const auto wrong = [](const std::string& why) {
      return InvalidArgument(why).WithField("--extra-body", FieldForm::kSubject);
    };
    const Json extra = Json::parse(options_.extra_body, nullptr, false);
    if (!extra.is_object()) return wrong("is no JSON object");
    if (is_grpc()) return wrong("is for HTTP, the target is " + options_.url);
    for (const char* key : {"prompt", "messages", "stream"}) {
      if (extra.contains(key)) return wrong(std::string("has the key ") + key + ", which is not free to set");
    }
    if (extra.contains("max_tokens") && !extra["max_tokens"].is_null()) {
      return wrong("has the key max_tokens: that is --output-tokens; null leaves it out");
    }
    sends_max_tokens_ = !extra.contains("max_tokens");
    body.merge_patch(extra);  // null takes a key away
  }
  body_begin_ = body.dump();
  body_begin_.back() = ',';
  for (const auto& [name, value] : options_.headers) fixed_headers_ += name + ": " + value + "\r\n";
  if (!options_.api_key.empty()) fixed_headers_ += "Authorization: Bearer " + options_.api_key + "\r\n";
  return Status::Ok();
}

Status WireTarget::PrepareTls() {
  TM_ASSIGN_OR_RETURN(tls_, MakeTlsContext(options_));
  return Status::Ok();
}

void WireTarget::Resolve() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_UNSPEC;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found);
  if (error != 0) {
    resolve_error_ = host_ + ": " + gai_strerror(error);
    return;
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress& address = addresses_.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  freeaddrinfo(found);
}

std::string WireTarget::Head(const std::string& method, const std::string& path) const {
  std::string head = method + " " + prefix_ + path + " HTTP/1.1\r\n";
  const bool has_host = std::any_of(options_.headers.begin(), options_.headers.end(), [](const auto& header) {
    return EqualsIgnoringCase(header.first, "host");
  });
  if (!has_host) head += "Host: " + authority_ + "\r\n";
  return head + fixed_headers_;
}

std::string WireTarget::RequestBytes(const OutgoingRequest& request) const {
  const bool is_chat = options_.endpoint == Endpoint::kChat;
  std::string body = body_begin_;
  AppendPrompt(request, options_.endpoint, &body);
  if (sends_max_tokens_) {
    body += ",\"max_tokens\":";
    AppendNumber(request.output_tokens, &body);
  }
  body += '}';
  std::string bytes = Head("POST", is_chat ? "/v1/chat/completions" : "/v1/completions");
  if (options_.timing) bytes += "x-tramontane-timing: 1\r\n";
  bytes +=
      "Accept: text/event-stream\r\nContent-Type: application/json\r\nx-request-id: " + request.request_id +
      "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  return bytes + body;
}

std::string WireTarget::QuestionBytes(const std::string& method, const std::string& path,
                                      const std::string& body) const {
  std::string bytes = Head(method, path);
  if (method != "GET") {
    bytes += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  return bytes + "Connection: close\r\n\r\n" + body;
}

}  // namespace tramontane::load
