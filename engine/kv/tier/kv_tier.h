// KvTier: images of known pages beyond the pool, on the host and then on a disk: what the pool evicts can be
// brought back. Bounded in both; where a place is wanted and none is free, the image used longest ago goes to
// the disk, or away.
//
//   pool page --evicted--> host image --written behind--> disk image
//        ^-------brought in-----'   ^--------read-----------'
//
// It holds images and knows who they are by a name that it does not understand: a KvStore's, which also says
// which pages to copy (PageMove) and keeps them in order. An image whose copy may be under way is *busy*: its
// place is nobody else's until the copy is done, and an image that *arrives* cannot be brought in before.
//
// Whatever the disk does costs no more than the images on it: the first fault turns it off, with one warning.
//
// Engine thread only, but for the disk's own (KvDisk). Always: each place on the host is free or an image's,
// each place on the disk as well, and each image has one of either.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/kv/tier/kv_disk.h"

namespace tramontane {

class KvTier {
 public:
  using Image = int32_t;
  static constexpr Image kNone = -1;

  // A page's name in the store: a block of its tree, and a layer group.
  struct Name {
    int32_t block = 0;
    int32_t group = 0;
  };

  // Those that are Last are the only copy of what would take long to compute again.
  enum class Goes : int32_t { kInTurn = 0, kLast = 1 };

  using HostMemory = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;
  struct Options {
    int64_t page_bytes = 0;
    int64_t host_pages = 0;                  // at least 1
    HostMemory host;                         // [host_pages, page_bytes]
    std::unique_ptr<KvDisk> disk = nullptr;  // null: none
    double copy_ns = 0;  // of a page between pool and host, in either direction; 0: not known
    std::function<void(const std::string&)> warn = nullptr;
  };

  explicit KvTier(Options options);

  // Jobs that a disk behind so many pages of the host is asked for at once, at most.
  static size_t MostJobs(int64_t host_pages) { return static_cast<size_t>(host_pages); }
  // `wake` is called, on any thread, when the disk has done something.
  void set_wake(std::function<void()> wake);

  // ---- images -----------------------------------------------------------------------------------
  // Room on the host for a page that leaves the pool with moves of the current batch. The names of images
  // that are gone for it are appended to `lost`. kNone: there is no room that is not busy.
  Image Add(Name name, Goes goes, std::vector<Name>* lost);
  void Remove(Image image);

  enum class Place : int32_t {
    kHere,    // on the host: it can be brought in
    kComing,  // it arrives there from the pool, or is read from the disk
    kOnDisk,  // it can be read
  };
  Place place(Image image) const;
  std::byte* bytes(Image image);  // [page_bytes]. REQUIRES: it is on the host, or arrives there

  // It was wanted again.
  void Touch(Image image);
  // It goes as others do, from now on.
  void GoInTurn(Image image);
  // It is brought in by moves of the current batch. REQUIRES: kHere.
  void Use(Image image);
  // Asks the disk for it. False: there is no room on the host that is not busy. REQUIRES: kOnDisk.
  bool Read(Image image, std::vector<Name>* lost);

  // ---- batches of moves ---------------------------------------------------------------------------
  // The moves of the current batch were handed out; returns its number.
  int64_t CloseBatch() { return batch_++; }
  void BatchDone(int64_t batch);

  // ---- the disk ---------------------------------------------------------------------------------
  // Takes what the disk has done, and has it write what it may. Whether a read has ended.
  bool Poll(std::vector<Name>* lost);
  bool reads() const { return disk_works_ && reads_ > 0; }  // some are under way
  void TurnDiskOff(const std::string& fault, std::vector<Name>* lost);

  // ---- times ------------------------------------------------------------------------------------
  double copy_ns() const { return copy_ns_; }
  double read_ns() const { return read_ns_; }  // of a page from the disk, of late; 0: not known

