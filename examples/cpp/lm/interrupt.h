#pragma once

namespace lm {

/// From now on Ctrl-C (and SIGTERM) sets a flag that the work looks at between two steps, so nothing half done is lost.
void catch_interrupts();
/// Whether Ctrl-C was pressed since the last clear_interrupt().
bool interrupted();
/// Whether it was ever pressed.
bool ever_interrupted();
/// Starts the next part of the work: it can be stopped on its own.
void clear_interrupt();

}  // namespace lm
