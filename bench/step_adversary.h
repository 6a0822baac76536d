// The longest time that a step of the engine takes itself, with a model that takes none, while requests do
// the worst they can beside a stream: bursts, hang-ups in masses, texts of 128k tokens begun, ended, saved
// and restored, many candidates scored, and texts that come back from the disk.
#pragma once

namespace tramontane {

// Prints a row for each, or for that one of this name; returns 0.
int RunAdversary(const char* only = nullptr);

}  // namespace tramontane