  int64_t page_bytes() const { return page_bytes_; }
  int64_t host_pages() const { return host_pages_; }
  int64_t most_images() const { return static_cast<int64_t>(entries_.size()); }
  int64_t host_bytes() const { return (host_pages_ - std::ssize(free_host_)) * page_bytes_; }
  int64_t disk_bytes() const { return (disk_pages_ - std::ssize(free_disk_)) * page_bytes_; }
  // What is there of one layer group. An image that lies in both places counts in both.
  struct Contents {
    int64_t host_images = 0;
    int64_t disk_images = 0;    // whole
    int64_t moving_images = 0;  // in a copy from or to the pool or the disk
  };
  // [groups] in `contents`. Looks at every image.
  void Count(std::span<Contents> contents) const;
  int64_t disk_pages() const { return disk_pages_; }
  bool disk_works() const { return disk_works_; }

  // Aborts when an invariant is broken. Reads every image.
  void CheckAccounting() const;

 private:
  static constexpr int32_t kNowhere = -1;
  static constexpr int64_t kMostWrites = 16;  // asked for at once: a read waits behind no more

  enum class Job : int32_t { kNothing, kWrite, kRead };
  enum Level : int32_t { kHost = 0, kDisk = 1, kLevels = 2 };
  struct Entry {
    Name name;
    Goes goes = Goes::kInTurn;
    std::array<int32_t, kLevels> places = {kNowhere, kNowhere};
    std::array<Image, kLevels> older = {kNone, kNone};  // on each level, of those that go alike
    std::array<Image, kLevels> newer = {kNone, kNone};
    Job job = Job::kNothing;
    int64_t batch = 0;       // the last one that moves it
    bool arrives = false;    // with that batch
    bool on_disk = false;    // all of it
    bool is_queued = false;  // in unwritten_
    bool is_known = false;   // it has a name; else it is free, or goes once it is not busy
  };
  struct Ends {
    Image oldest = kNone;
    Image newest = kNone;
  };

  Entry& entry(Image image) { return entries_[static_cast<size_t>(image)]; }
  const Entry& entry(Image image) const { return entries_[static_cast<size_t>(image)]; }
  bool is_moving(const Entry& entry) const { return entry.batch > done_batch_; }
  bool is_busy(const Entry& entry) const { return entry.job != Job::kNothing || is_moving(entry); }

  int32_t TakePlace(Level level, Goes goes, std::vector<Name>* lost);
  void LeaveLevel(Image image, Level level);
  void Lose(Image image, std::vector<Name>* lost);
  void Free(Image image);
  void FreeLeft();
  void WriteBehind(std::vector<Name>* lost);
  void EndJob(const KvDisk::Done& done, std::vector<Name>* lost, std::string* fault);
  std::vector<int32_t>& free_places(Level level) { return level == kHost ? free_host_ : free_disk_; }
  Ends& ends(Level level, Goes goes) { return ends_[level][static_cast<size_t>(goes)]; }
  void Link(Image image, Level level);
  void Unlink(Image image, Level level);

  const int64_t page_bytes_;
  const int64_t host_pages_;
  const int64_t disk_pages_;
  const HostMemory host_;
  const double copy_ns_;
  const std::function<void(const std::string&)> warn_;
  const bool has_disk_;
  bool disk_works_;

  std::vector<Entry> entries_;  // [host_pages + disk_pages]
  std::vector<Image> free_;
  std::vector<int32_t> free_host_;
  std::vector<int32_t> free_disk_;
  std::array<std::array<Ends, 2>, kLevels> ends_;  // [levels, Goes]
  std::vector<Image> left_;                        // without a name, and busy
  std::deque<Image> unwritten_;                    // on the host alone, oldest first; each once
  int64_t batch_ = 1;                              // the current one
  int64_t done_batch_ = 0;
  int64_t writes_ = 0;  // asked for and not done
  int64_t reads_ = 0;
  double read_ns_ = 0;

  const std::unique_ptr<KvDisk> disk_;  // last: its thread is at images until it has ended
};

}  // namespace tramontane
