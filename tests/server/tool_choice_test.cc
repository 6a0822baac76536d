// Which tools may be called, and the schema of a list of calls.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/grammar/json_schema_grammar.h"
#include "server/answers/call_list_schema.h"
#include "server/answers/called_tools.h"
#include "server/answers/tool_arguments.h"

namespace tramontane {
namespace {

using nlohmann::json;

v1::Chat ChatWith(v1::ToolChoiceMode mode, const std::string& name = "") {
  v1::Chat chat;
  v1::Tool* weather = chat.add_tools();
  weather->set_name("get_weather");
  weather->set_parameters_json(R"({"type": "object", "properties": {"city": {"type": "string"}}})");
  chat.add_tools()->set_name("ping");
  chat.mutable_tool_choice()->set_mode(mode);
  chat.mutable_tool_choice()->set_name(name);
  return chat;
}

std::string ListSchema(const v1::Chat& chat, ConstraintSource* source) {
  std::vector<ListedTool> tools;
  for (int i = 0; i < chat.tools_size(); ++i) {
    if (MayCallTool(chat, chat.tools(i)))
      tools.push_back({.index = i, .schema = ArgumentsSchema(chat.tools(i).parameters_json())});
  }
  return CallListSchema(chat, tools, MayCallOnce(chat), source);
}

json SchemaOf(const v1::Chat& chat) {
  ConstraintSource source;
  return json::parse(ListSchema(chat, &source));
}

TEST(ToolChoice, RequiredIsAListOfCallsOfAnyTool) {
  const json schema = SchemaOf(ChatWith(v1::TOOL_CHOICE_MODE_REQUIRED));
  EXPECT_EQ(schema["type"], "array");
  EXPECT_EQ(schema["minItems"], 1);
  EXPECT_FALSE(schema.contains("maxItems"));
  ASSERT_EQ(schema["items"]["anyOf"].size(), 2u);
  const json& call = schema["items"]["anyOf"][0];
  EXPECT_EQ(call["properties"]["name"]["const"], "get_weather");
  EXPECT_EQ(call["properties"]["arguments"]["$ref"], "#/$defs/arguments_of_get_weather");
  EXPECT_EQ(call["required"], json({"name", "arguments"}));
  EXPECT_EQ(call["additionalProperties"], false);
  EXPECT_EQ(schema["$defs"]["arguments_of_get_weather"]["properties"]["city"]["type"], "string");
  EXPECT_EQ(schema["$defs"]["arguments_of_ping"]["const"], json::object());
}

TEST(ToolChoice, WithoutParallelCallsItIsOneCall) {
  v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.set_parallel_tool_calls(false);
  EXPECT_EQ(SchemaOf(chat)["maxItems"], 1);
}

TEST(ToolChoice, NamedIsOneCallOfThatTool) {
  const json schema = SchemaOf(ChatWith(v1::TOOL_CHOICE_MODE_NAMED, "ping"));
  EXPECT_EQ(schema["maxItems"], 1);
  EXPECT_EQ(schema["items"]["properties"]["name"]["const"], "ping");
  EXPECT_EQ(schema["$defs"].size(), 1u);
}

TEST(ToolChoice, OfToolsThatAreAllowedAloneTheListIsMade) {
  v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.mutable_tool_choice()->add_allowed("ping");
  const json schema = SchemaOf(chat);
  EXPECT_EQ(schema["items"]["properties"]["name"]["const"], "ping");
  EXPECT_FALSE(schema.contains("maxItems"));
}

TEST(ToolChoice, AToolThatSaysNothingOfParametersHasNone) {
  v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_NAMED, "ping");
  const auto arguments = [&](const std::string& parameters) {
    chat.mutable_tools(1)->set_parameters_json(parameters);
    return SchemaOf(chat)["$defs"]["arguments_of_ping"];
  };
  for (const char* parameters :
       {"", "{}", "null", R"({"title": "Ping", "$schema": "https://x/y"})",
        R"({"type": "object", "properties": {}, "required": [], "additionalProperties": false})",
        R"({"type": "object", "properties": null})",
        R"({"type": "object", "additionalProperties": false})"}) {
    EXPECT_EQ(arguments(parameters)["const"], json::object()) << parameters;
  }
  for (const char* any : {R"({"type": "object"})", R"({"type": "object", "required": []})",
                          R"({"type": "object", "properties": {}, "additionalProperties": true})"}) {
    EXPECT_FALSE(arguments(any).contains("const")) << "as JSON Schema has it: " << any;
  }
}

TEST(ToolChoice, ReferencesMoveWithTheirSchema) {
  v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_NAMED, "get_weather");
  chat.mutable_tools(0)->set_parameters_json(R"({"type": "object", "$defs": {"City": {"type": "string"}},
      "properties": {"city": {"$ref": "#/$defs/City"}, "again": {"items": {"$ref": "#"}},
                     "$ref": {"const": {"$ref": "#"}}}})");
  const json arguments = SchemaOf(chat)["$defs"]["arguments_of_get_weather"];
  EXPECT_EQ(arguments["properties"]["city"]["$ref"], "#/$defs/arguments_of_get_weather/$defs/City");
  EXPECT_EQ(arguments["properties"]["again"]["items"]["$ref"], "#/$defs/arguments_of_get_weather");
  EXPECT_EQ(arguments["properties"]["$ref"]["const"]["$ref"], "#") << "data, not a reference";
}

