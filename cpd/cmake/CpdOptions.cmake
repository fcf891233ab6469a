# SPDX-License-Identifier: Apache-2.0
# Options and flags that every target shares.

# cpd_part(NAME TEXT): declares the option CPD_NAME for a part of the build. AUTO builds the part if its dependencies
# are found, ON fails without them, OFF does not build it.
function(cpd_part name text)
  set(CPD_${name} AUTO CACHE STRING "${text}: AUTO, ON or OFF")
  set_property(CACHE CPD_${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT CPD_${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "CPD_${name} must be AUTO, ON or OFF, got '${CPD_${name}}'")
  endif()
endfunction()

# cpd_decide(NAME FOUND DETAIL): sets CPD_WITH_<NAME> in the caller's scope and prints DETAIL as the reason. Fails if
# the option is ON and FOUND is false.
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
cpd_part(OPENMP "OpenMP sets the number of threads, so torch.set_num_threads has an effect")
option(CPD_NATIVE "Build only what this machine can run: CUDA if there is a GPU, kernels for this CPU's ISAs" OFF)

set(CPD_SANITIZE "" CACHE STRING "Sanitizers of every target: empty, 'address' (with undefined), 'thread' or 'fuzzer' (with both)")
set_property(CACHE CPD_SANITIZE PROPERTY STRINGS "" address thread fuzzer)
if(NOT CPD_SANITIZE MATCHES "^(|address|thread|fuzzer)$")
  message(FATAL_ERROR "CPD_SANITIZE must be empty, address, thread or fuzzer, got '${CPD_SANITIZE}'")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
# The flags of Release are fixed here. Only Release turns assertions off.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The build puts all libraries into one folder, as the installation does: each library finds the others in its own
# folder.
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_BUILD_RPATH "$ORIGIN")
set(CMAKE_INSTALL_RPATH "$ORIGIN")
option(CPD_WHEEL "Build a wheel for other machines, which contains an OpenMP library" OFF)
if(CPD_WHEEL)
  # A process must load only one OpenMP runtime: torch's if torch is installed beside the package, else the wheel's.
  # Both files are named libgomp.so.1, so the loader uses the first one that is loaded for all libraries.
  list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../torch/lib" "$ORIGIN/openmp")
endif()

# Flags for every target that includes headers of cpd/numeric; the installed package exports them. Results have the
# specified bits only if the compiler does not contract a*b+c to a fused multiply-add.
add_library(cpd_numeric INTERFACE)
target_compile_features(cpd_numeric INTERFACE cxx_std_20)
target_compile_options(
  cpd_numeric INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-ffp-contract=off>
                        "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-ffp-contract=off>")
target_include_directories(cpd_numeric INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                 $<INSTALL_INTERFACE:include>)

# Additional flags for every target of this tree. -Wno-psabi is safe: no function passes wide vectors between object
# files.
add_library(cpd_flags INTERFACE)
target_link_libraries(cpd_flags INTERFACE cpd_numeric)
target_compile_options(cpd_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-psabi>)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang") # its default limit is too low for tables computed at compile time
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
  # An undefined symbol fails at link time, not at load time. (Sanitized libraries take the sanitizer's symbols from the
  # program that loads them.)
  set(CMAKE_SHARED_LINKER_FLAGS "${CMAKE_SHARED_LINKER_FLAGS} -Wl,--no-undefined")
else()
  # -Wmaybe-uninitialized has false alarms here: with sanitizers, GCC does not see that some paths are never taken.
  target_compile_options(cpd_flags INTERFACE ${sanitizers} -Wno-maybe-uninitialized)
  target_link_options(cpd_flags INTERFACE ${sanitizers})
endif()

# The threads of cpd/base/parallel.h. If OpenMP is there, its settings determine the number of threads.
find_package(Threads REQUIRED)
add_library(cpd_threads INTERFACE)
target_link_libraries(cpd_threads INTERFACE Threads::Threads)
set(found FALSE)
set(detail "the compiler has none: the number of threads is that of cores, or CPD_NUM_THREADS")
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

# Precompiled headers save a third of the library's compile time. The fuzzer's tree does not use them: a source that
# includes too few headers must fail there.
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
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # GCC then also warns about its own headers
    set(CPD_PCH_FLAGS -Wno-stringop-overflow -Wno-array-bounds)
  endif()
endif()
# cpd_precompile(TARGET HEADER...): precompiles the standard headers and HEADER... for TARGET.
function(cpd_precompile target)
  if(CPD_STANDARD_HEADERS)
    target_precompile_headers(${target} PRIVATE ${CPD_STANDARD_HEADERS} ${ARGN})
    target_compile_options(${target} PRIVATE ${CPD_PCH_FLAGS})
  endif()
endfunction()

# cpd_unite(TARGET): makes a unity build of TARGET, five sources of one folder at a time. Sources that are compiled
# together share their headers and template instantiations, which saves a third of the compile time.
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

# cpd_unite_kernels(VARIABLE SOURCE...): writes files that include SOURCE... (CUDA kernels, absolute paths), each up to
# four of one folder, and sets VARIABLE to these files. Without optimization, compilers spend most of a kernel's time on
# its headers, which are then read once for four kernels. UNITY_BUILD unites CUDA sources only since CMake 3.31.
function(cpd_unite_kernels variable)
  set(united "")
  set(content "")
  set(before "")
  set(count 0)
  foreach(source IN LISTS ARGN)
    get_filename_component(folder "${source}" DIRECTORY)
    get_filename_component(name "${source}" NAME_WE)
    if(NOT folder STREQUAL before OR count EQUAL 4)
      set(file "${CMAKE_CURRENT_BINARY_DIR}/${name}_and_others.cu")
      if("${file}" IN_LIST united)
        message(FATAL_ERROR "CPD: two groups of kernels begin with a source named ${name}: rename ${source}")
      endif()
      list(APPEND united "${file}")
      set(content "")
      set(count 0)
    endif()
    math(EXPR count "${count} + 1")
    set(before "${folder}")
    string(APPEND content "#include \"${source}\"\n")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${content}")
  endforeach()
  set(${variable}
      "${united}"
      PARENT_SCOPE)
endfunction()
