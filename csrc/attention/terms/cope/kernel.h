#pragma once

/// CoPE, for kernel files only.

#include "attention/terms/cope/decode.h"
#include "attention/terms/cope/tile.h"
