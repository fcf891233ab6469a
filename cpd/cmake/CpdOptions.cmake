# SPDX-License-Identifier: Apache-2.0
# Options and flags that every target shares.

# cpd_part(NAME TEXT): a part of the build that is AUTO (if what it needs is there), ON (or fail) or OFF.
function(cpd_part name text)
  set(CPD_${name} AUTO CACHE STRING "${text}: AUTO, ON or OFF")
  set_property(CACHE CPD_${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT CPD_${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "CPD_${name} must be AUTO, ON or OFF, got '${CPD_${name}}'")
  endif()
endfunction()

# cpd_decide(NAME FOUND DETAIL): sets CPD_WITH_<NAME> in the caller, says why, and fails where ON cannot be had.
function(cpd_decide name found detail)
  if(CPD_${name} STREQUAL "OFF")
    set(with FALSE)
    set(detail "switched off")
  elseif(found)
    set(with TRUE)
  elseif(CPD_${name} STREQUAL "ON")
    message(FATAL_ERROR "CPD_${name}=ON, but ${detail}")
  else()
    set(with FALSE)
  endif()
  set(CPD_WITH_${name} ${with} PARENT_SCOPE)
  if(with)
    message(STATUS "CPD: ${name} yes: ${detail}")
  else()
    message(STATUS "CPD: ${name} no: ${detail}")
  endif()
endfunction()

cpd_part(CUDA "CUDA kernels (libcpd_cuda)")
cpd_part(BLAS "A BLAS for fp32 products on the CPU (OpenBLAS, loaded at run time)")
cpd_part(MPI "Transport over MPI (libcpd_mpi)")
cpd_part(NCCL "Transport over NCCL (libcpd_nccl)")
cpd_part(TORCH "PyTorch operators (libcpd_torch)")
cpd_part(PYTHON "Python module (_core)")
cpd_part(TESTS "C++ tests (target cpd_tests)")
cpd_part(OPENMP "The number of threads by OpenMP, so that torch.set_num_threads counts")
option(CPD_NATIVE "Only what this machine can run: CUDA where there is a GPU, kernels of this CPU's ISAs" OFF)

set(CPD_SANITIZE "" CACHE STRING "Sanitizers of every target: empty, 'address' (with undefined), 'thread' or 'fuzzer' (with both)")
set_property(CACHE CPD_SANITIZE PROPERTY STRINGS "" address thread fuzzer)
if(NOT CPD_SANITIZE MATCHES "^(|address|thread|fuzzer)$")
  message(FATAL_ERROR "CPD_SANITIZE must be empty, address, thread or fuzzer, got '${CPD_SANITIZE}'")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
# What Release means is written here. Assertions stay out of Release alone.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# One folder for all libraries, as after installation: they find each other beside themselves.
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_BUILD_RPATH "$ORIGIN")
set(CMAKE_INSTALL_RPATH "$ORIGIN")
option(CPD_WHEEL "For a wheel that is carried to other machines: it brings its OpenMP" OFF)
if(CPD_WHEEL)
  # One OpenMP in a process: torch's own where it lies beside the package, else the one that the wheel brings. Both bear
  # the name libgomp.so.1, so that whichever is loaded first serves both.
  list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../torch/lib" "$ORIGIN/openmp")
endif()

# What a target needs whose code includes cpd/numeric: the arithmetic is exact only if no compiler contracts a*b+c.
# Exported with the package.
add_library(cpd_numeric INTERFACE)
target_compile_features(cpd_numeric INTERFACE cxx_std_20)
target_compile_options(
  cpd_numeric INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-ffp-contract=off>
                        "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-ffp-contract=off>")
target_include_directories(cpd_numeric INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                 $<INSTALL_INTERFACE:include>)

# What every target of this tree gets besides. -Wno-psabi: wide vectors never cross an object file.
add_library(cpd_flags INTERFACE)
target_link_libraries(cpd_flags INTERFACE cpd_numeric)
target_compile_options(cpd_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-psabi>)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang") # tables that are made when compiling take more steps than it allows
  target_compile_options(cpd_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fconstexpr-steps=100000000>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns about its own std::string operator+ (GCC bug 105651).
  target_compile_options(cpd_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CPD_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(CPD_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
elseif(CPD_SANITIZE STREQUAL "fuzzer")
  set(sanitizers -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
endif()
if(NOT CPD_SANITIZE)
  # A symbol that no library has is a fault when linking, not when loading. (Sanitizers leave theirs to the program.)
  set(CMAKE_SHARED_LINKER_FLAGS "${CMAKE_SHARED_LINKER_FLAGS} -Wl,--no-undefined")
else()
  # The compiler takes an unoptimised path for one that may be taken.
  target_compile_options(cpd_flags INTERFACE ${sanitizers} -Wno-maybe-uninitialized)
  target_link_options(cpd_flags INTERFACE ${sanitizers})
endif()

# Threads behind cpd/base/parallel.h; OpenMP says how many.
find_package(Threads REQUIRED)
add_library(cpd_threads INTERFACE)
target_link_libraries(cpd_threads INTERFACE Threads::Threads)
set(found FALSE)
set(detail "the compiler has none: as many threads as cores, or CPD_NUM_THREADS")
if(NOT CPD_OPENMP STREQUAL "OFF")
  find_package(OpenMP COMPONENTS CXX)
  if(OpenMP_CXX_FOUND)
    set(found TRUE)
    set(detail "OpenMP ${OpenMP_CXX_VERSION}")
  endif()
endif()
cpd_decide(OPENMP "${found}" "${detail}")
if(CPD_WITH_OPENMP)
  target_link_libraries(cpd_threads INTERFACE OpenMP::OpenMP_CXX)
  target_compile_definitions(cpd_threads INTERFACE CPD_OPENMP)
endif()

# Precompiled headers save a third of the library's compiling. The fuzzer's tree goes without, so that a source whose
# first header needs another one before it fails there.
if(NOT CPD_SANITIZE STREQUAL "fuzzer")
  set(CPD_STANDARD_HEADERS
      <algorithm>
      <array>
      <atomic>
      <chrono>
      <cmath>
      <cstdint>
      <cstring>
      <functional>
      <map>
      <memory>
      <mutex>
      <numeric>
      <optional>
      <span>
      <string>
      <string_view>
      <thread>
      <utility>
      <variant>
      <vector>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # which forgets thereby what of a warning is about its own headers
    set(CPD_PCH_FLAGS -Wno-stringop-overflow -Wno-array-bounds)
  endif()
endif()
# cpd_precompile(TARGET HEADER...): with the standard headers.
function(cpd_precompile target)
  if(CPD_STANDARD_HEADERS)
    target_precompile_headers(${target} PRIVATE ${CPD_STANDARD_HEADERS} ${ARGN})
    target_compile_options(${target} PRIVATE ${CPD_PCH_FLAGS})
  endif()
endfunction()

# cpd_unite(TARGET): its sources of one folder are compiled five at a time, which share what they include and
# instantiate: a third of the work less.
function(cpd_unite target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  set(before "")
  set(count 0)
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    if(NOT folder STREQUAL before)
      set(count 0)
    endif()
    math(EXPR group "${count} / 5")
    math(EXPR count "${count} + 1")
    set(before "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}_${group}" name)
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${name})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
