// Whether the answer of a call that is not a stream is one, as EventCheck says of streams: what has passed
// here is safe to count and to print. Each returns what is wrong, for a log; "": nothing. Pure functions; any
// thread.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tramontane {

// Text that a token stands for: twice what the vocabularies have, where each byte may be shown as U+FFFD.
inline constexpr int64_t kMostTokenBytes = 8 << 10;
// No context, and no count that is told of one, is longer.
inline constexpr int64_t kMostTokens = int64_t{1} << 31;
// Of a name that a server has for something.
inline constexpr size_t kMostNameBytes = 1024;

// The first number in it, however deep, that is negative, not finite, or more than a program that reads JSON
// can hold.
std::string NumberFault(const google::protobuf::Message& message);

// Of the answer to a unary call with this request, before it is parsed: it can take many times as much then.
int64_t MostAnswerBytes(const google::protobuf::Message& request);
// Of a unary call. REQUIRES: `answer` has the type that answers `request`.
std::string AnswerFault(const google::protobuf::Message& request, const google::protobuf::Message& answer);

}  // namespace tramontane
