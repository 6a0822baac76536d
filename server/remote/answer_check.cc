#include "server/remote/answer_check.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "server/call/unary_call.h"

namespace tramontane {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::RepeatedField;

constexpr double kMostNumber = 9007199254740992.0;  // 2^53
constexpr int kMostNames = 1024;
// Tokens that a byte of what was sent can become, through normalizers, escapes and templates; and what a
// template adds.
constexpr int64_t kMostTokensOfAByte = 64;
constexpr int64_t kMostTokensBeside = 64 << 10;

// Bytes of an answer for each byte of what was sent, where the answer has a piece of text for each token.
constexpr int64_t kMostBytesOfAByte = 256;
constexpr int64_t kMostBytesBeside = 1 << 20;

std::string Text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.16g", number);
  return text;
}

// A number of a field, whose type may be any; `i` is below 0 where it is not a list.
double NumberOf(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return i < 0 ? reflection.GetInt32(message, &field) : reflection.GetRepeatedInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(i < 0 ? reflection.GetInt64(message, &field)
                                       : reflection.GetRepeatedInt64(message, &field, i));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return i < 0 ? reflection.GetFloat(message, &field) : reflection.GetRepeatedFloat(message, &field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return i < 0 ? reflection.GetDouble(message, &field) : reflection.GetRepeatedDouble(message, &field, i);
    default:
      return 0;
  }
}

std::string FaultOfIds(const RepeatedField<int32_t>& ids) {
  const auto least = std::min_element(ids.begin(), ids.end());
  return least == ids.end() || *least >= 0 ? "" : "token_ids holds " + std::to_string(*least);
}

std::string FaultOfCount(int64_t tokens, size_t bytes_sent) {
  const int64_t most = kMostTokensBeside + kMostTokensOfAByte * static_cast<int64_t>(bytes_sent);
  if (tokens <= most) return {};
  return std::to_string(tokens) + " tokens of an input of " + std::to_string(bytes_sent) + " bytes";
}

std::string FaultOfText(size_t bytes, int64_t tokens) {
  if (static_cast<int64_t>(bytes) <= kMostTokenBytes * tokens) return {};
  return "a text of " + std::to_string(bytes) + " bytes is that of " + std::to_string(tokens) + " tokens";
}

std::string FaultOfName(const std::string& name) {
  if (!name.empty() && name.size() <= kMostNameBytes) return {};
  return "a name has " + std::to_string(name.size()) + " bytes";
}

// The first of several that is one.
std::string First(std::vector<std::string> faults) {
  const auto is_one = [](const std::string& fault) { return !fault.empty(); };
  const auto found = std::find_if(faults.begin(), faults.end(), is_one);
  return found == faults.end() ? "" : std::move(*found);
}

// Of the session `name` alone.
std::string FaultOfSession(const v1::Session& session, const std::string& name) {
  if (session.name() == name) return NumberFault(session);
  return "the answer is of another session";
}

}  // namespace

std::string NumberFault(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int entries = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 0;
    for (int i = field->is_repeated() ? 0 : -1; i < entries; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        const Message& inner = i < 0 ? message.GetReflection()->GetMessage(message, field)
                                     : message.GetReflection()->GetRepeatedMessage(message, field, i);
        if (std::string fault = NumberFault(inner); !fault.empty()) return field->name() + "." + fault;
        continue;
      }
      const double number = NumberOf(message, *field, i);
      const bool is_fine = number >= 0 && number <= kMostNumber;  // not a number: neither
      if (!is_fine) return field->name() + " is " + Text(number);
    }
  }
  return {};
}

