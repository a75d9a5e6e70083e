#pragma once

namespace posenc::benchmarks {

/// Checks the rotary ops on every shape that they are timed on, and registers their benchmarks. Names are
/// "case: contender", as in the Python benchmarks.
void register_rotary();

}  // namespace posenc::benchmarks
