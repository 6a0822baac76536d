# variants_to_build(OUT CHOICE CPUINFO): the variants of kernels/cpu that a build has, by the names that --cpu-variant takes.
#
#   CHOICE    all: every one; machine: the one that this machine's processor chooses (isa.cc), with those that it leans on
#   CPUINFO   the text of Linux's /proc/cpuinfo; what it does not say, the machine has not
#
# With AVX-512 the machine's are, of avx512, avx512_vnni, avx512_bf16 and amx_bf16, the best and the one below that rounds no
# inputs (which keys and values in f32 ask for, and whose blocks avx512_bf16 and amx_bf16 multiply).
function(variants_to_build out choice cpuinfo)
  if(choice STREQUAL "all")
    set(${out} portable avx2 avx512 avx512_vnni avx512_bf16 amx_bf16 PARENT_SCOPE)
    return()
  elseif(NOT choice STREQUAL "machine")
    message(FATAL_ERROR "TRAMONTANE_CPU_VARIANTS is '${choice}': use 'all' or 'machine'")
  endif()
  string(REGEX MATCH "\nflags[^\n]*" flags "\n${cpuinfo}")
  string(APPEND flags " ")
  set(best portable)
  # Each level needs the one before; the first that lacks a flag ends the search.
  set(levels
    "avx2: avx2 fma f16c"
    "avx512: avx512f avx512bw avx512vl avx512dq"
    "avx512_vnni: avx512_vnni"
    "avx512_bf16: avx512_bf16"
    "amx_bf16: amx_bf16 amx_tile amx_int8")
  foreach(level IN LISTS levels)
    string(REGEX MATCH "^[^:]*" name "${level}")
    string(REGEX REPLACE "^[^:]*: " "" needed "${level}")
    string(REPLACE " " ";" needed "${needed}")
    foreach(flag IN LISTS needed)
      if(NOT flags MATCHES " ${flag} ")
        set(name "")
      endif()
    endforeach()
    if(name STREQUAL "")
      break()
    endif()
    set(best ${name})
  endforeach()
  if(best STREQUAL "avx512_bf16")
    set(best avx512_vnni avx512_bf16)
  elseif(best STREQUAL "amx_bf16")
    set(best avx512_vnni avx512_bf16 amx_bf16)
  endif()
  set(${out} ${best} PARENT_SCOPE)
endfunction()
