// kv_vectors on files of every kind: all cases pass, one altered value of any output fails, and so does a
// rule that is broken below it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "kernels/core/dtype.h"
#include "tests/kv_vectors/case_run.h"
#include "tests/kv_vectors/run.h"
#include "tests/kv_vectors/vector_file.h"
#include "tests/support/broken_rule.h"
#include "tests/support/counting_backend.h"
#include "tests/support/temp_folder.h"

namespace tramontane::kv_vectors {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> OwnFiles() { return FilesIn(TRAMONTANE_SOURCE_DIR "/tests/kv_vectors/cases"); }
std::string OwnFile(const std::string& name) {
  return TRAMONTANE_SOURCE_DIR "/tests/kv_vectors/cases/" + name;
}

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

json FileOf(json vector_case) {
  return {
      {"format", "tramontane-kv-vectors"}, {"version", 1}, {"cases", json::array({std::move(vector_case)})}};
}

struct Ran {
  Outcome outcome;
  std::string text;
};

Ran RunText(Machine& machine, const std::string& text) {
  TempFolder folder;
  folder.Write("vectors.json", text);
  std::ostringstream out;
  Ran ran;
  ran.outcome = RunFiles(machine, {folder.PathOf("vectors.json")}, out);
  ran.text = out.str();
  return ran;
}

Machine Cpu() { return MakeMachine("cpu").value(); }

std::string Base64(const std::vector<unsigned char>& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < bytes.size() ? bytes[i + j] : 0u);
    for (size_t j = 0; j < 4; ++j) {
      text.push_back(i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63]);
    }
  }
  return text;
}

// The tensor with one element one higher, as f32; nothing where it has no element.
json Altered(const json& tensor, size_t element) {
  VectorTensor numbers = ReadTensor(tensor).value();
  if (numbers.values.empty()) return json();
  double& number = numbers.values[element % numbers.values.size()];
  number = std::isfinite(number) ? number + 1 : 0;
  std::vector<unsigned char> bytes(numbers.values.size() * sizeof(float));
  for (size_t i = 0; i < numbers.values.size(); ++i) {
    const auto value = static_cast<float>(numbers.values[i]);
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(value));
  }
  return {{"dtype", "f32"}, {"shape", numbers.shape}, {"b64", Base64(bytes)}};
}

// Every output of a case: of itself and of its calls.
std::vector<json::json_pointer> OutputsOf(const json& vector_case) {
  std::vector<json::json_pointer> outputs;
  const auto add = [&](const json::json_pointer& out) {
    for (const auto& [name, value] : vector_case[out].items()) outputs.push_back(out / name);
  };
  add(json::json_pointer("/out"));
  if (vector_case.contains("calls")) {
    for (size_t i = 0; i < vector_case["calls"].size(); ++i) {
      add(json::json_pointer("/calls/" + std::to_string(i) + "/out"));
    }
  }
  return outputs;
}

TEST(KvVectorsTest, EveryCaseOfOurOwnPassesOnTheCpu) {
  Machine machine = Cpu();
  std::ostringstream out;
  const Outcome outcome = RunFiles(machine, OwnFiles(), out);
  EXPECT_EQ(outcome.failed, 0) << out.str();
  EXPECT_EQ(outcome.skipped, 0) << "the CPU skips nothing";
  EXPECT_GE(outcome.passed, 60);
  EXPECT_THAT(out.str(), HasSubstr(std::to_string(outcome.passed) + " passed, 0 failed\n"));
}

