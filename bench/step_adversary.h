// The longest time that a step of the engine takes itself, with a model that takes none, while requests do
// the worst they can beside a stream: bursts, hang-ups in masses, texts of 128k tokens begun, ended, saved
// and restored.
#pragma once

namespace tramontane {

// Prints a row for each; returns 0.
int RunAdversary();

}  // namespace tramontane
