#include "engine/page_pool.h"

#include "kernels/core/check.h"

namespace tramontane {

PagePool::PagePool(int64_t capacity) : references_(static_cast<size_t>(capacity), 0) {
  free_.reserve(references_.size());
  for (int64_t page = capacity - 1; page >= 0; --page) free_.push_back(static_cast<PageId>(page));
}

PageId PagePool::Take() {
  TM_CHECK(!free_.empty(), "the pool of %zu pages is empty", references_.size());
  const PageId page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  return page;
}

void PagePool::AddReference(PageId page) {
  TM_CHECK(references_[page] > 0, "page %d is free", page);
  ++references_[page];
  ++shared_references_;
}

bool PagePool::Release(PageId page) {
  TM_CHECK(references_[page] > 0, "page %d is released once too often", page);
  if (--references_[page] > 0) {
    --shared_references_;
    return false;
  }
  free_.push_back(page);
  return true;
}

void PagePool::CheckAccounting() const {
  std::vector<bool> is_free(references_.size(), false);
  for (PageId page : free_) {
    TM_CHECK(references_[page] == 0, "page %d is free with %d references", page, references_[page]);
    TM_CHECK(!is_free[page], "page %d is free twice", page);
    is_free[page] = true;
  }
  int64_t shared = 0;
  for (size_t page = 0; page < references_.size(); ++page) {
    TM_CHECK(is_free[page] || references_[page] > 0, "page %zu is neither free nor held", page);
    if (references_[page] > 1) shared += references_[page] - 1;
  }
  TM_CHECK(shared == shared_references_, "%lld references are shared, not %lld",
           static_cast<long long>(shared), static_cast<long long>(shared_references_));
}

}  // namespace tramontane
