#include "bench/load/prompt.h"

#include <algorithm>

namespace tramontane::load {
namespace {

constexpr uint64_t kKeys = uint64_t{1} << 26;  // that are told apart for certain
constexpr uint64_t kNonces = uint64_t{1} << 26;

}  // namespace

std::vector<int32_t> PromptWriter::Ids(const ScheduledRequest& request) const {
  const PromptParts& parts = request.prompt;
  const int64_t wanted = request.plan.input_tokens;
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(wanted));
  const auto left = [&] { return wanted - static_cast<int64_t>(ids.size()); };
  if (parts.prefix >= 0) {
    Append(Kind::kPrefix, parts.prefix, std::min<int64_t>(parts.prefix_tokens, left()), &ids);
  }
  for (const int64_t block : parts.blocks) {
    Append(Kind::kBlock, block, std::min<int64_t>(parts.block_tokens, left()), &ids);
  }
  Append(Kind::kOwn, parts.own, left(), &ids);
  return ids;
}

void PromptWriter::Append(Kind kind, int64_t key, int64_t count, std::vector<int32_t>* ids) const {
  if (count <= 0) return;
  const auto width = static_cast<uint64_t>(range_.end - range_.begin);
  const size_t end = ids->size() + static_cast<size_t>(count);
  // Keys below 0 are conversations'; the kind stands in the last digit.
  const uint64_t folded = key < 0 ? 2 * static_cast<uint64_t>(-1 - key) + 1 : 2 * static_cast<uint64_t>(key);
  uint64_t number = folded * 3 + static_cast<uint64_t>(kind);
  uint64_t turned =
      Mixed(nonce_);  // turns each digit of the key, so that the first id already differs by run
  for (uint64_t most = kKeys; most > 0 && ids->size() < end; most /= width) {
    ids->push_back(range_.begin + static_cast<int32_t>((number % width + turned % width) % width));
    number /= width;
    turned = Mixed(turned);
  }
  uint64_t nonce = Mixed(nonce_) % kNonces;
  for (uint64_t most = kNonces; most > 0 && ids->size() < end; most /= width) {
    ids->push_back(range_.begin + static_cast<int32_t>(nonce % width));
    nonce /= width;
  }
  Random random(nonce_, RandomUse::kIds, folded * 3 + static_cast<uint64_t>(kind));
  while (ids->size() < end) {
    ids->push_back(static_cast<int32_t>(random.Whole(range_.begin, range_.end - 1)));
  }
}

}  // namespace tramontane::load
