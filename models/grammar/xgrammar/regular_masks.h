// Token masks of regular rules: those whose automaton reads characters alone, and refers to no other rule.
// Included by the library's grammar_compiler.cc (changes.patch), which by itself makes the masks of all
// states when it compiles, and tries each token in each of them with its parser of grammars: seconds, for a
// string of at most 100 characters over 131,072 tokens.
//
// Here a mask is made when a text has come to its state. A token is a walk through the automaton, which
// begins where the token parts from the one before it: a millisecond or two for all. No token is longer than
// some tens of bytes: states that agree for so many have one mask, so that the masks of (x){0,n} stop growing
// with n. And few tokens are longer than a dozen: states that agree for those share the work for all shorter
// ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace xgrammar {

// Sorted tokens as a tree: of each what the one before does not have.
struct TokenTree {
  using Sorted = std::vector<std::pair<int32_t, std::string>>;

  // Those of `sorted` that have from `least` to `most` bytes.
  TokenTree(const Sorted& sorted, size_t least, size_t most) {
    const std::string none;
    const std::string* before = &none;
    for (size_t i = 0; i < sorted.size(); ++i) {
      const std::string& token = sorted[i].second;
      if (token.size() < least || token.size() > most) continue;
      const auto parting = std::mismatch(token.begin(), token.end(), before->begin(), before->end()).first;
      numbers.push_back(static_cast<int32_t>(i));
      shared.push_back(static_cast<int32_t>(parting - token.begin()));
      begins.push_back(static_cast<int32_t>(bytes.size()));
      bytes.append(parting, token.end());
      longest = std::max(longest, token.size());
      ++first_bytes[token.empty() ? 0 : static_cast<uint8_t>(token[0]) + 1];
      before = &token;
    }
    begins.push_back(static_cast<int32_t>(bytes.size()));
    std::partial_sum(first_bytes.begin(), first_bytes.end(), first_bytes.begin());
  }

  std::vector<int32_t> numbers;  // [tokens] in the sorted vocabulary
  std::vector<int32_t> shared;   // [tokens] bytes that a token has in common with the one before
  std::vector<int32_t> begins;   // [tokens + 1] in `bytes`: of the rest
  std::string bytes;
  std::array<int32_t, 257>
      first_bytes{};   // tokens that begin with byte b: [first_bytes[b], first_bytes[b + 1])
  size_t longest = 0;  // bytes of a token
};

// A vocabulary in two: nearly all of its tokens are short.
struct TokenTrees {
  static constexpr size_t kShort = 12;  // bytes; of tekken's 131,072 tokens 6,398 have more

  explicit TokenTrees(const TokenTree::Sorted& sorted)
      : of_short(sorted, 0, kShort), of_long(sorted, kShort + 1, std::numeric_limits<size_t>::max()) {}

  size_t longest() const { return std::max(of_short.longest, of_long.longest); }

  const TokenTree of_short, of_long;
};

// The automaton of one rule, made deterministic.
class RegularAutomaton {
 public:
  static constexpr int32_t kNowhere = -1;

  // Null: it has far more states so, or refers to another rule. `states`: all of the rule, as the library
  // numbers them.
  static std::unique_ptr<RegularAutomaton> Make(const CompactFSMWithStartEnd& fsm,
                                                const std::vector<int32_t>& states) {
    std::unique_ptr<RegularAutomaton> made(new RegularAutomaton);
    for (const int32_t state : states) {
      for (const FSMEdge& edge : fsm.GetFsm().GetEdges(state)) {
        if (edge.IsEpsilon()) continue;
        if (!edge.IsCharRange()) return nullptr;
        made->symbol_of_[edge.min] = 1;
        if (edge.max < 255) made->symbol_of_[edge.max + 1] = 1;
      }
    }
    made->symbol_of_[0] = 0;
    std::partial_sum(made->symbol_of_.begin(), made->symbol_of_.end(), made->symbol_of_.begin());
    made->symbols_ = made->symbol_of_[255] + 1;
    return made->Determinize(fsm, states) ? std::move(made) : nullptr;
  }