// A name is no keyword: what it names is a schema, and its references move.
TEST(ToolChoice, ReferencesMoveWhateverThePropertyIsCalled) {
  v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_NAMED, "get_weather");
  for (const char* name : {"default", "const", "enum", "examples", "properties", "$defs", "items"}) {
    json schema = {{"type", "object"}, {"required", {"outer"}}};
    schema["$defs"][name] = {{"items", {{"$ref", "#/$defs/City"}}}};
    schema["$defs"]["City"] = {{"type", "string"}};
    schema["properties"][name] = {{"$ref", "#/$defs/City"}, {"default", {{"$ref", "#/data"}}}};
    schema["properties"]["outer"]["properties"][name] = {{"$ref", std::string("#/$defs/") + name}};
    chat.mutable_tools(0)->set_parameters_json(schema.dump());
    const json moved = SchemaOf(chat);
    const json arguments = moved["$defs"]["arguments_of_get_weather"];
    EXPECT_EQ(arguments["properties"][name]["$ref"], "#/$defs/arguments_of_get_weather/$defs/City") << name;
    EXPECT_EQ(arguments["properties"][name]["default"]["$ref"], "#/data") << "data, not a reference";
    EXPECT_EQ(arguments["$defs"][name]["items"]["$ref"], "#/$defs/arguments_of_get_weather/$defs/City")
        << name;
    const Status status = JsonSchemaGrammar(moved.dump(), {}).status();
    EXPECT_TRUE(status.ok()) << name << ": " << status;
  }
}

TEST(ToolChoice, WhatASchemaMayBeginWithAToolsParametersMayToo) {
  for (
      const char* parameters :
      {R"({"$ref": "#/$defs/P", "$defs": {"P": {"type": "object", "properties": {"a": {"$ref": "#/$defs/Q"}}}, "Q": {"const": 1}}})",
       R"({"anyOf": [{"type": "object", "required": ["a"]}, {"type": "string"}, {"properties": {"b": {}}}]})",
       R"({"oneOf": [{"type": "object"}, {"type": "null"}]})",
       R"({"allOf": [{"properties": {"a": {"type": "null"}}}, {"required": ["a"]}]})",
       R"({"$id": "https://a.b/c", "$schema": "x", "properties": {"a": {"$ref": "https://a.b/c#/$defs/a"}, "b": {"$ref": "#"}}, "$defs": {"a": {}}})",
       R"({"properties": {"a": {"$ref": "#/definitions/Box%3Cstring%3E"}}, "definitions": {"Box<string>": {}}})"}) {
    v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_REQUIRED);
    chat.mutable_tools(0)->set_parameters_json(parameters);
    chat.mutable_tools(1)->set_parameters_json(parameters);
    const Status status = JsonSchemaGrammar(SchemaOf(chat).dump(), {}).status();
    EXPECT_TRUE(status.ok()) << parameters << ": " << status;
  }
}

TEST(ToolChoice, AToolsNameMayHoldWhatAPointerReadsOtherwise) {
  v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.mutable_tools(0)->set_name("a/b~1%41");
  EXPECT_TRUE(JsonSchemaGrammar(SchemaOf(chat).dump(), {}).ok());
}

// What the grammar's translator says of the schema of the calls, as the request's fault.
RpcError SchemaFault(const v1::Chat& chat) {
  ConstraintSource source;
  const StatusOr<std::string> grammar = JsonSchemaGrammar(ListSchema(chat, &source), {});
  EXPECT_FALSE(grammar.ok());
  return ConstraintFault(source, "chat.tool_choice.json_schema", grammar.status());
}

TEST(ToolChoice, AFaultOfASchemaIsThatOfItsTool) {
  constexpr char kUnsupported[] = R"({"properties": {".items.anyOf[0]": {"uniqueItems": true}}})";
  const auto expect_fault_of_second = [](const v1::Chat& chat) {
    const RpcError error = SchemaFault(chat);
    EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
    EXPECT_EQ(error.field, "chat.tools[1].parameters");
    EXPECT_EQ(error.sentence, ".properties..items.anyOf[0].uniqueItems: is not supported");
    EXPECT_EQ(error.message(), error.field + ": " + error.sentence);
  };
  v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_REQUIRED);
  chat.mutable_tools(1)->set_parameters_json(kUnsupported);
  expect_fault_of_second(chat);
  chat.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_NAMED);
  chat.mutable_tool_choice()->set_name("ping");
  expect_fault_of_second(chat);
}

