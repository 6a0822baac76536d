// GGUF files that cannot be a model, given to the program as a user would: each is refused with status 1 and
// in words, before the server is ready, in little memory. What is wrong inside a file is told by gguf_test
// and gguf_config_test, case by case; here it is the whole way from a path to an exit status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/server/program.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/sanitizers.h"
#include "tests/support/small_gguf_model.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using gguf_key::Bool;
using gguf_key::Bools;
using gguf_key::Float;
using gguf_key::Text;
using gguf_key::Uint32;
using testing::HasSubstr;

constexpr uint64_t kMost = ~uint64_t{0};
constexpr int64_t kMostBytes = int64_t{1} << 30;
// Of the processor; a refusal takes milliseconds.
constexpr rlim_t kMostSeconds = kSanitized ? 100 : 20;

auto Strings(const std::vector<std::string>& texts) {
  return [texts](GgufWriter& writer, const std::string& key) { writer.AddStrings(key, texts); };
}
auto Ints(const std::vector<int32_t>& numbers) {
  return [numbers](GgufWriter& writer, const std::string& key) {
    writer.AddArray(key, GgufKind::kInt32, numbers);
  };
}
auto Floats(const std::vector<float>& numbers) {
  return [numbers](GgufWriter& writer, const std::string& key) {
    writer.AddArray(key, GgufKind::kFloat32, numbers);
  };
}

// With a tokenizer, so that it could be served.
SmallGgufModel WholeModel() {
  SmallGgufModel model;
  model.keys["tokenizer.ggml.model"] = Text("llama");
  model.keys["tokenizer.ggml.tokens"] = Strings({"<unk>", "<s>", "</s>", "a", "b"});
  model.keys["tokenizer.ggml.token_type"] = Ints({2, 3, 3, 1, 1});
  model.keys["tokenizer.ggml.scores"] = Floats({0, 0, 0, -1, -2});
  model.keys["tokenizer.ggml.bos_token_id"] = Uint32(1);
  model.keys["tokenizer.ggml.eos_token_id"] = Uint32(2);
  return model;
}

struct Case {
  std::string name;
  std::string file;
  std::vector<std::string> words;
};

// Runs the command, and expects a refusal.
void ExpectRefusal(const std::vector<std::string>& command, const Case& wanted) {
  SCOPED_TRACE(command[0] + " " + command.back());
  ProgramOptions options;
  options.in_child = [] {
    const rlimit seconds = {kMostSeconds, kMostSeconds};
    setrlimit(RLIMIT_CPU, &seconds);
  };
  Program program(command, options);
  EXPECT_EQ(program.Wait(), 1);
  EXPECT_EQ(program.out(), "");
  EXPECT_THAT(program.err(), HasSubstr(".gguf"));
  for (const std::string& word : wanted.words) EXPECT_THAT(program.err(), HasSubstr(word));
  EXPECT_LT(program.most_resident_bytes(), kMostBytes);
  EXPECT_GT(program.most_resident_bytes(), 0);
}