  int32_t size() const { return static_cast<int32_t>(is_end_.size()); }
  int32_t symbols() const { return symbols_; }
  // Where one is in this state of the library's alone: its matcher asks for what epsilon edges lead to as
  // well.
  int32_t StateOf(int32_t library_state) const { return numbers_.at(library_state); }
  int32_t Next(int32_t state, uint8_t byte) const { return next_[state * symbols_ + symbol_of_[byte]]; }
  const int32_t* NextOf(int32_t state) const { return next_.data() + state * symbols_; }  // [symbols()]
  bool IsEnd(int32_t state) const { return is_end_[state]; }
  size_t bytes() const {
    return next_.size() * sizeof(int32_t) + is_end_.size() + numbers_.size() * 4 * sizeof(int64_t);
  }

 private:
  // States that one is in at once, in order; those that neither read nor end are left out.
  using Set = std::vector<int32_t>;

  static bool Matters(const CompactFSMWithStartEnd& fsm, int32_t state) {
    if (fsm.IsEndState(state)) return true;
    const auto edges = fsm.GetFsm().GetEdges(state);
    return std::any_of(edges.begin(), edges.end(), [](const FSMEdge& edge) { return edge.IsCharRange(); });
  }
  static void Sort(Set* set) {
    std::sort(set->begin(), set->end());
    set->erase(std::unique(set->begin(), set->end()), set->end());
  }

  // False: that would be too many.
  bool Determinize(const CompactFSMWithStartEnd& fsm, const std::vector<int32_t>& states) {
    const size_t most = 4 * states.size() + 1024;
    std::unordered_map<int32_t, Set> closures;
    for (const int32_t state : states) {
      InterruptionPoint();
      std::unordered_set<int32_t> closure = {state};
      fsm.GetFsm().GetEpsilonClosure(&closure);
      Set& kept = closures[state];
      std::copy_if(closure.begin(), closure.end(), std::back_inserter(kept),
                   [&](int32_t s) { return Matters(fsm, s); });
      Sort(&kept);
    }
    std::map<Set, int32_t> ids;
    std::vector<const Set*> sets;  // by id
    const auto id_of = [&](Set set) {
      const auto [found, is_new] = ids.emplace(std::move(set), static_cast<int32_t>(ids.size()));
      if (is_new) sets.push_back(&found->first);
      return found->second;
    };
    for (const int32_t state : states) numbers_.emplace(state, id_of({state}));
    std::vector<Set> behind(symbols_);
    for (size_t id = 0; id < sets.size(); ++id) {
      if (sets.size() > most) return false;
      for (Set& set : behind) set.clear();
      bool is_end = false;
      for (const int32_t state : *sets[id]) {
        is_end = is_end || fsm.IsEndState(state);
        for (const FSMEdge& edge : fsm.GetFsm().GetEdges(state)) {
          if (!edge.IsCharRange()) continue;
          InterruptionPoint();
          const Set& closure = closures.at(edge.target);
          for (int32_t symbol = symbol_of_[edge.min]; symbol <= symbol_of_[edge.max]; ++symbol) {
            behind[symbol].insert(behind[symbol].end(), closure.begin(), closure.end());
          }
        }
      }
      is_end_.push_back(is_end);
      for (Set& set : behind) {
        Sort(&set);
        next_.push_back(set.empty() ? kNowhere : id_of(set));
      }
    }
    return true;
  }

  std::array<int32_t, 256> symbol_of_{};  // bytes that no edge tells apart are one symbol
  int32_t symbols_ = 0;
  std::vector<int32_t> next_;  // [state][symbol]
  std::vector<char> is_end_;
  std::unordered_map<int32_t, int32_t> numbers_;  // the library's state -> ours
};

