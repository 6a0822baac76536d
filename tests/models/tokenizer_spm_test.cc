// Our ids and texts against the sentencepiece library's own tools, run as processes of their own (Debian
// package `sentencepiece`).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/tokenizer/load.h"
#include "models/tokenizer/sentencepiece.h"
#include "tests/models/tokenizer_test_model.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

constexpr uint32_t kSeed = 23;

// A vocabulary of the repository, or one of its siblings by a changed setting.
struct Vocabulary {
  const char* name;
  std::string file;  // may be absent
  void (*change)(SentencePieceModel* model);
};

std::string SharedFolder() {
  const char* folder = std::getenv("TRAMONTANE_SHARED");
  return folder != nullptr ? folder : std::string(TRAMONTANE_SOURCE_DIR) + "/../shared";
}

void KeepAsIs(SentencePieceModel*) {}
void RemoveExtraWhitespace(SentencePieceModel* model) { model->remove_extra_whitespaces = true; }
void AddNoDummyPrefix(SentencePieceModel* model) { model->add_dummy_prefix = false; }
void DropBytePieces(SentencePieceModel* model) {
  model->byte_fallback = false;
  std::erase_if(model->pieces,
                [](const auto& piece) { return piece.type == SentencePieceModel::Type::kByte; });
}
// Pieces across spaces, so that words cannot be encoded one by one.
void AddPiecesAcrossSpaces(SentencePieceModel* model) {
  for (const char* text : {"e▁", "e▁t", "a▁", "▁a▁", "n▁▁"}) model->pieces.push_back({text, -0.5f});
}

std::vector<Vocabulary> Vocabularies() {
  const std::string breeze = kBreezeFolder + "/tokenizer.model.v3";
  const std::string with_user_defined =
      std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/chat_v7_tokenizer/tokenizer.model.v7";
  return {{"Breeze", breeze, KeepAsIs},
          {"BreezeExtraWhitespaceRemoved", breeze, RemoveExtraWhitespace},
          {"BreezeNoDummyPrefix", breeze, AddNoDummyPrefix},
          {"BreezeNoBytes", breeze, DropBytePieces},
          {"BreezeAcrossSpaces", breeze, AddPiecesAcrossSpaces},
          {"UserDefinedPieces", with_user_defined, KeepAsIs},
          {"Stories260K", SharedFolder() + "/data/stories260k/tok512.model", KeepAsIs}};
}

class SpmToolsTest : public ::testing::TestWithParam<Vocabulary> {
 protected:
  void SetUp() override {
    if (std::system("command -v spm_encode spm_decode >/dev/null 2>&1") != 0) {
      GTEST_SKIP()
          << "spm_encode and spm_decode are not installed (Debian package sentencepiece): ids and texts were "
             "not compared with the library's";
    }
    if (!std::filesystem::exists(GetParam().file)) {
      GTEST_SKIP() << GetParam().file << " is absent: this vocabulary was not compared";
    }
    auto model = ParseSentencePieceModel(ReadBinaryFile(GetParam().file), GetParam().file);
    ASSERT_TRUE(model.ok()) << model.status();
    GetParam().change(&*model);
    const std::filesystem::path folder = ::testing::TempDir();
    // Of this test alone: CTest runs several at once.
    stem_ =
        (folder / (std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))).string();
    std::replace(stem_.begin() + static_cast<ptrdiff_t>(folder.string().size()) + 1, stem_.end(), '/', '_');
    std::ofstream(stem_ + ".model", std::ios::binary) << ModelFile(*model);
    tokenizer_ = std::make_unique<SentencePieceTokenizer>(std::move(*model), TokenizerVersion::kV3);
  }
  void TearDown() override {
    if (stem_.empty()) return;
    for (const char* suffix : {".model", ".in", ".out", ".err"}) std::filesystem::remove(stem_ + suffix);
  }

  // The lines that `tool` answers to `lines`.
  std::vector<std::string> Run(const std::string& tool, const std::vector<std::string>& lines) {
    {
      std::ofstream input(stem_ + ".in", std::ios::binary);
      for (const std::string& line : lines) input << line << '\n';
    }
    const std::string command = tool + " --model='" + stem_ + ".model' <'" + stem_ + ".in' >'" + stem_ +
                                ".out' 2>'" + stem_ + ".err'";
    EXPECT_EQ(std::system(command.c_str()), 0) << command << "\n" << ReadBinaryFile(stem_ + ".err");
    std::vector<std::string> answers;
    std::ifstream output(stem_ + ".out", std::ios::binary);
    for (std::string line; std::getline(output, line);) answers.push_back(line);
    return answers;
  }

  std::string stem_;  // of the files that the tools read and write
  std::unique_ptr<const SentencePieceTokenizer> tokenizer_;
};

