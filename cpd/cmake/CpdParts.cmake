# SPDX-License-Identifier: Apache-2.0
# Finds the dependencies of each optional part and decides which parts are built.

# ---- CUDA: needs a CUDA compiler that CMake's own check accepts
set(found FALSE)
file(GLOB gpus /dev/nvidia[0-9]* /dev/dxg) # /dev/dxg: the GPU under WSL
if(CPD_NATIVE AND CPD_CUDA STREQUAL "AUTO" AND NOT gpus)
  set(detail "no GPU here; CPD_CUDA=ON builds it")
elseif(NOT CPD_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    # Machine code for Ampere (80), Hopper (90) and both Blackwells (100, 120). The driver compiles the PTX code of 90
    # and 120 for later GPUs when the library is first used.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90 100-real 120)
  endif()
  # The CUDA runtime is linked statically: the library then also loads on machines without a driver.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake < 3.26 does not know nvcc's option for C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
      list(REMOVE_ITEM CMAKE_CUDA_ARCHITECTURES 100-real 120)
    endif()
    foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
      if(architecture MATCHES "^([0-9]+)" AND CMAKE_MATCH_1 LESS 80)
        message(FATAL_ERROR "CPD: CUDAARCHS must be 80 (compute capability 8.0, Ampere) or more, got ${architecture}")
      endif()
    endforeach()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    set(found TRUE)
    list(JOIN CMAKE_CUDA_ARCHITECTURES "," archs)
    set(detail "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for sm ${archs}")
  else()
    set(detail "no CUDA compiler was found (put nvcc on PATH or set CUDACXX)")
  endif()
endif()
cpd_decide(CUDA "${found}" "${detail}")

# ---- BLAS: needs OpenBLAS's headers and its SONAME, under which libcpd loads the library when it is first needed
set(found FALSE)
if(NOT CPD_BLAS STREQUAL "OFF")
  find_path(OPENBLAS_INCLUDE_DIR openblas_config.h PATH_SUFFIXES openblas openblas-pthread)
  find_library(OPENBLAS_LIBRARY openblas)
  if(OPENBLAS_INCLUDE_DIR AND OPENBLAS_LIBRARY AND EXISTS "${OPENBLAS_INCLUDE_DIR}/cblas.h")
    execute_process(
      COMMAND "${CMAKE_READELF}" -d "${OPENBLAS_LIBRARY}"
      OUTPUT_VARIABLE openblas_dynamic
      ERROR_QUIET)
    if(openblas_dynamic MATCHES "\\(SONAME\\)[^[]*\\[([^]]+)\\]")
      set(openblas_name "${CMAKE_MATCH_1}")
      set(found TRUE)
      set(detail "OpenBLAS (${openblas_name})")
    else()
      set(detail "${OPENBLAS_LIBRARY} is not a shared library with a name")
    endif()
  else()
    set(detail "OpenBLAS with its headers was not found (Debian: libopenblas-dev)")
  endif()
endif()
cpd_decide(BLAS "${found}" "${detail}")

# ---- Python: needs an interpreter with headers and with the package pybind11
find_package(Python 3.11 COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)

set(found FALSE)
if(NOT CPD_PYTHON STREQUAL "OFF")
  if(NOT Python_Interpreter_FOUND)
    set(detail "no Python >= 3.11 was found")
  elseif(NOT Python_Development.Module_FOUND)
    set(detail "${Python_EXECUTABLE} has no headers (Debian: python3-dev)")
  else()
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
      OUTPUT_VARIABLE pybind11_dir
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
      RESULT_VARIABLE status)
    if(status EQUAL 0)
      set(PYBIND11_FINDPYTHON ON)
      find_package(pybind11 2.13 CONFIG REQUIRED PATHS "${pybind11_dir}" NO_DEFAULT_PATH)
      set(found TRUE)
      set(detail "Python ${Python_VERSION}, pybind11 ${pybind11_VERSION}")
    else()
      set(detail "${Python_EXECUTABLE} has no pybind11 (pip install pybind11)")
    endif()
  endif()
endif()
cpd_decide(PYTHON "${found}" "${detail}")

# ---- MPI: uses only the C interface (the C++ interface would link bindings that the MPI standard has removed)
set(found FALSE)
if(NOT CPD_MPI STREQUAL "OFF")
  enable_language(C) # FindMPI needs a C compiler
  find_package(MPI COMPONENTS C)
  if(MPI_C_FOUND)
    set(found TRUE)
    set(detail "MPI ${MPI_C_VERSION} (${MPI_C_COMPILER})")
  else()
    set(detail "no MPI was found (Debian: libopenmpi-dev)")
  endif()
