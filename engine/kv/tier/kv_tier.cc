#include "engine/kv/tier/kv_tier.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

KvTier::KvTier(Options options)
    : page_bytes_(options.page_bytes),
      host_pages_(options.host_pages),
      disk_pages_(options.disk == nullptr ? 0 : options.disk->places()),
      host_(std::move(options.host)),
      copy_ns_(options.copy_ns),
      warn_(std::move(options.warn)),
      has_disk_(options.disk != nullptr),
      disk_works_(has_disk_),
      entries_(static_cast<size_t>(host_pages_ + disk_pages_)),
      disk_(std::move(options.disk)) {
  TM_CHECK(host_pages_ > 0, "a tier of %lld pages on the host", static_cast<long long>(host_pages_));
  const auto fill = [](std::vector<int32_t>* places, int64_t count) {
    places->reserve(static_cast<size_t>(count));
    for (int64_t place = count - 1; place >= 0; --place) places->push_back(static_cast<int32_t>(place));
  };
  fill(&free_host_, host_pages_);
  fill(&free_disk_, disk_pages_);
  fill(&free_, most_images());
}

void KvTier::set_wake(std::function<void()> wake) {
  if (has_disk_) disk_->set_wake(std::move(wake));
}

// ---- images -------------------------------------------------------------------------------------

KvTier::Image KvTier::Add(Name name, Goes goes, std::vector<Name>* lost) {
  const int32_t place = TakePlace(kHost, goes, lost);
  if (place == kNowhere) return kNone;
  const Image image = free_.back();  // there is one for each place
  free_.pop_back();
  Entry& added = entry(image);
  const bool is_queued = added.is_queued;  // of who had it before
  added = {
      .name = name, .goes = goes, .batch = batch_, .arrives = true, .is_queued = is_queued, .is_known = true};
  added.places[kHost] = place;
  Link(image, kHost);
  if (disk_works_ && !is_queued) {
    unwritten_.push_back(image);
    added.is_queued = true;
  }
  return image;
}

void KvTier::Remove(Image image) {
  Entry& removed = entry(image);
  removed.is_known = false;
  for (const Level level : {kHost, kDisk}) {
    if (removed.places[level] != kNowhere) Unlink(image, level);
  }
  if (is_busy(removed)) {
    left_.push_back(image);
  } else {
    Free(image);
  }
}

KvTier::Place KvTier::place(Image image) const {
  const Entry& at = entry(image);
  if (at.job == Job::kRead || (at.arrives && is_moving(at))) return Place::kComing;
  return at.places[kHost] != kNowhere ? Place::kHere : Place::kOnDisk;
}

std::byte* KvTier::bytes(Image image) { return host_.get() + entry(image).places[kHost] * page_bytes_; }

void KvTier::Touch(Image image) {
  const Entry& wanted = entry(image);
  for (const Level level : {kHost, kDisk}) {
    if (level == kHost ? wanted.places[kHost] == kNowhere : !wanted.on_disk) continue;
    Unlink(image, level);
    Link(image, level);
  }
}

void KvTier::GoInTurn(Image image) {
  Entry& kept = entry(image);
  for (const Level level : {kHost, kDisk}) {
    if (kept.places[level] != kNowhere) Unlink(image, level);
  }
  kept.goes = Goes::kInTurn;
  if (kept.places[kHost] != kNowhere) Link(image, kHost);
  if (kept.on_disk) Link(image, kDisk);
}

void KvTier::Use(Image image) {
  TM_CHECK(place(image) == Place::kHere, "image %d is not on the host", image);
  Touch(image);
  entry(image).batch = batch_;
  entry(image).arrives = false;
}

bool KvTier::Read(Image image, std::vector<Name>* lost) {
  Entry& read = entry(image);
  TM_CHECK(place(image) == Place::kOnDisk && disk_works_, "image %d is on no disk", image);
  read.job = Job::kRead;  // so that it is not the one that goes
  const int32_t place = TakePlace(kHost, read.goes, lost);
  if (place == kNowhere) {
    read.job = Job::kNothing;
    return false;
  }
  read.places[kHost] = place;
  Link(image, kHost);
  Touch(image);
  ++reads_;
  disk_->Ask({.reads = true, .place = read.places[kDisk], .image = bytes(image), .tag = image});
  return true;
}

// Those that are busy were used last: where so many of the oldest are, all that is here may be.
constexpr int32_t kMostLooks = 64;

