#include "interrupt.h"

#include <csignal>

namespace lm {
namespace {

volatile std::sig_atomic_t asked = 0;
volatile std::sig_atomic_t ever_asked = 0;

void ask(int) {
  asked = 1;
  ever_asked = 1;
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, ask);
  std::signal(SIGTERM, ask);
}

bool interrupted() { return asked != 0; }

bool ever_interrupted() { return ever_asked != 0; }

void clear_interrupt() { asked = 0; }

}  // namespace lm
