#include "engine/page_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace tramontane {
namespace {

TEST(PagePoolTest, GivesEveryPageOnceAndCountsThem) {
  PagePool pool(5);
  std::set<PageId> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.Take());
  EXPECT_EQ(pages, (std::set<PageId>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_EQ(pool.held_pages(), 5);
  pool.CheckAccounting();
  for (PageId page : pages) pool.Release(page);
  EXPECT_EQ(pool.free_pages(), 5);
  EXPECT_EQ(pool.held_pages(), 0);
  pool.CheckAccounting();
}

TEST(PagePoolTest, APageIsFreeOnlyWhenItsLastOwnerReleasesIt) {
  PagePool pool(2);
  const PageId page = pool.Take();
  pool.AddReference(page);
  pool.AddReference(page);
  EXPECT_EQ(pool.references(page), 3);
  EXPECT_EQ(pool.shared_references(), 2);
  pool.CheckAccounting();
  pool.Release(page);
  pool.Release(page);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_EQ(pool.shared_references(), 0);
  pool.Release(page);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(pool.references(page), 0);
}

TEST(PagePoolTest, APageJustReleasedIsTakenNext) {
  PagePool pool(8);
  const PageId first = pool.Take();
  pool.Take();
  pool.Release(first);
  EXPECT_EQ(pool.Take(), first);
}

TEST(PagePoolDeathTest, AbortsWhenAPageIsReleasedTwiceOrTakenFromNothing) {
  PagePool pool(1);
  const PageId page = pool.Take();
  EXPECT_DEATH(pool.Take(), "is empty");
  pool.Release(page);
  EXPECT_DEATH(pool.Release(page), "released once too often");
  EXPECT_DEATH(pool.AddReference(page), "is free");
}

}  // namespace
}  // namespace tramontane
