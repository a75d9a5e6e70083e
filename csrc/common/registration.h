#pragma once

/// Registration of posenc's ops, once in a process: POSENC_LIBRARY_FRAGMENT(m) and POSENC_LIBRARY_IMPL(key, m) are
/// torch's macros of these names for the namespace posenc, except that they do nothing in a second copy of this
/// library. torch's own would throw there from a static initialiser, which ends the process.

#include <torch/library.h>

#include <optional>

namespace posenc {

/// Whether another copy of this library registered posenc's ops before this one was loaded. Says so on stderr, once.
bool registered_by_another_copy();

/// Registers what `add` adds, for as long as it lives.
class Registration {
 public:
  Registration(torch::Library::Kind kind, std::optional<c10::DispatchKey> key, void (*add)(torch::Library&),
               const char* file, uint32_t line) {
    if (!registered_by_another_copy()) {
      library_.emplace(kind, add, "posenc", key, file, line);
    }
  }

 private:
  std::optional<torch::detail::TorchLibraryInit> library_;
};

}  // namespace posenc

#define POSENC_LIBRARY_FRAGMENT(m) POSENC_REGISTRATION(FRAGMENT, std::nullopt, m, C10_UID)
#define POSENC_LIBRARY_IMPL(key, m) POSENC_REGISTRATION(IMPL, c10::DispatchKey::key, m, C10_UID)

#define POSENC_REGISTRATION(kind, key, m, id)                                                \
  static void C10_CONCATENATE(posenc_library_, id)(torch::Library&);                         \
  static const ::posenc::Registration C10_CONCATENATE(posenc_registration_, id)(             \
      torch::Library::kind, key, &C10_CONCATENATE(posenc_library_, id), __FILE__, __LINE__); \
  static void C10_CONCATENATE(posenc_library_, id)(torch::Library & m)