TEST(KvVectorsTest, OneAlteredValueOfAnyOutputFails) {
  Machine machine = Cpu();
  std::map<std::string, int> altered_of_kind;
  for (const std::string& file : OwnFiles()) {
    const json whole = ReadJson(file);
    for (const json& vector_case : whole["cases"]) {
      for (const json::json_pointer& output : OutputsOf(vector_case)) {
        if (!vector_case[output].is_object()) continue;  // plain JSON: below
        for (const size_t element : {size_t{0}, size_t{7919}}) {
          json altered = vector_case;
          altered[output] = Altered(vector_case[output], element);
          if (altered[output].is_null()) continue;
          const Ran ran = RunText(machine, FileOf(altered).dump());
          ASSERT_EQ(ran.outcome.failed, 1) << vector_case["name"] << " " << output << "\n" << ran.text;
          ASSERT_THAT(ran.text, HasSubstr("expected"));
          ++altered_of_kind[vector_case["kind"]];
        }
      }
    }
  }
  for (const char* kind :
       {"openppl.key_value_cache", "flashinfer.append", "flashinfer.mask", "flashinfer.attention",
        "flashinfer.mla", "flashinfer.cascade", "ascend.mask", "ascend.tiles", "article.attention",
        "streaming.plan", "streaming.attention", "rope.shift", "fp8.e4m3"}) {
    EXPECT_GT(altered_of_kind[kind], 0) << kind;
  }
}

TEST(KvVectorsTest, OneAlteredValueOfATraceFails) {
  Machine machine = Cpu();
  const json whole = ReadJson(TRAMONTANE_SOURCE_DIR "/tests/kv_vectors/cases/article.json");
  const json& trace = whole["cases"][0];
  ASSERT_EQ(trace["kind"], "article.trace");
  for (const auto& [name, value] : trace["out"]["steps"][1].items()) {
    json altered = trace;
    json& field = altered["out"]["steps"][1][name];
    json& element = field.is_array() ? (field[0].is_array() ? field[0][0] : field[0]) : field;
    element = element.is_string() ? json("2") : json(element.get<int64_t>() + 1);
    const Ran ran = RunText(machine, FileOf(altered).dump());
    EXPECT_EQ(ran.outcome.failed, 1) << name;
    EXPECT_THAT(ran.text, HasSubstr("out.steps[1]." + name));
  }
}

TEST(KvVectorsTest, AnAlteredHitFails) {
  Machine machine = Cpu();
  const json whole = ReadJson(TRAMONTANE_SOURCE_DIR "/tests/kv_vectors/cases/prefix.json");
  for (json vector_case : whole["cases"]) {
    ASSERT_EQ(vector_case["kind"], "prefix.hit");
    vector_case["out"]["hit_tokens"] = vector_case["out"]["hit_tokens"].get<int64_t>() + 1;
    const Ran ran = RunText(machine, FileOf(vector_case).dump());
    EXPECT_EQ(ran.outcome.failed, 1);
    EXPECT_THAT(ran.text, HasSubstr("out.hit_tokens is"));
  }
}

// The first case of a kind in our file of endless contexts, under a policy.
json StreamOf(const std::string& kind, const std::string& policy) {
  const json whole = ReadJson(TRAMONTANE_SOURCE_DIR "/tests/kv_vectors/cases/streaming.json");
  for (const json& vector_case : whole["cases"]) {
    if (vector_case["kind"] == kind && vector_case["attrs"]["policy"] == policy) return vector_case;
  }
  return json();
}

TEST(KvVectorsTest, EventsThatTheEngineDoesNotMakeFail) {
  Machine machine = Cpu();
  for (const char* policy : {"sinks", "shift", "reevaluate"}) {
    const json attention = StreamOf("streaming.attention", policy);
    for (const char* name : {"token", "count", "discarded", "first_row"}) {
      for (const size_t event : {size_t{0}, size_t{5}, attention["in"][name]["data"].size() - 1}) {
        json altered = attention;
        json& number = altered["in"][name]["data"][event];
        number = number.get<int64_t>() + 1;
        const Ran ran = RunText(machine, FileOf(altered).dump());
        EXPECT_EQ(ran.outcome.failed, 1) << policy << " " << name << " " << event;
        EXPECT_THAT(ran.text, HasSubstr("is not the policy's"));
      }
      json altered = attention;
      altered["attrs"]["tokens"] = attention["attrs"]["tokens"].get<int64_t>() + 1;
      EXPECT_EQ(RunText(machine, FileOf(altered).dump()).outcome.failed, 1) << "one event more";
    }
  }
}

