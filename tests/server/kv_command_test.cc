// Saved sessions of a real server: what `tramontane kv` says of their files and makes of their keys and
// values, and that another server goes on from them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/safetensors.h"
#include "server/sessions/session_file.h"
#include "server/sessions/session_folder.h"
#include "tests/server/program.h"
#include "tests/support/http_test_client.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json Post(const Served& served, const std::string& path, const Json& body) {
  const HttpReply reply = Fetch(served.http, HttpPost(path, body.dump(), {"Host: localhost"}));
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body, nullptr, false);
}

std::vector<int> Prompt() {
  std::vector<int> ids = {1};
  for (int i = 0; i < 330; ++i) ids.push_back(300 + i * 37 % 500);
  return ids;
}

Json Turn(const std::vector<int>& prompt, const std::string& session) {
  Json body = {{"prompt", prompt},   {"max_tokens", 12},   {"temperature", 0},
               {"ignore_eos", true}, {"session", session}, {"return_token_ids", true}};
  if (session.empty()) body.erase("session");
  return body;
}

std::vector<int> Said(const Json& answer) { return answer["choices"][0]["token_ids"]; }

class KvCommand : public testing::Test {
 protected:
  // Leaves a session "s" in the folder; the ids of what follows its second turn.
  Json SaveSession(const std::vector<std::string>& more) {
    Served served(Arguments(more));
    second_ = Prompt();
    const std::vector<int> said = Said(Post(served, "/v1/completions", Turn(second_, "s")));
    second_.insert(second_.end(), said.begin(), said.end());
    Json saved = Post(served, "/v1/sessions/s/save", Json::object());
    second_.insert(second_.end(), {400, 401});
    answer_ = Said(Post(served, "/v1/completions", Turn(second_, "s")));
    return saved;
  }
  std::vector<std::string> Arguments(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--session-dir", folder_.path()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string File() const { return folder_.PathOf(SessionFileName("s", "", "127.0.0.1")); }
  std::string Show() const { return Listing(File()); }
  static std::string Listing(const std::string& path) {
    Program program({"kv", "show", path});
    EXPECT_EQ(program.Wait(), 0) << program.err();
    return program.out();
  }
  // The session alone, as it is saved where its keys and values are gone. `known`: else by a server to come.
  void WriteWithoutPages(const std::string& path, bool known = true) const {
    const int from = open(File().c_str(), O_RDONLY | O_CLOEXEC);
    auto reader = SessionFileReader::Open(from);
    ASSERT_TRUE(reader.ok()) << reader.status();
    reader->head().clear_kv();
    if (!known) reader->head().mutable_identity()->insert(1, "\"tail\":1,");
    const int to = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_TRUE(SessionFileWriter(to).WriteHead(reader->head()));
    close(from);
    close(to);
  }
  // What the command writes.
  std::string Export(const std::string& layout) const {
    const std::string out = folder_.PathOf(layout + ".safetensors");
    Program program({"kv", "export", File(), "--layout", layout, "--out", out});
    EXPECT_EQ(program.Wait(), 0) << program.err();
    return BytesOf(out);
  }
  void ExpectRefused(std::vector<std::string> arguments, const std::string& why) const {
    arguments.insert(arguments.begin(), "kv");
    Program program(arguments);
    EXPECT_NE(program.Wait(), 0);
    EXPECT_EQ(program.out(), "");
    EXPECT_THAT(program.err(), HasSubstr(why));
  }

  TempFolder folder_;
  std::vector<int> second_;  // prompt of the second turn
  std::vector<int> answer_;  // to it
};

// The file's own rows, taken apart here: of each layer keys [tokens, heads, X], their scales, then values.
struct SavedRows {
  explicit SavedRows(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    auto reader = SessionFileReader::Open(file);
    EXPECT_TRUE(reader.ok()) << reader.status();
    kv = reader->head().kv();
    layers.resize(static_cast<size_t>(kv.layers_size()));
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      EXPECT_TRUE(reader->ReadLayer(static_cast<int32_t>(layer), &layers[layer]).ok());
    }
    close(file);
  }
  // The vector, or its scales, of one layer, half, position and head; zeros where there is none.
  std::string At(size_t layer, int half, int64_t position, int64_t head, int64_t bytes, int64_t other_bytes,
                 bool is_scale) const {
    const int64_t begin = kv.layers(static_cast<int>(layer)).begin();
    if (position < begin) return std::string(static_cast<size_t>(bytes), '\0');
    const int64_t vectors = (kv.tokens() - begin) * kv.kv_heads();
    const int64_t at = half * vectors * (bytes + other_bytes) + (is_scale ? vectors * other_bytes : 0) +
                       ((position - begin) * kv.kv_heads() + head) * bytes;
    return {reinterpret_cast<const char*>(layers[layer].data()) + at, static_cast<size_t>(bytes)};
  }