// A free place, or that of the image used longest ago: where another level has it, it stays there, else it is
// lost. What goes last makes room for nothing else.
int32_t KvTier::TakePlace(Level level, Goes goes, std::vector<Name>* lost) {
  std::vector<int32_t>& places = free_places(level);
  for (int32_t order = 0; places.empty() && order <= static_cast<int32_t>(goes); ++order) {
    Image image = ends(level, static_cast<Goes>(order)).oldest;
    int32_t looks = 0;
    while (image != kNone && is_busy(entry(image)) && ++looks < kMostLooks) image = entry(image).newer[level];
    if (image == kNone || is_busy(entry(image))) continue;
    const Entry& oldest = entry(image);
    const bool stays = level == kHost ? oldest.on_disk : oldest.places[kHost] != kNowhere;
    if (stays) {
      Unlink(image, level);
      LeaveLevel(image, level);
    } else {
      Lose(image, lost);
    }
  }
  if (places.empty()) return kNowhere;
  const int32_t place = places.back();
  places.pop_back();
  return place;
}

void KvTier::LeaveLevel(Image image, Level level) {
  Entry& left = entry(image);
  free_places(level).push_back(std::exchange(left.places[level], kNowhere));
  if (level == kDisk) left.on_disk = false;
}

void KvTier::Lose(Image image, std::vector<Name>* lost) {
  lost->push_back(entry(image).name);
  Remove(image);
}

// REQUIRES: it has no name, and is not busy.
void KvTier::Free(Image image) {
  for (const Level level : {kHost, kDisk}) {
    if (entry(image).places[level] != kNowhere) LeaveLevel(image, level);
  }
  free_.push_back(image);
}

void KvTier::FreeLeft() {
  std::erase_if(left_, [this](Image image) {
    if (is_busy(entry(image))) return false;
    Free(image);
    return true;
  });
}

void KvTier::BatchDone(int64_t batch) {
  done_batch_ = std::max(done_batch_, batch);
  if (!left_.empty()) FreeLeft();
}

// ---- the disk -----------------------------------------------------------------------------------

bool KvTier::Poll(std::vector<Name>* lost) {
  if (!has_disk_) return false;
  bool has_read = false;
  std::string fault;
  while (KvDisk::Done* done = disk_->Front()) {
    has_read = has_read || done->job.reads;
    EndJob(*done, lost, &fault);
    disk_->Pop();
  }
  if (!fault.empty()) TurnDiskOff(fault, lost);
  if (!left_.empty()) FreeLeft();
  if (disk_works_) WriteBehind(lost);
  return has_read;
}

void KvTier::EndJob(const KvDisk::Done& done, std::vector<Name>* lost, std::string* fault) {
  const Image image = done.job.tag;
  Entry& ended = entry(image);
  --(done.job.reads ? reads_ : writes_);
  ended.job = Job::kNothing;
  if (!done.fault.empty() || !disk_works_) {
    if (fault->empty()) *fault = done.fault;
    // Of one that was read there are no bytes anywhere; one that was written is still on the host.
    if (ended.is_known && done.job.reads) {
      Lose(image, lost);
    } else if (ended.is_known) {
      LeaveLevel(image, kDisk);
    }
    return;
  }
  if (done.job.reads) {
    constexpr double kOfTheLast = 0.1;
    const auto ns = static_cast<double>(done.ns);
    read_ns_ = read_ns_ == 0 ? ns : read_ns_ + kOfTheLast * (ns - read_ns_);
  } else if (ended.is_known) {
    ended.on_disk = true;
    Link(image, kDisk);
  }
}

// Those first that are next to leave the host. Reads are waited for, writes are not: none is asked for beside
// them.
void KvTier::WriteBehind(std::vector<Name>* lost) {
  while (!unwritten_.empty() && reads_ == 0 && writes_ < std::min(kMostWrites, (host_pages_ + 1) / 2)) {
    const Image image = unwritten_.front();
    const bool wants_it = entry(image).is_known && entry(image).places[kHost] != kNowhere &&
                          !entry(image).on_disk && entry(image).job == Job::kNothing;
    if (wants_it && entry(image).arrives && is_moving(entry(image))) return;  // with those behind it
    unwritten_.pop_front();
    entry(image).is_queued = false;
    if (!wants_it) continue;
    entry(image).job = Job::kWrite;  // so that it is not the one that goes
    const int32_t place = TakePlace(kDisk, entry(image).goes, lost);
    if (place == kNowhere) {
      entry(image).job = Job::kNothing;
      continue;
    }
    entry(image).places[kDisk] = place;
    ++writes_;
    disk_->Ask({.reads = false, .place = place, .image = bytes(image), .tag = image});
  }
}