TEST(KvVectorsTest, AStreamOutsideItsPolicyIsRefusedByName) {
  Machine machine = Cpu();
  const auto refusal = [&](const char* policy, const char* attr, int64_t value) {
    json altered = StreamOf("streaming.plan", policy);
    altered["attrs"][attr] = value;
    const Ran ran = RunText(machine, FileOf(altered).dump());
    EXPECT_EQ(ran.outcome.failed, 1);
    return ran.text;
  };
  EXPECT_THAT(refusal("sinks", "prompt", 9), HasSubstr("attrs.prompt is 9, not a whole number of 1 to 8"));
  EXPECT_THAT(refusal("sinks", "tokens", 7), HasSubstr("attrs.tokens is 7, not a whole number of 8 to"));
  EXPECT_THAT(refusal("sinks", "n_discard", 1), HasSubstr("n_discard is 1"));
  EXPECT_THAT(refusal("shift", "n_discard", 0), HasSubstr("n_discard is 0, allowed are 1 to 8"));
  EXPECT_THAT(refusal("reevaluate", "n_keep", 8), HasSubstr("n_keep is 8, allowed are 0 to 7"));
}

TEST(KvVectorsTest, TheSharedSamplesPassOnTheCpu) {
  const char* shared = std::getenv("TRAMONTANE_SHARED");
  const std::string folder =
      std::string(shared != nullptr ? shared : TRAMONTANE_SOURCE_DIR "/../shared") + "/data/kv-vectors";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no samples at " << folder;
  Machine machine = Cpu();
  for (const std::string& file : FilesIn(folder)) {
    std::ostringstream out;
    EXPECT_TRUE(RunFiles(machine, {file}, out).good()) << out.str();
  }
}

TEST(KvVectorsTest, TheEmulatorPassesOrNamesItsLimit) {
  Machine machine = MakeMachine("emulator").value();
  std::ostringstream out;
  const Outcome outcome = RunFiles(machine, OwnFiles(), out);
  EXPECT_EQ(outcome.failed, 0) << out.str();
  EXPECT_GT(outcome.passed, 0);
  EXPECT_GT(outcome.skipped, 0);
}

// Cases made for the limits of the CUDA kernels: none is passed over.
TEST(KvVectorsTest, TheEmulatorPassesWhatIsAsWideAsItsKernels) {
  Machine machine = MakeMachine("emulator").value();
  std::ostringstream out;
  const Outcome outcome = RunFiles(machine, {TRAMONTANE_SOURCE_DIR "/tests/kv_vectors/cases/wide.json"}, out);
  EXPECT_EQ(outcome.failed, 0) << out.str();
  EXPECT_EQ(outcome.skipped, 0) << out.str();
  EXPECT_GT(outcome.passed, 0);
}

// ---- rules broken in the product ----------------------------------------------------------------

// The kinds of which a case fails.
std::set<std::string> FailingKinds(Machine& machine, const std::vector<std::string>& files) {
  std::ostringstream out;
  RunFiles(machine, files, out);
  std::istringstream lines(out.str());
  std::set<std::string> kinds;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, file, kind;
    words >> what >> file >> kind;
    if (what == "FAIL") kinds.insert(kind);
  }
  return kinds;
}

TEST(KvVectorsTest, ARuleBrokenInTheProductFailsEachKindThatGoesByIt) {
  const std::map<KvRule, std::set<std::string>> kinds = {
      {KvRule::kNone, {}},
      {KvRule::kWindow,
       {"article.attention", "article.trace", "ascend.mask", "flashinfer.attention", "flashinfer.cascade",
        "prefix.hit", "streaming.attention"}},
      {KvRule::kScaleRounding, {"openppl.key_value_cache"}},
      {KvRule::kSinkQueryPosition, {"streaming.attention", "streaming.plan"}},
      {KvRule::kDiscard, {"streaming.attention", "streaming.plan"}},
      {KvRule::kSharedPages, {"flashinfer.cascade"}}};
  for (const auto& [rule, expected] : kinds) {
    SCOPED_TRACE(static_cast<int>(rule));
    Machine machine = Cpu();
    const BrokenRule broken(rule);
    EXPECT_EQ(FailingKinds(machine, OwnFiles()), expected);
  }
}

