// Tokenizers of GGUF files: the same ids as those of the file that the vocabulary was taken from, and every
// key that is wrong refused by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "models/gguf/gguf_file.h"
#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/load.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "tests/models/gguf_tokenizer_keys.h"
#include "tests/models/tokenizer_test_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

using Keys = GgufTokenizerKeys;

constexpr int32_t kNormal = Keys::kNormal, kUnknown = Keys::kUnknown, kControl = Keys::kControl,
                  kUserDefined = Keys::kUserDefined, kByte = Keys::kByte;

StatusOr<std::unique_ptr<const Tokenizer>> Load(const Keys& keys) {
  const std::string bytes = keys.File();
  TM_ASSIGN_OR_RETURN(const GgufContents contents, ParseGguf(bytes, "model.gguf"));
  return MakeGgufTokenizer(contents.metadata);
}

std::string Refusal(const Keys& keys) {
  const auto loaded = Load(keys);
  return loaded.ok() ? "it was taken" : loaded.status().ToString();
}

// ---- gpt2

Keys FromTokenizerJson(const std::string& folder, const std::string& pre) {
  return KeysOfTokenizerJson(Json::parse(ReadBinaryFile(folder + "/tokenizer.json")), pre);
}

struct Shape {
  const char* folder;  // of tests/golden/tokenizer_json
  const char* pre;
};

class GgufGoldenTest : public ::testing::TestWithParam<Shape> {};

