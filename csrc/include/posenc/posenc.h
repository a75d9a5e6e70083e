#pragma once

/// Everything a C++ user of posenc needs.
#include <posenc/bias.h>
#include <posenc/nn.h>
#include <posenc/ops.h>
#include <posenc/positions.h>
#include <posenc/scaling.h>
#include <posenc/sdpa.h>
#include <posenc/version.h>
