#include "bindings.h"

#include <posenc/version.h>

#include <pybind11/stl.h>

PYBIND11_MODULE(_C, m) {
  m.def("version", &posenc::version);
  m.def("torch_version", &posenc::torch_version);
  m.def("cpu_capability", &posenc::cpu_capability);
  m.def("cpu_capabilities", &posenc::cpu_capabilities);
  m.def("build_info", &posenc::build_info);

  auto scaling = m.def_submodule("scaling");
  bind_scaling(scaling);
  auto positions = m.def_submodule("positions");
  bind_positions(positions);
  auto nn = m.def_submodule("nn");
  bind_nn(nn);
}
