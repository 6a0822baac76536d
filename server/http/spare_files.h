// SpareFiles: open files that stand for nothing. Where the system has no more, because something else in the
// process has taken them, a connection still gets one of these. Any thread.
#pragma once

#include <mutex>
#include <vector>

namespace tramontane {

class SpareFiles {
 public:
  // As many of `count` as the system has.
  explicit SpareFiles(int count);
  ~SpareFiles();
  SpareFiles(const SpareFiles&) = delete;
  SpareFiles& operator=(const SpareFiles&) = delete;

  // Closes one, so that the next file that is opened finds its place. False: none is left.
  bool GiveOne();
  // Closes `file`, which is a spare from then on: nobody can take its place in between.
  void Take(int file);
  // Takes what is missing, where the system has it again.
  void Refill();

 private:
  void RefillLocked();

  const int count_;
  std::mutex mutex_;        // guards files_
  std::vector<int> files_;  // the first one stays: the others are copies of it
};

}  // namespace tramontane
