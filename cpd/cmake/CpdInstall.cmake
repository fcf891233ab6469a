# SPDX-License-Identifier: Apache-2.0
# `cmake --install` installs the C++ package. `cmake --install --component python` installs the libraries that belong
# inside the Python package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/cpd")
install(
  TARGETS cpd cpd_numeric
  EXPORT cpd
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cpp
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT cpp)
install(
  EXPORT cpd
  NAMESPACE cpd::
  FILE cpdTargets.cmake
  DESTINATION "${package_dir}"
  COMPONENT cpp)
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/cpdConfig.cmake.in" cpdConfig.cmake
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file(cpdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES "${PROJECT_BINARY_DIR}/cpdConfig.cmake" "${PROJECT_BINARY_DIR}/cpdConfigVersion.cmake"
  DESTINATION "${package_dir}"
  COMPONENT cpp)
set(loaded_targets)
foreach(part cuda mpi nccl)
  if(TARGET cpd_${part})
    list(APPEND loaded_targets cpd_${part})
  endif()
endforeach()
if(loaded_targets)
  install(TARGETS ${loaded_targets} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cpp)
endif()

set(python_targets cpd ${loaded_targets})
if(CPD_WITH_PYTHON)
  list(APPEND python_targets cpd_core)
endif()
if(CPD_WITH_TORCH)
  list(APPEND python_targets cpd_torch)
endif()
install(
  TARGETS ${python_targets}
  LIBRARY DESTINATION cpd
          COMPONENT python
          EXCLUDE_FROM_ALL)
if(CPD_WHEEL AND CPD_WITH_OPENMP)
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libgomp.so.1
    OUTPUT_VARIABLE gomp
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  file(REAL_PATH "${gomp}" gomp)
  install(
    FILES "${gomp}"
    RENAME libgomp.so.1
    DESTINATION cpd/openmp
    COMPONENT python
    EXCLUDE_FROM_ALL)
endif()
