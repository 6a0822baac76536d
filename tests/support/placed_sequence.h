// PlacedSequence: what the scheduler has of a sequence, written by a test that plans by hand.
#pragma once

#include "engine/request/sequence.h"

namespace tramontane {

struct PlacedSequence {
  static int32_t& SlotOf(Sequence& sequence) { return sequence.slot_; }
  static Lease& LeaseOf(Sequence& sequence) { return sequence.lease_; }
};

}  // namespace tramontane
