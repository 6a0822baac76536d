// WithinLengths: exactly where that stays small, by splitting a sequence at each length of its parts; else by
// bounding each part so that together they cannot be too long.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "models/grammar/regex_tree.h"

namespace tramontane {
namespace {

using MaybeRegex = std::optional<RegexNode>;

// Of an exact split: symbols with repetitions written out, and nodes looked at.
constexpr int64_t kMostSplitSymbols = 1024;
constexpr int64_t kMostSplitSteps = 100'000;

bool IsWithinLengths(const RegexLengths& lengths, int64_t least, int64_t most) {
  return lengths.least >= least &&
         (most == kUnbounded || (lengths.most != kUnbounded && lengths.most <= most));
}
bool IsApartFrom(const RegexLengths& lengths, int64_t least, int64_t most) {
  return (most != kUnbounded && lengths.least > most) || (lengths.most != kUnbounded && lengths.most < least);
}
bool IsFixed(const RegexLengths& lengths) { return lengths.least == lengths.most; }
int64_t Smaller(int64_t a, int64_t b) {  // of two that may be kUnbounded
  if (a == kUnbounded) return b;
  return b == kUnbounded ? a : std::min(a, b);
}

// Symbols with repetitions written out; a class of many characters is several.
int64_t SizeOf(const RegexNode& node) {
  constexpr int64_t kManyCharacters = 256;
  if (node.kind == RegexNode::Kind::kClass) return node.surely.count() < kManyCharacters ? 1 : 12;
  int64_t size = 0;
  for (const RegexNode& part : node.parts) size = std::min(kMostGrammarSize, size + SizeOf(part));
  if (node.kind != RegexNode::Kind::kRepeat) return size;
  const int64_t times = std::max<int64_t>({1, node.least, node.most});
  return size > kMostGrammarSize / times ? kMostGrammarSize : size * times;
}

int64_t NodesOf(const RegexNode& node) {
  int64_t nodes = 1;
  for (const RegexNode& part : node.parts) nodes += NodesOf(part);
  return nodes;
}

// Repetitions of what has one length.
MaybeRegex FixedRepeat(const RegexNode& node, int64_t length, int64_t least, int64_t most) {
  RegexNode result = node;
  result.least = std::max(node.least, (least + length - 1) / length);
  result.most = Smaller(node.most, most == kUnbounded ? kUnbounded : most / length);
  if (result.most != kUnbounded && result.most < result.least) return std::nullopt;
  return result;
}

RegexNode Tail(const RegexNode& sequence, size_t from) {
  return RegexSequence({sequence.parts.begin() + static_cast<int64_t>(from), sequence.parts.end()});
}

class ExactSplit {
 public:
  // None: no such text, or too much to write (then too_large()).
  MaybeRegex Of(const RegexNode& node, int64_t least, int64_t most) {
    least = std::max<int64_t>(0, least);
    steps_ += NodesOf(node);
    const RegexLengths lengths = LengthsOf(node);
    if (too_large() || IsApartFrom(lengths, least, most)) return std::nullopt;
    if (IsWithinLengths(lengths, least, most)) return Counted(node);
    switch (node.kind) {
      case RegexNode::Kind::kSequence:
        return Sequence(node, least, most);
      case RegexNode::Kind::kChoice: {
        std::vector<RegexNode> found;
        for (const RegexNode& part : node.parts) {
          if (MaybeRegex within = Of(part, least, most)) found.push_back(*std::move(within));
        }
        return found.empty() ? MaybeRegex() : RegexChoice(std::move(found));
      }
      default:
        return Repeat(node, least, most);
    }
  }
  bool too_large() const { return symbols_ > kMostSplitSymbols || steps_ > kMostSplitSteps; }

 private:
  MaybeRegex Counted(const RegexNode& node) {
    symbols_ += SizeOf(node);
    return node;
  }

