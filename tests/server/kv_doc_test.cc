// docs/kv-cache.md shows what the binary prints: every listing there is run and compared, and so is the
// picture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/server/program.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

constexpr char kPage[] = "docs/kv-cache.md";
constexpr char kFence[] = "```";
constexpr char kPrompt[] = "$ tramontane ";

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A block that begins with ```console and a command.
struct Listing {
  std::vector<std::string> arguments;  // of the binary
  std::string output;
};

std::vector<Listing> ReadListings(std::istream& page) {
  std::vector<Listing> listings;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with(kFence)) {
      inside = line == std::string(kFence) + "console";
    } else if (inside && line.starts_with(kPrompt)) {
      std::istringstream words(line.substr(std::string(kPrompt).size()));
      Listing& listing = listings.emplace_back();
      for (std::string word; words >> word;) listing.arguments.push_back(word);
    } else if (inside) {
      EXPECT_FALSE(listings.empty()) << "a block without a command: " << line;
      if (!listings.empty()) listings.back().output += line + "\n";
    }
  }
  return listings;
}

// The file that --svg names; null: none.
std::string* PictureOf(Listing* listing) {
  const auto flag = std::find(listing->arguments.begin(), listing->arguments.end(), "--svg");
  return flag == listing->arguments.end() ? nullptr : &*(flag + 1);
}

TEST(KvDocTest, EveryListingAndThePictureAreWhatTheBinaryPrints) {
  std::ifstream page(kPage);
  std::vector<Listing> listings = ReadListings(page);
  const TempFolder folder;
  int pictures = 0;
  for (Listing& listing : listings) {
    SCOPED_TRACE(testing::PrintToString(listing.arguments));
    std::string* const picture = PictureOf(&listing);
    std::string committed;
    if (picture != nullptr) {
      committed = ReadText(*picture);
      *picture = folder.path() + "/" + std::to_string(++pictures) + ".svg";
    }
    Program program(listing.arguments);
    EXPECT_EQ(program.Wait(), 0) << program.err();
    EXPECT_EQ(program.out(), listing.output) << kPage << " shows another output";
    if (picture == nullptr) continue;
    EXPECT_EQ(ReadText(*picture), committed) << "the committed picture is another";
  }
  // The article's example, a second page size, two policies, two hits, a page.
  EXPECT_GE(listings.size(), 7u);
  EXPECT_EQ(pictures, 1);
}

TEST(KvDocTest, AListingOfAnotherOutputIsSeen) {
  std::istringstream page(
      "text\n```console\n$ tramontane inspect --kv --seqlens 1\nnothing\n```\nmore text\n");
  const std::vector<Listing> listings = ReadListings(page);
  ASSERT_EQ(listings.size(), 1u);
  EXPECT_EQ(listings[0].output, "nothing\n");
  Program program(listings[0].arguments);
  EXPECT_EQ(program.Wait(), 0) << program.err();
  EXPECT_NE(program.out(), listings[0].output);
}

}  // namespace
}  // namespace tramontane
