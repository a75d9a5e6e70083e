#pragma once

#include <stdexcept>

namespace lm {

/// Something that the user can mend; the message is one line for them.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A command line that cannot be used.
struct UsageError : UserError {
  using UserError::UserError;
};

}  // namespace lm
