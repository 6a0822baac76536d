// The answers of /v1/responses, whole and as events.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/openai/responses.h"
#include "server/openai/tool_calls.h"

namespace tramontane {
namespace {

Json TextPart(const std::string& text) {
  return {
      {"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

class ResponsesWriter final : public ResponseWriter {
 public:
  explicit ResponsesWriter(const ResponsesRequest& request)
      : names_(request.names),
        answer_(request.answer),
        echo_(request.echo),
        model_(request.answer.model),
        parser_(MakeToolCallParser(request.answer.call_id_seed, request.answer.one_tool_call, 0)) {}

  std::string OnEvents(size_t, std::vector<v1::GenerateResponse> events) override {
    for (const v1::GenerateResponse& event : events) {
      switch (event.event_case()) {
        case v1::GenerateResponse::kStarted:
          Start(event.started());
          break;
        case v1::GenerateResponse::kDelta:
          AddDelta(event.delta());
          break;
        case v1::GenerateResponse::kFinished:
          End(event.finished());
          break;
        case v1::GenerateResponse::EVENT_NOT_SET:
          break;
      }
    }
    return std::exchange(out_, {});
  }

  std::string Finish() override {
    if (answer_.stream) return std::exchange(out_, {});
    return PrintJson(Response());
  }

  std::optional<ApiError> Fault() const override {
    if (error_.empty()) return std::nullopt;
    return ApiError{.status = 500, .message = error_, .type = "server_error"};
  }

  ApiError Explain(size_t, const RpcError& error) const override { return names_.Explain(error); }

  std::string Fail(const ApiError& error) override {
    Json event = {{"type", "error"},
                  {"code", error.code.empty() ? error.type : error.code},
                  {"message", error.message},
                  {"param", error.param.empty() ? Json() : Json(error.param)}};
    Send(std::move(event));
    error_ = error.message;
    status_ = "failed";
    SendResponse("response.failed");
    return std::exchange(out_, {});
  }

 private:
  // ---- what happens ----

  void Start(const v1::Started& started) {
    if (model_.empty()) model_ = started.model();
    SendResponse("response.created");
    SendResponse("response.in_progress");
  }

  void AddDelta(const v1::Delta& delta) {
    if (!answer_.tools) return AddText(delta.text());
    Add(parser_.Append(delta.text(),
                       delta.has_tool_calls_at() ? std::optional(delta.tool_calls_at()) : std::nullopt));
  }

  void Add(const ToolCallParser::Output& output) {
    if (!answer_.only_tool_calls) AddText(output.text);
    for (const ParsedToolCall& call : output.calls) AddCall(call);
  }

  void End(const v1::Finished& finished) {
    if (finished.reason() == v1::FINISH_REASON_CANCELLED) return;  // the call fails: Fail says it
    Add(parser_.Finish());
    usage_ = finished.usage();
    switch (finished.reason()) {
      case v1::FINISH_REASON_STOP:
      case v1::FINISH_REASON_STOP_SEQUENCE:
        status_ = "completed";
        break;
      case v1::FINISH_REASON_ERROR:
        status_ = "failed";
        error_ = finished.error_message();
        break;
      default:
        status_ = "incomplete";
    }
    if (output_.empty()) OpenMessage();  // an empty answer is a message too
    CloseMessage();
    SendResponse("response." + status_);
  }

  // ---- items ----

  void AddText(const std::string& text) {
    if (text.empty()) return;
    OpenMessage();
    text_ += text;
    if (!answer_.stream) return;
    // Once a token: written without building it.
    std::string json = R"({"type":"response.output_text.delta","item_id":)";
    AppendJsonString(output_.back()["id"].get_ref<const std::string&>(), &json);
    json += R"(,"output_index":)";
    AppendJsonInteger(static_cast<int64_t>(output_.size() - 1), &json);
    json += R"(,"content_index":0,"delta":)";
    AppendJsonString(text, &json);
    json += R"(,"logprobs":[],"sequence_number":)";
    AppendJsonInteger(sequence_number_++, &json);
    json += '}';
    SendLine("response.output_text.delta", json);
  }

  void OpenMessage() {
    if (message_is_open_) return;
    message_is_open_ = true;
    output_.push_back({{"type", "message"},
                       {"id", ItemId("msg_")},
                       {"status", "in_progress"},
                       {"role", "assistant"},
                       {"content", Json::array()}});
    SendItem("response.output_item.added");
    SendOfItem("response.content_part.added", {{"content_index", 0}, {"part", TextPart("")}});
  }

  void CloseMessage() {
    if (!message_is_open_) return;
    message_is_open_ = false;
    const std::string text = std::exchange(text_, {});
    const Json done = {{"content_index", 0}, {"text", text}, {"logprobs", Json::array()}};
    SendOfItem("response.output_text.done", done);
    SendOfItem("response.content_part.done", {{"content_index", 0}, {"part", TextPart(text)}});
    output_.back()["content"].push_back(TextPart(text));
    output_.back()["status"] =
        status_ == "in_progress" || status_ == "completed" ? "completed" : "incomplete";
    SendItem("response.output_item.done");
  }

  void AddCall(const ParsedToolCall& call) {
    CloseMessage();
    output_.push_back({{"type", "function_call"},
                       {"id", ItemId("fc_")},
                       {"call_id", call.id},
                       {"name", call.name},
                       {"arguments", ""},
                       {"status", "in_progress"}});
    SendItem("response.output_item.added");
    SendOfItem("response.function_call_arguments.delta", {{"delta", call.arguments}});
    SendOfItem("response.function_call_arguments.done", {{"name", call.name}, {"arguments", call.arguments}});
    output_.back()["arguments"] = call.arguments;
    output_.back()["status"] = "completed";
    SendItem("response.output_item.done");
  }

  std::string ItemId(const char* kind) const {
    return kind + answer_.id + "-" + std::to_string(output_.size());
  }

  // ---- events ----

  void SendLine(const std::string& type, const std::string& json) {
    out_ += "event: " + type + "\ndata: " + json + "\n\n";
  }

  void Send(Json event) {
    if (!answer_.stream) return;
    event["sequence_number"] = sequence_number_++;
    SendLine(event["type"].get<std::string>(), PrintJson(event));
  }
  void SendResponse(const std::string& type) {
    if (answer_.stream) Send({{"type", type}, {"response", Response()}});
  }
  // The last item as a whole.
  void SendItem(const char* type) {
    if (answer_.stream)
      Send({{"type", type}, {"output_index", output_.size() - 1}, {"item", output_.back()}});
  }
  // Something of the last item.
  void SendOfItem(const char* type, const Json& more) {
    if (!answer_.stream) return;
    Json event = {{"type", type}, {"item_id", output_.back()["id"]}, {"output_index", output_.size() - 1}};
    event.update(more);
    Send(std::move(event));
  }

  // The response as it stands.
  Json Response() const {
    const bool has_ended = status_ != "in_progress";
    Json response = {{"id", "resp_" + answer_.id},
                     {"object", "response"},
                     {"created_at", answer_.created_s},
                     {"status", status_},
                     {"background", false},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"model", model_},
                     {"output", has_ended ? Json(output_) : Json::array()},
                     {"usage", nullptr}};
    if (status_ == "failed") response["error"] = {{"code", "server_error"}, {"message", error_}};
    if (status_ == "incomplete") response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    if (has_ended) response["usage"] = UsageJson();
    response.update(echo_);
    return response;
  }

  Json UsageJson() const {
    return {{"input_tokens", usage_.prompt_tokens()},
            {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens()}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage_.completion_tokens()},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", usage_.prompt_tokens() + usage_.completion_tokens()}};
  }

  const FieldNames names_;
  const AnswerOptions answer_;
  const Json echo_;
  std::string model_;
  ToolCallParser parser_;

  std::string status_ = "in_progress";
  std::string error_;         // why it failed
  std::vector<Json> output_;  // the items so far; only the last may be unfinished
  bool message_is_open_ = false;
  std::string text_;  // of the open message
  v1::Usage usage_;
  int64_t sequence_number_ = 0;
  std::string out_;  // events not yet returned
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeResponsesWriter(const ResponsesRequest& request) {
  return std::make_unique<ResponsesWriter>(request);
}

}  // namespace tramontane
