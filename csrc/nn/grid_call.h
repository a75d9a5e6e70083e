#pragma once

/// What the score encodings on two axes share.

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

namespace posenc::nn {

/// Raises unless the option `name` is (h, w), both at least 1.
inline void check_grid(const char* module, const char* name, c10::ArrayRef<int64_t> grid) {
  TORCH_CHECK_VALUE(grid.size() == 2 && grid[0] >= 1 && grid[1] >= 1, module, ": expected ", name,
                    " to be (h, w), both at least 1, but got ", grid);
}

}  // namespace posenc::nn