void ExpectRefusedByAll(const Case& wanted) {
  SCOPED_TRACE(wanted.name);
  const TempFolder folder;
  folder.Write("x.gguf", wanted.file);
  const std::string path = folder.PathOf("x.gguf");
  ExpectRefusal({"inspect", path}, wanted);
  if (ScaledCount(10) < 10) return;  // under a sanitizer a program takes long to start
  ExpectRefusal({"serve", path, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"}, wanted);
}

// What the whole file is like, but for one thing.
std::string FileWith(const std::function<void(SmallGgufModel&)>& change) {
  SmallGgufModel model = WholeModel();
  change(model);
  return model.File();
}
std::string FileOf(const std::function<void(GgufWriter&)>& change) {
  GgufWriter writer = WholeModel().Writer();
  change(writer);
  return writer.File();
}
GgufWriter::Tensor& Find(GgufWriter& writer, std::string_view name) {
  return *std::find_if(writer.tensors.begin(), writer.tensors.end(),
                       [&](const GgufWriter::Tensor& tensor) { return tensor.name == name; });
}
std::string FileWithTensor(const std::function<void(GgufWriter::Tensor&)>& change) {
  return FileOf([&](GgufWriter& writer) { change(Find(writer, "blk.1.ffn_down.weight")); });
}
std::string FileWithValue(GgufKind kind, const std::string& bytes) {
  return FileOf([&](GgufWriter& writer) { writer.AddKey("odd", kind, bytes); });
}

TEST(MalformedGguf, WithoutAFaultTheFileIsRead) {
  const TempFolder folder;
  folder.Write("x.gguf", WholeModel().File());
  Program inspect({"inspect", folder.PathOf("x.gguf")});
  EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
  EXPECT_THAT(inspect.out(), HasSubstr("vocabulary of GGUF llama, 5 ids"));
}

TEST(MalformedGguf, FilesThatAreNotWellFormedAreRefused) {
  const std::string whole = WholeModel().File();
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += GgufWriter::ArrayBytes(GgufKind::kArray, 1, "");
  std::string huge_key = WholeModel().File();
  huge_key.replace(24, 8, GgufWriter::Bytes(uint64_t{1} << 63));  // behind magic, version and two counts
  const std::vector<Case> cases = {
      {"nothing", "", {"the file is empty", "truncated"}},
      {"another format", "<!DOCTYPE html>", {"not a GGUF", "magic"}},
      {"GGML", "GGML" + whole.substr(4), {"not a GGUF", "magic is 47 47 4d 4c"}},
      {"magic alone", "GGUF", {"version", "past the end of the file", "truncated"}},
      {"half a header", whole.substr(0, 300), {"past the end of the file", "truncated"}},
      {"a byte too few",
       whole.substr(0, whole.size() - 1),
       {"tensor", "past the end of the file", "truncated"}},
      {"version 1", FileOf([](GgufWriter& writer) { writer.version = 1; }), {"version 1"}},
      {"version 4", FileOf([](GgufWriter& writer) { writer.version = 4; }), {"version 4"}},
      {"big-endian",
       FileOf([](GgufWriter& writer) { writer.version = 3u << 24; }),
       {"version 3", "big-endian"}},
      {"tensors without end",
       FileOf([](GgufWriter& writer) { writer.tensor_count = kMost; }),
       {"count of tensors is 18446744073709551615", "limit"}},
      {"more tensors than bytes",
       FileOf([](GgufWriter& writer) { writer.tensor_count = 100'000; }),
       {"count of tensors, 100000,", "past the end of the file"}},
      {"keys without end",
       FileOf([](GgufWriter& writer) { writer.key_count = uint64_t{1} << 63; }),
       {"count of keys is 9223372036854775808", "limit"}},
      {"one key too few", FileOf([](GgufWriter& writer) { --writer.key_count; }), {"tensor \""}},
      {"one key too many",
       FileOf([](GgufWriter& writer) { ++writer.key_count; }),
       {"past the end of the file"}},
      {"a key of 2^63 bytes", huge_key, {"length 9223372036854775808", "past the end of the file"}},
      {"a string of 2^64 - 1 bytes",
       FileWithValue(GgufKind::kString, GgufWriter::Bytes(kMost)),
       {"\"odd\"", "length 18446744073709551615", "past the end of the file"}},
      {"2^64 - 1 bytes in an array",
       FileWithValue(GgufKind::kArray, GgufWriter::ArrayBytes(GgufKind::kUint8, kMost, "")),
       {"\"odd\"", "count", "18446744073709551615", "limit"}},
      {"2^61 numbers of 8 bytes",
       FileWithValue(GgufKind::kArray, GgufWriter::ArrayBytes(GgufKind::kUint64, uint64_t{1} << 61, "")),
       {"\"odd\"", "count", "limit"}},
      {"4,000,000 strings that are not there",
       FileWithValue(GgufKind::kArray, GgufWriter::ArrayBytes(GgufKind::kString, 4'000'000, "")),
       {"\"odd\"", "count", "past the end of the file"}},
      {"arrays 100,000 deep", FileWithValue(GgufKind::kArray, nested), {"\"odd\"", "nested", "4 levels"}},
      {"a value of an unknown type", FileWithValue(static_cast<GgufKind>(99), ""), {"\"odd\"", "type 99"}},
      {"an array of an unknown type",
       FileWithValue(GgufKind::kArray, GgufWriter::ArrayBytes(static_cast<GgufKind>(13), 1, "x")),
       {"the array of key \"odd\"", "type 13"}},
      {"a bool of 2", FileWithValue(GgufKind::kBool, "\2"), {"\"odd\"", "bool"}},
      {"a key twice",
       FileOf([](GgufWriter& writer) { writer.AddUint32("llama.block_count", 2); }),
       {"key \"llama.block_count\"", "twice"}},
      {"a tensor twice",
       FileOf([](GgufWriter& writer) { writer.AddTensor("output_norm.weight", {8}, std::vector<float>(8)); }),
       {"tensor \"output_norm.weight\"", "twice"}},
      {"IQ2_XXS",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.type = 16; }),
       {"blk.1.ffn_down.weight", "type IQ2_XXS"}},
      {"an unknown type",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.type = 12345; }),
       {"blk.1.ffn_down.weight", "type 12345"}},
      {"rows that are no whole blocks",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.type = kGgufQ8_0; }),
       {"dimension of 12", "whole blocks of 32", "Q8_0"}},
      {"no dimension",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.dimensions = {}; }),
       {"0 dimensions"}},
      {"five dimensions",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.dimensions = {1, 1, 1, 1, 1}; }),
       {"5 dimensions"}},
      {"a tensor of nothing",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.dimensions = {12, 0}; }),
       {"dimension 1", "is 0"}},
      {"2^64 numbers",
       FileWithTensor(
           [](GgufWriter::Tensor& tensor) { tensor.dimensions = {uint64_t{1} << 32, uint64_t{1} << 32}; }),
       {"dimensions [4294967296, 4294967296]", "overflow"}},
      {"3 times 2^62 numbers",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.dimensions = {uint64_t{1} << 62, 3}; }),
       {"overflow"}},
      {"a dimension of 2^64 - 1",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.dimensions = {kMost}; }),
       {"dimension 0", "18446744073709551615"}},
      {"an offset that is not aligned",
       FileWithTensor([](GgufWriter::Tensor& tensor) { ++tensor.offset; }),
       {"offset", "not aligned to 32"}},
      {"tensors that overlap",
       FileWithTensor([](GgufWriter::Tensor& tensor) { tensor.offset = 0; }),
       {"offset 0", "overlap"}},
      {"an offset of 2^63",
       FileWithTensor([](GgufWriter::Tensor& tensor) {
         tensor.offset = uint64_t{1} << 63;
         tensor.data.clear();
       }),
       {"offset 9223372036854775808", "past the end of the file"}},
      {"an offset that wraps",
       FileWithTensor([](GgufWriter::Tensor& tensor) {
         tensor.offset = kMost - 31;
         tensor.data.clear();
       }),
       {"offset 18446744073709551584", "past the end of the file"}},
      {"aligned to 0",
       FileWith([](SmallGgufModel& model) { model.keys["general.alignment"] = Uint32(0); }),
       {"general.alignment", "is 0"}},
      {"aligned to 3",
       FileWith([](SmallGgufModel& model) { model.keys["general.alignment"] = Uint32(3); }),
       {"general.alignment", "is 3", "powers of two"}},
      {"aligned to 2^31",
       FileWith([](SmallGgufModel& model) { model.keys["general.alignment"] = Uint32(1u << 31); }),
       {"general.alignment", "is 2147483648"}},
      {"a name that is no text", FileOf([](GgufWriter& writer) { writer.AddUint32("a\xff", 1); }), {"UTF-8"}},
  };
  for (const Case& wanted : cases) {
    ExpectRefusedByAll(wanted);
    const TempFolder folder;
    folder.Write("x.gguf", wanted.file);
    SCOPED_TRACE(wanted.name);
    ExpectRefusal({"inspect", folder.PathOf("x.gguf"), "--tensors"}, wanted);
  }
}

