# Kernels are compiled once per set of kernel objects and picked at run time. csrc/cpu/levels.h says which there are;
# from it follow here:
#   POSENC_KERNEL_SETS          the sets compiled, the plainest first: DEFAULT, AVX2 ..
#   POSENC_KERNEL_FLAGS_<SET>   compiler flags of each
#   POSENC_KERNEL_DEFINITIONS   what tells C++ that sets were left out
#   POSENC_HOST_LEVELS          the levels that this machine runs, as POSENC_CPU_CAPABILITY spells them
#                               (after posenc_find_host_levels(), for tests)

set(POSENC_LEVELS "" CACHE STRING
  "Levels to compile kernels for, beside default, e.g. avx2; \"\" for all of the architecture (for what users install)")

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS csrc/cpu/levels.h)

# The compiler's own preprocessor reads the table, so rows are those of the architecture compiled for.
function(posenc_read_levels)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/generated/levels.cpp")
  file(WRITE "${source}" "#include \"cpu/levels.h\"\nPOSENC_CPU_LEVELS(row)\n")
  separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_FLAGS}")
  if(CMAKE_CXX_COMPILER_TARGET)
    list(APPEND flags "${CMAKE_CXX_COMPILE_OPTIONS_TARGET}${CMAKE_CXX_COMPILER_TARGET}")
  endif()
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} ${flags} -std=c++20 -E -P "-I${PROJECT_SOURCE_DIR}/csrc" "${source}"
    OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "row\\([A-Za-z0-9]+, \"[a-z0-9_]+\", [A-Z0-9]+, \"[^\"]*\"" rows "${table}")
  if(NOT rows)
    message(FATAL_ERROR "csrc/cpu/levels.h has no row that cmake/InstructionSets.cmake can read:\n${table}")
  endif()

  string(REGEX REPLACE "[ ,;]+" ";" wanted "${POSENC_LEVELS}")
  set(names "")
  set(all_sets "")
  set(sets "")
  foreach(row IN LISTS rows)
    string(REGEX MATCH "\"([a-z0-9_]+)\", ([A-Z0-9]+), \"([^\"]*)\"" _ "${row}")
    set(name "${CMAKE_MATCH_1}")
    set(set "${CMAKE_MATCH_2}")
    set(flags "${CMAKE_MATCH_3}")
    list(APPEND names "${name}")
    if(NOT set IN_LIST all_sets)
      list(APPEND all_sets "${set}")
      separate_arguments(flags UNIX_COMMAND "${flags}")
      set(POSENC_KERNEL_FLAGS_${set} "${flags}" PARENT_SCOPE)
    endif()
    if(NOT wanted OR set STREQUAL "DEFAULT" OR name IN_LIST wanted)
      list(APPEND sets "${set}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES sets)
  foreach(name IN LISTS wanted)
    if(NOT name IN_LIST names)
      list(JOIN names ", " names)
      message(FATAL_ERROR "POSENC_LEVELS names '${name}', but this architecture has: ${names}")
    endif()
  endforeach()
  set(definitions "")
  if(NOT sets STREQUAL all_sets)
    list(JOIN sets " " held)
    set(definitions "POSENC_COMPILED_KERNELS=\"${held} \"")
    message(STATUS "posenc: kernels for ${held} alone")
  endif()
  set(POSENC_KERNEL_SETS "${sets}" PARENT_SCOPE)
  set(POSENC_KERNEL_DEFINITIONS "${definitions}" PARENT_SCOPE)
endfunction()

# posenc_add_kernels(TARGET SOURCE...): adds the sources to TARGET, once per set of kernel objects.
#
# The plainest set is linked first, so that its copy of an inline function that several objects share is the one kept;
# no object of another set may leave such a function visible, else it could run on a CPU that lacks the instructions.
# That holds at -O3, which is therefore used in every build type (a test looks at the objects).
function(posenc_add_kernels target)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" OUTPUT_VARIABLE sources)
  target_compile_definitions(${target} PRIVATE ${POSENC_KERNEL_DEFINITIONS})
  foreach(set IN LISTS POSENC_KERNEL_SETS)
    set(objects posenc_kernels_${set})
    add_library(${objects} OBJECT ${sources})
    target_compile_definitions(${objects} PRIVATE CPU_CAPABILITY=${set} CPU_CAPABILITY_${set}
      ${POSENC_KERNEL_DEFINITIONS})
    # GCC's own AVX-512 headers leave don't-care lanes uninitialized, by intent.
    target_compile_options(${objects} PRIVATE ${POSENC_KERNEL_FLAGS_${set}} -O3
      -Wno-uninitialized -Wno-maybe-uninitialized)
    target_compile_features(${objects} PRIVATE cxx_std_20)
    target_include_directories(${objects} PRIVATE csrc csrc/include)
    target_link_libraries(${objects} PRIVATE posenc::torch)
    set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()

# Sets POSENC_HOST_LEVELS with a program that asks as libposenc does.
function(posenc_find_host_levels)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/generated/host_levels.cpp")
  file(WRITE "${source}" [[
#include "cpu/host.h"
#include <cstdio>
int main() {
  for (const posenc::cpu::Level& level : posenc::cpu::kLevels) {
    if (level.compiled && level.runs()) std::printf("%s;", level.name);
  }
}
]])
  list(TRANSFORM POSENC_KERNEL_DEFINITIONS PREPEND "-D" OUTPUT_VARIABLE definitions)
  unset(POSENC_LEVELS_RUN CACHE)
  unset(POSENC_LEVELS_COMPILED CACHE)
  try_run(POSENC_LEVELS_RUN POSENC_LEVELS_COMPILED "${CMAKE_CURRENT_BINARY_DIR}/host_levels" "${source}"
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/csrc"
    COMPILE_DEFINITIONS -std=c++20 ${definitions}
    COMPILE_OUTPUT_VARIABLE messages RUN_OUTPUT_VARIABLE levels)
  if(NOT POSENC_LEVELS_COMPILED OR NOT POSENC_LEVELS_RUN EQUAL 0)
    message(FATAL_ERROR "the program that tells which levels this machine runs failed:\n${messages}${levels}")
  endif()
  list(FILTER levels EXCLUDE REGEX "^$")
  set(POSENC_HOST_LEVELS "${levels}" PARENT_SCOPE)
endfunction()

posenc_read_levels()