// The states of an automaton, by what they do with the next bytes.
class StateClasses {
 public:
  explicit StateClasses(const RegularAutomaton& automaton)
      : automaton_(automaton),
        class_of_(automaton.size()),
        sizes_(2),
        before_(automaton.size()),
        moved_(automaton.size()) {
    std::iota(moved_.begin(), moved_.end(), 0);
    for (const int32_t state : moved_) {
      ++sizes_[class_of_[state] = automaton.IsEnd(state)];
      for (int32_t symbol = 0; symbol < automaton.symbols(); ++symbol) {
        const int32_t next = automaton.NextOf(state)[symbol];
        if (next == RegularAutomaton::kNowhere) continue;
        if (before_[next].empty() || before_[next].back() != state) before_[next].push_back(state);
      }
    }
  }

  // Until states of one class agree for `depth` bytes.
  void Refine(size_t depth) {
    for (; depth_ < depth && !moved_.empty(); ++depth_) LookOneByteFurther();
  }
  const std::vector<int32_t>& class_of() const { return class_of_; }

 private:
  // Only a state that leads to one which has just left its class can differ from others of its own.
  void LookOneByteFurther() {
    std::map<int32_t, std::map<std::vector<int32_t>, std::vector<int32_t>>>
        classes;  // class -> behind -> states
    std::vector<int32_t> behind(automaton_.symbols());
    for (const int32_t state : depth_ == 0 ? moved_ : BeforeMoved()) {
      InterruptionPoint();
      std::transform(
          automaton_.NextOf(state), automaton_.NextOf(state) + behind.size(), behind.begin(),
          [&](int32_t next) { return next == RegularAutomaton::kNowhere ? next : class_of_[next]; });
      classes[class_of_[state]][behind].push_back(state);
    }
    moved_.clear();
    for (const auto& [old, groups] : classes) {
      int32_t rest = sizes_[old];
      auto largest = groups.begin();
      for (auto group = groups.begin(); group != groups.end(); ++group) {
        rest -= static_cast<int32_t>(group->second.size());
        if (group->second.size() > largest->second.size()) largest = group;
      }
      for (auto group = groups.begin(); group != groups.end(); ++group) {
        if (rest == 0 && group == largest) continue;  // this one stays
        for (const int32_t state : group->second) class_of_[state] = static_cast<int32_t>(sizes_.size());
        sizes_.push_back(static_cast<int32_t>(group->second.size()));
        sizes_[old] -= sizes_.back();
        moved_.insert(moved_.end(), group->second.begin(), group->second.end());
      }
    }
  }

  std::vector<int32_t> BeforeMoved() const {
    std::vector<int32_t> states;
    for (const int32_t state : moved_)
      states.insert(states.end(), before_[state].begin(), before_[state].end());
    std::sort(states.begin(), states.end());
    states.erase(std::unique(states.begin(), states.end()), states.end());
    return states;
  }

  const RegularAutomaton& automaton_;
  std::vector<int32_t> class_of_;
  std::vector<int32_t> sizes_;                // of the classes
  std::vector<std::vector<int32_t>> before_;  // of a state: those that a byte leads to it
  std::vector<int32_t> moved_;                // states that left their class in the last round
  size_t depth_ = 0;
};

// The masks of one rule's states: what GrammarMatcherForTokenMaskCache::GetAdaptiveTokenMask gives for each.
// One thread at a time.
class RegularRule {
 public:
  using Mask = std::shared_ptr<const AdaptiveTokenMask>;

  // Null: the rule is not regular, or its automaton would be too large. `states`: all of the rule.
  static std::unique_ptr<RegularRule> Make(const Grammar& grammar, int32_t rule_id,
                                           const std::vector<int32_t>& states,
                                           const TokenizerInfo& tokenizer_info,
                                           const std::shared_ptr<const TokenTrees>& tokens) {
    using GrammarExprType = Grammar::Impl::GrammarExprType;
    const auto& rule = grammar->GetRule(rule_id);
    if (rule.is_lazy || grammar->GetGrammarExpr(rule.body_expr_id).type == GrammarExprType::kTagDispatch)
      return nullptr;
    for (int32_t id = 0; id < grammar->NumRules(); ++id) {
      if (grammar->GetRule(id).max_chars >= 0) return nullptr;
    }
    std::unique_ptr<const RegularAutomaton> automaton =
        RegularAutomaton::Make(grammar->per_rule_fsms[rule_id]->GetFsm(), states);
    if (automaton == nullptr) return nullptr;
    return std::unique_ptr<RegularRule>(
        new RegularRule(grammar, rule_id, tokenizer_info, tokens, std::move(automaton)));
  }

