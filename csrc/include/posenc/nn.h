#pragma once

/// All modules of posenc.
#include <posenc/nn/alibi.h>
#include <posenc/nn/attention.h>
#include <posenc/nn/axial_rotary.h>
#include <posenc/nn/cape.h>
#include <posenc/nn/cope.h>
#include <posenc/nn/decomposed_relative.h>
#include <posenc/nn/disentangled_relative.h>
#include <posenc/nn/fire.h>
#include <posenc/nn/forgetting_bias.h>
#include <posenc/nn/grid_relative_bias.h>
#include <posenc/nn/kerple.h>
#include <posenc/nn/kv_cache.h>
#include <posenc/nn/learned_absolute.h>
#include <posenc/nn/multimodal_rotary.h>
#include <posenc/nn/piecewise.h>
#include <posenc/nn/rerope.h>
#include <posenc/nn/rotary.h>
#include <posenc/nn/sandwich.h>
#include <posenc/nn/self_extend.h>
#include <posenc/nn/shaw_relative.h>
#include <posenc/nn/sinusoidal.h>
#include <posenc/nn/t5_relative_bias.h>
#include <posenc/nn/transformer_xl.h>
#include <posenc/nn/xpos.h>
