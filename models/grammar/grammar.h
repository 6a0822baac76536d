// Grammar: what the text of an output must be, compiled for one vocabulary; GrammarMatcher: how far one
// output has come in it.
//
// A Grammar does not change: any thread. A GrammarMatcher belongs to one choice: one thread at a time.
// Neither throws. Always: what a matcher accepted is the beginning of a text of its grammar, and eos is among
// the allowed tokens exactly where that text is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "kernels/core/status.h"

namespace tramontane {

// Words of a mask over `vocab_size` tokens.
constexpr size_t MaskWords(int32_t vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }

inline bool MaskAllows(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
}

// What work on a grammar may cost, and what it has cost. Time is that of the processor, so that a busy
// machine ends nobody's text.
struct GrammarWork {
  int64_t most_ns = std::numeric_limits<int64_t>::max();
  std::function<bool()> wanted =
      {};                // asked from time to time; false: nobody waits any more. Empty: always wanted
  int64_t spent_ns = 0;  // each piece of work adds what it took
  bool stopped = false;  // it was cut off, for one of the two reasons
};

class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Any token may come next: no mask is needed.
  virtual bool IsFree() const { return false; }
  // Of a free matcher: goes on with `token` where it stays free behind it, in the time of a comparison and
  // without a lock. False: nothing has changed, and Accept has to be called.
  virtual bool StayFree(int32_t /*token*/) { return false; }

  // What comes next needs a grammar that is still to be compiled. Then Prepare is called before anything
  // else; it takes as long as a compiler may. Not OK: there is none, and the matcher is of no use any more.
  virtual bool IsUnprepared() const { return false; }
  virtual Status Prepare(const std::function<bool()>& /*wanted*/) { return {}; }

  // Sets bit t exactly if token t may come next. All clear: nothing may. mask: [MaskWords(vocab_size)]
  // What is stopped allows nothing, and never will again.
  virtual void FillMask(std::span<uint32_t> mask, GrammarWork& work) = 0;
  void FillMask(std::span<uint32_t> mask) {
    GrammarWork unbounded;
    FillMask(mask, unbounded);
  }

  // The output goes on with `token`. False: it may not, and nothing has changed; or the work was stopped.
  virtual bool Accept(int32_t token, GrammarWork& work) = 0;
  bool Accept(int32_t token) {
    GrammarWork unbounded;
    return Accept(token, unbounded);
  }

  // One that has come as far, and goes on by itself: what may yet be taken back is tried on it. Null: there
  // is none. REQUIRES: !IsUnprepared().
  virtual std::unique_ptr<GrammarMatcher> Copy() const { return nullptr; }
};

// A matcher within another, copied with it. May be null.
class InnerMatcher {
 public:
  InnerMatcher(std::nullptr_t = nullptr) {}              // NOLINT(google-explicit-constructor)
  InnerMatcher(std::unique_ptr<GrammarMatcher> matcher)  // NOLINT(google-explicit-constructor)
      : matcher_(std::move(matcher)) {}
  InnerMatcher(const InnerMatcher& other)
      : matcher_(other.matcher_ == nullptr ? nullptr : other.matcher_->Copy()) {}
  InnerMatcher(InnerMatcher&&) = default;
  InnerMatcher& operator=(InnerMatcher&&) = default;

  GrammarMatcher* operator->() const { return matcher_.get(); }
  bool operator==(std::nullptr_t) const { return matcher_ == nullptr; }

 private:
  std::unique_ptr<GrammarMatcher> matcher_;
};

// Where the text of an output starts: at the start of a message the space that encoders put in front of its
// first word is no part of it (tokenizer.h, MessageBytes).
enum class TextStart { kOfMessage, kWithinMessage };

class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const = 0;
  virtual int64_t memory_bytes() const = 0;
};

}  // namespace tramontane