  // Null: it has to be made.
  Mask Kept(int32_t library_state) const {
    const auto kept = masks_.find(classes_[automaton_->StateOf(library_state)]);
    return kept == masks_.end() ? nullptr : kept->second;
  }
  Mask MakeMask(int32_t library_state) {
    const int32_t state = automaton_->StateOf(library_state);
    const ParserState alone(rule_id_, grammar_->GetRule(rule_id_).body_expr_id, library_state,
                            ParserState::kNoPrevInputPos, 0);
    const std::unordered_map<int32_t, DynamicBitset> no_tags;
    std::optional<RuleLevelCache> no_cache;
    GrammarMatcherForTokenMaskCache behind(grammar_, alone, no_tags, tokenizer_info_, no_cache);
    AdaptiveTokenMask mask = *MaskOfShort(state, behind);
    Divide(tokens_->of_long, state, behind);
    AddDivided(&mask);
    return Keep(classes_[state], std::move(mask), &masks_);
  }

  size_t bytes() const { return automaton_->bytes() + 2 * classes_.size() * sizeof(int32_t); }
  int32_t states() const { return automaton_->size(); }
  // Of what was made since Forget.
  size_t made_bytes() const { return mask_bytes_ + fates_.size() * 128; }
  void Forget() {
    masks_.clear();
    masks_of_short_.clear();
    mask_bytes_ = 0;
    fates_.clear();
  }

 private:
  enum class Fate { kAccepted, kUncertain, kRejected };

  RegularRule(const Grammar& grammar, int32_t rule_id, const TokenizerInfo& tokenizer_info,
              const std::shared_ptr<const TokenTrees>& tokens,
              std::unique_ptr<const RegularAutomaton> automaton)
      : grammar_(grammar),
        rule_id_(rule_id),
        tokenizer_info_(tokenizer_info),
        tokens_(tokens),
        automaton_(std::move(automaton)),
        walked_(tokens->longest() + 1),
        ends_so_far_(tokens->longest() + 1) {
    StateClasses classes(*automaton_);
    classes.Refine(tokens_->of_short.longest);
    classes_of_short_ = classes.class_of();
    classes.Refine(tokens_->longest());
    classes_ = classes.class_of();
  }

  Mask Keep(int32_t class_of_state, AdaptiveTokenMask mask, std::map<int32_t, Mask>* kept) {
    mask_bytes_ += MemorySize(mask) + sizeof(mask);
    return kept->emplace(class_of_state, std::make_shared<const AdaptiveTokenMask>(std::move(mask)))
        .first->second;
  }

  // In which the long tokens are in no list.
  Mask MaskOfShort(int32_t state, GrammarMatcherForTokenMaskCache& behind) {
    const auto kept = masks_of_short_.find(classes_of_short_[state]);
    if (kept != masks_of_short_.end()) return kept->second;
    Divide(tokens_->of_short, state, behind);
    const auto& sorted = tokenizer_info_.GetSortedDecodedVocab();
    const size_t vocab_size = tokenizer_info_.GetVocabSize();
    AdaptiveTokenMask mask = rejected_.size() < AdaptiveTokenMask::USE_BITSET_THRESHOLD
                                 ? AdaptiveTokenMask(vocab_size, sorted, accepted_, rejected_, uncertain_)
                                 : AdaptiveTokenMask(vocab_size, sorted, accepted_, uncertain_);
    return Keep(classes_of_short_[state], std::move(mask), &masks_of_short_);
  }

