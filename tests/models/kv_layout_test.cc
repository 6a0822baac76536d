#include "models/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "models/opened_model.h"

namespace tramontane {
namespace {

KvFormat PagesOf(int32_t page_size = 16) { return {DType::kBf16, 2, 32, page_size, KvOrder::kHnd}; }

std::vector<int32_t> Windows(std::initializer_list<std::pair<int32_t, int32_t>> count_and_window) {
  std::vector<int32_t> windows;
  for (const auto& [count, window] : count_and_window) windows.insert(windows.end(), count, window);
  return windows;
}

int64_t PaddedLayers(const KvLayout& layout) {
  int64_t padded = 0;
  for (const KvGroupSpec& group : layout.groups)
    padded += layout.layers_per_page - static_cast<int64_t>(group.layers.size());
  return padded;
}

// What must hold for every layout.
void ExpectConsistent(const KvLayout& layout, const std::vector<int32_t>& windows) {
  ASSERT_EQ(layout.places.size(), windows.size());
  ASSERT_LE(layout.groups.size(), static_cast<size_t>(kMaxKvGroups));
  std::set<int32_t> placed;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const KvGroupSpec& group = layout.groups[g];
    ASSERT_FALSE(group.layers.empty());
    ASSERT_LE(group.layers.size(), static_cast<size_t>(layout.layers_per_page));
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const int32_t layer = group.layers[i];
      EXPECT_EQ(group.window, windows[layer]);
      EXPECT_EQ(layout.places[layer].group, static_cast<int32_t>(g));
      EXPECT_EQ(layout.places[layer].layer_in_group, static_cast<int32_t>(i));
      EXPECT_TRUE(placed.insert(layer).second) << "layer " << layer << " stands in two groups";
    }
  }
  EXPECT_EQ(placed.size(), windows.size());
}

struct Shape {
  const char* name;
  std::vector<int32_t> windows;
  size_t groups;
  int32_t layers_per_page;
  int64_t padded;
};

class KvLayoutOf : public testing::TestWithParam<Shape> {};

TEST_P(KvLayoutOf, HasTheGroupsThatTheRuleGives) {
  const KvLayout layout = MakeKvLayout(GetParam().windows, PagesOf());
  ExpectConsistent(layout, GetParam().windows);
  EXPECT_EQ(layout.groups.size(), GetParam().groups);
  EXPECT_EQ(layout.layers_per_page, GetParam().layers_per_page);
  EXPECT_EQ(PaddedLayers(layout), GetParam().padded);
  EXPECT_EQ(layout.page_bytes(), GetParam().layers_per_page * PagesOf().LayerBytes());
  EXPECT_EQ(layout.page_bytes(), layout.token_bytes() * PagesOf().page_size);
}

INSTANTIATE_TEST_SUITE_P(
    Classes, KvLayoutOf,
    testing::Values(Shape{"OneLayer", {0}, 1, 1, 0},                                       //
                    Shape{"AllFull", Windows({{32, 0}}), 1, 32, 0},                        //
                    Shape{"AllWindowed", Windows({{32, 4096}}), 1, 32, 0},                 //
                    Shape{"OneFullThreeWindowed", {0, 64, 64, 64}, 4, 1, 0},               //
                    Shape{"NineFull27Windowed", Windows({{9, 0}, {27, 32768}}), 4, 9, 0},  //
                    Shape{"FourAndSixSplitByTwo", Windows({{4, 0}, {6, 8}}), 5, 2, 0},     //
                    Shape{"NineAndTenPadOneLayer", Windows({{9, 0}, {10, 8}}), 2, 10, 1},  //
                    Shape{"OneAnd31WouldMakeTooManyGroups", Windows({{1, 0}, {31, 8}}), 9, 4, 4},
                    Shape{
                        "SixteenWindows", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 16, 1, 0}),
    [](const auto& info) { return info.param.name; });

TEST(KvLayout, InterleavedWindowsKeepTheModelsLayerOrderWithinAGroup) {
  std::vector<int32_t> windows;
  for (int i = 0; i < 9; ++i) windows.insert(windows.end(), {0, 32768, 32768, 32768});
  const KvLayout layout = MakeKvLayout(windows, PagesOf());
  ExpectConsistent(layout, windows);
  ASSERT_EQ(layout.groups.size(), 4u);
  EXPECT_EQ(layout.groups[0].window, 0);
  EXPECT_EQ(layout.groups[0].layers, (std::vector<int32_t>{0, 4, 8, 12, 16, 20, 24, 28, 32}));
  EXPECT_EQ(layout.groups[1].layers, (std::vector<int32_t>{1, 2, 3, 5, 6, 7, 9, 10, 11}));
}

