#include "server/watch/kv_tables_text.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace tramontane {
namespace {

using ReportJson = nlohmann::ordered_json;

ReportJson GroupJson(const KvReport::Group& group) {
  return {{"window", group.window},
          {"layers", group.layers},
          {"held_pages", group.held_pages},
          {"cached_pages", group.cached_pages},
          {"host_images", group.beyond.host_images},
          {"disk_images", group.beyond.disk_images},
          {"moving_images", group.beyond.moving_images}};
}

ReportJson PlaceJson(const KvReport::Place& place) {
  return {{"pages", place.pages},
          {"bytes", place.pages * place.page_bytes},
          {"taken_pages", place.taken},
          {"taken_bytes", place.taken * place.page_bytes},
          {"works", place.works}};
}

// Of those that there are.
ReportJson TiersJson(const KvReport& report) {
  ReportJson tiers = ReportJson::object();
  if (report.host.pages > 0) tiers["host"] = PlaceJson(report.host);
  if (report.disk.pages > 0) tiers["disk"] = PlaceJson(report.disk);
  return tiers;
}

ReportJson TableJson(const KvReport::Table& table) {
  return {{"kv_base", table.kv_base},
          {"sinks", table.sinks},
          {"pages", table.pages},
          {"pages_left_out", table.pages_left_out}};
}

ReportJson PolicyJson(const ContextPolicy& policy) {
  ReportJson json = {{"type", ContextPolicyName(policy.type)}};
  if (policy.type == ContextPolicyType::kNone) return json;
  json["n_ctx"] = policy.n_ctx;
  json["n_keep"] = policy.n_keep;
  if (policy.type != ContextPolicyType::kSinks) json["n_discard"] = policy.n_discard;
  return json;
}

ReportJson SequenceJson(const KvReport::OfSequence& sequence) {
  ReportJson tables = ReportJson::array();
  for (const KvReport::Table& table : sequence.tables) tables.push_back(TableJson(table));
  return {{"id", sequence.id},
          {"choice", sequence.choice},
          {"state", SequenceStateName(sequence.state)},
          {"tokens", sequence.tokens},
          {"prefix_tokens", sequence.prefix_tokens},
          {"context_policy", PolicyJson(sequence.policy)},
          {"has_cache_salt", !sequence.identity.salt.empty()},
          {"tables", std::move(tables)}};
}

}  // namespace

std::string KvReportJson(const KvReport& report) {
  ReportJson groups = ReportJson::array(), sequences = ReportJson::array();
  for (const KvReport::Group& group : report.groups) groups.push_back(GroupJson(group));
  for (const KvReport::OfSequence& sequence : report.sequences) sequences.push_back(SequenceJson(sequence));
  const ReportJson json = {{"page_size", report.page_size},
                           {"page_bytes", report.page_bytes},
                           {"pages",
                            {{"total", report.total_pages},
                             {"free", report.free_pages},
                             {"cached", report.cached_pages},
                             {"held", report.held_pages}}},
                           {"tiers", TiersJson(report)},
                           {"groups", std::move(groups)},
                           {"sequences", std::move(sequences)},
                           {"sequences_left_out", report.sequences_left_out}};
  return json.dump(-1, ' ', false, ReportJson::error_handler_t::replace);
}

KvTablesText::KvTablesText(std::shared_ptr<const KvQuestion> question) : question_(std::move(question)) {}

std::optional<std::string> KvTablesText::Take() {
  const KvReport* const report = question_->answer();
  if (report == nullptr) return std::nullopt;
  return KvReportJson(*report);
}

}  // namespace tramontane
