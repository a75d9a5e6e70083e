#include "bindings.h"

#include <posenc/scaling.h>
#include <posenc/sdpa.h>
#include <posenc/version.h>

#include <pybind11/stl.h>

PYBIND11_MODULE(_C, m) {
  if (pybind11::detail::get_type_info(typeid(posenc::scaling::Linear), /*throw_if_missing=*/false) != nullptr) {
    throw pybind11::import_error(
        "posenc: this process has imported another copy of posenc already, which goes on to work: "
        "import one copy only");
  }
  using posenc::python::define;
  define(m, "version", &posenc::version);
  define(m, "torch_version", &posenc::torch_version);
  define(m, "cpu_capability", &posenc::cpu_capability);
  define(m, "cpu_capabilities", &posenc::cpu_capabilities);
  define(m, "build_info", &posenc::build_info);

  auto scaling = m.def_submodule("scaling");
  bind_scaling(scaling);
  auto positions = m.def_submodule("positions");
  bind_positions(positions);
  auto nn = m.def_submodule("nn");
  bind_nn(nn);
  auto sdpa = m.def_submodule("sdpa");
  define(sdpa, "activate", &posenc::sdpa::activate);
  define(sdpa, "restore", &posenc::sdpa::restore);
  define(sdpa, "is_active", &posenc::sdpa::is_active);
}
