#include "tests/kernels/machine_code.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

namespace tramontane {
namespace {

bool IsOneOf(const Instruction& instruction, const std::set<std::string>& operations) {
  return operations.count(instruction.operation.substr(0, instruction.operation.find('.'))) > 0;
}

bool IsProduct(const Instruction& i) { return IsOneOf(i, {"HMMA", "HGMMA", "IMMA", "QGMMA"}); }
bool IsCopy(const Instruction& i) { return IsOneOf(i, {"LDGSTS", "UTMALDG"}); }
// Of a load from global memory; else 0.
int LoadedBytes(const Instruction& i) {
  if (!IsOneOf(i, {"LDG"})) return 0;
  const auto has = [&i](const char* width) {
    return (i.operation + ".").find(std::string(".") + width + ".") != std::string::npos;
  };
  return has("128") ? 16 : has("64") ? 8 : has("U16") || has("S16") ? 2 : has("U8") || has("S8") ? 1 : 4;
}
bool IsBranch(const Instruction& i) {
  return IsOneOf(i, {"BRA", "BRX", "JMP", "CALL", "RET", "BSSY", "BSYNC", "BREAK", "WARPSYNC"});
}
bool IsDivision(const Instruction& i) { return IsOneOf(i, {"CALL"}) || i.operation.starts_with("MUFU.RCP"); }

class Function {
 public:
  explicit Function(const std::vector<Instruction>& code) : code_(code) {
    for (size_t i = 0; i < code.size(); ++i) index_[code[i].address] = i;
  }

  struct Loop {
    size_t first, last;  // instructions; the last one jumps to the first
    int products;
  };

  std::optional<Loop> MainLoop() const {
    std::vector<Loop> loops;
    for (size_t last = 0; last < code_.size(); ++last) {
      const std::optional<size_t> first = Target(last);
      if (!first || *first > last) continue;
      const Loop loop = {*first, last, Count(*first, last, IsProduct)};
      // A jump back to where others go on (code that waits stands behind all other) makes no loop.
      if (loop.products > 0 && Dominates(*first, last)) loops.push_back(loop);
    }
    std::optional<Loop> best;
    for (const Loop& loop : loops) {
      const bool innermost = std::none_of(loops.begin(), loops.end(), [&loop](const Loop& other) {
        return other.first >= loop.first && other.last <= loop.last &&
               other.last - other.first < loop.last - loop.first;
      });
      if (innermost && (!best || loop.products > best->products)) best = loop;
    }
    return best;
  }

  // One more than the highest register on any way behind instruction `from`.
  int RegistersBehind(size_t from) const {
    std::vector<bool> seen(code_.size());
    std::vector<size_t> next = Successors(from);
    int used = 0;
    while (!next.empty()) {
      const size_t i = next.back();
      next.pop_back();
      if (seen[i]) continue;
      seen[i] = true;
      used = std::max(used, RegistersOf(code_[i]));
      for (const size_t successor : Successors(i)) next.push_back(successor);
    }
    return used;
  }

  // The instructions of one turn.
  std::vector<size_t> Turn(const Loop& loop) const {
    struct Reached {
      int skipped = 0;   // less: products and copies on the way, so that most of them win
      int unloaded = 0;  // the same of bytes
      int length = 0;
      size_t from = 0;
      auto Order() const { return std::tuple(skipped, unloaded, length); }
    };
    const bool copies = Count(loop.first, loop.last, IsCopy) > 0;
    bool before_products = true;
    std::map<size_t, Reached> reached = {{loop.first, {}}};
    for (size_t i = loop.first; i < code_.size(); ++i) {
      const auto here = reached.find(i);
      if (here == reached.end() || i == loop.last) continue;
      const int wanted = IsProduct(code_[i]) || IsCopy(code_[i]) ? 1 : 0;
      before_products = before_products && !IsProduct(code_[i]);
      const int bytes = copies || !before_products ? 0 : LoadedBytes(code_[i]);
      const Reached next = {here->second.skipped - wanted, here->second.unloaded - bytes,
                            here->second.length + 1, i};
      for (const size_t to : Successors(i)) {
        if (to <= i) continue;
        const auto [found, is_new] = reached.try_emplace(to, next);
        if (!is_new && next.Order() < found->second.Order()) found->second = next;
      }
    }
    std::vector<size_t> turn;
    if (reached.count(loop.last) == 0) return turn;
    for (size_t i = loop.last; i != loop.first; i = reached[i].from) turn.push_back(i);
    turn.push_back(loop.first);
    return turn;
  }