  // Adds what the last Divide found.
  void AddDivided(AdaptiveTokenMask* mask) const {
    IntsetUnion(&mask->uncertain_indices, uncertain_);
    switch (mask->store_type) {
      case AdaptiveTokenMask::StoreType::kAccepted:
        IntsetUnion(&mask->accepted_indices, accepted_);
        break;
      case AdaptiveTokenMask::StoreType::kRejected:
        IntsetUnion(&mask->rejected_indices, rejected_);
        break;
      case AdaptiveTokenMask::StoreType::kAcceptedBitset:
        for (const int32_t i : accepted_)
          mask->accepted_bitset.Set(tokenizer_info_.GetSortedDecodedVocab()[i].first);
        break;
    }
  }

  // The tokens of a tree, which a state accepts, rejects, or cannot tell.
  void Divide(const TokenTree& tree, int32_t state, GrammarMatcherForTokenMaskCache& behind) {
    accepted_.clear(), rejected_.clear(), uncertain_.clear();
    walked_[0] = state;
    accepted_.assign(tree.numbers.begin(), tree.numbers.begin() + tree.first_bytes[0]);  // of no bytes
    for (int byte = 0; byte < 256; ++byte) {
      const int32_t begin = tree.first_bytes[byte], end = tree.first_bytes[byte + 1];
      if (begin == end) continue;
      if (automaton_->Next(state, static_cast<uint8_t>(byte)) == RegularAutomaton::kNowhere) {
        rejected_.insert(rejected_.end(), tree.numbers.begin() + begin, tree.numbers.begin() + end);
      } else {
        Divide(tree, begin, end, behind);
      }
    }
  }

  // Its tokens [begin, end), which share their first byte.
  void Divide(const TokenTree& tree, int32_t begin, int32_t end, GrammarMatcherForTokenMaskCache& behind) {
    int32_t depth = 0;  // bytes of the token in hand that the rule took
    for (int32_t i = begin; i < end;) {
      if (i % 64 == 0) InterruptionPoint();
      const int32_t shared = tree.shared[i];
      const char* bytes = tree.bytes.data() + tree.begins[i] - shared;
      const int32_t length = tree.begins[i + 1] - tree.begins[i] + shared;
      // Where the token before went wrong in what they share, so does this one.
      const bool goes_on = depth >= shared;
      depth = std::min(depth, shared);
      for (; goes_on && depth < length; ++depth) {
        const int32_t next = automaton_->Next(walked_[depth], static_cast<uint8_t>(bytes[depth]));
        if (next == RegularAutomaton::kNowhere) break;
        walked_[depth + 1] = next;
        ends_so_far_[depth + 1] = ends_so_far_[depth] + automaton_->IsEnd(next);
      }
      if (depth == length) {
        accepted_.push_back(tree.numbers[i++]);
        continue;
      }
      const bool reaches_end = ends_so_far_[depth] > 0;
      const Fate fate = reaches_end ? FateBehind(tree.numbers[i], depth, behind) : Fate::kRejected;
      if (fate == Fate::kAccepted) accepted_.push_back(tree.numbers[i]);
      if (fate == Fate::kUncertain) uncertain_.push_back(tree.numbers[i]);
      int32_t next = i + 1;
      if (fate == Fate::kRejected) {
        // So is all that begins like this token: to its end, or without an end of the rule to where it went
        // wrong.
        const int32_t same = reaches_end ? length : depth + 1;
        while (next < end && tree.shared[next] >= same) ++next;
        rejected_.insert(rejected_.end(), tree.numbers.begin() + i, tree.numbers.begin() + next);
      }
      i = next;
    }
  }