  v1::SavedKv kv;
  std::vector<std::vector<std::byte>> layers;
};

// Every vector of an export beside the file's own, by the formula of its layout.
void ExpectExported(const std::string& bytes, const std::string& layout, const SavedRows& saved,
                    const std::string& dtype, int64_t vector_bytes, int64_t scale_bytes) {
  const auto tensors = ParseSafetensors(bytes, layout);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  const int64_t layers = std::ssize(saved.layers), heads = saved.kv.kv_heads();
  int64_t first = saved.kv.tokens();
  for (const auto& layer : saved.kv.layers()) first = std::min(first, layer.begin());
  const int64_t t = saved.kv.tokens() - first;
  const bool of_all = layout.starts_with("openppl");
  for (const bool is_scale : {false, true}) {
    const int64_t x = is_scale ? scale_bytes : vector_bytes, other = is_scale ? vector_bytes : scale_bytes;
    if (x == 0) continue;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string name = of_all ? is_scale ? "kv_scale" : "kv_cache"
                                      : "layers." + std::to_string(layer) + (is_scale ? ".kv_scale" : ".kv");
      ASSERT_TRUE(tensors->contains(name)) << name;
      const TensorInfo& tensor = tensors->at(name);
      EXPECT_EQ(tensor.dtype_name, is_scale ? "F16" : dtype);
      ASSERT_EQ(tensor.end - tensor.begin, (of_all ? layers : 1) * 2 * heads * t * x)
          << ShapeText(tensor.shape);
      for (int half = 0; half < 2; ++half) {
        for (int64_t token = 0; token < t; ++token) {
          for (int64_t head = 0; head < heads; ++head) {
            int64_t index = 0;
            if (layout == "hnd") index = (half * heads + head) * t + token;
            if (layout == "nhd") index = (half * t + token) * heads + head;
            if (layout == "openppl0") index = ((token * layers + layer) * 2 + half) * heads + head;
            if (layout == "openppl1") index = ((layer * t + token) * 2 + half) * heads + head;
            if (layout == "openppl2") index = ((layer * 2 + half) * t + token) * heads + head;
            if (layout == "openppl3") index = ((layer * 2 + half) * heads + head) * t + token;
            const auto at = static_cast<size_t>(tensor.begin + index * x);
            ASSERT_EQ(bytes.substr(at, static_cast<size_t>(x)),
                      saved.At(static_cast<size_t>(layer), half, first + token, head, x, other, is_scale))
                << name << " half " << half << " token " << token << " head " << head;
          }
        }
      }
    }
  }
}

TEST_F(KvCommand, AnotherServerGoesOnFromWhatWasSaved) {
  const Json saved = SaveSession({});
  EXPECT_EQ(saved["tokens"], 343);
  EXPECT_EQ(saved["kv_tokens"], 342) << "the last one was not fed back";
  EXPECT_EQ(saved["bytes"], std::filesystem::file_size(File()));
  const std::vector<std::vector<std::string>> others = {
      {}, {"--kv-layout", "nhd", "--page-size", "32"}, {"--page-size", "256"}, {"--prefix-cache", "off"}};
  for (const auto& more : others) {
    Served served(Arguments(more));
    const Json restored = Post(served, "/v1/sessions/s/restore", Json::object());
    EXPECT_EQ(restored["kv_tokens"], 342);
    const Json answer = Post(served, "/v1/completions", Turn(second_, "s"));
    EXPECT_EQ(Said(answer), answer_);
    EXPECT_EQ(answer["usage"]["prompt_tokens_details"].value("cached_tokens", int64_t{0}), 342);
  }
  Served other(Arguments({"--kv-dtype", "int8"}));
  const HttpReply reply = Fetch(other.http, HttpPost("/v1/sessions/s/restore", "{}", {"Host: localhost"}));
  EXPECT_EQ(reply.status, 409);
  EXPECT_THAT(reply.body, HasSubstr("and this server keeps them as int8 in groups of 32 (--kv-dtype"));
}

