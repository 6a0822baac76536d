#include "server/core/score_question.h"

#include <mutex>
#include <utility>

#include "server/core/candidate_scores.h"
#include "server/core/served_call.h"

namespace tramontane {
namespace {

class ScoreQuestion : public std::enable_shared_from_this<ScoreQuestion> {
 public:
  ScoreQuestion(InferenceCore& core, const Caller& caller,
                std::shared_ptr<const v1::ScoreCandidatesRequest> request,
                InferenceClient::Done<google::protobuf::Message> done)
      : core_(core), served_(core, caller, {}), request_(std::move(request)), done_(std::move(done)) {}

  void Submit() {
    RpcError error = served_.Open();
    if (error.ok()) error = served_.Admit(*request_, OnReady(), &scores_.lengths);
    if (!error.ok()) return End(error);
    {
      std::lock_guard lock(mutex_);
      admitted_ = true;
      self_ = shared_from_this();
    }
    TakeTurn();
  }
  void End(const RpcError& outcome) {
    served_.End(outcome);
    done_(outcome, scores_.answer);
  }

 private:
  // The engine's thread must do no more than tell another; where that cannot take it now, it is done at once.
  std::function<void()> OnReady() {
    return [weak = weak_from_this()] {
      const std::shared_ptr<ScoreQuestion> self = weak.lock();
      if (self == nullptr) return;
      const auto turn = [self] { self->TakeTurn(); };
      const bool taken = self->core_.workers().TrySubmit(
          {.caller = self->served_.caller().identity, .bytes = 0, .run = turn, .give_way = turn});
      if (!taken) turn();
    };
  }

  void TakeTurn() {
    RpcError outcome;
    std::shared_ptr<ScoreQuestion> self;
    {
      std::lock_guard lock(mutex_);
      if (!admitted_ || self_ == nullptr) return;
      const InferenceEvents taken = served_.Take();
      for (const v1::GenerateResponse& event : taken.events) scores_.Note(event);
      if (!taken.done) return;
      outcome = taken.outcome;
      self = std::move(self_);
    }
    End(outcome);
  }

  InferenceCore& core_;
  ServedCall served_;
  const std::shared_ptr<const v1::ScoreCandidatesRequest> request_;
  const InferenceClient::Done<google::protobuf::Message> done_;

  std::mutex mutex_;  // guards what follows, and one Take against another
  bool admitted_ = false;
  std::shared_ptr<ScoreQuestion> self_;  // from its admission to its end: nobody else holds it
  CandidateScores scores_;
};

}  // namespace

void AskScores(InferenceCore& core, const Caller& caller,
               std::shared_ptr<const v1::ScoreCandidatesRequest> request,
               InferenceClient::Done<google::protobuf::Message> done) {
  const auto bytes = static_cast<int64_t>(request->ByteSizeLong());
  const auto question = std::make_shared<ScoreQuestion>(core, caller, std::move(request), std::move(done));
  core.RunUnary(
      UnaryThread::kWorker, bytes, caller, [question](const Serving&) { question->Submit(); },
      [question](const RpcError& refusal) { question->End(refusal); });
}

}  // namespace tramontane
