# Kernels are compiled once per instruction set and picked at run time.
#   POSENC_INSTRUCTION_SETS         compiled ones, weakest first
#   POSENC_HOST_INSTRUCTION_SETS    those that this machine runs, as POSENC_CPU_CAPABILITY spells them (for tests)

set(POSENC_INSTRUCTION_SETS DEFAULT)
set(POSENC_FLAGS_DEFAULT "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND POSENC_INSTRUCTION_SETS AVX2 AVX512)
  set(POSENC_FLAGS_AVX2 -mavx2 -mfma -mf16c)
  set(POSENC_FLAGS_AVX512 ${POSENC_FLAGS_AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
endif()

# posenc_add_kernels(TARGET SOURCE...): adds the sources to TARGET, once per instruction set.
#
# The weakest set is linked first, so that its copy of an inline function that several objects share is the one kept; no
# object of a stronger set may leave such a function visible, else it could run on a CPU that lacks the instructions.
# That holds at -O3, which is therefore used in every build type (a test looks at the objects).
function(posenc_add_kernels target)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" OUTPUT_VARIABLE sources)
  foreach(set IN LISTS POSENC_INSTRUCTION_SETS)
    set(objects posenc_kernels_${set})
    add_library(${objects} OBJECT ${sources})
    target_compile_definitions(${objects} PRIVATE CPU_CAPABILITY=${set} CPU_CAPABILITY_${set})
    # GCC's own AVX-512 headers leave don't-care lanes uninitialized, by intent.
    target_compile_options(${objects} PRIVATE ${POSENC_FLAGS_${set}} -O3 -Wno-uninitialized -Wno-maybe-uninitialized)
    target_compile_features(${objects} PRIVATE cxx_std_20)
    target_include_directories(${objects} PRIVATE csrc csrc/include)
    target_link_libraries(${objects} PRIVATE posenc::torch)
    set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()

function(posenc_find_host_instruction_sets)
  include(CheckCXXSourceRuns)
  set(found default)
  foreach(set IN LISTS POSENC_INSTRUCTION_SETS)
    if(set STREQUAL "AVX2")
      set(condition "__builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\")")
    elseif(set STREQUAL "AVX512")
      set(condition "__builtin_cpu_supports(\"avx512f\") && __builtin_cpu_supports(\"avx512bw\")
                     && __builtin_cpu_supports(\"avx512dq\") && __builtin_cpu_supports(\"avx512vl\")")
    else()
      continue()
    endif()
    check_cxx_source_runs("int main() { __builtin_cpu_init(); return (${condition}) ? 0 : 1; }" POSENC_HOST_HAS_${set})
    if(POSENC_HOST_HAS_${set})
      string(TOLOWER ${set} name)
      list(APPEND found ${name})
    endif()
  endforeach()
  if(POSENC_HOST_HAS_AVX512)
    # Compiled for none: kernels for AVX-512 ask for it at run time.
    check_cxx_source_runs("int main() { __builtin_cpu_init(); return __builtin_cpu_supports(\"avx512bf16\") ? 0 : 1; }"
      POSENC_HOST_HAS_AVX512_BF16)
    if(POSENC_HOST_HAS_AVX512_BF16)
      list(APPEND found avx512_bf16)
    endif()
  endif()
  set(POSENC_HOST_INSTRUCTION_SETS ${found} PARENT_SCOPE)
endfunction()
