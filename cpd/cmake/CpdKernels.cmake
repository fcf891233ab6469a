# SPDX-License-Identifier: Apache-2.0
# Compiles kernels/cpu/*.cpp once for each ISA. No other file of the build sets ISA flags.

set(CPD_ISAS scalar)
set(CPD_ISA_FLAGS_scalar "")
set(CPD_ISA_FLAGS_avx2 -mavx2 -mfma)
set(CPD_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma)
set(CPD_ISA_FLAGS_neon -march=armv8-a+crc -DCPD_NEON)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # The intrinsics of GCC < 13 make an undefined register by `__m512i y = y`, and GCC then warns about them.
  list(APPEND CPD_ISA_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
if(CPD_SANITIZE STREQUAL "fuzzer") # scalar kernels only: they compile fastest
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND CPD_ISAS avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  list(APPEND CPD_ISAS neon)
endif()
option(CPD_WIDEST_ISA "Build only scalar kernels and kernels for this CPU's widest ISA" OFF)
if((CPD_WIDEST_ISA OR CPD_NATIVE) AND "avx512" IN_LIST CPD_ISAS)
  file(STRINGS /proc/cpuinfo has_avx512 REGEX "avx512dq" LIMIT_COUNT 1)
  if(NOT has_avx512)
    list(REMOVE_ITEM CPD_ISAS avx512)
    message(STATUS "CPD: kernels for ${CPD_ISAS}; this CPU cannot run avx512")
  elseif(CPD_WIDEST_ISA)
    list(REMOVE_ITEM CPD_ISAS avx2)
  endif()
endif()
# Macros for sources that must know the compiled kernels: CPD_ISA_AVX2, for example, says that AVX2 kernels exist.
list(TRANSFORM CPD_ISAS TOUPPER OUTPUT_VARIABLE CPD_ISA_DEFINITIONS)
list(TRANSFORM CPD_ISA_DEFINITIONS PREPEND CPD_ISA_)

# Fewer checks in sanitized kernels, to save compile time. UndefinedBehaviorSanitizer's checks of each memory access
# take half of that time, and AddressSanitizer repeats most of them: they are off. In functions with more than 100
# accesses, AddressSanitizer's checks are calls instead of inline code. GCC obeys the last option that names a check, so
# kernels link cpd_fewer_checks after cpd_flags, which turns all checks on.
add_library(cpd_fewer_checks INTERFACE)
if(CPD_SANITIZE STREQUAL "address" AND CPD_WIDEST_ISA)
  target_compile_options(cpd_fewer_checks INTERFACE -fno-sanitize=null,alignment,pointer-overflow,object-size)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(cpd_fewer_checks INTERFACE --param=asan-instrumentation-with-call-threshold=100)
  endif()
endif()

# cpd_isa_kernels(TARGET NAMESPACE ISA SOURCES... [OPTIONS OPTION...]): adds the object library TARGET, which compiles
# kernels for ISA into the namespace NAMESPACE.
function(cpd_isa_kernels target namespace isa)
  cmake_parse_arguments(PARSE_ARGV 3 given "" "" "OPTIONS")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${given_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE cpd_flags cpd_fewer_checks)
  target_compile_definitions(${target} PRIVATE CPD_ISA=${namespace})
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O3> ${CPD_ISA_FLAGS_${isa}} ${given_OPTIONS})
endfunction()

# cpd_add_kernels(PREFIX OPTION...): adds an object library PREFIX_<isa> of all CPU kernels for each ISA. OPTION...:
# additional compile options.
file(GLOB CPD_KERNEL_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp")
function(cpd_add_kernels prefix)
  foreach(isa IN LISTS CPD_ISAS)
    cpd_isa_kernels(${prefix}_${isa} ${isa} ${isa} ${CPD_KERNEL_SOURCES} OPTIONS ${ARGN})
  endforeach()
endfunction()
