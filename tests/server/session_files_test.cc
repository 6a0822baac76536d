// Sessions in files: whole and of this model, or refused with a word that says why.
#include "server/sessions/session_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/file_descriptor.h"
#include "server/base/text.h"
#include "server/sessions/session_file.h"
#include "server/sessions/session_folder.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SavedSessionModel kModel = {.name = "m", .fingerprint = "f1", .vocab_size = 100};

class SessionFile : public ::testing::Test {
 protected:
  SessionFile() : files_(SessionFiles::Open(folder_.path()).value()) {
    state_.ids = {1, 2, 99};
    state_.is_chat = true;
    state_.cache_salt = "salt";
    Say(v1::ROLE_USER, "hi");
    Say(v1::ROLE_ASSISTANT, "yo");
  }
  void Say(v1::Role role, const std::string& content) {
    v1::ChatMessage* message = state_.chat.add_messages();
    message->set_role(role);
    message->set_content(content);
  }
  void Save(const std::string& name) {
    int64_t bytes = 0;
    const RpcError error = files_->Save({}, name, state_, kModel, nullptr, &bytes);
    ASSERT_TRUE(error.ok()) << error.message();
    EXPECT_EQ(bytes, static_cast<int64_t>(BytesOf(name).size()));
  }
  RpcError Restore(const std::string& name, const SavedSessionModel& model = kModel) {
    KvPages pages;
    return files_->Restore({}, name, state_.cache_salt, model, &restored_, &pages);
  }
  // Of a file that is there and cannot be used.
  void ExpectUnusable(const std::string& name, const std::string& why,
                      const SavedSessionModel& model = kModel) {
    const RpcError error = Restore(name, model);
    EXPECT_EQ(error.code, StatusCode::kFailedPrecondition) << error.message();
    EXPECT_EQ(error.reason, "SESSION_FILE_UNUSABLE");
    EXPECT_THAT(error.message(), HasSubstr("the file of session \"" + name + "\" " + why));
  }
  std::string PathOf(const std::string& name) {
    return folder_.PathOf(SessionFileName(name, state_.cache_salt, ""));
  }
  std::string BytesOf(const std::string& name) {
    std::ifstream file(PathOf(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Put(const std::string& name, std::string_view bytes) {
    folder_.Write(SessionFileName(name, state_.cache_salt, ""), bytes);
  }
  size_t FilesThere() {
    const std::filesystem::directory_iterator files(folder_.path());
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  TempFolder folder_;
  std::unique_ptr<SessionFiles> files_;
  SessionState state_, restored_;
};

TEST_F(SessionFile, HoldsWhatTheSessionHeld) {
  Save("s");
  ASSERT_TRUE(Restore("s").ok());
  EXPECT_THAT(restored_.ids, ElementsAre(1, 2, 99));
  EXPECT_TRUE(restored_.is_chat);
  EXPECT_EQ(restored_.cache_salt, "salt");
  EXPECT_EQ(restored_.chat.SerializeAsString(), state_.chat.SerializeAsString());

  state_.is_chat = false;
  state_.chat.Clear();
  state_.ids.push_back(4);
  Save("s");
  ASSERT_TRUE(Restore("s").ok());
  EXPECT_THAT(restored_.ids, ElementsAre(1, 2, 99, 4));
  EXPECT_FALSE(restored_.is_chat);
  EXPECT_EQ(restored_.chat.messages_size(), 0);
  EXPECT_EQ(FilesThere(), 1u);
  struct stat about = {};
  ASSERT_EQ(stat(PathOf("s").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u) << "others do not read conversations";
}

TEST_F(SessionFile, IsNamedByHashes) {
  EXPECT_EQ(SessionFileName("abc", "", ""),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad.session");
  EXPECT_EQ(SessionFileName("abc", "", "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad-"
            "ba7816bf8f01cfea414140de5dae2223.session");
  EXPECT_NE(SessionFileName("a", "", ""), SessionFileName("A", "", ""));
  EXPECT_NE(SessionFileName("a", "b", ""), SessionFileName("a", "", ""));
  EXPECT_NE(SessionFileName("a", "b", ""), SessionFileName("ab", "", ""));
}

TEST_F(SessionFile, ThatIsNotThereIsSaidToBe) {
  const RpcError error = Restore("s");
  EXPECT_EQ(error.code, StatusCode::kNotFound);
  EXPECT_EQ(error.reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(error.message(), "no session \"s\" was saved");
}

TEST_F(SessionFile, CutAtAnyByteIsRefused) {
  Save("s");
  const std::string bytes = BytesOf("s");
  for (size_t size = 0; size < bytes.size(); ++size) {
    Put("s", std::string_view(bytes).substr(0, size));
    ExpectUnusable("s", "is cut off");
  }
  Put("s", bytes + "x");
  ExpectUnusable("s", "is cut off or damaged: it has " + std::to_string(bytes.size() + 1) +
                          " bytes, and its head says " + std::to_string(bytes.size()));
  Put("s", bytes);
  EXPECT_TRUE(Restore("s").ok());
}

TEST_F(SessionFile, WithAnyBitFlippedIsRefused) {
  Save("s");
  const std::string bytes = BytesOf("s");
  constexpr size_t kFrontBits = 8 * 61;  // each of these, and one of each byte of the head
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += bit < kFrontBits ? 1 : 9) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    Put("s", damaged);
    ExpectUnusable("s", "is ");
  }
}

TEST_F(SessionFile, OfAnotherModelOrNameIsRefused) {
  Save("s");
  ExpectUnusable("s", "is of another model: \"m\" was served, \"n\" is now",
                 {.name = "n", .fingerprint = "f2", .vocab_size = 100});
  Put("other", BytesOf("s"));
  ExpectUnusable("other", "holds the session \"s\"");
  Put("s", "something else altogether, and long enough to be read as a file of ours");
  ExpectUnusable("s", "is no saved session");
}

// What somebody has written who knows the format.
TEST_F(SessionFile, WhoseContentCannotBeIsRefused) {
  state_.ids = {1, 100};
  Save("s");
  ExpectUnusable("s", "holds ids that the vocabulary does not have");
  state_.ids = {1, -1};
  Save("s");
  ExpectUnusable("s", "holds ids that the vocabulary does not have");
  state_.ids = {};
  Save("s");
  ExpectUnusable("s", "holds ids that the vocabulary does not have, or none");
  state_.ids = {1};
  Say(v1::ROLE_USER, "so?");
  Save("s");
  ExpectUnusable("s", "holds a chat that does not end with an answer");
  state_.chat.Clear();
  Save("s");
  ExpectUnusable("s", "holds a chat that does not end with an answer");
  state_.is_chat = false;
  state_.context_policy = {.type = ContextPolicyType::kShift, .n_ctx = 8, .n_keep = 8, .n_discard = 1};
  Save("s");
  ExpectUnusable("s", "holds a policy that cannot be: context_policy.n_keep is 8, allowed are 0 to 7");
  state_.context_policy.n_ctx = int64_t{1} << 62;
  Save("s");
  ExpectUnusable("s", "holds a policy that cannot be: context_policy.n_ctx is 4611686018427387904");
}

TEST_F(SessionFile, WithKeysOfMoreTokensThanAreLeftOfItsTextIsRefused) {
  v1::SavedSession saved;
  saved.set_name("s");
  SessionIdentity identity = {.fingerprint = HexText(kModel.fingerprint),
                              .salt = SaltDigest(state_.cache_salt)};
  for (int32_t id = 0; id < 20; ++id) saved.add_ids(id);
  const auto put = [&](int64_t kv_tokens) {
    saved.mutable_kv()->set_tokens(kv_tokens);
    saved.set_identity(ToJson(identity));
    const FileDescriptor file(open(PathOf("s").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    SessionFileWriter writer(file.get());
    ASSERT_TRUE(writer.WriteHead(saved));
  };
  put(20);
  EXPECT_EQ(Restore("s").message(), "");
  put(21);
  ExpectUnusable("s", "holds keys and values of 21 tokens, and 20 ids that have any");
  identity.context_policy = {
      .type = ContextPolicyType::kReevaluate, .n_ctx = 16, .n_keep = 4, .n_discard = 6};
  put(14);
  EXPECT_EQ(Restore("s").message(), "");
  put(15);
  ExpectUnusable("s", "holds keys and values of 15 tokens, and 14 ids that have any");
  saved.clear_kv();
  state_.cache_salt = std::string(257, 'x');
  identity.salt = SaltDigest(state_.cache_salt);
  saved.set_identity(ToJson(identity));
  const FileDescriptor file(open(PathOf("s").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(SessionFileWriter(file.get()).WriteHead(saved));
  ExpectUnusable("s", "holds a cache_salt of 257 bytes; at most 256 are allowed");
}

TEST_F(SessionFile, HoldsItsPolicy) {
  for (const ContextPolicy& policy :
       {ContextPolicy{.type = ContextPolicyType::kSinks, .n_ctx = 9, .n_keep = 0},
        ContextPolicy{.type = ContextPolicyType::kReevaluate, .n_ctx = 9, .n_keep = 3, .n_discard = 6},
        ContextPolicy{}}) {
    state_.context_policy = policy;
    Save("s");
    ASSERT_TRUE(Restore("s").ok());
    EXPECT_EQ(restored_.context_policy, policy) << ContextPolicyText(policy);
  }
}

// ---- what keys and values depend on, and versions ---------------------------------------------------

TEST_F(SessionFile, SaysOnceAndInFullWhatItsKeysAndValuesDependOn) {
  SavedSessionModel model = kModel;
  model.weights = "w";
  state_.context_policy = {.type = ContextPolicyType::kSinks, .n_ctx = 9, .n_keep = 2};
  int64_t bytes = 0;
  const Caller alice = {.identity = "", .key_name = "alice"};
  ASSERT_TRUE(files_->Save(alice, "s", state_, model, nullptr, &bytes).ok());
  const FileDescriptor file(open(PathOf("s").c_str(), O_RDONLY | O_CLOEXEC));
  StatusOr<SessionFileReader> reader = SessionFileReader::Open(file.get());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->version(), '4');
  EXPECT_EQ(reader->head().identity(),
            R"({"model":{"name":"m","fingerprint":"6631","weights":"77"},"adapter":null,)"
            R"("context_policy":{"type":"sinks","n_ctx":9,"n_keep":2,"n_discard":0},"salt":")" +
                SaltDigest("salt") + R"(","spans":[]})");
  EXPECT_EQ(reader->head().key(), "alice");
  v1::SavedSession left = reader->head();
  for (const char* field : {"name", "ids", "chat", "key", "identity"}) {
    left.GetReflection()->ClearField(&left, left.GetDescriptor()->FindFieldByName(field));
  }
  EXPECT_EQ(left.ByteSizeLong(), 0u) << left.DebugString();
}

TEST_F(SessionFile, WhoseIdentitySaysWhatIsNotKnownHereIsRefusedByName) {
  const std::string whole = ToJson({.model = "m", .fingerprint = "6631", .salt = SaltDigest("salt")});
  const auto expect = [&](const std::string& from, const std::string& to, const std::string& why) {
    std::string identity = whole;
    ASSERT_NE(identity.find(from), std::string::npos) << from;
    identity.replace(identity.find(from), from.size(), to);
    v1::SavedSession saved;
    saved.set_name("s");
    saved.add_ids(1);
    saved.set_identity(identity);
    const FileDescriptor file(open(PathOf("s").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_TRUE(SessionFileWriter(file.get()).WriteHead(saved));
    if (!why.empty()) return ExpectUnusable("s", why);
    EXPECT_EQ(Restore("s").message(), "");
  };
  expect("", "", "");
  const std::string newer = " that this server does not know: a newer one has saved it";
  expect("\"spans\"", "\"lora_scale\":1,\"spans\"", "has an identity.lora_scale" + newer);
  expect("\"name\"", "\"parent\":{},\"name\"", "has an identity.model.parent" + newer);
  expect("\"none\"", "\"none\",\"span\":[]", "has an identity.context_policy.span" + newer);
  expect("\"none\"", R"("moved","n_ctx":9,"n_keep":2,"n_discard":0)",
         "has an identity.context_policy.type that this server does not know");
  expect("\"none\"", R"("shift","n_ctx":9,"n_keep":2,"n_discard":1.5)",
         "has an identity.context_policy.n_discard that must be a whole number");
  expect("\"adapter\":null", "\"adapter\":\"x\"", "has an identity.adapter that must be null");
  expect("\"spans\":[]", "\"spans\":[{\"begin\":0}]", "has an identity.spans that must be an empty list");
  expect(",\"spans\":[]", "", "has an identity.spans that is missing");
  expect("\"6631\"", "7", "has an identity.model.fingerprint that must be text");
  expect("{\"type\":\"none\"}", "7", "has an identity.context_policy that must be an object");
  expect("[]}", "[]", "has an identity that is not JSON");
  expect(whole, "[]", "has an identity that must be an object");
  expect(whole, "", "has an identity that is not JSON");
  expect("\"m\"", '"' + std::string(1 << 16, 'm') + '"', "has an identity of 657");
}

TEST_F(SessionFile, OfVersion3IsStillRead) {
  // As version 3 was written: ids 1, 2, 99, a chat, the salt "salt", and sinks.
  const std::string hex =
      "7472616d6f6e74616e652073657373696f6e20330a2f00000000000000e5882ad0df858f41c07fb2dba5b66c1180e9be"
      "d2e93993df5d6656b501a835cf0a017312016d1a02663122030102632a100a060802120268690a0608031202796f3204"
      "73616c744206080210091802";
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  Put("s", bytes);
  ASSERT_EQ(Restore("s").message(), "");
  EXPECT_THAT(restored_.ids, ElementsAre(1, 2, 99));
  EXPECT_EQ(restored_.chat.SerializeAsString(), state_.chat.SerializeAsString());
  EXPECT_EQ(restored_.cache_salt, "salt");
  EXPECT_EQ(restored_.context_policy,
            (ContextPolicy{.type = ContextPolicyType::kSinks, .n_ctx = 9, .n_keep = 2}));
  ExpectUnusable("s", "is of another model: \"m\" was served",
                 {.name = "n", .fingerprint = "f2", .vocab_size = 100});
  folder_.Write(SessionFileName("s", "", ""), bytes);
  state_.cache_salt = "";
  EXPECT_EQ(Restore("s").reason, "SESSION_NOT_FOUND");
  bytes[bytes.find('3')] = '2';
  folder_.Write(SessionFileName("s", "", ""), bytes);
  ExpectUnusable("s", "is of another version, or damaged; this server reads versions 3 and 4");
}

TEST_F(SessionFile, LinksAreNotFollowed) {
  Save("s");
  const std::string elsewhere = folder_.PathOf("elsewhere");
  std::filesystem::rename(PathOf("s"), elsewhere);
  std::filesystem::create_symlink(elsewhere, PathOf("s"));
  ExpectUnusable("s", "is a link");
  const auto written = std::filesystem::file_size(elsewhere);
  state_.ids = std::vector<int32_t>(1000, 7);
  Save("s");  // in place of the link
  EXPECT_FALSE(std::filesystem::is_symlink(PathOf("s")));
  EXPECT_EQ(std::filesystem::file_size(elsewhere), written) << "what it pointed to is as it was";
  EXPECT_TRUE(Restore("s").ok());
}

TEST_F(SessionFile, WhatIsNoFileIsRefusedAtOnce) {
  ASSERT_EQ(mkfifo(PathOf("pipe").c_str(), 0600), 0);
  ExpectUnusable("pipe", "is no plain file");
  std::filesystem::create_directory(PathOf("folder"));
  ExpectUnusable("folder", "is no plain file");
  std::ofstream(PathOf("huge")) << "tramontane session 3\n" << std::string(8, '\x01');
  std::filesystem::resize_file(PathOf("huge"), (uintmax_t{1} << 30) + 1);
  ExpectUnusable("huge", "is cut off or damaged: it has 1073741825 bytes, and its head would have");
}

TEST_F(SessionFile, ThatCannotBeWrittenLeavesTheOneBefore) {
  Save("s");
  std::filesystem::create_directory(PathOf("t"));
  std::ofstream(PathOf("t") + "/in_the_way").close();
  int64_t bytes = 0;
  const RpcError error = files_->Save({}, "t", state_, kModel, nullptr, &bytes);
  EXPECT_EQ(error.code, StatusCode::kInternal);
  EXPECT_THAT(error.message(), HasSubstr("the session cannot be saved: "));
  EXPECT_EQ(FilesThere(), 2u) << "what was written aside is gone";
  EXPECT_TRUE(Restore("s").ok());
}

TEST_F(SessionFile, SavedFromSeveralThreadsIsOneOfThem) {
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      SessionState state;
      state.ids = std::vector<int32_t>(1000, i);
      state.cache_salt = state_.cache_salt;
      int64_t bytes = 0;
      for (int round = 0; round < 5; ++round) {
        EXPECT_TRUE(files_->Save({}, "s", state, kModel, nullptr, &bytes).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(Restore("s").ok());
  ASSERT_EQ(restored_.ids.size(), 1000u);
  EXPECT_EQ(restored_.ids.front(), restored_.ids.back());
}

// ---- whose they are -------------------------------------------------------------------------------

class SessionFolders : public SessionFile {
 protected:
  SessionFolders() {
    state_ = {};
    state_.ids = {1, 2, 3};
  }
  void Bound(const SessionDirLimits& limits) { files_ = SessionFiles::Open(folder_.path(), limits).value(); }
  // Its file is as old as its number says.
  RpcError SaveAs(const std::string& address, const std::string& name, int number = 0) {
    return SaveAs(Caller{.identity = address}, name, number);
  }
  RpcError SaveAs(const Caller& caller, const std::string& name, int number = 0) {
    int64_t bytes = 0;
    RpcError error = files_->Save(caller, name, state_, kModel, nullptr, &bytes);
    const std::string path = folder_.PathOf(SessionFileName(name, state_.cache_salt, caller.identity));
    if (error.ok()) {
      EXPECT_EQ(std::filesystem::file_size(path), static_cast<uintmax_t>(bytes));
      const timespec at[] = {{1000 + number, 0}, {1000 + number, 0}};
      utimensat(AT_FDCWD, path.c_str(), at, 0);
    }
    return error;
  }
  static Caller WithKey(const std::string& name) { return {.identity = name, .key_name = name}; }
  // None where it is not there.
  std::vector<int32_t> RestoreAs(const Caller& caller, const std::string& name,
                                 const std::string& salt = "") {
    KvPages pages;
    restored_ = {};
    const RpcError error = files_->Restore(caller, name, salt, kModel, &restored_, &pages);
    if (!error.ok()) {
      EXPECT_EQ(error.message(), "no session \"" + name + "\" was saved");
      EXPECT_EQ(error.reason, "SESSION_NOT_FOUND");
    }
    return restored_.ids;
  }
  std::vector<int32_t> RestoreAs(const std::string& address, const std::string& name,
                                 const std::string& salt = "") {
    return RestoreAs(Caller{.identity = address}, name, salt);
  }
  bool Has(const std::string& caller, const std::string& name) {
    return std::filesystem::exists(folder_.PathOf(SessionFileName(name, state_.cache_salt, caller)));
  }
};

TEST_F(SessionFolders, ACallerIsGivenItsOwnAndElseWhatWasSavedLast) {
  SaveAs("a", "s", 1);
  state_.ids = {4};
  SaveAs("b", "s", 2);
  EXPECT_THAT(RestoreAs("a", "s"), ElementsAre(1, 2, 3)) << "another's did not take its place";
  EXPECT_THAT(RestoreAs("b", "s"), ElementsAre(4));
  EXPECT_THAT(RestoreAs("c", "s"), ElementsAre(4));
  EXPECT_THAT(RestoreAs("c", "t"), ElementsAre());
  EXPECT_THAT(RestoreAs(WithKey("b"), "s"), ElementsAre(4));
  EXPECT_THAT(RestoreAs(WithKey("c"), "s"), ElementsAre());
  state_.ids = {5};
  SaveAs("", "s", 0);
  EXPECT_THAT(RestoreAs(WithKey("c"), "s"), ElementsAre(5)) << "nobody's";
  EXPECT_THAT(RestoreAs("c", "s"), ElementsAre(4)) << "nobody's is as old as it is";
}

// An operator may copy and rename files: what a key saved stays its own.
TEST_F(SessionFolders, WhatAKeySavedIsThereForItsCallersAlone) {
  SaveAs("10.0.0.1", "s", 1);
  state_.ids = {4};
  const Caller alice = WithKey("alice");
  SaveAs(alice, "s", 2);
  const std::string own = folder_.PathOf(SessionFileName("s", "", "alice"));
  for (const char* owner : {"bob", "10.0.0.2", ""}) {
    std::filesystem::copy(own, folder_.PathOf(SessionFileName("s", "", owner)));
  }
  EXPECT_THAT(RestoreAs(WithKey("bob"), "s"), ElementsAre());
  EXPECT_THAT(RestoreAs("10.0.0.2", "s"), ElementsAre(1, 2, 3)) << "the last one that no key saved";
  EXPECT_THAT(RestoreAs(alice, "s"), ElementsAre(4));
  std::filesystem::remove(own);
  EXPECT_THAT(RestoreAs(alice, "s"), ElementsAre(4)) << "from nobody's file, or any other";
  std::filesystem::remove(folder_.PathOf(SessionFileName("s", "", "10.0.0.1")));
  EXPECT_THAT(RestoreAs("10.0.0.2", "s"), ElementsAre());
  // What it says else is nobody's business either.
  state_.context_policy = {.type = ContextPolicyType::kShift, .n_ctx = 8, .n_keep = 8, .n_discard = 1};
  SaveAs(alice, "s", 3);
  std::filesystem::rename(own, folder_.PathOf(SessionFileName("s", "", "bob")));
  EXPECT_THAT(RestoreAs(WithKey("bob"), "s"), ElementsAre());
}

TEST_F(SessionFolders, WhatHasASaltIsNotThereWithoutIt) {
  state_.cache_salt = "salt";
  SaveAs("a", "s");
  EXPECT_THAT(RestoreAs("a", "s"), ElementsAre());
  EXPECT_THAT(RestoreAs("a", "s", "other"), ElementsAre());
  EXPECT_THAT(RestoreAs("a", "s", "salt"), ElementsAre(1, 2, 3));
  EXPECT_THAT(RestoreAs("b", "s", "salt"), ElementsAre(1, 2, 3));
  // Older versions named it without.
  std::filesystem::rename(folder_.PathOf(SessionFileName("s", "salt", "a")),
                          folder_.PathOf(SessionFileName("s", "", "")));
  EXPECT_THAT(RestoreAs("a", "s"), ElementsAre());
  EXPECT_THAT(RestoreAs("a", "s", "salt"), ElementsAre(1, 2, 3));
}

// ---- bounds ---------------------------------------------------------------------------------------

TEST_F(SessionFolders, TheOldestGoForAnother) {
  Bound({.max_bytes = 0, .max_files = 2});
  SaveAs("a", "s1", 2);
  SaveAs("a", "s2", 1);
  SaveAs("a", "s1", 3);
  EXPECT_TRUE(Has("a", "s2")) << "one that takes its own place pushes out none";
  SaveAs("a", "s3", 4);
  EXPECT_FALSE(Has("a", "s2"));
  EXPECT_TRUE(Has("a", "s1"));
  const auto bytes =
      static_cast<int64_t>(std::filesystem::file_size(folder_.PathOf(SessionFileName("s1", "", "a"))));
  Bound({.max_bytes = 3 * bytes + 1, .max_files = 0});
  SaveAs("a", "s4", 5);
  EXPECT_EQ(FilesThere(), 3u);
  SaveAs("a", "s5", 6);
  EXPECT_FALSE(Has("a", "s1"));
  EXPECT_EQ(FilesThere(), 3u);
  Bound({.max_bytes = 0, .max_files = 0});
  for (int i = 0; i < 5; ++i) SaveAs("a", "t" + std::to_string(i), 7 + i);
  EXPECT_EQ(FilesThere(), 8u);
}

TEST_F(SessionFolders, WhoeverHasMostMakesRoom) {
  Bound({.max_bytes = 0, .max_files = 4});
  SaveAs("b", "old", 1);
  for (int i = 0; i < 9; ++i) SaveAs("a", "s" + std::to_string(i), 2 + i);
  EXPECT_TRUE(Has("b", "old"));
  EXPECT_EQ(FilesThere(), 4u);
  SaveAs("b", "new", 20);
  EXPECT_TRUE(Has("b", "old"));
  EXPECT_FALSE(Has("a", "s6"));
  EXPECT_TRUE(Has("a", "s7"));
  SaveAs("b", "newer", 21);
  EXPECT_FALSE(Has("b", "old")) << "nobody has more than it would";
  EXPECT_TRUE(Has("a", "s7"));
  Bound({.max_bytes = 0, .max_files = 3});
  SaveAs("a", "last", 30);
  EXPECT_FALSE(Has("a", "s7") || Has("a", "s8")) << "of two who have as much its own go first";
  EXPECT_TRUE(Has("b", "new") && Has("b", "newer"));
}

TEST_F(SessionFolders, WhatIsTooLargeByItselfIsRefusedByName) {
  SaveAs("a", "s");
  const auto bytes = std::filesystem::file_size(folder_.PathOf(SessionFileName("s", "", "a")));
  Bound({.max_bytes = static_cast<int64_t>(bytes)});
  EXPECT_TRUE(SaveAs("a", "t").ok());
  state_.ids.push_back(4);
  const RpcError error = SaveAs("a", "u");
  EXPECT_EQ(error.code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(error.reason, "SESSION_TOO_LARGE");
  EXPECT_EQ(error.message(), "the session's file would have " + std::to_string(bytes + 1) +
                                 " bytes, and all together may have " + std::to_string(bytes) +
                                 " (session_dir_size)");
  EXPECT_EQ(FilesThere(), 1u) << "nothing went for it";
}

TEST_F(SessionFolders, WhatIsNotOursIsNeitherCountedNorRemoved) {
  const std::string foreign = SessionFileName("foreign", "", "");
  folder_.Write(foreign, std::string(1000, 'x'));
  folder_.Write("notes.session", "tramontane session 3\n");
  folder_.Write("notes.session.1.tmp", "");
  std::filesystem::create_directory(folder_.PathOf(SessionFileName("folder", "", "")));
  std::filesystem::create_symlink(folder_.PathOf("notes.session"),
                                  folder_.PathOf(SessionFileName("link", "", "")));
  Bound({.max_bytes = 999, .max_files = 1});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(SaveAs("a", "s" + std::to_string(i), i).ok());
  EXPECT_EQ(FilesThere(), 6u);
  EXPECT_TRUE(Has("a", "s2"));
}

TEST_F(SessionFolders, StraysGoAsItIsOpened) {
  const std::string own = SessionFileName("s", "", "a");
  folder_.Write(own + ".4711.tmp", "tramont");  // as older versions named them
  folder_.Write(SessionFolder::AsideName(own), "");
  folder_.Write("kept", "");
  const std::string written = folder_.PathOf(SessionFolder::AsideName(own));
  std::ofstream(written).close();
  const FileDescriptor writer(open(written.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(flock(writer.get(), LOCK_EX | LOCK_NB), 0);
  std::filesystem::create_symlink(folder_.PathOf("kept"), folder_.PathOf(own + ".1.tmp"));
  Bound({});
  EXPECT_EQ(FilesThere(), 3u);
  EXPECT_TRUE(std::filesystem::exists(written)) << "somebody writes it";
}

TEST(SessionFolder, MustBeThere) {
  const TempFolder folder;
  folder.Write("file", "x");
  for (const std::string& path : {folder.PathOf("absent"), folder.PathOf("file")}) {
    const auto files = SessionFiles::Open(path);
    ASSERT_FALSE(files.ok());
    EXPECT_THAT(files.status().message(),
                HasSubstr("session_dir is \"" + path + "\", which is no folder to save in: "));
  }
}

}  // namespace
}  // namespace tramontane
