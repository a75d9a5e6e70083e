# cmake -DSOURCE=... -DBINARY=... [-DEXCLUDE=REGEX] -P project.cmake -- OPTION...: configures a project with the options,
# builds it and runs its tests.
cmake_minimum_required(VERSION 3.22)
include("${CMAKE_CURRENT_LIST_DIR}/arguments.cmake")
include(ProcessorCount)

arguments_after_dashes(options)
ProcessorCount(jobs)
if(DEFINED ENV{MAX_JOBS})
  set(jobs "$ENV{MAX_JOBS}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S "${SOURCE}" -B "${BINARY}" ${options} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build "${BINARY}" --parallel ${jobs} COMMAND_ERROR_IS_FATAL ANY)
set(exclude "")
if(EXCLUDE)
  set(exclude -E "${EXCLUDE}")
endif()
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --output-on-failure ${exclude} WORKING_DIRECTORY "${BINARY}"
  COMMAND_ERROR_IS_FATAL ANY)
