# cmake -DREADELF=... -DLIBRARY=... -DTORCH_DIR=... -P library.cmake: what libposenc needs of others.
cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND "${READELF}" -d "${LIBRARY}" OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)

string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*\\[[^]\n]+\\]" needed "${dynamic}")
list(TRANSFORM needed REPLACE ".*\\[(.+)\\]" "\\1")
if(NOT "libtorch_cpu.so" IN_LIST needed)
  message(FATAL_ERROR "${LIBRARY} does not need libtorch_cpu.so, but ${needed}")
endif()
foreach(name IN LISTS needed)
  if(name MATCHES "python")
    message(FATAL_ERROR "${LIBRARY} needs ${name}: it must work without Python")
  endif()
endforeach()

# One OpenMP runtime in the process: that of torch.
execute_process(COMMAND "${READELF}" -d "${TORCH_DIR}/lib/libtorch_cpu.so" OUTPUT_VARIABLE of_torch
  COMMAND_ERROR_IS_FATAL ANY)
foreach(name IN LISTS needed)
  string(FIND "${of_torch}" "[${name}]" in_torch)
  if(name MATCHES "gomp|iomp|libomp" AND in_torch EQUAL -1)
    message(FATAL_ERROR "${LIBRARY} needs ${name}, which torch does not: a second OpenMP runtime")
  endif()
endforeach()

string(REGEX MATCH "\\((RUNPATH|RPATH)\\)[^\n]*\\[([^]\n]*)\\]" _ "${dynamic}")
string(REPLACE ":" ";" paths "${CMAKE_MATCH_2}")
if(NOT paths)
  message(FATAL_ERROR "${LIBRARY} has no search path for torch's libraries")
endif()
foreach(path IN LISTS paths)
  if(NOT path MATCHES "^\\$ORIGIN" AND NOT path STREQUAL "${TORCH_DIR}/lib")
    message(FATAL_ERROR "${LIBRARY} would be searched for torch in ${path}")
  endif()
endforeach()