// Of the rules that its kernels and the host in front of them go by.
TEST(KvVectorsTest, ARuleBrokenInTheProductFailsOnTheEmulatorToo) {
  const std::map<KvRule, std::set<std::string>> kinds = {
      {KvRule::kNone, {}},
      {KvRule::kWindow, {"flashinfer.attention", "flashinfer.cascade", "streaming.attention"}},
      {KvRule::kSinkQueryPosition, {"streaming.attention"}},
      {KvRule::kDiscard, {"streaming.attention"}},
      {KvRule::kSharedPages, {"flashinfer.cascade"}}};
  for (const auto& [rule, expected] : kinds) {
    SCOPED_TRACE(static_cast<int>(rule));
    Machine machine = MakeMachine("emulator").value();
    const BrokenRule broken(rule);
    EXPECT_EQ(FailingKinds(machine, {OwnFile("wide.json"), OwnFile("cascade.json")}), expected);
  }
}

// ---- cascades -----------------------------------------------------------------------------------

// Cases of our file of cascades that fail.
std::set<std::string> FailingCascades(Machine& machine) {
  std::set<std::string> names;
  const json whole = ReadJson(OwnFile("cascade.json"));
  for (const json& vector_case : whole["cases"]) {
    const Ran ran = RunText(machine, FileOf(vector_case).dump());
    if (ran.outcome.failed > 0) names.insert(vector_case["name"]);
  }
  return names;
}

// Where pages that may be read together are not looked at, a row reads those of another: these are read so.
TEST(KvVectorsTest, CascadesAreReadTogetherWhereThatSavesEnough) {
  const BrokenRule broken(KvRule::kSharedPages);
  Machine cpu = Cpu(), emulator = MakeMachine("emulator").value();
  EXPECT_EQ(FailingCascades(cpu),
            (std::set<std::string>{"cascade shared window 0", "cascade shared window 900"}));
  EXPECT_EQ(FailingCascades(emulator), (std::set<std::string>{"cascade wide window 0"}));
}

// The batch of every Attention, and whether it went by a mask.
class BatchNotingBackend final : public CountingBackend {
 public:
  BatchNotingBackend(BackendPtr inner, std::vector<std::pair<int32_t, bool>>* batches)
      : CountingBackend(*inner), owned_(std::move(inner)), batches_(*batches) {}

  OpCode Attention(const AttentionParams& params) override {
    batches_.emplace_back(params.batch, params.mask.bits != nullptr);
    return owned_->Attention(params);
  }
  void Destroy() override { delete this; }

 private:
  BackendPtr owned_;
  std::vector<std::pair<int32_t, bool>>& batches_;
};

TEST(KvVectorsTest, ACascadeOfWholePagesIsOneAttentionOfItsRowsToo) {
  std::vector<std::pair<int32_t, bool>> batches;
  Machine machine = Cpu();
  machine.backend = BackendPtr(new BatchNotingBackend(std::move(machine.backend), &batches));
  const auto batches_of = [&](const json& vector_case) {
    batches.clear();
    RunText(machine, FileOf(vector_case).dump());
    return batches;
  };
  using testing::ElementsAre;
  using testing::Pair;
  const json of_pages = ReadJson(OwnFile("cascade.json"))["cases"][0];
  ASSERT_EQ(of_pages["name"], "cascade whole pages window 0");
  EXPECT_THAT(batches_of(of_pages), ElementsAre(Pair(1, true), Pair(2, true), Pair(4, true), Pair(7, false)));

  // A prefix that ends within a page.
  const json within_pages = ReadJson(OwnFile("flashinfer.json"));
  for (const json& vector_case : within_pages["cases"]) {
    if (vector_case["kind"] != "flashinfer.cascade") continue;
    EXPECT_THAT(batches_of(vector_case), ElementsAre(Pair(1, true), Pair(3, true))) << vector_case["name"];
  }
}

// A mask that is lost on its way to the op.
class MasklessBackend final : public CountingBackend {
 public:
  explicit MasklessBackend(BackendPtr inner) : CountingBackend(*inner), owned_(std::move(inner)) {}

