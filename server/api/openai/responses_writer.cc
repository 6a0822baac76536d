// The answers of /v1/responses, whole and as events.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/openai/responses.h"
#include "server/api/shared/answer_writer.h"
#include "server/api/shared/json.h"
#include "server/api/shared/timing.h"

namespace tramontane {
namespace {

class ResponsesWriter final : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  std::string Finish() override { return options().stream ? "" : PrintJson(Response()); }

  std::string Fail(const ApiError& error) override {
    std::string out;
    Json event = {{"type", "error"},
                  {"code", error.code.empty() ? error.type : error.code},
                  {"message", error.message},
                  {"param", error.param.empty() ? Json() : Json(error.param)}};
    Send(std::move(event), &out);
    error_ = error.message;
    status_ = "failed";
    SendResponse("response.failed", &out);
    return out;
  }

 private:
  bool HoldsAnswer() const override { return true; }  // the end of a stream repeats it

  // ---- what happens ----

  void OnStarted(size_t, const v1::Started&, std::string* out) override {
    SendResponse("response.created", out);
    SendResponse("response.in_progress", out);
  }

  void OnText(size_t, std::string_view text, const v1::Delta*, std::string* out) override {
    if (!text.empty()) AddText(kMessage, text, out);
  }

  void OnReasoning(size_t, std::string_view text, std::string* out) override {
    AddText(kReasoning, text, out);
  }

  void OnCallBegins(size_t, const CallBegins& call, std::string* out) override {
    CloseItem(out);
    output_.push_back({{"type", "function_call"},
                       {"id", ItemId("fc_")},
                       {"call_id", call.id},
                       {"name", call.name},
                       {"arguments", ""},
                       {"status", "in_progress"}});
    SendItem("response.output_item.added", out);
  }

  void OnCallArguments(size_t, std::string_view bytes, std::string* out) override {
    text_ += bytes;
    SendOfItem("response.function_call_arguments.delta", {{"delta", bytes}}, out);
  }

  void OnCallEnds(size_t, std::string* out) override {
    Json& call = output_.back();
    SendOfItem("response.function_call_arguments.done", {{"name", call["name"]}, {"arguments", text_}}, out);
    call["arguments"] = std::exchange(text_, {});
    call["status"] = "completed";
    SendItem("response.output_item.done", out);
  }

  void OnFinished(size_t, AnswerEnd end, const v1::Finished& finished, std::string* out) override {
    End(end == AnswerEnd::kLimit ? "incomplete" : "completed", finished, out);
  }

  ApiError OnFailed(size_t choice, const v1::Finished& finished, std::string* out) override {
    Release(choice, AnswerReader::End::kCutOff, out);
    ApiError fault = FaultOf(choice, finished);
    error_ = fault.message;
    End("failed", finished, out);
    return fault;
  }

  void End(const char* status, const v1::Finished& finished, std::string* out) {
    usage_ = finished.usage();
    status_ = status;
    if (output_.empty()) OpenItem(kMessage, out);  // an empty answer is a message too
    CloseItem(out);
    SendResponse("response." + status_, out);
  }

  // ---- items ----

  // Items whose text comes piece by piece.
  struct ItemKind {
    const char* type;
    const char* id_prefix;
    const char* part;  // of its only part
    const char* delta_event;
    const char* done_event;
  };
  static constexpr ItemKind kMessage{"message", "msg_", "output_text", "response.output_text.delta",
                                     "response.output_text.done"};
  static constexpr ItemKind kReasoning{"reasoning", "rs_", "reasoning_text", "response.reasoning_text.delta",
                                       "response.reasoning_text.done"};

