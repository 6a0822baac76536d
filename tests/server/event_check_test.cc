// What a server may say, and what not: events of a Generate, answers of unary calls. No sockets.
#include "server/remote/event_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/remote/answer_check.h"

namespace tramontane {
namespace {

constexpr int64_t kStartedBytes = 10'000;

v1::GenerateRequest Asked() {
  v1::GenerateRequest request;
  request.set_choices(2);
  request.mutable_stopping()->set_max_tokens(5);
  request.mutable_stopping()->add_stop("END");
  request.mutable_output()->set_logprobs(1);
  request.mutable_output()->set_prompt_logprobs(1);
  request.mutable_output()->set_prompt_tokens(true);
  return request;
}

void AddScored(google::protobuf::RepeatedPtrField<v1::TokenLogprob>* list) {
  v1::TokenLogprob* token = list->Add();
  token->set_token_id(3);
  token->set_logprob(-0.5f);
  token->set_rank(1);
  token->set_token_bytes("ab");
  token->add_top()->set_logprob(-0.5f);
}

// A whole answer to Asked(), from which each test departs: Started, two Deltas and two Finished.
std::vector<v1::GenerateResponse> Good() {
  std::vector<v1::GenerateResponse> events(5);
  v1::Started& started = *events[0].mutable_started();
  started.set_request_id("r");
  started.set_model("m");
  started.set_prompt_tokens(2);
  started.set_cached_tokens(1);
  AddScored(started.mutable_prompt_logprobs());
  for (int i = 0; i < 2; ++i) started.add_prompt()->set_token_bytes("x");
  for (int32_t choice = 0; choice < 2; ++choice) {
    v1::Delta& delta = *events[static_cast<size_t>(1 + choice)].mutable_delta();
    delta.set_choice(choice);
    delta.set_text("aé[");
    delta.set_completion_tokens(2);
    for (const int32_t id : {3, 4}) delta.add_token_ids(id);
    for (int i = 0; i < 2; ++i) AddScored(delta.mutable_logprobs());
    delta.set_tool_calls_at(3);
    delta.add_marks()->set_kind(v1::MARK_KIND_CALL);
    delta.mutable_marks(0)->set_at(3);
    v1::Finished& finished = *events[static_cast<size_t>(3 + choice)].mutable_finished();
    finished.set_choice(choice);
    finished.set_reason(v1::FINISH_REASON_STOP_SEQUENCE);
    finished.set_stop("END");
    finished.mutable_usage()->set_prompt_tokens(2);
    finished.mutable_usage()->set_completion_tokens(3);
    finished.mutable_usage()->set_reasoning_tokens(3);
    finished.mutable_timings()->set_ttft_ms(0.5);
  }
  return events;
}

// The first fault of the events and their end; "": none.
std::string FaultOf(const std::vector<v1::GenerateResponse>& events,
                    const v1::GenerateRequest& request = Asked()) {
  EventCheck check(request, kStartedBytes);
  for (const v1::GenerateResponse& event : events) {
    if (std::string fault = check.FaultOf(event); !fault.empty()) return fault;
  }
  return check.FaultOfEnd();
}

TEST(EventCheck, AWholeAnswerHasNoFault) { EXPECT_EQ(FaultOf(Good()), ""); }

TEST(EventCheck, AnAnswerOfNothingAskedForHasNoFault) {
  v1::GenerateRequest request;
  request.set_text("t");
  std::vector<v1::GenerateResponse> events(3);
  events[0].mutable_started()->set_model("m");
  events[1].mutable_delta()->set_text("\xE2\x96\x81");  // goes on with the prompt's last character
  events[2].mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(FaultOf(events, request), "");
}

TEST(EventCheck, PartsOfAStartedAreOne) {
  std::vector<v1::GenerateResponse> events = Good();
  v1::GenerateResponse part = events[0];
  part.mutable_started()->set_more(true);
  part.mutable_started()->clear_prompt();
  events[0].mutable_started()->clear_prompt_logprobs();
  events.insert(events.begin(), part);
  EXPECT_EQ(FaultOf(events), "");
  events[0].mutable_started()->set_seed(8);
  EXPECT_EQ(FaultOf(events), "parts of a Started that differ");
  EXPECT_EQ(FaultOf({part, events[2]}), "an event before the end of Started");
  EXPECT_EQ(FaultOf(std::vector(9, part)), "2 logprobs of the prompt, the range is [0, 1]");
  part.mutable_started()->clear_prompt_logprobs();
  EXPECT_EQ(FaultOf(std::vector(9, part)), "a part of a Started that says nothing");
  part.mutable_started()->set_prompt_tokens(1 << 20);
  for (int i = 0; i < 1000; ++i) AddScored(part.mutable_started()->mutable_prompt_logprobs());
  EXPECT_NE(FaultOf({part}).find("bytes of Started, the range is [0, 10000]"), std::string::npos);
}

TEST(EventCheck, EventsKeepTheirOrder) {
  const std::vector<v1::GenerateResponse> good = Good();
  EXPECT_EQ(FaultOf({}), "an end without the Finished of choice 0");
  EXPECT_EQ(FaultOf({good[0], good[1], good[3]}), "an end without the Finished of choice 1");
  EXPECT_EQ(FaultOf({good[1]}), "an event before the end of Started");
  EXPECT_EQ(FaultOf({good[3]}), "an event before the end of Started");
  EXPECT_EQ(FaultOf({good[0], good[0]}), "a second Started");
  EXPECT_EQ(FaultOf({good[0], good[3], good[3]}), "an event behind the Finished of its choice");
  EXPECT_EQ(FaultOf({good[0], good[3], good[1]}), "an event behind the Finished of its choice");
  EXPECT_EQ(FaultOf({good[0], {}}), "an event that is none");
}

TEST(EventCheck, NothingTakesMoreThanItsRoom) {
  using Change = std::function<void(v1::GenerateResponse*)>;
  const auto fault_of = [](size_t event, const Change& change) {
    std::vector<v1::GenerateResponse> events = Good();
    change(&events[event]);
    return FaultOf(events);
  };
  const auto started = [&](const std::function<void(v1::Started*)>& change) {
    return fault_of(0, [&](v1::GenerateResponse* event) { change(event->mutable_started()); });
  };
  const auto delta = [&](const std::function<void(v1::Delta*)>& change) {
    return fault_of(1, [&](v1::GenerateResponse* event) { change(event->mutable_delta()); });
  };
  const auto finished = [&](const std::function<void(v1::Finished*)>& change) {
    return fault_of(3, [&](v1::GenerateResponse* event) { change(event->mutable_finished()); });
  };
  const int64_t huge = std::numeric_limits<int64_t>::max();
  const float none = std::nanf("");
  const std::vector<std::string> faults = {
      started([](auto* s) { s->clear_model(); }),
      started([](auto* s) { s->set_model(std::string(2000, 'm')); }),
      started([](auto* s) { s->set_prompt_tokens(-1); }),
      started([&](auto* s) { s->set_prompt_tokens(huge); }),
      started([](auto* s) { s->set_cached_tokens(-1); }),
      started([](auto* s) { s->set_cached_tokens(3); }),
      started([](auto* s) { s->add_unenforced(std::string(5000, 'u')); }),
      started([](auto* s) { s->add_prompt(); }),
      started([](auto* s) { s->clear_prompt(); }),
      started([](auto* s) { s->mutable_prompt(0)->set_token_id(-1); }),
      started([](auto* s) { AddScored(s->mutable_prompt_logprobs()); }),
      started([](auto* s) { s->mutable_prompt_logprobs(0)->add_top(); }),
      started([&](auto* s) { s->mutable_prompt_logprobs(0)->set_logprob(none); }),
      delta([](auto* d) { d->set_choice(2); }),
      delta([](auto* d) { d->set_choice(-1); }),
      delta([](auto* d) { d->set_choice(std::numeric_limits<int32_t>::min()); }),
      delta([](auto* d) { d->set_completion_tokens(-2); }),
      delta([&](auto* d) { d->set_completion_tokens(-huge); }),
      delta([&](auto* d) { d->set_completion_tokens(huge); }),
      delta([](auto* d) { d->set_completion_tokens(3); }),  // not as many ids
      delta([](auto* d) { d->set_token_ids(0, -1); }),
      delta([](auto* d) { d->add_token_ids(1); }),
      delta([](auto* d) { AddScored(d->mutable_logprobs()); }),
      delta([](auto* d) { d->mutable_logprobs()->RemoveLast(); }),
      delta([](auto* d) { d->mutable_logprobs(1)->add_top(); }),
      delta([](auto* d) { d->mutable_logprobs(1)->set_rank(-1); }),
      delta([](auto* d) { d->mutable_logprobs(1)->set_token_id(-1); }),
      delta([](auto* d) { d->mutable_logprobs(1)->set_token_bytes(std::string(10'000, 'b')); }),
      delta([&](auto* d) { d->mutable_logprobs(1)->mutable_top(0)->set_logprob(none); }),
      delta([](auto* d) { d->mutable_logprobs(1)->mutable_top(0)->set_logprob(INFINITY); }),
      delta([](auto* d) { d->set_text(std::string(60'000, 'x')); }),
      delta([](auto* d) { d->set_reasoning(std::string(60'000, 'x')); }),
      delta([](auto* d) { d->set_tool_calls_at(-1); }),
      delta([](auto* d) { d->set_tool_calls_at(5); }),
      delta([](auto* d) { d->set_tool_calls_at(2); }),  // within a character
      delta([](auto* d) { d->mutable_marks(0)->set_at(5); }),
      delta([](auto* d) { d->mutable_marks(0)->set_at(-1); }),
      delta([](auto* d) { d->mutable_marks(0)->set_at(2); }),
      delta([](auto* d) { d->mutable_marks(0)->set_kind(static_cast<v1::MarkKind>(7)); }),
      delta([](auto* d) { *d->add_marks() = d->marks(0), d->mutable_marks(1)->set_at(0); }),
      delta([](auto* d) {
        for (int i = 0; i < 2; ++i) *d->add_marks() = d->marks(0);
      }),
      finished([](auto* f) { f->set_choice(2); }),
      finished([](auto* f) { f->clear_reason(); }),
      finished([](auto* f) { f->set_reason(static_cast<v1::FinishReason>(77)); }),
      finished([](auto* f) { f->set_reason(v1::FINISH_REASON_CANCELLED); }),  // and yet the end is a good one
      finished([](auto* f) { f->set_stop("nobody asked"); }),
      finished([](auto* f) { f->set_stop_token_id(-1); }),
      finished([](auto* f) { f->set_error_code(99); }),
      finished([](auto* f) { f->set_error_code(-1); }),
      finished([](auto* f) { f->mutable_usage()->set_prompt_tokens(3); }),
      finished([](auto* f) { f->mutable_usage()->set_completion_tokens(1); }),
      finished([](auto* f) { f->mutable_usage()->set_completion_tokens(6); }),
      finished([](auto* f) { f->mutable_usage()->set_reasoning_tokens(4); }),
      finished([](auto* f) { f->mutable_usage()->set_preemptions(-1); }),
      finished([&](auto* f) { f->mutable_usage()->set_discarded_tokens(huge); }),
      finished([](auto* f) { f->mutable_timings()->set_ttft_ms(std::nan("")); }),
      finished([](auto* f) { f->mutable_timings()->set_hold_ms(INFINITY); }),
      finished([](auto* f) { f->mutable_timings()->set_finished_us(-1); }),
  };
  for (size_t i = 0; i < faults.size(); ++i) EXPECT_NE(faults[i], "") << i;
}

TEST(EventCheck, WhatNobodyAskedForIsAFault) {
  v1::GenerateRequest request = Asked();
  request.mutable_output()->set_text(false);
  EXPECT_EQ(FaultOf(Good(), request), "text that nobody asked for");
  request = Asked();
  request.mutable_output()->set_token_ids(false);
  EXPECT_EQ(FaultOf(Good(), request), "2 ids of 0 tokens");
  request = Asked();
  request.mutable_output()->clear_logprobs();
  EXPECT_EQ(FaultOf(Good(), request), "2 logprobs of 0 tokens");
  request = Asked();
  request.mutable_output()->clear_prompt_logprobs();
  EXPECT_EQ(FaultOf(Good(), request), "1 logprobs of the prompt, the range is [0, 0]");
}

TEST(EventCheck, TextGrowsWithItsTokensAndNothingGoesOnForNothing) {
  v1::GenerateRequest request;
  request.set_text("t");
  EventCheck check(request, 0);
  v1::GenerateResponse started, delta;
  started.mutable_started()->set_model("m");
  EXPECT_EQ(check.FaultOf(started), "");
  for (int i = 0; i < 8; ++i) {
    delta.mutable_delta()->Clear();
    EXPECT_EQ(check.FaultOf(delta), "") << "a few are the ends of texts that nobody wants";
  }
  EXPECT_EQ(check.FaultOf(delta), "Deltas that say nothing");

  EventCheck again(request, 0);
  EXPECT_EQ(again.FaultOf(started), "");
  std::string fault;
  for (int i = 0; fault.empty() && i < 100; ++i) {
    delta.mutable_delta()->set_text(std::string(1000, 'x'));
    fault = again.FaultOf(delta);
  }
  EXPECT_EQ(fault, "9000 bytes of text of 0 tokens");
}

// ---- unary calls --------------------------------------------------------------------------------

TEST(AnswerFault, OfATokenizeIsTooMuchOrTooLittleOfAnything) {
  v1::TokenizeRequest request;
  request.set_text("hi");
  request.set_pieces(true);
  v1::TokenizeResponse answer;
  answer.add_token_ids(7);
  EXPECT_EQ(AnswerFault(request, answer), "0 pieces of 1 tokens");
  answer.add_pieces("hi");
  EXPECT_EQ(AnswerFault(request, answer), "");
  answer.set_pieces(0, std::string(10'000, 'x'));
  EXPECT_NE(AnswerFault(request, answer), "");
  answer.set_pieces(0, "hi");
  request.set_pieces(false);
  EXPECT_EQ(AnswerFault(request, answer), "1 pieces of 1 tokens");
  answer.clear_pieces();
  answer.set_token_ids(0, -7);
  EXPECT_EQ(AnswerFault(request, answer), "token_ids holds -7");
  answer.mutable_token_ids()->Resize(70'000, 7);
  answer.set_token_ids(0, 7);
  EXPECT_EQ(AnswerFault(request, answer), "70000 tokens of an input of 6 bytes");
  EXPECT_LT(MostAnswerBytes(request), 2 << 20);
}

TEST(AnswerFault, OfTextsIsMoreThanTheirTokensAre) {
  v1::DetokenizeRequest request;
  request.add_token_ids(1);
  v1::DetokenizeResponse answer;
  answer.set_text("hello");
  EXPECT_EQ(AnswerFault(request, answer), "");
  answer.set_text(std::string(10'000, 'x'));
  EXPECT_EQ(AnswerFault(request, answer), "a text of 10000 bytes is that of 1 tokens");
  v1::RenderChatResponse rendered;
  rendered.set_text("no tokens");
  EXPECT_NE(AnswerFault(v1::RenderChatRequest(), rendered), "");
  rendered.add_token_ids(1);
  EXPECT_EQ(AnswerFault(v1::RenderChatRequest(), rendered), "");
  rendered.add_token_ids(-1);
  EXPECT_NE(AnswerFault(v1::RenderChatRequest(), rendered), "");
}

TEST(AnswerFault, OfAModelIsALackOfNamesOrNumbers) {
  v1::GetModelResponse good;
  good.set_name("m");
  good.add_names("m");
  good.set_context(10);
  good.set_vocab_size(20);
  good.set_default_top_k(-1);
  EXPECT_EQ(AnswerFault(v1::GetModelRequest(), good), "");
  const auto fault = [&good](const std::function<void(v1::GetModelResponse*)>& change) {
    v1::GetModelResponse answer = good;
    change(&answer);
    return AnswerFault(v1::GetModelRequest(), answer);
  };
  EXPECT_NE(fault([](auto* model) { model->clear_name(); }), "");
  EXPECT_NE(fault([](auto* model) { model->clear_names(); }), "");
  EXPECT_NE(fault([](auto* model) { model->add_names(""); }), "");
  EXPECT_NE(fault([](auto* model) { model->set_names(0, std::string(2000, 'n')); }), "");
  EXPECT_NE(fault([](auto* model) {
              for (int i = 0; i < 2000; ++i) model->add_names("n");
            }),
            "");
  EXPECT_NE(fault([](auto* model) { model->set_context(-5); }), "");
  EXPECT_NE(fault([](auto* model) { model->clear_vocab_size(); }), "");
  EXPECT_EQ(fault([](auto* model) { model->add_eos_token_ids(-2); }), "eos_token_ids is -2");
  EXPECT_EQ(fault([](auto* model) { model->add_windows()->set_window(-3); }), "windows.window is -3");
  EXPECT_EQ(fault([](auto* model) { model->set_default_top_p(NAN); }), "default_top_p is nan");
}

TEST(AnswerFault, OfSessionsAndLoadsIsANumberBelowNothing) {
  v1::ListSessionsResponse list;
  list.add_sessions()->set_name("s");
  EXPECT_EQ(AnswerFault(v1::ListSessionsRequest(), list), "");
  list.mutable_sessions(0)->set_created_s(-5);
  EXPECT_EQ(AnswerFault(v1::ListSessionsRequest(), list), "created_s is -5");
  list.mutable_sessions(0)->Clear();
  EXPECT_EQ(AnswerFault(v1::ListSessionsRequest(), list), "a name has 0 bytes");

  v1::SaveSessionRequest save;
  save.set_name("s");
  v1::SaveSessionResponse saved;
  EXPECT_EQ(AnswerFault(save, saved), "the answer is of another session");
  saved.mutable_session()->set_name("s");
  EXPECT_EQ(AnswerFault(save, saved), "");
  saved.set_bytes(-3);
  EXPECT_EQ(AnswerFault(save, saved), "bytes is -3");
  EXPECT_EQ(AnswerFault(v1::RestoreSessionRequest(), v1::RestoreSessionResponse()), "");
  EXPECT_EQ(AnswerFault(v1::DeleteSessionRequest(), v1::DeleteSessionResponse()), "");

  v1::GetLoadResponse load;
  load.set_open_streams(std::numeric_limits<int64_t>::max());
  EXPECT_NE(AnswerFault(v1::GetLoadRequest(), load), "");
  load.set_open_streams(-1);
  EXPECT_EQ(AnswerFault(v1::GetLoadRequest(), load), "open_streams is -1");
}

}  // namespace
}  // namespace tramontane
