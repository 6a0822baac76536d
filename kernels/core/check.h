// TM_CHECK: for our own bugs only. Prints where and what, then aborts. Never for bad input (that is a
// Status). Any thread.
#pragma once

namespace tramontane {

[[noreturn]] [[gnu::format(printf, 4, 5)]] void CheckFailed(const char* file, int line, const char* condition,
                                                            const char* format, ...);

}  // namespace tramontane

// TM_CHECK(rows > 0, "rows is %d", rows): on in every build.
#define TM_CHECK(condition, ...)                                              \
  do {                                                                        \
    if (!(condition)) [[unlikely]]                                            \
      ::tramontane::CheckFailed(__FILE__, __LINE__, #condition, __VA_ARGS__); \
  } while (false)

// For conditions too dear for a release build's inner loops.
#ifdef NDEBUG
#define TM_DCHECK(condition, ...) \
  do {                            \
  } while (false)
#else
#define TM_DCHECK(condition, ...) TM_CHECK(condition, __VA_ARGS__)
#endif
