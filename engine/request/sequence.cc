#include "engine/request/sequence.h"

namespace tramontane {

const char* SequenceStateName(SequenceState state) {
  switch (state) {
    case SequenceState::kWaiting:
      return "waiting";
    case SequenceState::kPrefill:
      return "prefill";
    case SequenceState::kDecode:
      return "decode";
    case SequenceState::kFinished:
      return "finished";
  }
  return "unknown";
}

}  // namespace tramontane
