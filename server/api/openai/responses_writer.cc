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
    call_ = output_.size();
    output_.push_back({{"type", "function_call"},
                       {"id", ItemId("fc_")},
                       {"call_id", call.id},
                       {"name", call.name},
                       {"arguments", ""},
                       {"status", "in_progress"}});
    SendItem("response.output_item.added", call_, out);
  }

  void OnCallArguments(size_t, std::string_view bytes, std::string* out) override {
    arguments_ += bytes;
    SendDelta("response.function_call_arguments.delta", call_, "", bytes, "", out);
  }

  void OnCallEnds(size_t, bool is_whole, std::string* out) override {
    Json& call = output_[call_];
    call["arguments"] = std::exchange(arguments_, {});
    SendOfItem("response.function_call_arguments.done", call_,
               {{"name", call["name"]}, {"arguments", call["arguments"]}}, out);
    call["status"] = is_whole ? "completed" : "incomplete";
    SendItem("response.output_item.done", call_, out);
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
    CloseItem(out);
    // What was sent of a call that was cut stands. Whole answers have whole calls only.
    if (!options().stream) {
      std::erase_if(output_, [](const Json& item) {
        return item["type"] == "function_call" && item["status"] == "incomplete";
      });
    }
    if (output_.empty()) {  // an empty answer is a message too
      OpenItem(kMessage, out);
      CloseItem(out);
    }
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
    SendDelta(kind.delta_event, item_, R"("content_index":0,)", text,
              &kind == &kMessage ? R"("logprobs":[],)" : "", out);
  }

  void OpenItem(const ItemKind& kind, std::string* out) {
    if (open_ == &kind) return;
    CloseItem(out);
    open_ = &kind;
    Json item = {{"type", kind.type}, {"id", ItemId(kind.id_prefix)}, {"status", "in_progress"}};
    if (&kind == &kMessage) item["role"] = "assistant";
    if (&kind == &kReasoning) item["summary"] = Json::array();
    item["content"] = Json::array();
    item_ = output_.size();
    output_.push_back(std::move(item));
    SendItem("response.output_item.added", item_, out);
    SendOfItem("response.content_part.added", item_, {{"content_index", 0}, {"part", Part("")}}, out);
  }

  void CloseItem(std::string* out) {
    if (open_ == nullptr) return;
    const std::string text = std::exchange(text_, {});
    Json done = {{"content_index", 0}, {"text", text}};
    if (open_ == &kMessage) done["logprobs"] = Json::array();
    SendOfItem(open_->done_event, item_, done, out);
    SendOfItem("response.content_part.done", item_, {{"content_index", 0}, {"part", Part(text)}}, out);
    output_[item_]["content"].push_back(Part(text));
    open_ = nullptr;
    output_[item_]["status"] =
        status_ == "in_progress" || status_ == "completed" ? "completed" : "incomplete";
    SendItem("response.output_item.done", item_, out);
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
  // An item as a whole.
  void SendItem(const char* type, size_t index, std::string* out) {
    if (!options().stream) return;
    Send({{"type", type}, {"output_index", index}, {"item", output_[index]}}, out);
  }
  // Something of an item.
  void SendOfItem(const char* type, size_t index, const Json& more, std::string* out) {
    if (!options().stream) return;
    Json event = {{"type", type}, {"item_id", output_[index]["id"]}, {"output_index", index}};
    event.update(more);
    Send(std::move(event), out);
  }
  // A piece of its text, once a token: written without building it. `before` and `behind` are the event's
  // other fields.
  void SendDelta(const char* type, size_t index, std::string_view before, std::string_view text,
                 std::string_view behind, std::string* out) {
    if (!options().stream) return;
    std::string json = R"({"type":")";
    json += type;
    json += R"(","item_id":)";
    AppendJsonString(output_[index]["id"].get_ref<const std::string&>(), &json);
    json += R"(,"output_index":)";
    AppendJsonInteger(static_cast<int64_t>(index), &json);
    json += ',';
    json += before;
    json += R"("delta":)";
    AppendJsonString(text, &json);
    json += ',';
    json += behind;
    json += R"("sequence_number":)";
    AppendJsonInteger(sequence_number_++, &json);
    json += '}';
    SendLine(type, json, out);
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
  std::vector<Json> output_;        // the items so far
  const ItemKind* open_ = nullptr;  // of the item whose text may go on, if any
  size_t item_ = 0;                 // where that one stands
  std::string text_;                // of that item
  size_t call_ = 0;                 // where the call stands that began last; thoughts may come before its end
  std::string arguments_;           // of that call
  v1::Usage usage_;
  int64_t sequence_number_ = 0;
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeResponsesWriter(AnswerOptions options, std::vector<FieldNames> names) {
  return std::make_unique<ResponsesWriter>(std::move(options), std::move(names));
}

}  // namespace tramontane
