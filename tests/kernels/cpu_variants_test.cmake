# Which variants of kernels/cpu a build for one machine has, by what /proc/cpuinfo says. Usage: cmake -P cpu_variants_test.cmake
include(${CMAKE_CURRENT_LIST_DIR}/../../kernels/cpu/variants.cmake)

set(v3 "sse2 avx avx2 fma f16c bmi2")
set(v4 "${v3} avx512f avx512bw avx512vl avx512dq")
set(vnni "${v4} avx512_vnni")
set(bf16 "${vnni} avx512_bf16")

function(expect wanted choice cpuinfo)
  variants_to_build(got ${choice} "${cpuinfo}")
  if(NOT got STREQUAL wanted)
    message(SEND_ERROR "${choice} of\n${cpuinfo}\nis '${got}', wanted is '${wanted}'")
  endif()
endfunction()

# The flags of the first of two processors, in a file like Linux's.
function(expect_machine wanted flags)
  set(processor "vendor_id\t: X\nflags\t\t: ${flags}\nbugs\t\t: spectre\n")
  expect("${wanted}" machine "processor\t: 0\n${processor}\nprocessor\t: 1\n${processor}")
endfunction()

expect("portable;avx2;avx512;avx512_vnni;avx512_bf16;amx_bf16" all "")
expect("portable" machine "")
expect("portable" machine "processor : 0\nFeatures : fp asimd\n")
expect_machine("portable" "sse2 avx avx2x fma f16c")
expect_machine("portable" "sse2 avx2 f16c")
expect_machine("avx2" "${v3}")
expect_machine("avx2" "${v3} avx512f avx512bw avx512_vnni")
expect_machine("avx512" "${v4}")
expect_machine("avx512_vnni" "${vnni}")
expect_machine("avx512_vnni;avx512_bf16" "${bf16}")
expect_machine("avx512_vnni;avx512_bf16" "${bf16} amx_tile")
expect_machine("avx512_vnni;avx512_bf16;amx_bf16" "${bf16} amx_bf16 amx_tile amx_int8")
