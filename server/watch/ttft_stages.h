// TtftStages: where the time to a request's first content went. One list of moments, each of them the end of
// a stage and the beginning of the next: so there are no gaps, and the stages sum to the whole.
//
// One thread at a time. Moments are nanoseconds on one clock, whichever that is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// In their order. docs/ttft.md says what counts where.
enum class TtftStage : size_t {
  kReceive,      // from the first byte: the whole request is there
  kParse,        // and is understood
  kTokenize,     // and is token ids, which the engine has
  kQueue,        // its first prefill step is planned
  kPrefillRun,   // as if its chunks had come first, one after the other
  kPrefillWait,  // and then all that was between them
  kSample,       // its first token is known
  kHold,         // there is something that may be shown
  kDeliver,      // and has been handed to the system
};

class TtftStages {
 public:
  static constexpr size_t kCount = 9;
  static const std::array<const char*, kCount>& Names();  // "receive", "parse", ...

  explicit TtftStages(int64_t begin_ns = 0) { moments_ns_[0] = begin_ns; }

  // The next stage ends at this moment; or at once, where the one before it has ended later. REQUIRES: the
  // stages before it have ended, and it has not.
  void End(TtftStage stage, int64_t at_ns);
  // The next stage took so long.
  void Take(TtftStage stage, int64_t ns);

  bool ended(TtftStage stage) const { return ended_ > static_cast<size_t>(stage); }
  int64_t begin_ns() const { return moments_ns_[0]; }
  // REQUIRES: it has ended.
  int64_t end_ns(TtftStage stage) const;
  int64_t ns(TtftStage stage) const;
  // From the beginning to the end of the last stage that has ended.
  int64_t total_ns() const { return moments_ns_[ended_] - moments_ns_[0]; }

  // Sets the stages that have ended; with the last, their sum.
  void ToProto(v1::Timings* proto) const;
  // What ToProto has made of a stage; 0 where it is absent.
  static double MsOf(const v1::Timings& proto, TtftStage stage);
  static int64_t NsOf(const v1::Timings& proto, TtftStage stage);

 private:
  std::array<int64_t, kCount + 1> moments_ns_{};
  size_t ended_ = 0;  // stages
};

// Something that whoever asked for an answer waits for: text, thoughts or token ids.
bool IsContent(const v1::GenerateResponse& event);

}  // namespace tramontane