  void AddText(const ItemKind& kind, std::string_view text, std::string* out) {
    OpenItem(kind, out);
    text_ += text;
    if (!options().stream) return;
    // Once a token: written without building it.
    std::string json = R"({"type":")";
    json += kind.delta_event;
    json += R"(","item_id":)";
    AppendJsonString(output_.back()["id"].get_ref<const std::string&>(), &json);
    json += R"(,"output_index":)";
    AppendJsonInteger(static_cast<int64_t>(output_.size() - 1), &json);
    json += R"(,"content_index":0,"delta":)";
    AppendJsonString(text, &json);
    json += &kind == &kMessage ? R"(,"logprobs":[],"sequence_number":)" : R"(,"sequence_number":)";
    AppendJsonInteger(sequence_number_++, &json);
    json += '}';
    SendLine(kind.delta_event, json, out);
  }

  void OpenItem(const ItemKind& kind, std::string* out) {
    if (open_ == &kind) return;
    CloseItem(out);
    open_ = &kind;
    Json item = {{"type", kind.type}, {"id", ItemId(kind.id_prefix)}, {"status", "in_progress"}};
    if (&kind == &kMessage) item["role"] = "assistant";
    if (&kind == &kReasoning) item["summary"] = Json::array();
    item["content"] = Json::array();
    output_.push_back(std::move(item));
    SendItem("response.output_item.added", out);
    SendOfItem("response.content_part.added", {{"content_index", 0}, {"part", Part("")}}, out);
  }

  void CloseItem(std::string* out) {
    if (open_ == nullptr) return;
    const std::string text = std::exchange(text_, {});
    Json done = {{"content_index", 0}, {"text", text}};
    if (open_ == &kMessage) done["logprobs"] = Json::array();
    SendOfItem(open_->done_event, done, out);
    SendOfItem("response.content_part.done", {{"content_index", 0}, {"part", Part(text)}}, out);
    output_.back()["content"].push_back(Part(text));
    open_ = nullptr;
    output_.back()["status"] =
        status_ == "in_progress" || status_ == "completed" ? "completed" : "incomplete";
    SendItem("response.output_item.done", out);
  }

  // The part of the open item.
  Json Part(const std::string& text) const {
    Json part = {{"type", open_->part}, {"text", text}};
    if (open_ == &kMessage) part.update({{"annotations", Json::array()}, {"logprobs", Json::array()}});
    return part;
  }

  std::string ItemId(const char* kind) const {
    return kind + options().id + "-" + std::to_string(output_.size());
  }

  // ---- events ----

  static void SendLine(const std::string& type, const std::string& json, std::string* out) {
    *out += "event: " + type + "\ndata: " + json + "\n\n";
  }

  void Send(Json event, std::string* out) {
    if (!options().stream) return;
    event["sequence_number"] = sequence_number_++;
    SendLine(event["type"].get<std::string>(), PrintJson(event), out);
  }
  void SendResponse(const std::string& type, std::string* out) {
    if (options().stream) Send({{"type", type}, {"response", Response()}}, out);
  }
  // The last item as a whole.
  void SendItem(const char* type, std::string* out) {
    if (!options().stream) return;
    Send({{"type", type}, {"output_index", output_.size() - 1}, {"item", output_.back()}}, out);
  }
  // Something of the last item.
  void SendOfItem(const char* type, const Json& more, std::string* out) {
    if (!options().stream) return;
    Json event = {{"type", type}, {"item_id", output_.back()["id"]}, {"output_index", output_.size() - 1}};
    event.update(more);
    Send(std::move(event), out);
  }

  // The response as it stands.
  Json Response() const {
    const bool has_ended = status_ != "in_progress";
    Json response = {{"id", "resp_" + options().id},
                     {"object", "response"},
                     {"created_at", options().created_s},
                     {"status", status_},
                     {"background", false},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"model", model()},
                     {"output", has_ended ? Json(output_) : Json::array()},
                     {"usage", nullptr}};
    if (status_ == "failed") response["error"] = {{"code", "server_error"}, {"message", error_}};
    if (status_ == "incomplete") response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    if (has_ended) response["usage"] = UsageJson();
    if (has_ended && timing()) response["timing"] = TimingJson(*timing());
    response.update(options().repeated);
    return response;
  }

  Json UsageJson() const {
    Json usage = {
        {"input_tokens", usage_.prompt_tokens()},
        {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens()}, {"cache_write_tokens", 0}}},
        {"output_tokens", usage_.completion_tokens()},
        {"output_tokens_details", {{"reasoning_tokens", usage_.reasoning_tokens()}}},
        {"total_tokens", usage_.prompt_tokens() + usage_.completion_tokens()}};
    if (usage_.has_discarded_tokens()) usage["discarded_tokens"] = usage_.discarded_tokens();
    return usage;
  }

  std::string status_ = "in_progress";
  std::string error_;               // why it failed
  std::vector<Json> output_;        // the items so far; only the last may be unfinished
  const ItemKind* open_ = nullptr;  // of the last item, where more of its text may come
  std::string text_;                // of that item
  v1::Usage usage_;
  int64_t sequence_number_ = 0;
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeResponsesWriter(AnswerOptions options, std::vector<FieldNames> names) {
  return std::make_unique<ResponsesWriter>(std::move(options), std::move(names));
}

}  // namespace tramontane