  MaybeRegex Repeat(const RegexNode& node, int64_t least, int64_t most) {
    const RegexLengths lengths = LengthsOf(node.parts[0]);
    if (IsFixed(lengths)) {
      MaybeRegex fixed = FixedRepeat(node, lengths.least, least, most);
      return fixed ? Counted(*fixed) : fixed;
    }
    // Empty, or one and the others. (Of no length, one more would be the same again.)
    if (lengths.least == 0) {
      symbols_ = kMostSplitSymbols + 1;
      return std::nullopt;
    }
    RegexNode others = node;
    others.least = std::max<int64_t>(0, node.least - 1);
    others.most = node.most == kUnbounded ? kUnbounded : node.most - 1;
    std::vector<RegexNode> one_and_others = {node.parts[0]};
    if (others.most != 0) one_and_others.push_back(std::move(others));
    MaybeRegex found = Of(RegexSequence(std::move(one_and_others)), least, most);
    if (node.least > 0 || least > 0) return found;
    return found ? RegexRepeat(*std::move(found), 0, 1) : RegexSequence({});
  }

  MaybeRegex Sequence(const RegexNode& node, int64_t least, int64_t most) {
    const RegexNode& first = node.parts[0];
    const RegexNode rest = Tail(node, 1);
    const RegexLengths of_first = LengthsOf(first);
    const RegexLengths of_rest = LengthsOf(rest);
    const auto both = [&](int64_t first_least, int64_t first_most, int64_t rest_least,
                          int64_t rest_most) -> MaybeRegex {
      MaybeRegex here = Of(first, first_least, first_most);
      if (!here) return std::nullopt;
      MaybeRegex there = Of(rest, rest_least, rest_most);
      if (!there) return std::nullopt;
      return RegexSequence({*std::move(here), *std::move(there)});
    };
    const auto left = [&](int64_t taken) { return most == kUnbounded ? kUnbounded : most - taken; };
    if (IsFixed(of_first)) {
      return both(0, kUnbounded, least - of_first.least, left(of_first.least));
    }
    if (IsFixed(of_rest)) return both(least - of_rest.least, left(of_rest.least), 0, kUnbounded);
    std::vector<RegexNode> found;
    const int64_t longest = Smaller(of_first.most, left(of_rest.least));
    for (int64_t length = of_first.least; longest == kUnbounded || length <= longest; ++length) {
      if (too_large()) return std::nullopt;
      // As many lengths at once as leave the rest free.
      const bool free_below = length + of_rest.least >= least;
      const bool free_above =
          most == kUnbounded || (of_rest.most != kUnbounded && length + of_rest.most <= most);
      const bool at_once = free_below && free_above;
      int64_t last = length;
      if (at_once) last = most == kUnbounded ? longest : std::min(longest, most - of_rest.most);
      MaybeRegex some =
          at_once ? both(length, last, 0, kUnbounded) : both(length, length, least - length, left(length));
      if (some) found.push_back(*std::move(some));
      if (last == kUnbounded) break;
      length = last;
    }
    return found.empty() || too_large() ? MaybeRegex() : RegexChoice(std::move(found));
  }