namespace {

std::string FaultOf(const v1::TokenizeRequest& request, const v1::TokenizeResponse& answer) {
  const int pieces = request.pieces() ? answer.token_ids_size() : 0;
  if (answer.pieces_size() != pieces) {
    return std::to_string(answer.pieces_size()) + " pieces of " + std::to_string(answer.token_ids_size()) +
           " tokens";
  }
  for (const std::string& piece : answer.pieces()) {
    if (std::string fault = FaultOfText(piece.size(), 1); !fault.empty()) return fault;
  }
  return First(
      {FaultOfIds(answer.token_ids()), FaultOfCount(answer.token_ids_size(), request.ByteSizeLong())});
}

std::string FaultOf(const v1::DetokenizeRequest& request, const v1::DetokenizeResponse& answer) {
  return FaultOfText(answer.text().size(), request.token_ids_size());
}

std::string FaultOf(const v1::RenderChatRequest& request, const v1::RenderChatResponse& answer) {
  return First({FaultOfIds(answer.token_ids()), FaultOfCount(answer.token_ids_size(), request.ByteSizeLong()),
                FaultOfText(answer.text().size(), answer.token_ids_size())});
}

std::string FaultOf(const v1::ScoreCandidatesRequest& request, const v1::ScoreCandidatesResponse& answer) {
  if (answer.candidates_size() != request.candidates_size()) {
    return std::to_string(answer.candidates_size()) + " scores of " +
           std::to_string(request.candidates_size()) + " candidates";
  }
  int64_t tokens = 0;
  for (const v1::CandidateScore& candidate : answer.candidates()) {
    const int count = candidate.token_ids_size();
    tokens += count;
    if (count == 0 || candidate.logprobs_size() != count || candidate.ranks_size() != count) {
      return "a score of " + std::to_string(count) + " tokens with " +
             std::to_string(candidate.logprobs_size()) + " logprobs and " +
             std::to_string(candidate.ranks_size()) + " ranks";
    }
    for (const float logprob : candidate.logprobs()) {
      if (!(logprob <= 0)) return "a logprob is " + Text(logprob);
    }
    if (!(candidate.logprob_sum() <= 0)) return "logprob_sum is " + Text(candidate.logprob_sum());
    if (std::string fault = FaultOfIds(candidate.token_ids()); !fault.empty()) return fault;
    if (std::string fault = FaultOfIds(candidate.ranks()); !fault.empty()) return fault;
  }
  if (tokens != answer.candidate_tokens())
    return "candidate_tokens is " + std::to_string(answer.candidate_tokens());
  if (answer.ignored_size() > kMostNames) {
    return std::to_string(answer.ignored_size()) + " fields were ignored";
  }
  for (const std::string& field : answer.ignored()) {
    if (std::string fault = FaultOfName(field); !fault.empty()) return fault;
  }
  return First({FaultOfName(answer.request_id()), FaultOfName(answer.model()), NumberFault(answer.usage()),
                FaultOfCount(tokens, request.ByteSizeLong())});
}

std::string FaultOf(const v1::GetModelRequest& /*request*/, const v1::GetModelResponse& answer) {
  if (answer.names().empty() || answer.names_size() > kMostNames) {
    return "the model has " + std::to_string(answer.names_size()) + " names";
  }
  for (const std::string& name : answer.names()) {
    if (std::string fault = FaultOfName(name); !fault.empty()) return fault;
  }
  if (answer.context() <= 0 || answer.vocab_size() <= 0) return "the model has no context or no vocabulary";
  v1::GetModelResponse numbers = answer;
  numbers.clear_default_top_k();  // may be -1: all
  return First({FaultOfName(answer.name()), NumberFault(numbers)});
}

std::string FaultOf(const v1::ListSessionsRequest& /*request*/, const v1::ListSessionsResponse& answer) {
  for (const v1::Session& session : answer.sessions()) {
    if (std::string fault = First({FaultOfName(session.name()), NumberFault(session)}); !fault.empty())
      return fault;
  }
  return {};
}

std::string FaultOf(const v1::SaveSessionRequest& request, const v1::SaveSessionResponse& answer) {
  return First({FaultOfSession(answer.session(), request.name()), NumberFault(answer)});
}

std::string FaultOf(const v1::RestoreSessionRequest& request, const v1::RestoreSessionResponse& answer) {
  return First({FaultOfSession(answer.session(), request.name()), NumberFault(answer)});
}

// False: it is not of this type.
template <typename Request>
bool Check(const Message& request, const Message& answer, std::string* fault) {
  const auto* asked = dynamic_cast<const Request*>(&request);
  if (asked == nullptr) return false;
  *fault = FaultOf(*asked, static_cast<const ResponseTo<Request>&>(answer));
  return true;
}

template <typename... Requests>
std::string FaultOfOneOf(const Message& request, const Message& answer) {
  std::string fault;
  const bool is_one = (Check<Requests>(request, answer, &fault) || ...);
  return is_one ? fault : NumberFault(answer);
}

}  // namespace

int64_t MostAnswerBytes(const Message& request) {
  if (request.GetDescriptor() == v1::ListSessionsRequest::descriptor()) return INT64_MAX;
  const bool is_ids = request.GetDescriptor() == v1::DetokenizeRequest::descriptor();
  const int64_t most_of_a_byte = is_ids ? kMostTokenBytes : kMostBytesOfAByte;
  return kMostBytesBeside + most_of_a_byte * static_cast<int64_t>(request.ByteSizeLong());
}

std::string AnswerFault(const Message& request, const Message& answer) {
  return FaultOfOneOf<v1::TokenizeRequest, v1::DetokenizeRequest, v1::RenderChatRequest,
                      v1::ScoreCandidatesRequest, v1::GetModelRequest, v1::ListSessionsRequest,
                      v1::SaveSessionRequest, v1::RestoreSessionRequest>(request, answer);
}

}  // namespace tramontane