TEST_F(KvCommand, ShowsAndExportsWhatIsInTheFile) {
  SaveSession({});
  const SavedRows saved(File());
  const int64_t begin = saved.kv.layers(0).begin();
  const std::string listing = Show();
  EXPECT_THAT(listing,
              HasSubstr("session \"s\": of completions\nmodel: \"breeze\"\nids: 343\ncache_salt: none\n"
                        "keys and values: of the first 342 ids, "));
  EXPECT_THAT(listing, HasSubstr(": window 256, positions " + std::to_string(begin) + " to 341, "));
  EXPECT_EQ(begin, 342 - 255) << "and no more than the next token sees";
  EXPECT_THAT(listing, HasSubstr("file: version 4, "));
  EXPECT_THAT(listing, HasSubstr("every checksum is right\n"));
  const bool is_f32 = saved.kv.dtype() == "f32";
  for (const char* layout : {"hnd", "nhd", "openppl0", "openppl1", "openppl2", "openppl3"}) {
    ExpectExported(Export(layout), layout, saved, is_f32 ? "F32" : "BF16",
                   int64_t{saved.kv.head_dim()} * (is_f32 ? 4 : 2), 0);
  }
}

TEST_F(KvCommand, ExportsSmallNumbersWithTheirScales) {
  SaveSession({"--kv-dtype", "int8", "--kv-group", "16"});
  const SavedRows eight(File());
  EXPECT_THAT(Show(), HasSubstr("int8 in groups of 16"));
  for (const char* layout : {"hnd", "nhd", "openppl0", "openppl3"}) {
    ExpectExported(Export(layout), layout, eight, "I8", eight.kv.head_dim(), eight.kv.head_dim() / 16 * 2);
  }
  SaveSession({"--kv-dtype", "int4"});
  const SavedRows four(File());
  for (const char* layout : {"nhd", "openppl1", "openppl2"}) {
    ExpectExported(Export(layout), layout, four, "U8", four.kv.head_dim() / 2, four.kv.head_dim() / 32 * 2);
  }
  SaveSession({"--kv-dtype", "fp8"});
  const SavedRows fp8(File());
  ExpectExported(Export("hnd"), "hnd", fp8, "F8_E4M3", fp8.kv.head_dim(), 0);
  ExpectRefused({"export", File(), "--layout", "openppl0", "--out", folder_.PathOf("o")},
                "layout is \"openppl0\", which has no fp8");
}

TEST_F(KvCommand, RefusesWhatItCannotUseAndSaysWhy) {
  const std::string out = folder_.PathOf("o");
  ExpectRefused({"show", folder_.PathOf("absent")}, "absent: No such file");
  ExpectRefused({"show"}, "FILE is required");
  ExpectRefused({}, "A subcommand is required");
  folder_.Write("text", "something else");
  ExpectRefused({"show", folder_.PathOf("text")}, "text is no saved session");
  SaveSession({});
  const std::string without = folder_.PathOf("without");
  WriteWithoutPages(without);
  EXPECT_THAT(Listing(without), HasSubstr("keys and values: none\n"));
  ExpectRefused({"export", without, "--layout", "hnd", "--out", out}, "holds no keys and values");
  WriteWithoutPages(folder_.PathOf("newer"), /*known=*/false);
  ExpectRefused({"show", folder_.PathOf("newer")},
                "newer has an identity.tail that this server does not know");
  ExpectRefused({"export", File(), "--layout", "dnh", "--out", out}, "--layout: dnh not in");
  ExpectRefused({"export", File(), "--layout", "hnd", "--out", folder_.PathOf("no/o")}, "--out is ");
  std::string bytes = BytesOf(File());
  std::filesystem::create_symlink(File(), folder_.PathOf("same"));
  for (const std::string& same : {File(), folder_.PathOf("same")}) {
    ExpectRefused({"export", File(), "--layout", "hnd", "--out", same},
                  "--out is \"" + same + "\", which is the file that is read");
  }
  EXPECT_EQ(BytesOf(File()), bytes);
  bytes[bytes.size() - 40] ^= 1;
  folder_.Write("damaged", bytes);
  const std::string last = std::to_string(SavedRows(File()).layers.size() - 1);
  for (const char* command : {"show", "export"}) {
    std::vector<std::string> arguments = {command, folder_.PathOf("damaged")};
    if (arguments[0] == "export") arguments.insert(arguments.end(), {"--layout", "hnd", "--out", out});
    ExpectRefused(arguments, "damaged is cut off or damaged: the checksum of layer " + last);
  }
  EXPECT_FALSE(std::filesystem::exists(out)) << "nothing is written of a damaged file";
}

}  // namespace
}  // namespace tramontane