  OpCode Attention(const AttentionParams& given) override {
    AttentionParams params = given;
    params.mask = {};
    return owned_->Attention(params);
  }
  OpCode GatherKv(const GatherKvParams& params) override { return owned_->GatherKv(params); }
  void Destroy() override { delete this; }

 private:
  BackendPtr owned_;
};

TEST(KvVectorsTest, AMaskThatIsLostFails) {
  Machine machine = Cpu();
  machine.backend = BackendPtr(new MasklessBackend(std::move(machine.backend)));
  EXPECT_EQ(FailingKinds(machine, OwnFiles()),
            (std::set<std::string>{"flashinfer.attention", "flashinfer.cascade", "flashinfer.mla"}));
}

TEST(KvVectorsTest, WhatIsWrongWithAFileOrACaseIsNamed) {
  Machine machine = Cpu();
  const auto text_of = [&](const json& file) {
    const Ran ran = RunText(machine, file.dump());
    EXPECT_EQ(ran.outcome.failed, 1);
    EXPECT_FALSE(ran.outcome.good());
    return ran.text;
  };
  const json good = {{"kind", "fp8.e4m3"},
                     {"name", "one"},
                     {"attrs", json::object()},
                     {"in", {{"x", {{"dtype", "f32"}, {"shape", {2}}, {"fill", 1}}}}},
                     {"out",
                      {{"code", {{"dtype", "u8"}, {"shape", {2}}, {"data", {56, 56}}}},
                       {"decoded", {{"dtype", "i8"}, {"shape", {2}}, {"scale", 0.5}, {"data", {2, 2}}}}}}};
  EXPECT_TRUE(RunText(machine, FileOf(good).dump()).outcome.good());

  json file = FileOf(good);
  file["format"] = "other";
  EXPECT_THAT(text_of(file), HasSubstr("format is \"other\", not \"tramontane-kv-vectors\""));
  file = FileOf(good);
  file["version"] = 2;
  EXPECT_THAT(text_of(file), HasSubstr("version is 2, not 1"));
  file = FileOf(good);
  file.erase("cases");
  EXPECT_THAT(text_of(file), HasSubstr("has no list of cases"));
  file = FileOf(good);
  file["cases"][0].erase("name");
  EXPECT_THAT(text_of(file), HasSubstr("cases[0] has no text name"));

  struct Edit {
    const char* pointer;
    json value;
    const char* message;
  };
  const Edit edits[] = {
      {"/kind", "fp8.e5m2", "fp8.e5m2 one: is no kind that is known"},
      {"/in/x/dtype", "f64", "in.x.dtype is \"f64\", not f32, f16, i8, u8, i16, i32 or i64"},
      {"/in/x/shape", {-1}, "in.x.shape is [-1], not sizes of 0 to 16777216"},
      {"/in/x/shape", {1 << 13, 1 << 13}, "at most 16777216 elements"},
      {"/in/x/shape", {1, 2}, "in.x.shape is [1,2], not [-1]"},
      {"/in/x/fill", "1", "in.x.fill is \"1\", not a number of f32"},
      {"/in/x/data", {1, 2}, "in.x: has more than one of b64, data and fill"},
      {"/in/x/colour", 1, "in.x.colour is no key of a tensor"},
      {"/out/code/data", {56}, "out.code.data has 1 elements; the shape takes 2"},
      {"/out/code/data", {56, 256}, "out.code.data[1] is 256, not a whole number of u8"},
      {"/out/code/data", {56, 57}, "out.code[1] is 56, expected 57"},
      {"/out/decoded/scale", 0, "out.decoded.scale is 0, not a finite number other than 0"},
      {"/out/other", good["out"]["code"], "out.other is no output of this kind"},
      {"/out/code", {{"dtype", "u8"}, {"shape", {2}}, {"b64", "ODg"}}, "out.code.b64: has 3 characters"},
      {"/out/code", {{"dtype", "u8"}, {"shape", {2}}, {"b64", "OD!="}}, "no base64 digit at character 2"},
      {"/out/code", {{"dtype", "u8"}, {"shape", {2}}, {"b64", "OA=="}}, "has 1 bytes; the shape takes 2"},
  };
  for (const Edit& edit : edits) {
    json altered = good;
    altered[json::json_pointer(edit.pointer)] = edit.value;
    EXPECT_THAT(text_of(FileOf(altered)), HasSubstr(edit.message));
  }
  EXPECT_THAT(RunText(machine, "{").text, HasSubstr("not valid JSON"));
  EXPECT_THAT(RunText(machine, FileOf(good).dump() + "x").text, HasSubstr("not valid JSON"));
}