 private:
  static int RegistersOf(const Instruction& i) {
    const std::string operation = i.operation + ".";
    const int beside = operation.find(".128.") != std::string::npos  ? 3
                       : operation.find(".64.") != std::string::npos ? 1
                                                                     : 0;
    int used = 0;
    for (size_t at = i.operands.find('R'); at != std::string::npos; at = i.operands.find('R', at + 1)) {
      const auto is_word = [&](size_t c) {
        return std::isalnum(static_cast<unsigned char>(i.operands[c])) != 0;
      };
      if ((at > 0 && is_word(at - 1)) || at + 1 == i.operands.size() ||
          std::isdigit(static_cast<unsigned char>(i.operands[at + 1])) == 0) {
        continue;  // UR4, RZ
      }
      used = std::max(used, std::stoi(i.operands.substr(at + 1)) + 1 + beside);
    }
    return used;
  }

  template <typename Is>
  int Count(size_t first, size_t last, const Is& is) const {
    return static_cast<int>(std::count_if(code_.begin() + static_cast<std::ptrdiff_t>(first),
                                          code_.begin() + static_cast<std::ptrdiff_t>(last), is));
  }

  // Whether every way from the function's begin to `to` leads over `over`.
  bool Dominates(size_t over, size_t to) const {
    std::vector<bool> seen(code_.size());
    std::vector<size_t> next = {0};
    while (over != 0 && !next.empty()) {
      const size_t i = next.back();
      next.pop_back();
      if (i == over || seen[i]) continue;
      if (i == to) return false;
      seen[i] = true;
      for (const size_t successor : Successors(i)) next.push_back(successor);
    }
    return true;
  }

  // Where a jump goes to.
  std::optional<size_t> Target(size_t i) const {
    static const std::regex address("0x([0-9a-f]+)");
    std::smatch match;
    if (!IsOneOf(code_[i], {"BRA"}) || !std::regex_search(code_[i].operands, match, address)) {
      return std::nullopt;
    }
    const auto found = index_.find(std::stoll(match[1], nullptr, 16));
    return found == index_.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<size_t> Successors(size_t i) const {
    const Instruction& instruction = code_[i];
    std::vector<size_t> to;
    if (const std::optional<size_t> target = Target(i)) to.push_back(*target);
    // A second operand of a jump is a predicate, too.
    const bool leaves = IsOneOf(instruction, {"BRA", "EXIT", "RET"}) && !instruction.predicated &&
                        instruction.operands.find(',') == std::string::npos;
    if (!leaves && i + 1 < code_.size()) to.push_back(i + 1);
    return to;
  }

  const std::vector<Instruction>& code_;
  std::map<int64_t, size_t> index_;
};

// "/*0070*/  @P0 BRA 0x90 ;  /* 0x... */": by hand, since a regular expression takes seconds over all of it.
std::optional<Instruction> ParseInstruction(const std::string& line) {
  std::istringstream words(line.substr(0, line.find(';')));
  std::string address, word;
  if (!(words >> address >> word) || !address.starts_with("/*") || !address.ends_with("*/") ||
      address.starts_with("/* ")) {
    return std::nullopt;
  }
  Instruction instruction;
  instruction.address = std::stoll(address.substr(2), nullptr, 16);
  instruction.predicated = word.front() == '@';
  if (instruction.predicated) words >> word;
  instruction.operation = word;
  words >> std::ws;
  std::getline(words, instruction.operands);
  return instruction;
}

}  // namespace

std::map<std::string, std::vector<Instruction>> ReadMachineCode(std::istream& dump) {
  const std::string function = "Function : ";
  std::map<std::string, std::vector<Instruction>> functions;
  std::vector<Instruction>* current = nullptr;
  for (std::string line; std::getline(dump, line);) {
    if (const size_t at = line.find(function); at != std::string::npos) {
      current = &functions[line.substr(at + function.size())];
    } else if (current != nullptr && line.find(';') != std::string::npos) {
      if (std::optional<Instruction> instruction = ParseInstruction(line)) {
        current->push_back(std::move(*instruction));
      }
    }
  }
  return functions;
}

std::vector<RegisterLimit> RegisterLimits(const std::vector<Instruction>& function) {
  const Function of(function);
  std::vector<RegisterLimit> limits;
  for (size_t i = 0; i < function.size(); ++i) {
    if (!IsOneOf(function[i], {"USETMAXREG"})) continue;
    const size_t number = function[i].operands.rfind("0x");
    limits.push_back(
        {number == std::string::npos ? 0 : std::stoi(function[i].operands.substr(number), nullptr, 16),
         of.RegistersBehind(i)});
  }
  return limits;
}

LoopCost MainLoopCost(const std::vector<Instruction>& function) {
  const Function of(function);
  const auto loop = of.MainLoop();
  if (!loop) return {};
  LoopCost cost;
  for (const size_t i : of.Turn(*loop)) {
    cost.instructions += 1;
    cost.branches += IsBranch(function[i]) ? 1 : 0;
    cost.divisions += IsDivision(function[i]) ? 1 : 0;
    cost.copies += IsCopy(function[i]) ? 1 : 0;
    cost.products += IsProduct(function[i]) ? 1 : 0;
  }
  return cost;
}

}  // namespace tramontane
