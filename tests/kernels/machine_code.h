// What a warp issues in the main loop of a kernel, read from its machine code as cuobjdump prints it. One
// thread.
//
// The main loop is the innermost one around tensor products, of several that with most of them: where a loop
// over tiles stands in one over items, that over tiles. Counted is one turn of it, by the shortest way that
// leaves out no product and no asynchronous copy, and in a loop without such copies brings the most bytes by
// loads from global memory before its first product: what stands behind an `if` that guards none of these (a
// mask at an edge, say) is not on it. Loops inside it count as one turn, predicated instructions always,
// since they are issued.
#pragma once

#include <istream>
#include <map>
#include <string>
#include <vector>

namespace tramontane {

struct Instruction {
  int64_t address = 0;  // bytes from the start of its function
  bool predicated = false;
  std::string operation;  // "HMMA.16816.F32.BF16"
  std::string operands;   // "R4, R8, R12, R4"
};

struct LoopCost {
  int instructions = 0;
  int branches = 0;   // jumps and calls, and what makes lanes meet again behind them
  int divisions = 0;  // reciprocals, of which divisions are made, and calls of functions that divide
  int copies = 0;     // asynchronous ones from global memory to shared
  int products = 0;   // of tensor cores
};

// Functions by their mangled names, for an architecture ("sm_90a").
std::map<std::string, std::vector<Instruction>> ReadMachineCode(std::istream& dump);

// What setmaxnreg gives a warp, and how many registers the ways behind it use: one more than the highest that
// an instruction names, with what an access of 8 or 16 bytes takes beside it. Of the registers that a product
// of a warpgroup takes beside the named one nothing is known.
struct RegisterLimit {
  int allowed = 0;
  int used = 0;
};
// Of each setmaxnreg of a function, in order of addresses.
std::vector<RegisterLimit> RegisterLimits(const std::vector<Instruction>& function);

// All zero where no loop holds a tensor product.
LoopCost MainLoopCost(const std::vector<Instruction>& function);

}  // namespace tramontane