// What a case asks for is bounded by what it holds.
TEST(KvVectorsTest, ACaseThatAsksForMoreThanItHoldsIsRefusedBeforeItRuns) {
  Machine machine = Cpu();
  const auto refusal = [&](const char* file, const std::string& kind, const json& attrs) {
    const json whole = ReadJson(OwnFile(file));
    for (json vector_case : whole["cases"]) {
      if (vector_case["kind"] != kind) continue;
      vector_case["attrs"].update(attrs);
      const Ran ran = RunText(machine, FileOf(vector_case).dump());
      EXPECT_EQ(ran.outcome.failed, 1);
      return ran.text;
    }
    return std::string();
  };
  const json pool = {{"num_pages", 1 << 16}, {"page_size", 1 << 12}};
  for (const char* kind :
       {"flashinfer.append", "flashinfer.attention", "flashinfer.mla", "flashinfer.cascade"}) {
    EXPECT_THAT(refusal("flashinfer.json", kind, pool), HasSubstr("num_pages is 65536 pages of")) << kind;
  }
  const json stream = {{"prompt", 5}, {"tokens", 1 << 20}};
  EXPECT_THAT(refusal("streaming.json", "streaming.plan", stream),
              HasSubstr("out.token has 1048572 elements"));
  EXPECT_THAT(refusal("streaming.json", "streaming.attention", stream),
              HasSubstr("events; prompt and tokens make 1048572"));
  EXPECT_THAT(refusal("article.json", "article.trace", {{"seqlens", {16384, 16384}}, {"chunk", 1}}),
              HasSubstr("seqlens, chunk and decode_steps make 16387"));
  EXPECT_THAT(refusal("flashinfer.json", "flashinfer.attention", {{"sm_scale", 0}}),
              HasSubstr("attrs.sm_scale is 0, not above 0"));
  EXPECT_THAT(refusal("streaming.json", "rope.shift", {{"delta", 1 << 30}}),
              HasSubstr("attrs.delta is 1073741824, not a whole number of -536870912 to 536870912"));
}

// Also where the numbers come in a type that can hold others.
TEST(KvVectorsTest, AnIndexThatIsNoWholeNumberIsNamed) {
  Machine machine = Cpu();
  json openppl = ReadJson(OwnFile("openppl.json"))["cases"][0];
  openppl["calls"][0]["in"]["start_pos"] = {{"dtype", "f32"}, {"shape", {2}}, {"fill", 0.5}};
  EXPECT_THAT(RunText(machine, FileOf(openppl).dump()).text,
              HasSubstr("calls[0].in.start_pos[0] is 0.5, not a whole number of"));
  json quantised = ReadJson(OwnFile("openppl.json"))["cases"][1];
  ASSERT_EQ(quantised["attrs"]["quant_bit"], 8);
  quantised["in"]["cache"] = {{"dtype", "f32"}, {"shape", quantised["in"]["cache"]["shape"]}, {"fill", 300}};
  EXPECT_THAT(RunText(machine, FileOf(quantised).dump()).text,
              HasSubstr("in.cache.dtype is f32, not i8: quant_bit is 8"));
  const json masks = ReadJson(OwnFile("flashinfer.json"));
  for (json vector_case : masks["cases"]) {
    if (vector_case["kind"] != "flashinfer.mask") continue;
    vector_case["in"]["mask_data"] = {
        {"dtype", "i16"}, {"shape", vector_case["in"]["mask_data"]["shape"]}, {"fill", 256}};
    EXPECT_THAT(RunText(machine, FileOf(vector_case).dump()).text,
                HasSubstr("in.mask_data[0] is 256.0, not a whole number of 0 to 255"));
  }
}

