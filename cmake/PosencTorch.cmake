# posenc_import_torch(FOLDER...): makes the target posenc::torch and sets, in the caller's scope,
#   POSENC_TORCH_DIR        torch's folder: include/, lib/
#   POSENC_TORCH_VERSION    e.g. 2.13.0
#   POSENC_TORCH_CXX11_ABI  0 or 1
#   POSENC_TORCH_CUDA       whether that torch is a CUDA build
# or leaves POSENC_TORCH_DIR empty where there is no torch.
#
# find_package(Torch) is not called: that of a CUDA build stops where no CUDA toolkit is installed, and posenc needs
# none. A project that has called it gets its own torch. Else the first of these that holds lib/libtorch_cpu.so counts:
# Torch_ROOT, Torch_DIR, CMAKE_PREFIX_PATH (LibTorch's folder, or its share/cmake), the FOLDERs given.
# Part of the installed package too.

function(posenc_import_torch)
  set(folders "")
  if(TARGET torch AND TORCH_INSTALL_PREFIX)
    list(APPEND folders "${TORCH_INSTALL_PREFIX}")
  endif()
  set(prefixes ${Torch_ROOT} $ENV{Torch_ROOT} ${Torch_DIR} ${CMAKE_PREFIX_PATH})
  string(REPLACE ":" ";" environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(prefix IN LISTS prefixes environment_prefixes)
    list(APPEND folders "${prefix}" "${prefix}/../.." "${prefix}/../../..")
  endforeach()
  list(APPEND folders ${ARGN})

  set(POSENC_TORCH_DIR "" PARENT_SCOPE)
  foreach(folder IN LISTS folders)
    if(EXISTS "${folder}/lib/libtorch_cpu.so")
      get_filename_component(torch_dir "${folder}" ABSOLUTE)
      break()
    endif()
  endforeach()
  if(NOT torch_dir)
    return()
  endif()

  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${torch_dir}/include/${header}")
      file(STRINGS "${torch_dir}/include/${header}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      list(JOIN numbers "." version)
      if(version)
        break()
      endif()
    endif()
  endforeach()
  # Names of std::string in libc10 say which ABI of libstdc++ it was compiled for.
  set(abi 0)
  file(STRINGS "${torch_dir}/lib/libc10.so" names REGEX "__cxx1112basic_string" LIMIT_COUNT 1)
  if(names)
    set(abi 1)
  endif()
  set(cuda OFF)
  if(EXISTS "${torch_dir}/lib/libtorch_cuda.so")
    set(cuda ON)
  endif()

  if(NOT TARGET posenc::torch)
    add_library(posenc::torch INTERFACE IMPORTED GLOBAL)
    if(TARGET torch)
      target_link_libraries(posenc::torch INTERFACE ${TORCH_LIBRARIES})
    else()
      set_target_properties(posenc::torch PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${torch_dir}/include;${torch_dir}/include/torch/csrc/api/include"
        INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=${abi}"
        INTERFACE_LINK_LIBRARIES "${torch_dir}/lib/libtorch_cpu.so;${torch_dir}/lib/libc10.so")
    endif()
  endif()
  set(POSENC_TORCH_DIR "${torch_dir}" PARENT_SCOPE)
  set(POSENC_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(POSENC_TORCH_CXX11_ABI "${abi}" PARENT_SCOPE)
  set(POSENC_TORCH_CUDA "${cuda}" PARENT_SCOPE)
endfunction()
