// The unary calls of the service by the types of their messages, so that one call of InferenceClient stands
// for all of them.
#pragma once

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

template <typename Request>
struct UnaryCallOf;

// clang-format off
template <> struct UnaryCallOf<v1::TokenizeRequest> { using Response = v1::TokenizeResponse; };
template <> struct UnaryCallOf<v1::DetokenizeRequest> { using Response = v1::DetokenizeResponse; };
template <> struct UnaryCallOf<v1::RenderChatRequest> { using Response = v1::RenderChatResponse; };
template <> struct UnaryCallOf<v1::ScoreCandidatesRequest> { using Response = v1::ScoreCandidatesResponse; };
template <> struct UnaryCallOf<v1::AbortRequest> { using Response = v1::AbortResponse; };
template <> struct UnaryCallOf<v1::GetModelRequest> { using Response = v1::GetModelResponse; };
template <> struct UnaryCallOf<v1::GetServerInfoRequest> { using Response = v1::GetServerInfoResponse; };
template <> struct UnaryCallOf<v1::GetLoadRequest> { using Response = v1::GetLoadResponse; };
template <> struct UnaryCallOf<v1::ListSessionsRequest> { using Response = v1::ListSessionsResponse; };
template <> struct UnaryCallOf<v1::DeleteSessionRequest> { using Response = v1::DeleteSessionResponse; };
template <> struct UnaryCallOf<v1::SaveSessionRequest> { using Response = v1::SaveSessionResponse; };
template <> struct UnaryCallOf<v1::RestoreSessionRequest> { using Response = v1::RestoreSessionResponse; };
// clang-format on

template <typename Request>
using ResponseTo = typename UnaryCallOf<Request>::Response;

}  // namespace tramontane
