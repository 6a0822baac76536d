#include "engine/request/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/request/limits.h"

namespace tramontane {
namespace {

constexpr int32_t kVocab = 100;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

EngineLimits Limits() {
  EngineLimits limits;
  limits.context = 32;
  limits.max_choices = 4;
  return limits;
}

Request Good() {
  Request request;
  request.id = "r";
  request.prompt = {1, 2, 3};
  return request;
}

struct Fault {
  const char* field;
  std::function<void(Request&)> make;
};

TEST(ValidateRequest, NamesTheFieldAtFault) {
  const std::vector<Fault> faults = {
      {"request_id", [](Request& r) { r.id.clear(); }},
      {"choices", [](Request& r) { r.choices = 0; }},
      {"choices", [](Request& r) { r.choices = 5; }},
      {"prompt", [](Request& r) { r.prompt.clear(); }},
      {"prompt", [](Request& r) { r.prompt = {1, kVocab}; }},
      {"prompt", [](Request& r) { r.prompt = {-1}; }},
      {"prompt", [](Request& r) { r.prompt.assign(32, 1); }},
      {"prompt",
       [](Request& r) {
         r.prompt.assign(33, 1);
         r.stopping.max_tokens = 0;
       }},
      {"sampling.temperature", [](Request& r) { r.sampling.temperature = -0.1f; }},
      {"sampling.temperature", [](Request& r) { r.sampling.temperature = kNan; }},
      {"sampling.temperature", [](Request& r) { r.sampling.temperature = kInfinity; }},
      {"sampling.top_p", [](Request& r) { r.sampling.top_p = 0.0f; }},
      {"sampling.top_p", [](Request& r) { r.sampling.top_p = 1.1f; }},
      {"sampling.top_p", [](Request& r) { r.sampling.top_p = kNan; }},
      {"sampling.top_k", [](Request& r) { r.sampling.top_k = -2; }},
      {"sampling.min_p", [](Request& r) { r.sampling.min_p = -0.1f; }},
      {"sampling.min_p", [](Request& r) { r.sampling.min_p = kNan; }},
      {"sampling.repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0.0f; }},
      {"sampling.repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 1e-40f; }},
      {"sampling.repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0.0099f; }},
      {"sampling.repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = kNan; }},
      {"sampling.presence_penalty", [](Request& r) { r.sampling.presence_penalty = 2.5f; }},
      {"sampling.frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = -2.5f; }},
      {"sampling.logit_bias", [](Request& r) { r.sampling.logit_bias = {{kVocab, 1.0f}}; }},
      {"sampling.logit_bias", [](Request& r) { r.sampling.logit_bias = {{1, kNan}}; }},
      {"sampling.logit_bias", [](Request& r) { r.sampling.logit_bias = {{1, -kInfinity}}; }},
      {"sampling.logit_bias", [](Request& r) { r.sampling.logit_bias = {{1, 1.0f}, {1, 2.0f}}; }},
      {"sampling.logit_bias", [](Request& r) { r.sampling.logit_bias.resize(1025); }},
      {"stopping.max_tokens", [](Request& r) { r.stopping.max_tokens = -1; }},
      {"stopping.max_tokens", [](Request& r) { r.stopping.max_tokens = 30; }},
      {"stopping.min_tokens", [](Request& r) { r.stopping.min_tokens = -1; }},
      {"stopping.min_tokens",
       [](Request& r) {
         r.stopping.max_tokens = 4;
         r.stopping.min_tokens = 5;
       }},
      {"stopping.stop", [](Request& r) { r.stopping.stop = {""}; }},
      {"stopping.stop", [](Request& r) { r.stopping.stop = {std::string(257, 'x')}; }},
      {"stopping.stop", [](Request& r) { r.stopping.stop.assign(17, "x"); }},
      {"stopping.stop", [](Request& r) { r.stopping.stop = {"\xff"}; }},
      {"stopping.stop_token_ids", [](Request& r) { r.stopping.stop_token_ids = {kVocab}; }},
      {"stopping.stop_token_ids", [](Request& r) { r.stopping.stop_token_ids.assign(65, 1); }},
      {"stopping.time_limit", [](Request& r) { r.stopping.time_limit_ns = -1; }},
      {"output.logprobs", [](Request& r) { r.output.logprobs = 21; }},
      {"output.logprobs", [](Request& r) { r.output.logprobs = -2; }},
      {"output.prompt_logprobs", [](Request& r) { r.output.prompt_logprobs = 21; }},
      {"share.weight", [](Request& r) { r.share.weight = 0; }},
      {"share.weight", [](Request& r) { r.share.weight = 1001; }},
      {"priority", [](Request& r) { r.share.priority = -1001; }},
      {"priority", [](Request& r) { r.share.priority = 1001; }},
  };
  for (const Fault& fault : faults) {
    Request request = Good();
    fault.make(request);
    const Status status = ValidateRequest(request, Limits(), kVocab);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << fault.field;
    EXPECT_EQ(status.field(), fault.field) << status;
  }
}

TEST(ValidateRequest, TakesEveryValueAtItsLimit) {
  Request request = Good();
  EXPECT_TRUE(ValidateRequest(request, Limits(), kVocab).ok());
  request.choices = 4;
  request.sampling.temperature = 0.0f;
  request.sampling.top_k = -1;
  request.sampling.min_p = 1.0f;
  request.sampling.presence_penalty = -2.0f;
  request.sampling.frequency_penalty = 2.0f;
  request.sampling.logit_bias = {{0, -100.0f}, {kVocab - 1, 100.0f}};
  request.stopping.max_tokens = 29;
  request.stopping.min_tokens = 29;
  request.stopping.stop = {std::string(256, 'x')};
  request.output.logprobs = 20;
  request.share = {.caller = "a", .weight = 1000, .priority = -1000};
  EXPECT_TRUE(ValidateRequest(request, Limits(), kVocab).ok()) << ValidateRequest(request, Limits(), kVocab);

  Request scoring = Good();
  scoring.prompt.assign(32, 1);
  scoring.stopping.max_tokens = 0;
  EXPECT_TRUE(ValidateRequest(scoring, Limits(), kVocab).ok()) << "a whole context may be scored";
}

TEST(ValidateRequest, MessagesNameTheValueAndTheLimit) {
  Request request = Good();
  request.stopping.max_tokens = 30;
  EXPECT_EQ(ValidateRequest(request, Limits(), kVocab).message(),
            "stopping.max_tokens is 30 after a prompt of 3 tokens; the context holds 32 in all");
  request = Good();
  request.share.priority = 1001;
  EXPECT_EQ(ValidateRequest(request, Limits(), kVocab).message(),
            "priority is 1001; it must be from -1000 to 1000");
  request = Good();
  request.sampling.top_p = 1.5f;
  EXPECT_EQ(ValidateRequest(request, Limits(), kVocab).message(),
            "sampling.top_p is 1.5; it must be above 0 and at most 1");
}

}  // namespace
}  // namespace tramontane
