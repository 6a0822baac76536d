// /openapi.json says what the server does: its routes, the shapes of what it takes and gives.
#include "server/api/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/request_shapes.h"
#include "server/api/shared/json.h"

namespace tramontane {
namespace {

Json Document() { return *ParseJson(OpenApiJson("1.2.3", StandardShapes())); }

void ForEachObject(const Json& json, const std::function<void(const Json&)>& visit) {
  if (json.is_object()) visit(json);
  if (!json.is_structured()) return;
  for (const auto& item : json.items()) ForEachObject(item.value(), visit);
}

TEST(Spec, EveryReferenceLeadsSomewhere) {
  const Json document = Document();
  int references = 0;
  ForEachObject(document, [&](const Json& object) {
    if (!object.contains("$ref")) return;
    ++references;
    const std::string target = object["$ref"].get<std::string>().substr(1);
    EXPECT_TRUE(document.contains(Json::json_pointer(target))) << target;
  });
  EXPECT_GT(references, 0);
}

TEST(Spec, SaysTypeRangeAndMeaningOfEachField) {
  const Json document = Document();
  EXPECT_EQ(document["openapi"], "3.1.0");
  EXPECT_EQ(document["info"]["version"], "1.2.3");
  const Json& body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]
                             ["application/json"]["schema"];
  EXPECT_EQ(body["required"], Json::array({"messages"}));
  const Json& top_p = body["properties"]["top_p"];
  EXPECT_EQ(top_p["type"], Json::array({"number", "null"}));
  EXPECT_EQ(top_p["exclusiveMinimum"], 0);
  EXPECT_EQ(top_p["maximum"], 1);
  EXPECT_EQ(body["properties"]["priority"]["minimum"], -1000);
  EXPECT_THAT(top_p["description"].get<std::string>(), ::testing::HasSubstr("Default"));
  for (const auto& [name, schema] : body["properties"].items()) {
    EXPECT_TRUE(schema.contains("description")) << name;
  }
  EXPECT_EQ(body["properties"]["stop"]["anyOf"].back(), Json({{"type", "null"}}));
}

TEST(Spec, ErrorsAreDocumentedWhereABodyIsRead) {
  for (const Operation& operation : Operations()) {
    const Json responses = Document()["paths"][operation.path][operation.method]["responses"];
    EXPECT_TRUE(responses.contains("200") && responses.contains("503") && responses.contains("default"));
    EXPECT_EQ(responses.contains("400"), operation.request != nullptr) << operation.path;
  }
}

// The transcripts of whole answers, which the writers are held to, have the documented shapes.
TEST(Spec, GoldenAnswersHaveTheDocumentedShape) {
  int answers = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/openai")) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("{\"id\"")) continue;
      const Json json = *ParseJson(line);
      const bool is_chat = json["object"] == "chat.completion";
      const auto fault = FindFault(is_chat ? ChatCompletionAnswerShape() : CompletionAnswerShape(), json, "");
      EXPECT_FALSE(fault) << entry.path() << " " << fault->path << ": " << fault->text;
      ++answers;
    }
  }
  EXPECT_GE(answers, 8);
}

}  // namespace
}  // namespace tramontane