std::string Join(const std::vector<int32_t>& ids) {
  std::ostringstream line;
  for (size_t i = 0; i < ids.size(); ++i) line << (i > 0 ? " " : "") << ids[i];
  return line.str();
}

// One line each: the tools read lines, so there is no newline in them.
std::vector<std::string> RandomTexts(std::mt19937* random, int64_t count) {
  static const std::vector<std::string> kWords = {"the",
                                                  "Hello,",
                                                  "world!",
                                                  "café",
                                                  "你好",
                                                  "𠮷",
                                                  "🙂",
                                                  "12345",
                                                  "don't",
                                                  "[INST]",
                                                  "</s>",
                                                  "<0x0A>",
                                                  "▁",
                                                  "▁▁a",
                                                  "[REF]",
                                                  "[/REF]",
                                                  "[REFERENCE_DOC_1]",
                                                  "[REFERENCE_DOC_10]",
                                                  "x[REF",
                                                  "\u00A0",
                                                  "\u200B",
                                                  "e\u0301",
                                                  "ﬁ",
                                                  "function(x){return 1;}",
                                                  "\r",
                                                  "a.b.c",
                                                  "ＡＢ"};
  static const std::vector<std::string> kGaps = {"", " ", " ", " ", "  ", "\t", "     "};
  const auto pick = [&](const std::vector<std::string>& list) { return list[(*random)() % list.size()]; };
  std::vector<std::string> texts = {"", " ", "  ", "\t", " a", "a ", "▁", " ▁ ", "▁ a"};
  while (static_cast<int64_t>(texts.size()) < count) {
    std::string text;
    switch ((*random)() % 4) {
      case 0:  // words
        for (size_t n = 1 + (*random)() % 30; n > 0; --n) text += pick(kWords) + pick(kGaps);
        break;
      case 1:  // any characters
        for (size_t n = 1 + (*random)() % 40; n > 0; --n) {
          static constexpr uint32_t kLimits[] = {0x80, 0x800, 0x10000, 0x110000};
          const uint32_t code_point = (*random)() % kLimits[(*random)() % 4];
          const bool usable =
              code_point != 0 && code_point != '\n' && (code_point < 0xD800 || code_point >= 0xE000);
          AppendUtf8(usable ? code_point : 'x', &text);
        }
        break;
      case 2:  // few letters, so that many merges compete
        for (size_t n = 1 + (*random)() % 200; n > 0; --n) text += "abcdeghinorst   "[(*random)() % 16];
        break;
      default: {  // one thing again and again, up to a long word
        const std::string unit = pick({"a", " ", "ab", "the", "=", "  ", "あ", "\t"});
        for (size_t n = 1 + (*random)() % 300; n > 0; --n) text += unit;
      }
    }
    texts.push_back(text);
  }
  return texts;
}

TEST_P(SpmToolsTest, IdsEqualSpmEncode) {
  std::mt19937 random(kSeed);
  const std::vector<std::string> texts = RandomTexts(&random, ScaledCount(6000, 300));
  const std::vector<std::string> expected = Run("spm_encode --output_format=id", texts);
  ASSERT_EQ(expected.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(Join(tokenizer_->Encode(texts[i]).value()), expected[i])
        << "text '" << texts[i] << "' seed " << kSeed;
  }
}

TEST_P(SpmToolsTest, TextsEqualSpmDecode) {
  std::mt19937 random(kSeed);
  std::vector<std::vector<int32_t>> messages;
  for (const std::string& text : RandomTexts(&random, ScaledCount(3000, 150))) {
    messages.push_back(tokenizer_->Encode(text).value());
  }
  // And ids that no text gives: anything but bytes, which alone are no characters.
  while (static_cast<int64_t>(messages.size()) < ScaledCount(6000, 300)) {
    std::vector<int32_t>& ids = messages.emplace_back();
    for (size_t length = 1 + random() % 12; ids.size() < length;) {
      const auto id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer_->vocab_size()));
      if (tokenizer_->Kind(id) != PieceKind::kByte) ids.push_back(id);
    }
  }
  std::vector<std::string> lines;
  for (const auto& ids : messages) lines.push_back(Join(ids));
  const std::vector<std::string> expected = Run("spm_decode --input_format=id", lines);
  ASSERT_EQ(expected.size(), lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    ASSERT_EQ(tokenizer_->Decode(messages[i]).value(), expected[i])
        << "ids " << lines[i] << " seed " << kSeed;
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SpmToolsTest, ::testing::ValuesIn(Vocabularies()),
                         [](const auto& vocabulary) { return vocabulary.param.name; });

}  // namespace
}  // namespace tramontane
