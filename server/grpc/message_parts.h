// PartsOf: events of a stream in messages that every client takes: gRPC's own limit on what it receives is 4
// MiB. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// What gRPC takes of a message where nobody said otherwise.
inline constexpr size_t kDefaultMessageBytes = size_t{4} << 20;
// As many of these as `bytes` fill, 1 at least.
int32_t MessagesIn(size_t bytes);
// Of a message of a stream, so that there is room for what does not grow. An entry of a list is never cut.
inline constexpr size_t kMaxPartBytes = size_t{1} << 20;

// `event` itself, or a long Started or Delta in several: the lists one after the other, texts behind them.
// All parts have the event's other fields; of a Started all but the last have `more`. Joined in their order
// (texts and lists appended, marks moved by the text before them) they are the event.
std::vector<v1::GenerateResponse> PartsOf(v1::GenerateResponse event, size_t most_bytes = kMaxPartBytes);

}  // namespace tramontane
