// How much of a prompt the prefix cache need not compute again.
#include <set>
#include <vector>

#include "engine/kv/names/prefix_hit.h"
#include "tests/kv_vectors/kinds.h"

namespace tramontane::kv_vectors {

using nlohmann::json;

namespace {

constexpr int64_t kMostPrompt = 1 << 22;
constexpr int64_t kMostNumber = 1 << 26;  // of a window, n_keep and a page

// A group of the case and the pages that it caches.
struct CachedGroup {
  PrefixGroup group;
  std::set<int64_t> cached;
};

StatusOr<CachedGroup> ReadGroup(const json& value, size_t index) {
  static const json kNothing = json::object();
  const std::string name = FieldElement("attrs.groups", index);
  CaseReader reader(value.is_object() ? value : kNothing, kNothing);
  CachedGroup cached;
  cached.group.window = static_cast<int32_t>(reader.Int("window", 0, kMostNumber));
  cached.group.n_keep = reader.Int("n_keep", 0, kMostNumber);
  if (!reader.status().ok()) return Status(reader.status()).InField(name);
  if (!value.contains("cached") || !value["cached"].is_array()) {
    return InvalidArgument("is no list").WithField(name + ".cached", FieldForm::kSubject);
  }
  for (const json& page : value["cached"]) {
    if (!page.is_number_unsigned() || page.get<uint64_t>() > uint64_t{kMostNumber}) {
      return InvalidArgument("holds " + page.dump() + ", not the index of a page")
          .WithField(name + ".cached", FieldForm::kSubject);
    }
    cached.cached.insert(page.get<int64_t>());
  }
  return cached;
}

}  // namespace

Status RunPrefixHit(CaseRun& run) {
  CaseReader& reader = run.reader();
  const int64_t prompt = reader.Int("prompt", 1, kMostPrompt);
  const auto page_size = static_cast<int32_t>(reader.Int("page_size", 1, kMostNumber));
  TM_RETURN_IF_ERROR(reader.status());
  const json& attrs = run.body()["attrs"];
  if (!attrs.contains("groups") || !attrs["groups"].is_array() || attrs["groups"].empty()) {
    return InvalidArgument("is no list of groups").WithField("attrs.groups", FieldForm::kSubject);
  }
  std::vector<PrefixGroup> groups;
  std::vector<std::set<int64_t>> cached;
  for (size_t i = 0; i < attrs["groups"].size(); ++i) {
    TM_ASSIGN_OR_RETURN(CachedGroup group, ReadGroup(attrs["groups"][i], i));
    groups.push_back(group.group);
    cached.push_back(std::move(group.cached));
  }
  const int64_t hit = LongestPrefixHit(
      prompt, Paging(page_size), groups,
      [&](size_t group, int64_t page) { return cached[group].count(page) != 0; },
      [](int64_t) { return 0; });  // windows decide alone
  return run.ExpectJson("hit_tokens", hit);
}

}  // namespace tramontane::kv_vectors
