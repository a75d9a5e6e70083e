#include "bindings.h"

#include <posenc/hf_rope.h>

/// posenc._C.scaling.RopeConfig and read_rope.
void bind_hf_rope(pybind11::module_& m) {
  using namespace posenc::python;
  using namespace posenc::scaling;
  py::class_<RopeConfig>(m, "RopeConfig", "A rotary embedding as a Hugging Face configuration describes it.")
      .def_readonly("head_dim", &RopeConfig::head_dim)
      .def_readonly("rotary_dim", &RopeConfig::rotary_dim)
      .def_readonly("base", &RopeConfig::base)
      .def_readonly("scaling", &RopeConfig::scaling)
      .def_readonly("interleaved", &RopeConfig::interleaved)
      .def_readonly("mrope_section", &RopeConfig::mrope_section)
      .def_readonly("mrope_interleaved", &RopeConfig::mrope_interleaved);
  define(
      m, "read_rope",
      [](const RopeDict& rope, int64_t head_dim, std::optional<int64_t> max_position_embeddings,
         std::optional<int64_t> original_max_position_embeddings, std::optional<double> rope_theta,
         std::optional<double> partial_rotary_factor, std::optional<int64_t> rotary_dim, const std::string& model_type,
         std::optional<bool> interleaved) {
        return read_rope(rope, RopeModel(head_dim)
                                   .max_position_embeddings(max_position_embeddings)
                                   .original_max_position_embeddings(original_max_position_embeddings)
                                   .rope_theta(rope_theta)
                                   .partial_rotary_factor(partial_rotary_factor)
                                   .rotary_dim(rotary_dim)
                                   .model_type(model_type)
                                   .interleaved(interleaved));
      },
      py::arg("rope"), py::kw_only(), py::arg("head_dim"), py::arg("max_position_embeddings") = py::none(),
      py::arg("original_max_position_embeddings") = py::none(), py::arg("rope_theta") = py::none(),
      py::arg("partial_rotary_factor") = py::none(), py::arg("rotary_dim") = py::none(), py::arg("model_type") = "",
      py::arg("interleaved") = py::none());
}
