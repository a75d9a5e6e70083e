# cmake -DNM=... -DOBJECTS=A;B -P kernel_objects.cmake: objects compiled for newer instruction sets share no function.
#
# A weak symbol in one of them may be the copy that the linker keeps for the whole library, and then stops a CPU without
# those instructions.
cmake_minimum_required(VERSION 3.22)

if(NOT OBJECTS)
  message(FATAL_ERROR "no objects to look at")
endif()
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" --defined-only "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [WwVvu] [^\n]+" shared "${symbols}")
  if(shared)
    list(JOIN shared "\n" lines)
    message(FATAL_ERROR "${object} holds functions that other objects may end up calling:\n${lines}")
  endif()
endforeach()
