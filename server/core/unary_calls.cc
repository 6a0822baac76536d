#include "server/core/unary_calls.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "server/call/unary_call.h"
#include "server/core/model_info.h"

namespace tramontane {
namespace {

using Context = UnaryCall::Context;

// `answer`: RpcError(const Context&, const Request&, Response*)
template <typename Request, typename Answer>
UnaryCall Row(UnaryThread thread, Answer answer) {
  return {.request = Request::descriptor(),
          .thread = thread,
          .answer = [answer](const Context& context, const UnaryCall::Message& request,
                             UnaryCall::Message* response) -> RpcError {
            if constexpr (requires(const Request& asked) { asked.model(); }) {
              RpcError error = InferenceCore::CheckMayUse(context.caller, context.serving.model);
              if (!error.ok()) return error;
            }
            return answer(context, static_cast<const Request&>(request),
                          static_cast<ResponseTo<Request>*>(response));
          }};
}

}  // namespace

const std::vector<UnaryCall>& UnaryCalls() {
  using enum UnaryThread;
  static const auto* calls = new std::vector<UnaryCall>{
      Row<v1::TokenizeRequest>(kWorker,
                               [](const Context& context, const auto& request, auto* response) {
                                 return context.serving.converter.texts.Tokenize(request, response);
                               }),
      Row<v1::DetokenizeRequest>(kWorker,
                                 [](const Context& context, const auto& request, auto* response) {
                                   return context.serving.converter.texts.Detokenize(request, response);
                                 }),
      Row<v1::RenderChatRequest>(kWorker,
                                 [](const Context& context, const auto& request, auto* response) {
                                   return context.serving.converter.texts.RenderChat(request, response);
                                 }),
      Row<v1::AbortRequest>(kCallers,
                            [](const Context& context, const auto& request, auto* response) {
                              return context.core.Abort(context.caller, request, response);
                            }),
      Row<v1::GetModelRequest>(kCallers,
                               [](const Context& context, const auto& request, auto* response) {
                                 return GetModel(context.serving.model, request, response);
                               }),
      Row<v1::GetServerInfoRequest>(kCallers,
                                    [](const Context& context, const auto&, auto* response) {
                                      return context.core.GetServerInfo(context.serving, response);
                                    }),
      Row<v1::GetLoadRequest>(kCallers,
                              [](const Context& context, const auto&, auto* response) {
                                return context.core.GetLoad(context.serving, response);
                              }),
      Row<v1::ListSessionsRequest>(kCallers,
                                   [](const Context& context, const auto&, auto* response) {
                                     return context.core.sessions().List(context.caller, response);
                                   }),
      Row<v1::DeleteSessionRequest>(kCallers,
                                    [](const Context& context, const auto& request, auto*) {
                                      return context.core.sessions().Delete(context.caller, request);
                                    }),
      Row<v1::SaveSessionRequest>(kSessionFiles,
                                  [](const Context& context, const auto& request, auto* response) {
                                    return context.core.sessions().Save(context.caller, request, response);
                                  }),
      Row<v1::RestoreSessionRequest>(kSessionFiles,
                                     [](const Context& context, const auto& request, auto* response) {
                                       return context.core.sessions().Restore(context.caller, request,
                                                                              response);
                                     }),
  };
  return *calls;
}

const UnaryCall& FindUnaryCall(const google::protobuf::Descriptor& request) {
  const std::vector<UnaryCall>& calls = UnaryCalls();
  const auto found = std::find_if(calls.begin(), calls.end(),
                                  [&request](const UnaryCall& call) { return call.request == &request; });
  TM_CHECK(found != calls.end(), "no unary call has a %s", request.full_name().c_str());
  return *found;
}

}  // namespace tramontane
