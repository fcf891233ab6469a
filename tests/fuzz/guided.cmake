# SPDX-License-Identifier: Apache-2.0
# Builds the fuzzers in the tree of the preset `fuzz`, with the parts of libcpd that they need.
file(GLOB sources CONFIGURE_DEPENDS "${root}/cpd/base/*.cpp" "${root}/cpd/compress/*.cpp" "${root}/cpd/spec/*.cpp")
list(APPEND sources "${root}/cpd/comm/spec.cpp" "${root}/cpd/scale/aps.cpp")
# CPU operations that read a codec's messages are fuzzed too: they are compiled with libFuzzer's instrumentation.
file(GLOB on_cpu CONFIGURE_DEPENDS "${root}/cpd/backend/cpu/*.cpp")
set(reading ${on_cpu})
list(FILTER reading INCLUDE REGEX "/(codec_spans|levels|one_bit|quantized)\\.cpp$")
list(REMOVE_ITEM on_cpu ${reading})
list(APPEND sources ${reading})

# Kernels that decoders run are compiled with AddressSanitizer only: the asan tree checks them with
# UndefinedBehaviorSanitizer, and their branches give the fuzzer little coverage information. Kernels that no decoder
# runs (`apart`) have no sanitizer, nor do operations, which check their arguments. Sources that take minutes to
# optimize are compiled with -O0.
file(GLOB operations CONFIGURE_DEPENDS "${root}/cpd/backend/*.cpp" "${root}/cpd/ops/*.cpp")
list(APPEND operations ${on_cpu})
set(apart ${CPD_KERNEL_SOURCES})
list(FILTER apart INCLUDE REGEX "/(arithmetic|block_fma|cast|fold|gemm|hadamard|pack|scaled_sum|select)\\.cpp$")
set(decoding ${CPD_KERNEL_SOURCES})
list(REMOVE_ITEM decoding ${apart})
set_source_files_properties(${operations} ${apart} "${root}/kernels/cpu/codec.cpp" "${root}/kernels/cpu/scaled.cpp"
                            PROPERTIES COMPILE_OPTIONS -O0)
add_library(cpd_fuzz_operations OBJECT ${operations})
target_link_libraries(cpd_fuzz_operations PRIVATE cpd_numeric cpd_threads)
add_library(cpd_fuzz_apart OBJECT ${apart})
add_library(cpd_fuzz_kernels OBJECT ${decoding})
target_compile_options(cpd_fuzz_kernels PRIVATE -fsanitize=address)
foreach(target cpd_fuzz_apart cpd_fuzz_kernels)
  target_link_libraries(${target} PRIVATE cpd_numeric)
  target_compile_definitions(${target} PRIVATE CPD_ISA=scalar)
endforeach()

add_library(
  cpd_fuzz STATIC ${sources} $<TARGET_OBJECTS:cpd_fuzz_operations> $<TARGET_OBJECTS:cpd_fuzz_apart>
                  $<TARGET_OBJECTS:cpd_fuzz_kernels>)
target_link_libraries(cpd_fuzz PUBLIC cpd_flags cpd_threads ${CMAKE_DL_LIBS})

add_executable(fuzz_decode decode.cpp)
target_link_libraries(fuzz_decode PRIVATE cpd_fuzz)
target_link_options(fuzz_decode PRIVATE -fsanitize=fuzzer)
add_executable(fuzz_text text.cpp)
target_link_libraries(fuzz_text PRIVATE cpd_fuzz)
target_link_options(fuzz_text PRIVATE -fsanitize=fuzzer)
add_executable(fuzz_seeds seeds.cpp)
target_link_libraries(fuzz_seeds PRIVATE cpd_fuzz)