// The reference as the caller wrote it, and no keyword that he did not write.
TEST(ToolChoice, AFaultIsSaidInTheWordsOfTheTool) {
  const auto sentence = [](const char* parameters) {
    v1::Chat chat = ChatWith(v1::TOOL_CHOICE_MODE_NAMED, "ping");
    chat.mutable_tools(1)->set_parameters_json(parameters);
    const RpcError error = SchemaFault(chat);
    EXPECT_EQ(error.field, "chat.tools[1].parameters");
    return error.sentence;
  };
  EXPECT_EQ(sentence(R"({"properties": {"a": {"$ref": "#/$defs/b"}}})"),
            ".properties.a.$ref: leads nowhere inside this schema: #/$defs/b");
  EXPECT_EQ(sentence(R"({"$ref": "#there"})"), ".$ref: leads nowhere inside this schema: #there");
  EXPECT_EQ(sentence(R"({"anyOf": [{"type": "string"}]})"), "allows no value at all");
}

TEST(ToolChoice, AFaultOfNoToolIsThatOfTheChoice) {
  ConstraintSource source{"chat.tool_choice", {{".items.anyOf[1].x", "chat.tools[1].parameters"}}};
  const auto field = [&](const Status& status) {
    return ConstraintFault(source, "chat.tool_choice.json_schema", status).field;
  };
  EXPECT_EQ(field(InvalidArgument("is not supported").WithField(".items.anyOf[1].x.type")),
            "chat.tools[1].parameters");
  EXPECT_EQ(field(InvalidArgument("is not supported").WithField(".items.anyOf[10].x")),
            "chat.tool_choice.json_schema");
  EXPECT_EQ(field(InvalidArgument("takes more than 1 ms to compile")), "chat.tool_choice.json_schema");
  EXPECT_EQ(field(Status(StatusCode::kCancelled, "nobody waits")), "");
}

// A tool that is all at fault is said to be so without a path inside it.
TEST(ToolChoice, AFaultOfAWholeSchemaNamesNoPlaceInIt) {
  const ConstraintSource source{"chat.tool_choice", {{".items.x", "chat.tools[0].parameters"}}};
  EXPECT_EQ(ConstraintFault(source, "", InvalidArgument("is too large").WithField(".items.x")).message(),
            "chat.tools[0].parameters: is too large");
}

TEST(ToolChoice, FaultsNameTheField) {
  const auto field = [](const v1::Chat& chat) {
    const RpcError error = CheckToolChoice(chat);
    return error.ok() ? "" : error.field;
  };
  EXPECT_EQ(field(v1::Chat()), "");
  EXPECT_EQ(field(ChatWith(v1::TOOL_CHOICE_MODE_NONE)), "");
  EXPECT_EQ(field(ChatWith(v1::TOOL_CHOICE_MODE_NAMED, "ping")), "");
  EXPECT_EQ(field(ChatWith(v1::TOOL_CHOICE_MODE_NAMED, "pong")), "chat.tool_choice.name");
  EXPECT_EQ(field(ChatWith(v1::TOOL_CHOICE_MODE_AUTO, "ping")), "chat.tool_choice.name");
  EXPECT_EQ(field(ChatWith(static_cast<v1::ToolChoiceMode>(9))), "chat.tool_choice.mode");
  v1::Chat no_tools;
  no_tools.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_EQ(field(no_tools), "chat.tool_choice");
  const auto allowing = [&](v1::ToolChoiceMode mode, const char* tool) {
    v1::Chat chat = ChatWith(mode, mode == v1::TOOL_CHOICE_MODE_NAMED ? "ping" : "");
    chat.mutable_tool_choice()->add_allowed("ping");
    chat.mutable_tool_choice()->add_allowed(tool);
    return field(chat);
  };
  EXPECT_EQ(allowing(v1::TOOL_CHOICE_MODE_UNSPECIFIED, "get_weather"), "");
  EXPECT_EQ(allowing(v1::TOOL_CHOICE_MODE_REQUIRED, "get_weather"), "");
  EXPECT_EQ(allowing(v1::TOOL_CHOICE_MODE_AUTO, "pong"), "chat.tool_choice.allowed[1]");
  EXPECT_EQ(allowing(v1::TOOL_CHOICE_MODE_NONE, "ping"), "chat.tool_choice.allowed");
  EXPECT_EQ(allowing(v1::TOOL_CHOICE_MODE_NAMED, "ping"), "chat.tool_choice.allowed");
}

}  // namespace
}  // namespace tramontane
