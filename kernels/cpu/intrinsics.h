// The processor's intrinsics, for variant_<name>.cc.
#pragma once

// GCC 12 takes the "undefined" source operands of its own AVX-512 header for uninitialised variables.
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#ifndef __clang__
#pragma GCC diagnostic pop
#endif
