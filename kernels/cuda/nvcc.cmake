# Device code by nvcc, without CMake's CUDA language: that knows no C++20 before CMake 3.26, costs every configuration
# eight seconds, and throws away what ptxas says of registers and shared memory, which the budget test reads.
#
# Sets TRAMONTANE_NVCC_FOUND, and TRAMONTANE_NVCC_MISSING to the reason where it is false. Tests link
# tramontane_nvcc_facts to be told of both.
set(TRAMONTANE_NVCC_FOUND FALSE)
set(TRAMONTANE_NVCC_MISSING "")
set(nvcc_version "")
if(NOT TRAMONTANE_SANITIZE STREQUAL "")
  set(TRAMONTANE_NVCC_MISSING "a build with sanitizers, which do not see device code")
elseif(NOT CUDAToolkit_FOUND)
  set(TRAMONTANE_NVCC_MISSING "no CUDA toolkit (nvcc 13) was found")
elseif(CUDAToolkit_VERSION VERSION_LESS 13 OR CUDAToolkit_VERSION VERSION_GREATER_EQUAL 14)
  set(TRAMONTANE_NVCC_MISSING "the CUDA toolkit is ${CUDAToolkit_VERSION}, wanted is 13")
else()
  set(TRAMONTANE_NVCC_FOUND TRUE)
  set(nvcc_version ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR})
endif()
add_library(tramontane_nvcc_facts INTERFACE)
target_compile_definitions(tramontane_nvcc_facts INTERFACE TRAMONTANE_NVCC_VERSION="${nvcc_version}"
                                                           TRAMONTANE_NVCC_MISSING="${TRAMONTANE_NVCC_MISSING}")

# tramontane_nvcc_library(NAME a.cu b.cu ...): a static library of device code and its launches; hopper_*.cu for sm_90a
# alone, whose instructions no other has. What ptxas said of
# a.cu lies in a.cu.ptxas beside the object; the library's property PTXAS_LOGS lists them, from the checkout's root.
function(tramontane_nvcc_library name)
  # Machine code for the three generations that the kernels are made for, and PTX for those that come after: that of
  # 90a runs on nothing later, that of 90 does.
  set(hopper -gencode=arch=compute_90a,code=sm_90a)
  set(architectures -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_89,code=sm_89
                    ${hopper} -gencode=arch=compute_90,code=compute_90)
  # -lineinfo: tools name the line of an instruction; the code is the same.
  set(flags -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -Xptxas=-v -Werror=all-warnings -Xcompiler=-fPIC,-Wall,-Wextra,-fno-strict-aliasing
            -I${CMAKE_SOURCE_DIR} --compiler-bindir=${CMAKE_CXX_COMPILER})
  set(strict "")
  if(TRAMONTANE_WERROR)
    set(strict -Xcompiler=-Werror)
  endif()
  foreach(source ${ARGN})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}/${source}.o)
    set(log ${CMAKE_CURRENT_BINARY_DIR}/${name}/${source}.ptxas)
    set(targets ${architectures})
    if(source MATCHES "^hopper_")
      set(targets ${hopper})
    endif()
    add_custom_command(
      OUTPUT ${object} ${log}
      COMMAND ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/keep_log ${log} ${CMAKE_CXX_COMPILER_LAUNCHER}
              ${CUDAToolkit_NVCC_EXECUTABLE} ${flags} ${targets} ${strict} -MMD -MF ${object}.d -MT ${object}
              -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${source} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/keep_log
      DEPFILE ${object}.d
      COMMENT "nvcc ${source}"
      VERBATIM)
    list(APPEND objects ${object})
    file(RELATIVE_PATH log ${CMAKE_SOURCE_DIR} ${log})
    list(APPEND logs ${log})
  endforeach()
  add_library(${name} STATIC ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX PTXAS_LOGS "${logs}")
  target_link_libraries(${name} PUBLIC tramontane_kernels CUDA::cudart_static)
endfunction()
