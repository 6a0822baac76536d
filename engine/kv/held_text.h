// HeldText: the pages of a text to which somebody returns. They are cached, those without a name, as the one
// that is not full, under a name that only this text knows. Two kinds return:
//
// - A sequence that was set aside under a context policy, after rows that saw what no other request's do. Its
//   lease refers to the text (Lease::returns_to) and gets all pages again as they were, so that nothing of a
//   text without an end is computed twice; the text is no more then. Its pages are evicted after all others.
//   Where one is gone all are, and the sequence begins anew.
// - The next sequence of an owner (KvOwner: a session), with the cache on or off: the text is *idle*. It is
//   forked as far as the tokens are the same and every page that is seen from there is held; the page that
//   the fork goes on in is copied before it is written. So nothing is computed twice, and what was left stays
//   as it was until the owner leaves something new. It keeps nobody waiting: its pages go as preferred ones,
//   with the first that leaves no image the text is no more, its own pages are free, and those with names are
//   cached like others. The oldest goes, too, where names are short.
//
// Engine thread only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "engine/kv/known_pages.h"
#include "engine/kv/kv_owner.h"
#include "engine/kv/lease.h"
#include "engine/kv/names/paging.h"
#include "engine/kv/names/prefix_tree.h"
#include "engine/kv/names/token_view.h"
#include "engine/kv/text_names.h"
#include "models/kv_layout.h"

namespace tramontane {

struct HeldText {
  Lease lease = {};                           // of no page: what the text is named by, and who it was of
  std::vector<PageTable> tables = {};         // [groups] the nodes of its pages in their places, each pinned
  PrefixTree::Node mark = PrefixTree::kNone;  // above the nodes that are its own; pinned
  int64_t length = 0;                         // tokens that its pages hold
  // Of an idle one:
  std::weak_ptr<const KvOwner> owner = {};
  const KvOwner* name = nullptr;     // the same; it does not lie elsewhere while `owner` is there
  std::vector<int32_t> tokens = {};  // [length]; none: its pages are being put there (Begin)

  // Calls visit(node, group) for each page.
  template <typename Visit>
  void ForEachPage(const Visit& visit) const {
    for (size_t group = 0; group < tables.size(); ++group) {
      for (const PrefixTree::Node node : tables[group].sinks) visit(node, group);
      for (const PrefixTree::Node node : tables[group].pages) visit(node, group);
    }
  }
};

// A page that was taken for bytes from elsewhere: the caller writes it at once. It is cached already.
struct TakenPage {
  size_t group = 0;
  PageId page = kNoPage;
};

class HeldTexts {
 public:
  using Node = PrefixTree::Node;
  using From = KnownPages::From;

  HeldTexts(const KvLayout& layout, KnownPages& pages, TextNames& names)
      : layout_(layout), pages_(pages), names_(names) {}

  // Names all pages of a lease, `length` tokens, which then lets go of them and gives the text what else it
  // has. Null: there is no room for all names, or another lease writes to a page.
  std::shared_ptr<HeldText> Hold(const Lease& lease, int64_t length);
  bool IsWhole(const HeldText& text, From from) const;
  // Whether its images that are to be read all lie on the host at once.
  bool CanReturn(const HeldText& text) const;

  // ---- of a lease -------------------------------------------------------------------------------
  // What `returns_to` holds is the lease's again, as it was. False: some of it is not here, so all is gone.
  bool TakeBack(Lease& lease);
  void Drop(HeldText& text);

  // ---- idle: at most one for each owner, and the one that was left first in front ------------------
  // `text`, from Hold, is the owner's from now on.
  HeldText& LeaveIdle(HeldText text, std::vector<int32_t> tokens,
                      const std::shared_ptr<const KvOwner>& owner);
  const HeldText* Find(const KvOwner* owner) const;  // null: none
  // Where a lease that sees up to `end` can go on: there, or 0, nowhere.
  int64_t EndFor(const HeldText& text, const Lease& lease, int64_t end, From from) const;
  // The same for a query's tokens: up to where they differ.
  int64_t PrefixFor(const HeldText& text, const Lease& lease, const PrefixQuery& query, From from) const;
  bool HasRoomToFork(const HeldText& text, int64_t end, Lease& lease) const {
    return pages_.HasRoomFor(PagesOf(text, end, lease));
  }
  // `lease`, of no page, goes on at `end`.
  void Fork(const HeldText& text, int64_t end, Lease& lease);
  void Forget(const KvOwner* owner);
  void ForgetOrphans();  // of owners that nobody shares any more
  // Those of which a page is gone.
  void DropBroken();
  // `under_policy`: of those that name blocks by a policy. False: there is none.
  bool DropOldest(bool under_policy);
  int64_t count() const { return std::ssize(idle_); }

  // ---- made of pages that are put there: KvStore::BeginIdle, PlantIdle, FinishIdle -----------------
  bool Begin(const std::shared_ptr<const KvOwner>& owner, Lease lease, int64_t length);
  bool Plant(const KvOwner& owner, const Lease& above, int64_t block, size_t group, bool is_own,
             std::vector<TakenPage>* taken);
  bool Finish(const KvOwner& owner, const Lease& above, TokenView tokens);

  void CheckAccounting() const;

 private:
  Paging paging() const { return layout_.format; }
  std::vector<KnownPages::Wanted> PagesOf(const HeldText& text, int64_t end, Lease& lease) const;
  void LeasePages(const HeldText& text, int64_t end, bool is_preferred, Lease& lease);
  HeldText* FindUnfinished(const KvOwner& owner);
  bool HasPage(Node node, size_t group, std::vector<TakenPage>* taken);
  std::list<HeldText>::iterator DropIdle(std::list<HeldText>::iterator idle);

  const KvLayout& layout_;
  KnownPages& pages_;
  TextNames& names_;
  std::list<HeldText> idle_;
  uint64_t gone_owners_ = 0;  // KvOwner::gone when orphans were looked for last
};

}  // namespace tramontane