// Files whose tensors can be listed, but which are no model, or one whose numbers would mean something else.
TEST(MalformedGguf, WellFormedFilesThatAreNoModelAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto with = [](const std::string& key, const GgufKeyAdders::mapped_type& add) {
    return FileWith([&](SmallGgufModel& model) { model.keys[key] = add; });
  };
  const auto without = [](const std::string& key) {
    return FileWith([&](SmallGgufModel& model) { model.keys.erase(key); });
  };
  const auto windowed = [](const GgufKeyAdders::mapped_type& pattern) {
    return FileWith([&](SmallGgufModel& model) {
      model.keys["llama.attention.sliding_window"] = Uint32(16);
      model.keys["llama.attention.sliding_window_pattern"] = pattern;
    });
  };
  const auto with_tensor = [](const std::string& name, const std::vector<uint64_t>& dimensions) {
    return FileWith([&](SmallGgufModel& model) { model.tensors[name] = dimensions; });
  };
  const auto gpt2 = [](const std::string& pre, const std::vector<std::string>& merges) {
    return FileWith([&](SmallGgufModel& model) {
      model.keys["tokenizer.ggml.model"] = Text("gpt2");
      model.keys["tokenizer.ggml.pre"] = Text(pre);
      if (!merges.empty()) model.keys["tokenizer.ggml.merges"] = Strings(merges);
    });
  };
  const auto divided = [](float divisor) {
    GgufWriter writer = WholeModel().Writer();
    writer.AddTensor("rope_freqs.weight", {2}, {1.0f, divisor});
    return writer.File();
  };
  const std::vector<Case> cases = {
      {"2^32 - 1 layers",
       with("llama.block_count", Uint32(~0u)),
       {"llama.block_count", "4294967295", "1024"}},
      {"no layers", with("llama.block_count", Uint32(0)), {"llama.block_count", "is 0"}},
      {"more layers than tensors", with("llama.block_count", Uint32(1024)), {"blk.2.", "missing"}},
      {"fewer layers than tensors", with("llama.block_count", Uint32(1)), {"blk.1.", "no part"}},
      {"layers in words", with("llama.block_count", Text("2")), {"llama.block_count", "whole number"}},
      {"no heads", with("llama.attention.head_count", Uint32(0)), {"head_count", "is 0"}},
      {"heads of each layer",
       with("llama.attention.head_count", Ints({2, 1})),
       {"head_count", "array", "layers that differ"}},
      {"three heads of keys for two",
       with("llama.attention.head_count_kv", Uint32(3)),
       {"head_count_kv", "is 3"}},
      {"a NaN for epsilon",
       with("llama.attention.layer_norm_rms_epsilon", Float(nan)),
       {"layer_norm_rms_epsilon", "nan"}},
      {"a negative epsilon",
       with("llama.attention.layer_norm_rms_epsilon", Float(-1e-5f)),
       {"layer_norm_rms_epsilon", "-1e-05"}},
      {"an infinite theta",
       with("llama.rope.freq_base", Float(std::numeric_limits<float>::infinity())),
       {"rope.freq_base", "inf"}},
      {"a width of 2^31",
       with("llama.embedding_length", Uint32(1u << 31)),
       {"embedding_length", "2147483648"}},
      {"a width of another model",
       with("llama.embedding_length", Uint32(16)),
       {"rope.dimension_count", "is 4"}},
      {"no context", with("llama.context_length", Uint32(0)), {"context_length", "is 0"}},
      {"2^32 - 1 experts", with("llama.expert_count", Uint32(~0u)), {"expert_count", "4294967295"}},
      {"experts that nobody chooses",
       with("llama.expert_count", Uint32(3)),
       {"expert_used_count", "missing"}},
      {"a window of 2^32 - 1",
       with("llama.attention.sliding_window", Uint32(~0u)),
       {"sliding_window", "4294967295"}},
      {"a pattern of one layer", windowed(Bools({1})), {"sliding_window_pattern", "block_count = 2"}},
      {"a pattern of no layer", windowed(Bools({})), {"sliding_window_pattern", "block_count = 2"}},
      {"a pattern in a number", windowed(Uint32(2)), {"sliding_window_pattern", "array of bools"}},
      {"another architecture", with("general.architecture", Text("gemma3")), {"gemma3", "architecture"}},
      {"an architecture of 100,000 letters",
       with("general.architecture", Text(std::string(100'000, 'x'))),
       {"xxx...", "architecture"}},
      {"no architecture", without("general.architecture"), {"general.architecture", "missing"}},
      {"an adapter", with("general.type", Text("adapter")), {"general.type", "adapter"}},
      {"longrope", with("llama.rope.scaling.type", Text("longrope")), {"rope.scaling.type", "longrope"}},
      {"yarn without a factor",
       with("llama.rope.scaling.type", Text("yarn")),
       {"rope.scaling.factor", "missing"}},
      {"linear scaling", with("llama.rope.scaling.factor", Float(4.0f)), {"rope.scaling.factor", "linear"}},
      {"no causal mask", with("llama.attention.causal", Bool(false)), {"attention.causal", "false"}},
      {"an unknown key of attention",
       with("llama.attention.new_trick", Uint32(1)),
       {"attention.new_trick", "not known"}},
      {"a bias",
       with_tensor("blk.0.attn_q.bias", {8}),
       {"blk.0.attn_q.bias", "no part of this architecture"}},
      {"three divisors of frequencies",
       with_tensor("rope_freqs.weight", {3}),
       {"rope_freqs.weight", "shape [3]"}},
      {"a divisor of 0", divided(0.0f), {"rope_freqs.weight", "holds 0"}},
      {"a divisor that is NaN", divided(nan), {"rope_freqs.weight", "holds nan"}},
      {"a missing tensor",
       FileWith([](SmallGgufModel& model) { model.tensors.erase("blk.1.ffn_down.weight"); }),
       {"tensor blk.1.ffn_down.weight is missing"}},
      {"a matrix on its side",
       with_tensor("blk.1.ffn_down.weight", {8, 12}),
       {"blk.1.ffn_down.weight", "shape [12, 8]", "must be [8, 12]"}},
      {"one of three parts", with("split.count", Uint32(3)), {"split.count is 3"}},
      {"no tokenizer",
       FileWith([](SmallGgufModel& model) {
         std::erase_if(model.keys, [](const auto& key) { return key.first.starts_with("tokenizer."); });
       }),
       {"no tokenizer", "--tokenizer"}},
      {"another tokenizer", with("tokenizer.ggml.model", Text("bert")), {"tokenizer.ggml.model", "bert"}},
      {"no tokens", with("tokenizer.ggml.tokens", Strings({})), {"tokenizer.ggml.tokens", "no tokens"}},
      {"tokens that are numbers",
       with("tokenizer.ggml.tokens", Ints({1, 2, 3, 4, 5})),
       {"tokenizer.ggml.tokens", "array of strings"}},
      {"tokens that are one text",
       with("tokenizer.ggml.tokens", Text("a")),
       {"tokenizer.ggml.tokens", "array"}},
      {"more tokens than the embedding",
       with("tokenizer.ggml.tokens", Strings({"<unk>", "<s>", "</s>", "a", "b", "c"})),
       {"token_embd.weight", "shape [5, 8]", "[6, 8]"}},
      {"a token twice",
       with("tokenizer.ggml.tokens", Strings({"<unk>", "<s>", "</s>", "a", "a"})),
       {"tokenizer.ggml.tokens[4]", "same piece as [3]"}},
      {"an empty token",
       with("tokenizer.ggml.tokens", Strings({"<unk>", "<s>", "</s>", "a", ""})),
       {"tokenizer.ggml.tokens[4]", "0 bytes"}},
      {"a token that is no text",
       with("tokenizer.ggml.tokens", Strings({"<unk>", "<s>", "</s>", "a", "\xff"})),
       {"tokenizer.ggml.tokens[4]", "UTF-8"}},
      {"too few scores", with("tokenizer.ggml.scores", Floats({1})), {"tokenizer.ggml.scores", "1 entries"}},
      {"a score that is NaN",
       with("tokenizer.ggml.scores", Floats({0, 0, nan, 0, 0})),
       {"tokenizer.ggml.scores", "nan at index 2"}},
      {"an unknown kind of token",
       with("tokenizer.ggml.token_type", Ints({2, 3, 3, 1, 99})),
       {"tokenizer.ggml.token_type", "99 at index 4"}},
      {"a beginning outside",
       with("tokenizer.ggml.bos_token_id", Uint32(5)),
       {"bos_token_id", "is 5", "0 to 4"}},
      {"merges without tokens",
       FileWith([](SmallGgufModel& model) {
         model.keys["tokenizer.ggml.model"] = Text("gpt2");
         model.keys["tokenizer.ggml.merges"] = Strings({"a b"});
         model.keys.erase("tokenizer.ggml.tokens");
       }),
       {"tokenizer.ggml.tokens", "missing"}},
      {"no merges", gpt2("gpt-2", {}), {"tokenizer.ggml.merges", "missing"}},
      {"a merge of unknown pieces", gpt2("gpt-2", {"x y"}), {"tokenizer.ggml.merges[0]", "\"x\""}},
      {"an unknown pre-tokenizer", gpt2("deepseek-llm", {"a b"}), {"tokenizer.ggml.pre", "deepseek-llm"}},
      {"a template that is no text",
       with("tokenizer.chat_template", Text("\xff")),
       {"tokenizer.chat_template", "UTF-8"}},
      {"a template of 2 MB",
       with("tokenizer.chat_template", Text(std::string(2 << 20, '{'))),
       {"chat template", "limit is 262144"}},
  };
  for (const Case& wanted : cases) {
    ExpectRefusedByAll(wanted);
    // Whatever it is, its tensors are there.
    if (wanted.name == "one of three parts") continue;
    SCOPED_TRACE(wanted.name);
    const TempFolder folder;
    folder.Write("x.gguf", wanted.file);
    Program tensors({"inspect", folder.PathOf("x.gguf"), "--tensors"});
    EXPECT_EQ(tensors.Wait(), 0) << tensors.err();
    EXPECT_THAT(tensors.out(), HasSubstr("\"output_norm.weight\""));
  }
}

// ---- parts

std::string Part(uint16_t number, uint16_t count, bool first_half) {
  SmallGgufModel model = WholeModel();
  if (!first_half) model.keys.clear();
  model.keys["split.no"] = Uint32(number);
  model.keys["split.count"] = Uint32(count);
  model.keys["split.tensors.count"] = Uint32(static_cast<uint32_t>(model.tensors.size()));
  std::erase_if(model.tensors, [&](const auto& tensor) { return (tensor.first < "blk.1.") != first_half; });
  return model.File();
}

TEST(MalformedGguf, PartsThatAreMissingDoubledOrOutOfOrderAreRefused) {
  const std::string first_name = "x-00001-of-00002.gguf", second_name = "x-00002-of-00002.gguf";
  const std::string first = Part(0, 2, true), second = Part(1, 2, false);
  const struct {
    const char* name;
    std::vector<std::pair<std::string, std::string>> files;  // the first is the one that is named
    std::vector<std::string> words;                          // none: it is a model
  } cases[] = {
      {"whole", {{first_name, first}, {second_name, second}}, {}},
      {"without the second", {{first_name, first}}, {second_name, "missing"}},
      {"by the second",
       {{second_name, second}, {first_name, first}},
       {"not the first part", "-00001-of-00002"}},
      {"in the wrong order", {{first_name, second}, {second_name, first}}, {first_name, "split.no is 1"}},
      {"twice the first", {{first_name, first}, {second_name, first}}, {second_name, "split.no is 0"}},
      {"the first as the second",
       {{first_name, first}, {second_name, Part(1, 2, true)}},
       {second_name, "also stands in", "duplicate"}},
      {"of another count",
       {{first_name, first}, {second_name, Part(1, 3, false)}},
       {second_name, "split.count is 3"}},
      {"cut off", {{first_name, first}, {second_name, second.substr(0, 60)}}, {second_name, "truncated"}},
      {"empty", {{first_name, first}, {second_name, ""}}, {second_name, "empty"}},
      {"99,999 of them", {{"x-00001-of-99999.gguf", first}}, {"x-00002-of-99999.gguf", "missing"}},
  };
  for (const auto& [name, files, words] : cases) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    for (const auto& [file, bytes] : files) folder.Write(file, bytes);
    const std::string path = folder.PathOf(files[0].first);
    if (words.empty()) {
      Program inspect({"inspect", path});
      EXPECT_EQ(inspect.Wait(), 0) << inspect.err();
      continue;
    }
    ExpectRefusal({"inspect", path}, {name, "", words});
    ExpectRefusal({"inspect", path, "--tensors"}, {name, "", words});
    ExpectRefusal({"serve", path, "--grpc-address", "127.0.0.1:0"}, {name, "", words});
  }
}

// ---- much of what is right

// A header near its limit of 128 MB is read in less than a gigabyte, within kMostSeconds of the processor.
TEST(MalformedGguf, LargeHeadersTakeNeitherMuchMemoryNorLong) {
  const auto repeated = [](const std::string& bytes, int count) {
    std::string all;
    all.reserve(bytes.size() * static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) all += bytes;
    return all;
  };
  const std::string empty_array = GgufWriter::ArrayBytes(GgufKind::kUint8, 0, "");
  constexpr int kArrays = 4'000'000;
  const auto nested = [&](GgufWriter& writer) {
    writer.AddKey("odd", GgufKind::kArray,
                  GgufWriter::ArrayBytes(GgufKind::kArray, kArrays, repeated(empty_array, kArrays)));
  };
  const auto many_keys = [](GgufWriter& writer) {
    for (int i = 0; i < 60'000; ++i) writer.AddUint32("k" + std::to_string(i) + std::string(1000, 'k'), 1);
  };
  const std::vector<Case> cases = {
      {"4,000,000 arrays in one, in a file of no model",
       FileOf([&](GgufWriter& writer) {
         nested(writer);
         writer.AddUint32("llama.attention.new_trick", 1);
       }),
       {"new_trick"}},
      {"60,000 keys of 1,000 letters, in a file of no model",
       FileOf([&](GgufWriter& writer) {
         many_keys(writer);
         writer.AddUint32("llama.attention.new_trick", 1);
       }),
       {"new_trick"}},
      {"70,000 keys",
       FileOf([](GgufWriter& writer) {
         for (int i = 0; i < 70'000; ++i) writer.AddUint32("k" + std::to_string(i), 1);
       }),
       {"count of keys", "65536"}},
      {"100,000 tensors of nobody",
       FileOf([](GgufWriter& writer) {
         for (int i = 0; i < 100'000; ++i)
           writer.AddTensor("z" + std::to_string(i), {1}, std::vector<float>{1});
       }),
       {"no part of this architecture"}},
      {"200,000 control tokens",
       FileWith([](SmallGgufModel& model) {
         std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
         while (tokens.size() < 200'000) tokens.push_back("[" + std::to_string(tokens.size()) + "]");
         std::vector<int32_t> types(tokens.size(), 3);
         types[0] = 2;
         model.keys["tokenizer.ggml.tokens"] = Strings(tokens);
         model.keys["tokenizer.ggml.token_type"] = Ints(types);
         model.keys["tokenizer.ggml.scores"] = Floats({0});
         model.tensors["token_embd.weight"] = model.tensors["output.weight"] = {8, tokens.size()};
       }),
       {"tokenizer.ggml.scores", "1 entries"}},
  };
  for (const Case& wanted : cases) ExpectRefusedByAll(wanted);
}

}  // namespace
}  // namespace tramontane
