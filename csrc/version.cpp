#include <posenc/version.h>

#include "build_config.h"

namespace posenc {

std::string version() { return POSENC_VERSION; }

std::string torch_version() { return POSENC_TORCH_VERSION; }

std::string build_info() {
  return "compiler: " POSENC_COMPILER "\nbuild type: " POSENC_BUILD_TYPE "\nflags: " POSENC_CXX_FLAGS
         "\ninstruction sets: " POSENC_INSTRUCTION_SETS "\ntorch: " POSENC_TORCH_VERSION
         ", C++11 ABI " POSENC_TORCH_CXX11_ABI "\nCUDA: no";
}

}  // namespace posenc
