#include "server/core/candidate_scores.h"

#include <numeric>

namespace tramontane {

void CandidateScores::Note(const v1::GenerateResponse& event) {
  if (event.has_finished()) *answer.mutable_usage() = event.finished().usage();
  if (!event.has_started()) return;
  const v1::Started& started = event.started();
  *answer.mutable_ignored() = started.ignored();
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (started.prompt_logprobs_size() != tokens) return;
  answer.set_request_id(started.request_id());
  answer.set_model(started.model());
  answer.set_candidate_tokens(tokens);
  auto token = started.prompt_logprobs().begin();
  for (const int64_t length : lengths) {
    v1::CandidateScore* candidate = answer.add_candidates();
    double sum = 0;
    for (const auto end = token + length; token != end; ++token) {
      candidate->add_token_ids(token->token_id());
      candidate->add_logprobs(token->logprob());
      candidate->add_ranks(token->rank());
      sum += token->logprob();
    }
    candidate->set_logprob_sum(sum);
  }
}

}  // namespace tramontane
