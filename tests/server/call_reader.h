// CallReader: one Generate of an InferenceClient, read by a test when it likes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/call/inference_client.h"

namespace tramontane {

inline constexpr std::chrono::seconds kCallHangs{60};  // far above what a slow machine takes

class CallReader {
 public:
  CallReader(InferenceClient& client, v1::GenerateRequest request, const InferenceCallOptions& options = {},
             const Caller& caller = {});
  ~CallReader() { DropCall(); }

  const RpcError& refusal() const { return refusal_; }  // of Generate itself
  bool refused() const { return call_ == nullptr; }
  const std::shared_ptr<InferenceCall>& call() const { return call_; }

  // Waits until there is something to take, and takes it. False at the end.
  bool Next();
  RpcError ReadAll();
  void Cancel() { call_->Cancel(); }
  void DropCall() { call_ = nullptr; }

  // What was taken so far; with the end, how it ended.
  const RpcError& outcome() const { return outcome_; }
  const std::vector<v1::GenerateResponse>& events() const { return events_; }
  int64_t deltas() const;
  std::string text(int32_t choice = 0) const;
  std::vector<int32_t> token_ids(int32_t choice = 0) const;
  // A logprob and its likeliest others, of each token, as bytes.
  std::vector<std::string> logprobs(int32_t choice = 0) const;
  const v1::Finished& finished(int32_t choice = 0) const;

 private:
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung_changed;
    bool rung = false;
  };

  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();  // the callback may outlive the reader
  RpcError refusal_;
  std::shared_ptr<InferenceCall> call_;
  std::vector<v1::GenerateResponse> events_;
  RpcError outcome_;
};

// The answer of a unary call, once it is there.
template <typename Response>
struct Answer {
  RpcError error;
  Response response;
};
template <typename Response, typename Call>
Answer<Response> Await(const Call& call) {
  const auto promise = std::make_shared<std::promise<Answer<Response>>>();
  call([promise](const RpcError& error, const Response& response) { promise->set_value({error, response}); });
  std::future<Answer<Response>> answer = promise->get_future();
  if (answer.wait_for(kCallHangs) == std::future_status::ready) return answer.get();
  ADD_FAILURE() << "no answer for " << kCallHangs.count() << " s";
  return {};
}

}  // namespace tramontane