// ---- OpenPPL's types ----------------------------------------------------------------------------

// The first case of our file of such a T1 and quant_bit.
json OpenPplCase(const std::string& t1, int32_t quant_bit) {
  const json whole = ReadJson(OwnFile("openppl.json"));
  for (const json& vector_case : whole["cases"]) {
    const json& attrs = vector_case["attrs"];
    if (attrs["t1"] == t1 && attrs["quant_bit"] == quant_bit) return vector_case;
  }
  ADD_FAILURE() << "no case of " << t1 << " with quant_bit " << quant_bit;
  return {};
}

TEST(KvVectorsTest, OpenPplsTypesAreTakenInItsWordsToo) {
  Machine machine = Cpu();
  for (const auto& [ours, theirs] : {std::pair{"f32", "float32"}, {"f16", "float16"}, {"i8", "int8"}}) {
    json vector_case = OpenPplCase(ours, 0);
    vector_case["attrs"]["t1"] = theirs;
    EXPECT_EQ(RunText(machine, FileOf(vector_case).dump()).outcome.passed, 1) << theirs;
  }
}

TEST(KvVectorsTest, RowsOfOpenPplsCacheHaveItsTypeAndOutputsThatOfTheirKeys) {
  Machine machine = Cpu();
  const auto numbers = [](const char* type, const json& shape, double value) {
    return json{{"dtype", type}, {"shape", shape}, {"fill", value}};
  };
  const auto ids = [](const json& shape, int value) {
    return json{{"dtype", "i64"}, {"shape", shape}, {"fill", value}};
  };
  const double tenth = 0.1f, tenth_of_f16 = F16ToFloat(FloatToF16(0.1f));
  const json row = {1, 1, 2}, cache = {1, 1, 2, 1, 2},
             starts = {{"dtype", "i64"}, {"shape", {2}}, {"data", {0, 1}}};
  const json call_in = {{"current_key", numbers("f32", row, tenth)},
                        {"current_value", numbers("f32", row, tenth)},
                        {"seqstarts", starts},
                        {"kvstarts", starts},
                        {"cachestarts", ids({1}, 0)},
                        {"start_pos", ids({1}, 0)},
                        {"max_seqlen", ids(json::array(), 1)},
                        {"max_kvlen", ids(json::array(), 1)}};
  const json attrs = {{"num_layer", 1},  {"layer_idx", 0},  {"quant_bit", 0},
                      {"num_repeat", 1}, {"cache_mode", 0}, {"cache_layout", 0}};
  const auto case_of = [&](const char* t1, const char* t2, double stored, double given) {
    json made = {
        {"kind", "openppl.key_value_cache"}, {"name", std::string(t1) + " over " + t2}, {"attrs", attrs}};
    made["attrs"]["t1"] = t1;
    made["in"]["cache"] = numbers(t2, cache, 0);
    made["out"]["cache"] = numbers("f32", cache, stored);
    const json out = {{"key", numbers("f32", row, given)}, {"value", numbers("f32", row, given)}};
    made["calls"] = json::array({json{{"in", call_in}, {"out", out}}});
    return made;
  };
  for (const json& vector_case :
       {case_of("f32", "f32", tenth, tenth), case_of("f32", "f16", tenth_of_f16, tenth_of_f16),
        case_of("f16", "f32", tenth, tenth_of_f16)}) {
    const Ran ran = RunText(machine, FileOf(vector_case).dump());
    EXPECT_EQ(ran.outcome.passed, 1) << ran.text;
  }
}

