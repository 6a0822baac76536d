#include "server/http/response_framing.h"

#include <charconv>
#include <ctime>
#include <string_view>
#include <utility>

namespace tramontane {
namespace {

constexpr size_t kShortBytes = 16 << 10;  // a chunk of fewer is copied between its lines

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";  // clients read the number
  }
}

// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  return std::string(text, std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &utc));
}

}  // namespace

std::string ResponseFraming::Head(const HttpResponse& response, const std::string& length_field) const {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + ReasonPhrase(response.status) +
                     "\r\ndate: " + HttpDate() + "\r\nx-request-id: " + request_id + "\r\n";
  if (!response.content_type.empty()) head += "content-type: " + response.content_type + "\r\n";
  for (const auto& [name, value] : response.headers) {
    head.append(name).append(": ").append(value).append("\r\n");
  }
  return head + length_field + (keep_alive ? "connection: keep-alive\r\n\r\n" : "connection: close\r\n\r\n");
}

void ResponseFraming::WriteWhole(HttpResponse response, OutputBuffer* output) const {
  const bool has_length = response.status != 204;
  output->Append(
      Head(response, has_length ? "content-length: " + std::to_string(response.body.size()) + "\r\n" : ""));
  if (!is_head) output->Append(std::move(response.body));
}

void ResponseFraming::WriteStreamHead(HttpResponse head, OutputBuffer* output) const {
  output->Append(Head(head, is_chunked ? "transfer-encoding: chunked\r\n" : ""));
  WriteChunk(std::move(head.body), output);
}

void ResponseFraming::WriteChunk(std::string bytes, OutputBuffer* output) const {
  if (bytes.empty() || is_head) return;
  if (!is_chunked) return output->Append(std::move(bytes));
  char digits[20];
  std::string line(digits, std::to_chars(digits, digits + sizeof(digits), bytes.size(), 16).ptr);
  line += "\r\n";
  if (bytes.size() < kShortBytes) {
    line.reserve(line.size() + bytes.size() + 2);
    return output->Append(std::move(line.append(bytes).append("\r\n")));
  }
  output->Append(std::move(line));
  output->Append(std::move(bytes));
  output->Append("\r\n");
}

void ResponseFraming::WriteStreamEnd(OutputBuffer* output) const {
  if (is_chunked && !is_head) output->Append("0\r\n\r\n");
}

}  // namespace tramontane