  int64_t symbols_ = 0;
  int64_t steps_ = 0;
};

MaybeRegex Shortened(const RegexNode& node, int64_t least, int64_t most);

// How well a part makes up for texts that would be too short: repetitions of the least.
int64_t UnitOf(const RegexNode& node) {
  return node.kind == RegexNode::Kind::kRepeat ? LengthsOf(node.parts[0]).least : kMostGrammarSize;
}

// Each part gets its least; what `least` asks beyond that goes to the parts of the smallest units, and what
// is then left to those that have got the least of it.
MaybeRegex ShortenedSequence(const RegexNode& node, int64_t least, int64_t most) {
  struct Share {
    RegexLengths lengths;
    int64_t least = 0;
    int64_t most = 0;
    bool MayGrow() const { return lengths.most == kUnbounded || most < lengths.most; }
  };
  std::vector<Share> shares;
  std::vector<size_t> order;
  int64_t taken = 0;
  for (const RegexNode& part : node.parts) {
    const RegexLengths lengths = LengthsOf(part);
    order.push_back(shares.size());
    shares.push_back({lengths, lengths.least, lengths.least});
    taken += lengths.least;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return UnitOf(node.parts[a]) < UnitOf(node.parts[b]); });
  int64_t lacking = std::max<int64_t>(0, least - taken);
  int64_t left = most == kUnbounded ? 0 : most - taken - lacking;
  for (const size_t i : order) {
    Share& share = shares[i];
    const int64_t more =
        share.lengths.most == kUnbounded ? lacking : std::min(lacking, share.lengths.most - share.least);
    share.least += more;
    share.most += more;
    lacking -= more;
  }
  if (lacking > 0 || left < 0) return std::nullopt;
  for (; left > 0; --left) {
    Share* next = nullptr;
    for (Share& share : shares) {
      const bool is_less =
          next == nullptr || share.most - share.lengths.least < next->most - next->lengths.least;
      if (share.MayGrow() && is_less) next = &share;
    }
    if (next == nullptr) break;
    ++next->most;
  }
  std::vector<RegexNode> parts;
  for (size_t i = 0; i < shares.size(); ++i) {
    const Share& share = shares[i];
    MaybeRegex part = Shortened(node.parts[i], share.least, most == kUnbounded ? kUnbounded : share.most);
    if (!part) return std::nullopt;
    parts.push_back(*std::move(part));
  }
  return RegexSequence(std::move(parts));
}

// About as many as each may be long.
MaybeRegex ShortenedRepeat(const RegexNode& node, int64_t least, int64_t most) {
  const RegexLengths lengths = LengthsOf(node.parts[0]);
  RegexNode result = node;
  if (lengths.least > 0) result.least = std::max(node.least, (least + lengths.least - 1) / lengths.least);
  int64_t longest = kUnbounded;
  if (most != kUnbounded) {
    int64_t count = 1;
    while ((count + 1) * std::max(lengths.least, count + 1) <= most) ++count;
    count = std::max(Smaller(node.most, count), std::max<int64_t>(1, result.least));
    if (node.most != kUnbounded && count > node.most) return std::nullopt;
    result.most = count;
    longest = most / count;
    if (longest < lengths.least) return result.least == 0 ? MaybeRegex(RegexSequence({})) : std::nullopt;
  }
  const int64_t shortest = lengths.least == 0 && least > 0 ? least : 0;
  if (shortest > 0) {  // the first makes up for it
    result.least = std::max<int64_t>(1, node.least);
    if (most != kUnbounded) result.most = result.least;
    if (result.least > 1) return std::nullopt;
    longest = most;
  }
  MaybeRegex part = Shortened(node.parts[0], shortest, longest);
  if (!part) return std::nullopt;
  result.parts[0] = *std::move(part);
  return result;
}

MaybeRegex Shortened(const RegexNode& node, int64_t least, int64_t most) {
  const RegexLengths lengths = LengthsOf(node);
  if (IsApartFrom(lengths, least, most)) return std::nullopt;
  if (IsWithinLengths(lengths, least, most)) return node;
  if (node.kind == RegexNode::Kind::kSequence) return ShortenedSequence(node, least, most);
  if (node.kind == RegexNode::Kind::kChoice) {
    std::vector<RegexNode> found;
    for (const RegexNode& part : node.parts) {
      if (MaybeRegex within = Shortened(part, least, most)) found.push_back(*std::move(within));
    }
    return found.empty() ? MaybeRegex() : RegexChoice(std::move(found));
  }
  const RegexLengths of_part = LengthsOf(node.parts[0]);
  if (IsFixed(of_part)) return FixedRepeat(node, of_part.least, least, most);
  return ShortenedRepeat(node, least, most);
}

}  // namespace

std::optional<BoundedRegex> WithinLengths(const RegexNode& node, int64_t least, int64_t most) {
  if (IsWithinLengths(LengthsOf(node), least, most)) return BoundedRegex{node, true};
  ExactSplit split;
  MaybeRegex exact = split.Of(node, least, most);
  if (!split.too_large()) {
    if (!exact) return std::nullopt;
    return BoundedRegex{*std::move(exact), true};
  }
  MaybeRegex shortened = Shortened(node, least, most);
  if (!shortened) return std::nullopt;
  return BoundedRegex{*std::move(shortened), false};
}

}  // namespace tramontane