TEST(KvVectorsTest, WhatInt8OfOpenPplCannotBeIsNamed) {
  Machine machine = Cpu();
  const json whole = OpenPplCase("i8", 0);
  const json& cache_shape = whole["in"]["cache"]["shape"];
  struct Edit {
    const char* pointer;
    json value;
    const char* message;
  };
  const json scaled = {{"dtype", "i8"}, {"shape", cache_shape}, {"fill", 5}, {"scale", 0.5}};
  const std::vector<Edit> edits = {
      {"/attrs/t1", "bf16", "attrs.t1 is \"bf16\", not one of f32, f16, i8,"},
      {"/attrs/quant_bit", 16, "quant_bit is 16, allowed are 0, 8 and 4"},
      {"/in/scale", scaled, "scale is given, and quant_bit is 0"},
      {"/in/cache",
       {{"dtype", "f16"}, {"shape", cache_shape}, {"fill", 1}},
       "in.cache.dtype is f16, not i8: t1 is int8, and quant_bit 0"},
      {"/in/cache", scaled, "in.cache[0,0,0,0,0] is 2.5, no whole number of -128 to 127: t1 is int8"},
      {"/calls/0/in/current_key",
       {{"dtype", "i32"}, {"shape", {5, 2, 8}}, {"fill", 1}},
       "calls[0].in.current_key.dtype is i32, not i8: t1 is int8"},
      {"/calls/1/in/current_value",
       {{"dtype", "i8"}, {"shape", {4, 2, 8}}, {"fill", 100}, {"scale", 2}},
       "calls[1].in.current_value[0,0,0] is 200, no whole number of -128 to 127: t1 is int8"},
  };
  for (const Edit& edit : edits) {
    json altered = whole;
    altered[json::json_pointer(edit.pointer)] = edit.value;
    altered["attrs"]["quant_group"] = 8;
    EXPECT_THAT(RunText(machine, FileOf(altered).dump()).text, HasSubstr(edit.message));
  }
  json quantised = OpenPplCase("f32", 8);
  quantised["attrs"]["t1"] = "i8";
  EXPECT_THAT(RunText(machine, FileOf(quantised).dump()).text,
              HasSubstr("quant_bit is 8, keys and values come in int8, which only 0 takes"));
  quantised = OpenPplCase("f32", 8);
  quantised["in"]["cache"]["scale"] = 0.5;
  EXPECT_THAT(RunText(machine, FileOf(quantised).dump()).text,
              HasSubstr("is 38.5, no whole number of -128 to 127: quant_bit is 8"));
}

TEST(KvVectorsTest, NanAgreesWithNanAlone) {
  const VectorTensor want = {.shape = {2}, .values = {std::nan(""), 1}};
  EXPECT_TRUE(Compare("out", want, {std::nan(""), 1}, {}).ok());
  EXPECT_FALSE(Compare("out", want, {0, 1}, {}).ok());
  EXPECT_FALSE(Compare("out", want, {std::nan(""), std::nan("")}, {.t = 1}).ok());
}

TEST(KvVectorsTest, TheExitStatusIsZeroOnlyWhereSomethingPassedAndNothingFailed) {
  TempFolder folder;
  folder.Write("none.json", R"({"format": "tramontane-kv-vectors", "version": 1, "cases": []})");
  const std::string own = OwnFiles()[0];
  const auto exit_of = [](const std::vector<std::string>& arguments, std::string* text = nullptr) {
    std::ostringstream out, err;
    const int status = KvVectorsMain(arguments, out, err);
    if (text != nullptr) *text = out.str() + err.str();
    return status;
  };
  std::string text;
  EXPECT_EQ(exit_of({own}), 0);
  EXPECT_EQ(exit_of({"--backend", "cpu", own, own}), 0);
  EXPECT_EQ(exit_of({folder.PathOf("none.json")}, &text), 1);
  EXPECT_EQ(text, "0 passed, 0 failed\n");
  EXPECT_EQ(exit_of({own, folder.PathOf("absent.json")}, &text), 1);
  EXPECT_THAT(text, HasSubstr("FAIL " + folder.PathOf("absent.json")));
  EXPECT_EQ(exit_of({}, &text), 2);
  EXPECT_THAT(text, HasSubstr("usage: kv_vectors"));
  EXPECT_EQ(exit_of({"--backend", "tpu", own}, &text), 2);
  EXPECT_THAT(text, HasSubstr("--backend is 'tpu', not cpu, emulator or cuda"));
}

}  // namespace
}  // namespace tramontane::kv_vectors
