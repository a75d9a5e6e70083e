# cmake -DEXPECT=REGEX -P expect_failure.cmake -- COMMAND...: succeeds where COMMAND fails with output matching REGEX.
cmake_minimum_required(VERSION 3.22)
include("${CMAKE_CURRENT_LIST_DIR}/arguments.cmake")

arguments_after_dashes(command)
execute_process(COMMAND ${command} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(code EQUAL 0)
  message(FATAL_ERROR "expected to fail, but passed:\n${output}")
endif()
# CMake wraps its messages.
string(REGEX REPLACE "[ \n]+" " " flat "${output}")
if(NOT flat MATCHES "${EXPECT}")
  message(FATAL_ERROR "expected output matching '${EXPECT}', but got:\n${output}")
endif()