endif()
cpd_decide(MPI "${found}" "${detail}")

# ---- NCCL: needs its header, from the CUDA toolkit or from the PyPI package nvidia-nccl-cu<major>. libcpd_nccl
# searches for the library at run time; the library found here is the last place that it tries
set(found FALSE)
if(NOT CPD_NCCL STREQUAL "OFF")
  if(NOT CPD_WITH_CUDA)
    set(detail "it needs CUDA")
  else()
    set(python_nccl "")
    if(Python_Interpreter_FOUND)
      execute_process(
        COMMAND "${Python_EXECUTABLE}" -c "import nvidia; print(*nvidia.__path__, sep=';')"
        OUTPUT_VARIABLE nvidia_packages
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      foreach(package IN LISTS nvidia_packages)
        list(APPEND python_nccl "${package}/nccl")
      endforeach()
    endif()
    find_path(
      NCCL_INCLUDE_DIR nccl.h
      HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${python_nccl}
      PATH_SUFFIXES include)
    find_library(
      NCCL_LIBRARY
      NAMES libnccl.so.2
      HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${python_nccl}
      PATH_SUFFIXES lib)
    if(NCCL_INCLUDE_DIR)
      file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_code REGEX "^#define NCCL_VERSION_CODE +[0-9]+")
      string(REGEX MATCH "[0-9]+$" nccl_code "${nccl_code}")
      if(nccl_code GREATER_EQUAL 21400)
        set(found TRUE)
        set(detail "NCCL (code ${nccl_code}) in ${NCCL_INCLUDE_DIR}")
      else()
        set(detail "${NCCL_INCLUDE_DIR}/nccl.h is older than 2.14")
      endif()
    else()
      set(detail "no nccl.h was found (PyPI: nvidia-nccl-cu13)")
    endif()
  endif()
endif()
cpd_decide(NCCL "${found}" "${detail}")

# ---- torch: its paths come from Python, because torch's CMake package would require a CUDA toolkit
set(found FALSE)
if(NOT CPD_TORCH STREQUAL "OFF")
  if(NOT Python_Interpreter_FOUND)
    set(detail "no Python >= 3.11 was found to ask for torch")
  else()
    execute_process(
      COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/torch_paths.py"
      OUTPUT_VARIABLE torch_paths
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
      RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      set(detail "${Python_EXECUTABLE} has no torch")
    else()
      string(REGEX REPLACE "\n" ";" torch_paths "${torch_paths}")
      list(GET torch_paths 0 torch_version)
      list(GET torch_paths 1 torch_includes)
      list(GET torch_paths 2 torch_libraries)
      if(torch_version VERSION_LESS 2.11)
        set(detail "torch ${torch_version} is too old for the stable ABI (2.11 or newer)")
      else()
        set(found TRUE)
        set(detail "torch ${torch_version}")
        # TORCH_TARGET_VERSION is the oldest torch that may load the library: its top bytes 0x02 and 0x0B mean 2.11.
        add_library(cpd_torch_abi INTERFACE)
        string(REPLACE "|" ";" torch_includes "${torch_includes}")
        target_include_directories(cpd_torch_abi SYSTEM INTERFACE ${torch_includes})
        target_compile_definitions(cpd_torch_abi INTERFACE TORCH_TARGET_VERSION=0x020B000000000000ULL)
        target_link_libraries(cpd_torch_abi INTERFACE "${torch_libraries}/libtorch_cpu.so")
      endif()
    endif()
  endif()
endif()
cpd_decide(TORCH "${found}" "${detail}")

# ---- tests: need GoogleTest, and Python for scripts. tests/CMakeLists.txt finds the libraries that tests compare with
# (MPFR, Random123)
set(found FALSE)
if(NOT CPD_TESTS STREQUAL "OFF")
  set(gtest_sources /usr/src/googletest/googletest)
  if(CMAKE_CROSSCOMPILING AND EXISTS "${gtest_sources}") # Debian's libraries are for the host CPU
    add_subdirectory("${gtest_sources}" "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL SYSTEM)
    set(GTest_FOUND TRUE)
    set(GTest_VERSION "from its sources")
  else()
    find_package(GTest)
  endif()
  if(NOT GTest_FOUND)
    set(detail "GoogleTest was not found (Debian: libgtest-dev)")
  elseif(NOT Python_Interpreter_FOUND)
    set(detail "no Python >= 3.11 was found")
  else()
    set(found TRUE)
    set(detail "GoogleTest ${GTest_VERSION}")
  endif()
endif()
cpd_decide(TESTS "${found}" "${detail}")
