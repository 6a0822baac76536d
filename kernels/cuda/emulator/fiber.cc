#include "kernels/cuda/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "kernels/core/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tramontane::emulator {

namespace {

// Saves the callee-saved registers and the stack pointer in *from, and goes on where `to` was saved.
extern "C" void tramontane_fiber_switch(void** from, void* to);
asm(R"(
.text
.globl tramontane_fiber_switch
.type tramontane_fiber_switch, @function
tramontane_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tramontane_fiber_switch, .-tramontane_fiber_switch
)");

// First return of a fresh fiber: the fiber waits in rbx.
extern "C" void tramontane_fiber_start();
asm(R"(
.text
.globl tramontane_fiber_start
.type tramontane_fiber_start, @function
tramontane_fiber_start:
  movq %rbx, %rdi
  xorq %rbp, %rbp
  callq *%r12
  ud2
.size tramontane_fiber_start, .-tramontane_fiber_start
)");

constexpr size_t kPage = 4096;

}  // namespace

Fiber::Fiber(size_t stack_bytes) : stack_bytes_((stack_bytes + kPage - 1) / kPage * kPage) {
  // One unreadable page below the stack turns an overflow into a fault.
  void* memory = mmap(nullptr, stack_bytes_ + kPage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TM_CHECK(memory != MAP_FAILED, "no memory for a fiber's stack of %zu bytes", stack_bytes_);
  mprotect(memory, kPage, PROT_NONE);
  stack_ = static_cast<std::byte*>(memory) + kPage;
#if defined(__SANITIZE_THREAD__)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(tsan_fiber_);
#endif
  munmap(stack_ - kPage, stack_bytes_ + kPage);
}

void Fiber::Start(Entry entry, void* argument) {
  TM_CHECK(finished_, "a fiber was started twice");
  entry_ = entry;
  argument_ = argument;
  finished_ = false;
  // What tramontane_fiber_switch pops, from the lowest address: r15 r14 r13 r12 rbx rbp, then the return
  // address.
  auto* top = reinterpret_cast<void**>(stack_ + stack_bytes_);
  void** frame = top - 9;  // so that the stack is 16-byte aligned at the call in tramontane_fiber_start
  frame[0] = frame[1] = frame[2] = nullptr;
  frame[3] = reinterpret_cast<void*>(&Fiber::Run);  // r12
  frame[4] = this;                                  // rbx
  frame[5] = nullptr;                               // rbp
  frame[6] = reinterpret_cast<void*>(&tramontane_fiber_start);
  own_context_ = frame;
}

// Never returns, so a race detector must not see it entered.
__attribute__((no_sanitize("thread"))) void Fiber::Run(Fiber* self) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->scheduler_stack_, &self->scheduler_stack_bytes_);
#endif
  self->entry_(self->argument_);
  self->finished_ = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, self->scheduler_stack_, self->scheduler_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(self->tsan_scheduler_, __tsan_switch_to_fiber_no_sync);
#endif
  tramontane_fiber_switch(&self->own_context_, self->scheduler_context_);
}

void Fiber::Resume() {
#if defined(__SANITIZE_ADDRESS__)
  void* scheduler_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, stack_, stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  tsan_scheduler_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  tramontane_fiber_switch(&scheduler_context_, own_context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Suspend() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, scheduler_stack_, scheduler_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_scheduler_, __tsan_switch_to_fiber_no_sync);
#endif
  tramontane_fiber_switch(&own_context_, scheduler_context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

}  // namespace tramontane::emulator