// The goldens are what `tokenizers` answered for the vocabulary as a tokenizer.json.
TEST_P(GgufGoldenTest, IdsAndTextsAreThoseOfTokenizers) {
  const std::string folder =
      std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/tokenizer_json/" + GetParam().folder;
  const Keys keys = FromTokenizerJson(folder, GetParam().pre);
  const TempFolder temp;
  temp.Write("model.gguf", keys.File());
  const auto loaded = LoadTokenizer(temp.PathOf("model.gguf"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  EXPECT_STREQ(tokenizer.family(), "GGUF gpt2");
  EXPECT_EQ(tokenizer.vocab_size(), static_cast<int32_t>(keys.tokens.size()));
  EXPECT_EQ(tokenizer.version(), std::nullopt);
  const Json cases = Json::parse(ReadBinaryFile(folder + "/encodings.json"));
  ASSERT_GT(cases.size(), 100u);
  for (const Json& example : cases) {
    const auto text = example["text"].get<std::string>();
    const auto ids = tokenizer.Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(*ids, example["ids"].get<Ids>()) << example["text"];
    const Ids parsed = example.value("parsed", *ids);
    ASSERT_EQ(tokenizer.EncodeWithControlTokens(text).value(), parsed) << example["text"];
    ASSERT_EQ(tokenizer.Decode(parsed).value(), example.value("decoded", text)) << example["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GgufGoldenTest,
                         ::testing::Values(Shape{"gpt2", "gpt-2"}, Shape{"smollm", "smollm"},
                                           Shape{"qwen2", "qwen2"}, Shape{"llama3", "llama-bpe"},
                                           Shape{"tekken", "tekken"}),
                         [](const auto& param_info) { return std::string(param_info.param.folder); });

// The 256 bytes by their own pieces, then what is given.
Keys Small(const std::vector<std::string>& more = {}) {
  const std::string folder = std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/tokenizer_json/gpt2";
  Keys keys = FromTokenizerJson(folder, "gpt-2");
  keys.tokens.insert(keys.tokens.end(), more.begin(), more.end());
  keys.types.resize(keys.tokens.size(), kNormal);
  return keys;
}

// Punctuation first, then GPT-2's words, then runs of digits, then threes of them.
TEST(GgufTokenizerTest, DefaultCutsPunctuationAndThreeDigits) {
  Keys keys = Small({"12", "123", "1234", "!!", "!?", "Ġ!"});
  keys.merges = {"1 2", "12 3", "123 4", "Ġ !", "! !", "! ?"};
  keys.pre = "default";
  const auto spelled = [&](const std::string& text) {
    const auto tokenizer = Load(keys).value();
    std::string pieces;
    const Ids ids = tokenizer->Encode(text).value();
    for (const int32_t id : ids) {
      pieces += (pieces.empty() ? "" : "|") + std::string(tokenizer->Piece(id));
    }
    return pieces;
  };
  EXPECT_EQ(spelled("1234"), "123|4");
  EXPECT_EQ(spelled("12 !!?"), "12| |!!|?");
  keys.pre = "gpt-2";
  EXPECT_EQ(spelled("1234"), "1234");
  EXPECT_EQ(spelled("12 !!?"), "12| !|!?");
}

TEST(GgufTokenizerTest, WithoutPreItIsTheDefaultAndSaysSo) {
  Keys keys = Small({"12", "123", "1234"});
  keys.merges = {"1 2", "12 3", "123 4"};
  keys.pre = "";
  const auto tokenizer = Load(keys).value();
  EXPECT_EQ(tokenizer->Encode("1234").value().size(), 2u);
  ASSERT_EQ(tokenizer->warnings().size(), 1u);
  EXPECT_THAT(tokenizer->warnings()[0], HasSubstr("model.gguf: tokenizer.ggml.pre is missing"));
}

TEST(GgufTokenizerTest, BosIsAddedAsTheFileSaysElseByThePreTokenizer) {
  const auto adds = [](const char* pre, int said) {
    Keys keys = Small();
    keys.pre = pre;
    keys.bos = static_cast<int>(keys.tokens.size()) - 1;
    keys.adds_bos = said;
    return Load(keys).value()->adds_bos();
  };
  for (const char* pre : {"llama-bpe", "tekken"}) {
    EXPECT_TRUE(adds(pre, -1)) << pre;
    EXPECT_FALSE(adds(pre, 0)) << pre;
  }
  for (const char* pre : {"default", "gpt-2", "smollm", "qwen2"}) {
    EXPECT_FALSE(adds(pre, -1)) << pre;
    EXPECT_TRUE(adds(pre, 1)) << pre;
  }
}

// What llama.cpp cuts alike under several names.
TEST(GgufTokenizerTest, OtherNamesOfAPreTokenizerAreThatOne) {
  const struct {
    const char* name;
    const char* same;
  } pairs[] = {{"pixtral", "llama-bpe"},  {"llama3", "llama-bpe"},
               {"llama-v3", "llama-bpe"}, {"falcon3", "llama-bpe"},
               {"phi-2", "gpt-2"},        {"command-r", "smollm"},
               {"stablelm2", "qwen2"},    {"deepseek-r1-qwen", "qwen2"},
               {"mpt", "gpt-2"},          {"refact", "smollm"}};
  const auto load = [](const char* pre) {
    Keys keys = Small({"12", "123", "1234", "Ġ!", "!\n"});
    keys.merges = {"1 2", "12 3", "123 4", "Ġ !"};
    keys.pre = pre;
    keys.bos = static_cast<int>(keys.tokens.size()) - 1;
    return Load(keys).value();
  };
  for (const auto& [name, same] : pairs) {
    const auto tokenizer = load(name), other = load(same);
    EXPECT_EQ(tokenizer->adds_bos(), other->adds_bos()) << name;
    for (const char* text : {"1234 12 !!?", "It's  1234\n\n!", "a 'LL b\n"}) {
      EXPECT_EQ(tokenizer->Encode(text).value(), other->Encode(text).value()) << name << ": " << text;
    }
  }
  EXPECT_NE(load("llama3")->Encode("1234").value(), load("gpt-2")->Encode("1234").value());
  EXPECT_THAT(load("pixtral")->warnings(), testing::Contains(HasSubstr("as by llama-bpe")));
  EXPECT_FALSE(load("smaug-bpe")->adds_bos());
  EXPECT_EQ(load("smaug-bpe")->Encode("1234").value().size(), 2u) << "cut by threes, merged by the list";
}

TEST(GgufTokenizerTest, WhatAKeyNamesAsAnEndIsStructure) {
  Keys keys = Small({"<end>", "<turn>"});
  const auto end = static_cast<int32_t>(keys.tokens.size()) - 2;
  keys.eos = end;
  keys.eot = end + 1;
  const auto tokenizer = Load(keys).value();
  EXPECT_EQ(tokenizer->eos_id(), end);
  EXPECT_TRUE(tokenizer->IsControl(end));
  EXPECT_TRUE(tokenizer->IsControl(end + 1));
  EXPECT_EQ(tokenizer->ControlId("<turn>"), end + 1);
}

TEST(GgufTokenizerTest, RefusesWhatItCannotEncodeWith) {
  Keys keys = Small();
  const std::string last = std::to_string(keys.tokens.size() - 1);
  const auto with = [&](auto change) {
    Keys changed = keys;
    change(changed);
    return Refusal(changed);
  };
  EXPECT_THAT(
      with([](Keys& k) { k.model = ""; }),
      HasSubstr("NOT_FOUND: model.gguf: there is no tokenizer in it (tokenizer.ggml.model is missing)"));
  EXPECT_THAT(with([](Keys& k) { k.model = "bert"; }),
              HasSubstr("UNIMPLEMENTED: model.gguf: tokenizer.ggml.model is \"bert\""));
  EXPECT_THAT(with([](Keys& k) { k.pre = "deepseek-llm"; }),
              HasSubstr("UNIMPLEMENTED: model.gguf: tokenizer.ggml.pre is \"deepseek-llm\""));
  EXPECT_THAT(with([](Keys& k) { k.merges.clear(); }), HasSubstr("tokenizer.ggml.merges"));
  EXPECT_THAT(with([](Keys& k) { k.merges[3] = "ab"; }),
              HasSubstr("tokenizer.ggml.merges[3] is not two pieces"));
  EXPECT_THAT(with([](Keys& k) { k.merges[3] = "q zz"; }),
              HasSubstr("tokenizer.ggml.merges[3] needs \"zz\""));
  EXPECT_THAT(with([](Keys& k) { k.tokens[7] = k.tokens[9]; }),
              HasSubstr("tokenizer.ggml.tokens[9] is the same piece as [7]"));
  EXPECT_THAT(with([](Keys& k) { k.tokens[7] = ""; }),
              HasSubstr("tokenizer.ggml.tokens[7] has 0 bytes, the limits are 1 and 1024"));
  EXPECT_THAT(with([](Keys& k) { k.tokens[7] = std::string(1025, 'a'); }), HasSubstr("has 1025 bytes"));
  EXPECT_THAT(with([](Keys& k) { k.tokens[7] = "\xFF"; }),
              HasSubstr("tokenizer.ggml.tokens[7] is not UTF-8"));
  EXPECT_THAT(with([](Keys& k) { k.types[7] = 7; }), HasSubstr("tokenizer.ggml.token_type"));
  EXPECT_THAT(with([](Keys& k) { k.types.pop_back(); }),
              HasSubstr("tokenizer.ggml.token_type has " + last + " entries"));
  EXPECT_THAT(with([](Keys& k) { k.eos = static_cast<int>(k.tokens.size()); }),
              HasSubstr("tokenizer.ggml.eos_token_id"));
  EXPECT_THAT(with([](Keys& k) { k.adds_bos = 1; }),
              HasSubstr("tokenizer.ggml.add_bos_token is true, and tokenizer.ggml.bos_token_id is missing"));
  EXPECT_THAT(with([](Keys& k) { k.adds_eos = 1; }),
              HasSubstr("UNIMPLEMENTED: model.gguf: tokenizer.ggml.add_eos_token is true"));
}

// As SmolLM2's, which has none for some control characters.
TEST(GgufTokenizerTest, AByteWithoutAPieceIsLeftOutAndKeepsItsNeighboursApart) {
  Keys keys = Small({"bc"});
  keys.merges = {"b c"};
  *std::find(keys.tokens.begin(), keys.tokens.end(), "a") = "<nothing>";
  const auto tokenizer = Load(keys).value();
  ASSERT_EQ(tokenizer->warnings().size(), 1u);
  EXPECT_EQ(tokenizer->warnings()[0], "model.gguf: no piece for the bytes 97: they are left out of text");
  const auto decoded = [&](const std::string& text) {
    return tokenizer->Decode(tokenizer->Encode(text).value()).value();
  };
  EXPECT_EQ(decoded("abaca"), "bc");
  EXPECT_EQ(tokenizer->Encode("abaca").value().size(), 2u);
  EXPECT_EQ(tokenizer->Encode("abca").value().size(), 1u);
  EXPECT_TRUE(tokenizer->Encode("aaa").value().empty());
}

// ---- llama

Keys FromSentencePiece(const SentencePieceModel& model) {
  Keys keys;
  keys.model = "llama";
  keys.pre = "default";
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    keys.tokens.push_back(model.pieces[id].text);
    keys.scores.push_back(model.pieces[id].score);
    keys.types.push_back(static_cast<int32_t>(model.pieces[id].type));
    if (model.pieces[id].text == model.bos_piece) keys.bos = static_cast<int>(id);
    if (model.pieces[id].text == model.eos_piece) keys.eos = static_cast<int>(id);
  }
  keys.space_prefix = model.add_dummy_prefix ? 1 : 0;
  return keys;
}

std::string RandomText(std::mt19937& random, const std::vector<std::string>& pieces) {
  std::string text;
  for (size_t parts = random() % 12 + 1; parts > 0; --parts) {
    switch (random() % 4) {
      case 0:
        text += pieces[random() % pieces.size()];
        break;
      case 1:
        text += std::string(random() % 3 + 1, ' ');
        break;
      case 2:
        text += static_cast<char>('!' + random() % 94);
        break;
      default:
        text +=
            std::vector<std::string>{"é", "漢", "🦊", "\n", "\t", "<0x0A>", "[INST]", "</s>"}[random() % 8];
    }
  }
  return text;
}

TEST(GgufTokenizerTest, IdsOfALlamaVocabularyAreThoseOfItsModelFile) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string source = TRAMONTANE_SOURCE_DIR;
  for (const std::string& path : {kBreezeFolder + "/tokenizer.model.v3",
                                  source + "/tests/golden/chat_v7_tokenizer/tokenizer.model.v7"}) {
    const auto model = ParseSentencePieceModel(ReadBinaryFile(path), path);
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_FALSE(model->remove_extra_whitespaces);
    const Keys keys = FromSentencePiece(*model);
    const auto loaded = Load(keys);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Tokenizer& ours = **loaded;
    const auto theirs = LoadTokenizer(path).value();
    EXPECT_STREQ(ours.family(), "GGUF llama");
    EXPECT_EQ(ours.version(), std::nullopt);
    EXPECT_EQ(ours.bos_id(), theirs->bos_id());
    EXPECT_EQ(ours.eos_id(), theirs->eos_id());
    EXPECT_EQ(ours.unk_id(), theirs->unk_id());
    EXPECT_EQ(ours.adds_bos(), theirs->adds_bos());
    for (int32_t id = 0; id < theirs->vocab_size(); ++id) {
      ASSERT_EQ(ours.Kind(id), theirs->Kind(id)) << id;
      ASSERT_EQ(ours.PieceBytes(id), theirs->PieceBytes(id)) << id;
    }
    for (int64_t i = 0; i < ScaledCount(3000); ++i) {
      const std::string text = RandomText(random, keys.tokens);
      ASSERT_EQ(ours.Encode(text).value(), theirs->Encode(text).value()) << text;
      const Ids parsed = theirs->EncodeWithControlTokens(text).value();
      ASSERT_EQ(ours.EncodeWithControlTokens(text).value(), parsed) << text;
      ASSERT_EQ(ours.Decode(parsed).value(), theirs->Decode(parsed).value()) << text;
    }
  }
}

Keys SmallLlama() {
  Keys keys;
  keys.model = "llama";
  keys.pre = "";
  keys.tokens = {"<unk>",
                 "<s>",
                 "</s>",
                 "\xE2\x96\x81",
                 "a",
                 "b",
                 "ab",
                 "\xE2\x96\x81"
                 "ab"};
  keys.types = {kUnknown, kControl, kControl, kNormal, kNormal, kNormal, kNormal, kNormal};
  keys.scores = {0, 0, 0, -4, -5, -6, -1, -2};
  keys.bos = 1;
  keys.eos = 2;
  return keys;
}

TEST(GgufTokenizerTest, ALlamaVocabularyAddsBosAndASpaceUnlessTheFileSaysNo) {
  Keys keys = SmallLlama();
  auto tokenizer = Load(keys).value();
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->Encode("ab").value(), (Ids{7}));
  EXPECT_EQ(tokenizer->Decode({{7}}).value(), "ab");
  EXPECT_EQ(tokenizer->Encode("abc").value(), (Ids{7, 0}));
  keys.space_prefix = 0;
  keys.adds_bos = 0;
  tokenizer = Load(keys).value();
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->Encode("ab").value(), (Ids{6}));
  EXPECT_EQ(tokenizer->Decode({{7}}).value(), " ab");
}

