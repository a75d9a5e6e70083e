#pragma once

/// All modules of posenc.
#include <posenc/nn/axial_rotary.h>
#include <posenc/nn/multimodal_rotary.h>
#include <posenc/nn/rotary.h>
#include <posenc/nn/xpos.h>
