// Which paths are whose: what a proxy's rules about paths can rely on.
#include "server/api/routes.h"

#include "server/api/shared/route_path.h"

#include <gtest/gtest.h>

#include <string>

namespace tramontane {
namespace {

std::string PathFor(const char* method, const std::string& path) {
  const RouteMatch match = FindRoute(method, path);
  return match.route == nullptr ? "" : std::string(match.route->path);
}

TEST(Routes, ApiPathsAreTheSameWithOneV1AndWithout) {
  for (const char* path : {"/chat/completions", "/chat/completions/render", "/completions",
                           "/completions/render", "/responses", "/score", "/tokenize", "/detokenize"}) {
    EXPECT_EQ(PathFor("POST", path), path);
    EXPECT_EQ(PathFor("POST", std::string("/v1") + path), path);
    EXPECT_EQ(PathFor("POST", std::string("/v1/v1") + path), "") << path;
  }
  EXPECT_EQ(PathFor("GET", "/v1/models"), "/models");
  EXPECT_EQ(PathFor("GET", "/v1/models/a/b"), "/models/*");
  EXPECT_EQ(PathFor("POST", "//v1//chat/completions/"), "/chat/completions") << "as base URLs are joined";
  EXPECT_EQ(PathFor("GET", "/v1"), "");
  EXPECT_EQ(PathFor("GET", "/v2/models"), "");
}

TEST(Routes, EveryOtherPathStandsAlone) {
  for (const char* path :
       {"/health", "/ready", "/ping", "/version", "/load", "/metrics", "/openapi.json", "/tokenizer_info"}) {
    EXPECT_EQ(PathFor("GET", path), path);
    for (const char* other : {"/v1", "/v1/v1", "/", "//v1"}) {
      EXPECT_EQ(FindRoute("GET", other + std::string(path)).methods, "") << other << path;
    }
    EXPECT_EQ(FindRoute("GET", path + std::string("/")).methods, "") << path;
  }
}

TEST(Routes, APercentEscapedLetterIsNobodys) {
  for (const char* path : {"/%6detrics", "/metric%73", "/%6Detrics", "/v%31/models", "/%76%31/models",
                           "/v1/models/%61", "/v1%2Fmodels", "/chat%2Fcompletions"}) {
    EXPECT_EQ(FindRoute("GET", path).methods, "") << path;
  }
}

TEST(Routes, ASessionsNameStandsInFrontOfWhatIsDoneWithIt) {
  EXPECT_EQ(PathFor("POST", "/v1/sessions/a/save"), "/v1/sessions/*/save");
  EXPECT_EQ(PathFor("POST", "/v1/sessions/a/restore"), "/v1/sessions/*/restore");
  EXPECT_EQ(PathFor("DELETE", "/sessions/a"), "/sessions/*");
  for (const char* path : {"/sessions/a/save", "/v1/sessions//save", "/v1/sessions/save", "/v1/sessions/a"}) {
    EXPECT_EQ(PathFor("POST", path), "") << path;
  }
  EXPECT_EQ(WildcardOf("/sessions/*/save", "/v1/sessions/a.b/save"), "a.b");
  EXPECT_EQ(WildcardOf("/sessions/*/save", "/v1/sessions/a/b/save"), "a/b");
  EXPECT_EQ(WildcardOf("/sessions/*/save", "/v1/sessions///save"), "");
}

TEST(Routes, AModelsNameIsDecoded) {
  EXPECT_EQ(WildcardOf("/models/*", "/v1/models/org%2Fname"), "org/name");
  EXPECT_EQ(WildcardOf("/models/*", "/models/a%20b%zz%4"), "a b%zz%4") << "what is no escape stays";
}

TEST(Routes, WhatProbesAskForNeedsNoHandlerThread) {
  for (const char* path : {"/health", "/ready", "/ping", "/version", "/load", "/metrics"}) {
    EXPECT_EQ(FindRoute("GET", path).route->thread, AnsweredOn::kIoThread) << path;
  }
  for (const Route& route : Routes()) {
    const bool parses = route.method == "POST" && route.path != "/ping";
    EXPECT_TRUE(!parses || route.thread == AnsweredOn::kHandlerThread) << route.path;
  }
}

}  // namespace
}  // namespace tramontane
