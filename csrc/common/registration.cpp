#include "common/registration.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <dlfcn.h>

#include <cstdio>

namespace posenc {

bool registered_by_another_copy() {
  // Asked first before this copy registers anything.
  static const bool found = [] {
    if (!c10::Dispatcher::singleton().findSchema({"posenc::rotary", ""})) {
      return false;
    }
    Dl_info self{};
    const bool known = dladdr(reinterpret_cast<const void*>(&registered_by_another_copy), &self) != 0;
    std::fprintf(stderr,
                 "posenc: this process has loaded another copy of libposenc, which serves all calls. The copy at %s "
                 "registers no ops: load one copy only.\n",
                 known ? self.dli_fname : "an unknown place");
    return true;
  }();
  return found;
}

}  // namespace posenc
