#include "bindings.h"

#include <posenc/version.h>

PYBIND11_MODULE(_C, m) {
  using posenc::python::define;
  define(m, "version", &posenc::version);
  define(m, "torch_version", &posenc::torch_version);
  define(m, "cpu_capability", &posenc::cpu_capability);
  define(m, "build_info", &posenc::build_info);

  auto scaling = m.def_submodule("scaling");
  bind_scaling(scaling);
  auto positions = m.def_submodule("positions");
  bind_positions(positions);
  auto nn = m.def_submodule("nn");
  bind_nn(nn);
}