TEST(GgufTokenizerTest, RefusesALlamaVocabularyThatIsNotWhole) {
  const auto with = [](auto change) {
    Keys changed = SmallLlama();
    change(changed);
    return Refusal(changed);
  };
  EXPECT_THAT(with([](Keys& k) { k.scores.clear(); }), HasSubstr("tokenizer.ggml.scores"));
  EXPECT_THAT(with([](Keys& k) { k.scores.pop_back(); }),
              HasSubstr("tokenizer.ggml.scores has 7 entries, tokenizer.ggml.tokens has 8"));
  EXPECT_THAT(with([](Keys& k) { k.types.clear(); }), HasSubstr("tokenizer.ggml.token_type is missing"));
  EXPECT_THAT(with([](Keys& k) { k.types[4] = kByte; }),
              HasSubstr("tokenizer.ggml.tokens[4] is of type 6 (byte), not \"<0x0A>\""));
  EXPECT_THAT(with([](Keys& k) {
                k.types[4] = kByte;
                k.tokens[4] = "<0x41>";
              }),
              HasSubstr("has pieces for 1 bytes, the limits are 0 and 256"));
  EXPECT_THAT(with([](Keys& k) { k.types[0] = kControl; }),
              HasSubstr("neither byte pieces nor an unknown one"));
}

}  // namespace
}  // namespace tramontane
