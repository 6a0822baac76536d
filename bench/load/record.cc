#include "bench/load/record.h"

namespace tramontane::load {

std::string OutcomeName(Outcome outcome, int32_t status) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kTimeout:
      return "timeout";
    case Outcome::kHttpError:
      return "http_" + std::to_string(status);
    case Outcome::kStreamError:
      return "stream_error";
    case Outcome::kClosedEarly:
      return "closed_early";
    case Outcome::kGarbage:
      return "garbage";
    case Outcome::kNoContent:
      return "no_content";
    case Outcome::kUnfinished:
      return "unfinished";
  }
  return "";
}

std::string_view TokenCountFromName(TokenCountFrom from) {
  switch (from) {
    case TokenCountFrom::kUsage:
      return "usage";
    case TokenCountFrom::kIds:
      return "ids";
    case TokenCountFrom::kLogprobs:
      return "logprobs";
    case TokenCountFrom::kTokenizer:
      return "tokenizer";
    case TokenCountFrom::kEvents:
      return "events";
  }
  return "";
}

std::string WithoutSecret(std::string_view text, std::string_view secret) {
  if (secret.empty()) return std::string(text);
  std::string clean;
  size_t begin = 0;
  for (size_t at = text.find(secret); at != std::string_view::npos; at = text.find(secret, begin)) {
    clean += text.substr(begin, at - begin);
    clean += "***";
    begin = at + secret.size();
  }
  clean += text.substr(begin);
  return clean;
}

}  // namespace tramontane::load
