#pragma once

/// One function for each family, called by module.cpp.

#include <pybind11/pybind11.h>

void bind_scaling(pybind11::module_& m);
void bind_positions(pybind11::module_& m);
void bind_nn(pybind11::module_& m);
void bind_nn_absolute(pybind11::module_& m);
void bind_nn_additive(pybind11::module_& m);
void bind_nn_block(pybind11::module_& m);
void bind_nn_contextual(pybind11::module_& m);
