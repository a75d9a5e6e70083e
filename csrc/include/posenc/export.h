#pragma once

/// Marks what libposenc exports; everything else in it is hidden.
#if defined(posenc_EXPORTS)
#define POSENC_API __attribute__((visibility("default")))
#else
#define POSENC_API
#endif