  // Of a token that goes on behind the rule, from one of its ends in the first `depth` bytes.
  Fate FateBehind(int32_t token, int32_t depth, GrammarMatcherForTokenMaskCache& behind) {
    const auto& rule = grammar_->GetRule(rule_id_);
    if (rule_id_ == grammar_->GetRootRuleId()) return Fate::kRejected;
    if (rule.lookahead_assertion_id == -1) return Fate::kUncertain;
    std::vector<bool> ends(depth + 1);
    for (int32_t d = 1; d <= depth; ++d) ends[d] = ends_so_far_[d] > ends_so_far_[d - 1];
    const auto known = fates_.find({token, ends});
    if (known != fates_.end()) return known->second;
    const auto [accepted, completed] =
        behind.IsTokenPassLookaheadAssertion(tokenizer_info_.GetSortedDecodedVocab()[token].second, ends);
    Fate fate = Fate::kRejected;
    if (accepted) fate = completed || !rule.is_exact_lookahead ? Fate::kUncertain : Fate::kAccepted;
    fates_.emplace(std::pair(token, std::move(ends)), fate);
    return fate;
  }

  const Grammar grammar_;
  const int32_t rule_id_;
  const TokenizerInfo tokenizer_info_;
  const std::shared_ptr<const TokenTrees> tokens_;
  const std::unique_ptr<const RegularAutomaton> automaton_;
  std::vector<int32_t> classes_, classes_of_short_;  // [states], as far as a token, or a short one, can tell

  std::map<int32_t, Mask> masks_, masks_of_short_;  // of the classes
  size_t mask_bytes_ = 0;
  std::map<std::pair<int32_t, std::vector<bool>>, Fate>
      fates_;  // of a token, by where the rule may end in it

  // Of the token in hand, at each number of bytes:
  std::vector<int32_t> walked_;       // the state
  std::vector<int32_t> ends_so_far_;  // places where the rule may end, but for the token's beginning
  // Of the state in hand, in the sorted vocabulary:
  std::vector<int32_t> accepted_, rejected_, uncertain_;
};

// Of one compiled grammar. After it is made: any thread; who comes while a mask is made waits for it.
class RegularMasks {
 public:
  explicit RegularMasks(size_t vocab_size) : vocab_size_(vocab_size) {}

  void Add(int32_t rule_id, std::unique_ptr<RegularRule> rule) { rules_.emplace(rule_id, std::move(rule)); }

  // Null: of no regular rule.
  RegularRule::Mask Find(const ParserState& state) {
    const auto found = rules_.find(state.rule_id);
    if (found == rules_.end()) return nullptr;
    RegularRule& rule = *found->second;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (RegularRule::Mask kept = rule.Kept(state.element_id)) return kept;
    RegularRule::Mask made = rule.MakeMask(state.element_id);
    size_t bytes = 0;
    for (const auto& [id, other] : rules_) bytes += other->made_bytes();
    if (bytes > most_made_bytes()) {
      for (const auto& [id, other] : rules_) other->Forget();
    }
    return made;
  }

  // Of all that may be made, but for one mask.
  size_t bytes() const {
    size_t sum = 0, masks = 0;
    for (const auto& [id, rule] : rules_) {
      sum += rule->bytes();
      masks += rule->states() * (sizeof(AdaptiveTokenMask) + vocab_size_ / 8);
    }
    return sum + std::min(masks, most_made_bytes());
  }

 private:
  // Beyond it all masks are forgotten, and made again when they are asked for: some 150 of a string in JSON.
  size_t most_made_bytes() const { return (size_t{1} << 20) + 32 * vocab_size_; }

  const size_t vocab_size_;
  std::map<int32_t, std::unique_ptr<RegularRule>> rules_;
  std::mutex mutex_;  // guards what the rules have made
};

size_t CompiledGrammar::Impl::RegularMaskBytes() const { return regular_masks->bytes(); }

std::shared_ptr<const AdaptiveTokenMask> CompiledGrammar::Impl::FindMask(const ParserState& state) const {
  if (std::shared_ptr<const AdaptiveTokenMask> mask = regular_masks->Find(state)) return mask;
  const auto found = adaptive_token_mask_cache.find(state);
  if (found == adaptive_token_mask_cache.end()) return nullptr;
  return {std::shared_ptr<const void>(), &found->second};
}

}  // namespace xgrammar
