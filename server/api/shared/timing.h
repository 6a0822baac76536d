// Timing: where the time to the first content of an answer went, for those who ask with the header
// x-tramontane-timing. The stages and their sum are those of v1::Timings. Pure functions; any thread.
#pragma once

#include <string>

#include "server/api/shared/json.h"
#include "server/api/shared/shape.h"
#include "server/http/http.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

inline constexpr char kTimingHeader[] = "x-tramontane-timing";  // "1", or "0" as without it

// Of a request that passed the stages.
bool WantsTiming(const HttpRequest& request);

// {"receive_ms":0.1, ..., "ttft_ms":12.5,"chunks":1,"cached_tokens":0,"preemptions":0}; without content every
// time is null.
Json TimingJson(const v1::Timings& timing);
Shape TimingShape();

// vLLM's `metrics` of a choice that has ended: {"time_to_first_token_ms":8.1,"queue_time_ms":0.2,
// "generation_time_ms":90.5,"mean_itl_ms":4.5,"tokens_per_second":213.0,"speculative_decoding":null}. The
// first and the last count from where the request left the queue; what did not happen is null.
Json MetricsJson(const v1::Finished& finished);
Shape MetricsShape();

// "receive;dur=0.1, ..., ttft;dur=12.5" as the header Server-Timing has it; "" without content.
std::string ServerTimingText(const v1::Timings& timing);

}  // namespace tramontane
