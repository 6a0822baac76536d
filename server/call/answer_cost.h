// What answers cost, in bytes: as messages while they are made, and as the text that clients get, in the
// longest of its notations. Both doors count with these, before anything is computed and as answers come, so
// what was let through at first is not refused later. Plain numbers; any thread.
#pragma once

#include <cstdint>

namespace tramontane {

inline constexpr int64_t kDefaultMaxAnswerBytes = int64_t{256} << 20;

// A token and its log probability, as prompt_logprobs writes it, of a token of up to ten bytes:
// "12345":{"logprob":-12.345678,"rank":12345,"decoded_token":" something"},
inline constexpr int64_t kScoreTextBytes = 80;
inline constexpr int64_t kScoreMessageBytes = 128;  // the same as a TopLogprob, with its strings
inline constexpr int64_t kPieceBytes = 80;          // a token's text as a message of its own, and as JSON
inline constexpr int64_t kTextCopies = 2;           // of a text alone: the message, and its JSON
inline constexpr int64_t kTokenBytes = 16;          // an id, as a number and as text, or its text alone

// Of `tokens` with the `logprobs` likeliest beside each; -1: none.
constexpr int64_t ScoreEntries(int64_t tokens, int64_t logprobs) { return tokens * (logprobs + 1); }

}  // namespace tramontane