TEST(KvLayout, NeverMakesMoreGroupsThanTheLimitForAnyTwoClasses) {
  for (int32_t full = 1; full <= 40; ++full) {
    for (int32_t windowed = 1; windowed <= 40; ++windowed) {
      const std::vector<int32_t> windows = Windows({{full, 0}, {windowed, 8}});
      const KvLayout layout = MakeKvLayout(windows, PagesOf());
      ExpectConsistent(layout, windows);
      // One group per class is always possible, so no choice pads more than that.
      EXPECT_LE(PaddedLayers(layout), std::abs(full - windowed)) << full << " + " << windowed;
    }
  }
}

TEST(KvLayout, LayerViewsTileThePage) {
  const KvLayout layout = MakeKvLayout({0, 0, 0}, PagesOf());
  std::byte pool[1];
  for (int32_t i = 0; i < 3; ++i) {
    const KvLayerView view = layout.LayerView(pool, i);
    EXPECT_EQ(view.layer_offset, i * PagesOf().LayerBytes());
    EXPECT_EQ(view.page_bytes, 3 * PagesOf().LayerBytes());
  }
}

TEST(KvLayout, FullLayersTakePagesForEveryToken) {
  const KvLayout layout = MakeKvLayout({0}, PagesOf(16));
  EXPECT_EQ(layout.PagesForSequence(0, 8), 0);
  EXPECT_EQ(layout.PagesForSequence(1, 8), 1);
  EXPECT_EQ(layout.PagesForSequence(16, 8), 1);
  EXPECT_EQ(layout.PagesForSequence(17, 8), 2);
  EXPECT_EQ(layout.PagesForSequence(100'000, 8), 6250);
}

TEST(KvLayout, WindowedLayersStopGrowingAtTheBound) {
  const KvLayout layout = MakeKvLayout({64}, PagesOf(16));
  // ceil((64 - 1 + 32) / 16) + 1 = 7
  EXPECT_EQ(layout.PagesForSequence(16, 32), 1);
  EXPECT_EQ(layout.PagesForSequence(112, 32), 7);
  EXPECT_EQ(layout.PagesForSequence(113, 32), 7);
  EXPECT_EQ(layout.PagesForSequence(1'000'000, 32), 7);
}

// The bound against the definition: the pages that hold any key that a query of the chunk sees.
TEST(KvLayout, WindowedBoundHoldsForEveryPositionOfEveryChunk) {
  for (const int32_t page_size : {1, 4, 16}) {
    for (const int32_t window : {1, 2, 15, 16, 17, 64}) {
      const KvLayout layout = MakeKvLayout({window}, PagesOf(page_size));
      for (const int64_t chunk : {1, 2, 16, 33}) {
        int64_t most = 0;
        for (int64_t begin = 0; begin < 300; ++begin) {
          const int64_t first_page = FirstVisible(begin, window) / page_size;
          const int64_t pages = (begin + chunk - 1) / page_size - first_page + 1;
          EXPECT_LE(pages, layout.PagesForSequence(begin + chunk, chunk))
              << "page " << page_size << " window " << window << " chunk " << chunk << " at " << begin;
          most = std::max(most, pages);
        }
        // At most one page is given away by the formula.
        EXPECT_GE(most + 1, layout.PagesForSequence(100'000, chunk));
      }
    }
  }
}

TEST(KvLayout, PagesOfASequenceAreTheSumOverGroups) {
  const KvLayout layout = MakeKvLayout({0, 64, 64, 64}, PagesOf(16));
  EXPECT_EQ(layout.PagesForSequence(10'000, 32), 625 + 3 * 7);
}

TEST(ContextThatFitsTest, IsTheLargestThatFitsAndNoMore) {
  const KvLayout full = MakeKvLayout({0}, PagesOf(16));
  EXPECT_EQ(ContextThatFits(full, 10, 512), 160);
  EXPECT_EQ(ContextThatFits(full, 0, 512), 0);

  // Window 64 with chunks of a page: ceil(79 / 16) + 1 = 6 pages are enough for ever.
  const KvLayout windowed = MakeKvLayout({64}, PagesOf(16));
  EXPECT_EQ(ContextThatFits(windowed, 6, 512), kMaxContext);
  EXPECT_EQ(ContextThatFits(windowed, 5, 512), 80);
  EXPECT_EQ(ContextThatFits(windowed, 5, 1), kMaxContext) << "a step of one token writes less ahead";

  // One group without a window and one with: 6 pages for the window, the rest for the other.
  const KvLayout mixed = MakeKvLayout({0, 64}, PagesOf(16));
  EXPECT_EQ(ContextThatFits(mixed, 20, 512), 14 * 16);
  EXPECT_EQ(ContextThatFits(mixed, 12, 512), 6 * 16);
  EXPECT_EQ(ContextThatFits(mixed, 11, 512), 5 * 16);
  EXPECT_EQ(ContextThatFits(mixed, 1, 512), 0) << "one token needs a page in each group";
}

// Nobody but the format says what keys and values take.
TEST(KvLayout, BytesOfPagesTokensAndAddressesFollowTheFormat) {
  struct Row {
    Format element;
    int64_t vector_bytes;     // of 64 numbers
    int64_t companion_bytes;  // of those
  };
  for (const Row& row :
       {Row{DType::kF32, 256, 0}, Row{DType::kF16, 128, 0}, Row{{DType::kF16, 5, 34, 0}, 68, 0},
        Row{{DType::kF16, 5, 16, 2}, 32, 4}, Row{Format::WithScalesApart(DType::kInt8, 5), 64, 4},
        Row{Format::WithScalesApart(DType::kInt4, 3), 32, 16}, Row{Format::BareFp8(), 64, 0}}) {
    const KvFormat format = {.element = row.element, .kv_heads = 2, .head_dim = 64, .page_size = 16};
    const KvLayout layout = MakeKvLayout({0, 0, 0}, format);
    const int64_t half = 2 * 16 * (row.vector_bytes + row.companion_bytes);
    EXPECT_EQ(layout.page_bytes(), 3 * 2 * half);
    EXPECT_EQ(layout.token_bytes(), layout.page_bytes() / 16);
    std::vector<std::byte> pool(static_cast<size_t>(2 * layout.page_bytes()));
    const KvLayerView view = layout.LayerView(pool.data(), 2);
    EXPECT_EQ(view.Key(1, 0, 0) - pool.data(), layout.page_bytes() + 2 * 2 * half);
    EXPECT_EQ(view.Key(1, 0, 3) - view.Key(1, 0, 0), 3 * row.vector_bytes);
    EXPECT_EQ(view.Key(1, 1, 0) - view.Key(1, 0, 0), 16 * row.vector_bytes);
    EXPECT_EQ(view.Value(1, 1, 0) - view.Key(1, 1, 0), half);
    if (row.companion_bytes == 0) {
      EXPECT_EQ(view.scale.scales, nullptr);
      continue;
    }
    EXPECT_EQ(view.scale.Key(1, 0, 0), view.Key(1, 0, 0) + 2 * 16 * row.vector_bytes) << "behind the numbers";
    EXPECT_EQ(view.scale.Key(1, 1, 3) - view.scale.Key(1, 0, 0), (16 + 3) * row.companion_bytes);
    EXPECT_EQ(view.scale.Value(1, 1, 15) + row.companion_bytes, pool.data() + 2 * layout.page_bytes())
        << "the last layer's end is the page's";
  }
}

TEST(KvLayout, ScalesLieBesideTheirVectorsInEitherOrder) {
  const KvFormat format = {.element = Format::WithScalesApart(DType::kInt8, 5),
                           .kv_heads = 2,
                           .head_dim = 128,
                           .page_size = 16,
                           .order = KvOrder::kNhd};
  EXPECT_EQ(format.TokenBytes(), 2 * 2 * 136);
  std::vector<std::byte> pool(static_cast<size_t>(format.PageBytes(1)));
  const KvLayerView view(format, pool.data(), format.PageBytes(1));
  EXPECT_EQ(view.scale.Key(0, 1, 0) - view.scale.Key(0, 0, 0), 8);
  EXPECT_EQ(view.scale.Key(0, 0, 1) - view.scale.Key(0, 0, 0), 2 * 8);
}

TEST(KvElementOf, GroupsDivideHeadDimAndTheDefaultIs32OrHeadDim) {
  const auto group_of = [](int32_t group, int32_t head_dim) {
    return KvElementOf({.dtype = DType::kInt8, .group = group}, head_dim).value().block_size();
  };
  EXPECT_EQ(group_of(0, 128), 32);
  EXPECT_EQ(group_of(0, 8), 8);
  EXPECT_EQ(group_of(128, 128), 128);
  EXPECT_EQ(group_of(16, 80), 16);
  EXPECT_EQ(KvElementOf({.dtype = DType::kFp8E4M3}, 128).value(), Format::BareFp8());
  EXPECT_EQ(KvElementOf({.dtype = DType::kF32}, 128).value(), Format(DType::kF32));

  struct Refused {
    KvOptions kv;
    int32_t head_dim;
    const char* why;
  };
  for (const Refused& row :
       {Refused{{.dtype = DType::kInt4, .group = 48},
                96,
                "kv_group is 48, it must be a power of two from 8 to 128"},
        {{.dtype = DType::kInt8, .group = 4}, 64, "kv_group is 4, it must be a power of two from 8 to 128"},
        {{.dtype = DType::kInt8, .group = 256},
         256,
         "kv_group is 256, it must be a power of two from 8 to 128"},
        {{.dtype = DType::kInt8, .group = 64}, 32, "kv_group is 64, it must divide head_dim, 32"},
        {{.dtype = DType::kInt8}, 80, "kv_group is 32, it must divide head_dim, 80"},
        {{.dtype = DType::kInt8}, 12, "kv_group is 12, it must be a power of two from 8 to 128"},
        {{.dtype = DType::kFp8E4M3, .group = 8}, 64, "kv_group is 8, and kv_dtype fp8_e4m3 has no groups"}}) {
    EXPECT_THAT(KvElementOf(row.kv, row.head_dim).status().message(), testing::HasSubstr(row.why));
  }
}

}  // namespace
}  // namespace tramontane