// Jobs that were asked for come back, and change nothing any more.
void KvTier::TurnDiskOff(const std::string& fault, std::vector<Name>* lost) {
  if (!std::exchange(disk_works_, false)) return;
  unwritten_.clear();
  for (Image image = 0; image < static_cast<Image>(entries_.size()); ++image) {
    Entry& at = entry(image);
    at.is_queued = false;
    if (!at.is_known || at.job == Job::kWrite || at.places[kDisk] == kNowhere) continue;
    if (at.job == Job::kRead || at.places[kHost] == kNowhere) {
      Lose(image, lost);
    } else {
      Unlink(image, kDisk);
      LeaveLevel(image, kDisk);
    }
  }
  if (warn_) warn_("disk_kv is not used any more: " + fault);
}

// ---- lists --------------------------------------------------------------------------------------

// As the newest. On the disk an image is linked once it is whole there.
void KvTier::Link(Image image, Level level) {
  Entry& linked = entry(image);
  Ends& list = ends(level, linked.goes);
  linked.older[level] = list.newest;
  linked.newer[level] = kNone;
  (list.newest == kNone ? list.oldest : entry(list.newest).newer[level]) = image;
  list.newest = image;
}

void KvTier::Unlink(Image image, Level level) {
  const Entry& left = entry(image);
  if (level == kDisk && !left.on_disk) return;
  Ends& list = ends(level, left.goes);
  (left.older[level] == kNone ? list.oldest : entry(left.older[level]).newer[level]) = left.newer[level];
  (left.newer[level] == kNone ? list.newest : entry(left.newer[level]).older[level]) = left.older[level];
}

void KvTier::Count(std::span<Contents> contents) const {
  for (const Entry& at : entries_) {
    if (!at.is_known) continue;
    Contents& of_group = contents[static_cast<size_t>(at.name.group)];
    if (at.places[kHost] != kNowhere) ++of_group.host_images;
    if (at.on_disk) ++of_group.disk_images;
    if (is_busy(at)) ++of_group.moving_images;
  }
}

void KvTier::CheckAccounting() const {
  std::array<int64_t, kLevels> taken = {};
  int64_t known = 0;
  for (const Entry& at : entries_) {
    TM_CHECK(!at.is_known || at.places[kHost] != kNowhere || at.places[kDisk] != kNowhere,
             "an image of block %d is nowhere", at.name.block);
    known += at.is_known ? 1 : 0;
    for (const Level level : {kHost, kDisk}) taken[level] += at.places[level] != kNowhere ? 1 : 0;
  }
  TM_CHECK(taken[kHost] + std::ssize(free_host_) == host_pages_ &&
               taken[kDisk] + std::ssize(free_disk_) == disk_pages_,
           "%lld places on the host and %lld on the disk are an image's, which are not the others than the "
           "free ones",
           static_cast<long long>(taken[kHost]), static_cast<long long>(taken[kDisk]));
  TM_CHECK(known + std::ssize(left_) + std::ssize(free_) == most_images(), "%lld images are in no state",
           static_cast<long long>(most_images() - known - std::ssize(left_) - std::ssize(free_)));
  std::array<int64_t, kLevels> linked = {};
  for (const Level level : {kHost, kDisk}) {
    for (const Ends& list : ends_[level]) {
      Image older = kNone;
      for (Image image = list.oldest; image != kNone; image = entry(image).newer[level]) {
        TM_CHECK(entry(image).older[level] == older && entry(image).is_known,
                 "image %d does not know the one in front of it, or has no name", image);
        older = image;
        ++linked[level];
      }
      TM_CHECK(list.newest == older, "image %d is not the newest", list.newest);
    }
  }
  int64_t on_host = 0;
  for (const Entry& at : entries_) on_host += at.is_known && at.places[kHost] != kNowhere ? 1 : 0;
  TM_CHECK(linked[kHost] == on_host, "%lld images are on the host, and %lld in its lists",
           static_cast<long long>(on_host), static_cast<long long>(linked[kHost]));
}

}  // namespace tramontane
